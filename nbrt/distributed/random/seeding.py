"""`manual_seed`: sets one seed on all ranks of a mesh, and compares it between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt._internal.checks import as_int
from nbrt.distributed.consistency import check_alike
from nbrt.distributed.mesh import checked_mesh
from nbrt.random import defaults
from nbrt.random.state import checked_seed

if TYPE_CHECKING:
    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.random.generator import Generator

__all__ = ["manual_seed"]

_ADVICE = "pass the same one, or seed groups of ranks over separate meshes, such as mesh['tp']"


def manual_seed(seed: int, mesh: DeviceMesh, check: bool = True) -> Generator:
    """Seed the default generators of this rank, as all ranks of the mesh do.

    Parameters
    ----------
    seed : int
        In [-2**63, 2**64); the same one on all ranks of the mesh.
    mesh : DeviceMesh
        The ranks; ranks off the mesh set their seed without a check.
    check : bool
        Compare the seeds of the ranks, in one exchange of small objects.

    Returns
    -------
    generator : Generator
        The default generator of this rank's device.

    Raises
    ------
    RankMismatchError
        On all ranks, if seeds differ; no generator changes.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> def draw():
    ...     mesh = dist.init_device_mesh("cpu", (2,))
    ...     dist.manual_seed(7, mesh)
    ...     return dist.rand(4, device_mesh=mesh, placements=[dist.Shard(0)]).to_local().size
    >>> dist.run(draw, ranks=2)
    [2, 2]
    """
    is_checked = checked_mesh(mesh).get_coordinate() is not None and check
    # The exchange comes before validation, so an invalid seed does not block the other ranks.
    number = as_int(seed)
    said = repr(seed if number is None else number)
    seeds = mesh.get_group().all_gather_object(said) if is_checked else []
    chosen = checked_seed(seed)
    if is_checked:
        check_alike(seeds, mesh.get_group().ranks, "seed", advice=_ADVICE)
    defaults.manual_seed(chosen)
    return defaults.default_generator(mesh.device)
