"""`manual_seed`: one seed for all ranks of a mesh, checked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from nbrt.distributed.communicators.checks import plain_int
from nbrt.distributed.mesh import checked_mesh
from nbrt.errors import RankMismatchError
from nbrt.random import defaults
from nbrt.random.state import checked_seed

if TYPE_CHECKING:
    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.random.generator import Generator

__all__ = ["check_equal_states", "manual_seed"]

_MOST_NAMED = 8


def manual_seed(seed: int, mesh: DeviceMesh, check: bool = True) -> Generator:
    """Seed the default generators of this rank, as all ranks of the mesh do.

    Parameters
    ----------
    seed : int
        In [-2**63, 2**64); the same one on all ranks of the mesh.
    mesh : DeviceMesh
        Ranks that are not in it seed themselves and need not agree.
    check : bool
        Compare the seeds of the ranks, which takes one exchange of small objects; False: trust.

    Returns
    -------
    generator : Generator
        The default one of this rank's device.

    Raises
    ------
    RankMismatchError
        If the ranks gave different seeds; on all of them, and no generator has changed.

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
    is_member = checked_mesh(mesh).get_coordinate() is not None
    # First of all: a seed that is none must not keep the other ranks waiting.
    number = plain_int(seed)
    said = repr(seed if number is None else number)
    seeds = mesh.get_group().all_gather_object(said) if check and is_member else [said]
    chosen = checked_seed(seed)
    if any(other != said for other in seeds):
        raise RankMismatchError(
            f"expected one seed on all ranks of {mesh}, got {_odd_ones(mesh, seeds)}; pass the "
            f"same one, or seed ranks of a kind over a mesh of their own, such as mesh['tp']"
        )
    defaults.manual_seed(chosen)
    return defaults.default_generator(mesh.device)


def check_equal_states(generator: Generator, mesh: DeviceMesh) -> None:
    """Raise on all ranks of a mesh if they are about to draw together from different states.

    Takes one exchange of small objects; without it, parts of different tensors make up one.
    """
    if mesh.get_coordinate() is None:
        return
    states = mesh.get_group().all_gather_object(repr(generator.state))
    if len(set(states)) > 1:
        raise RankMismatchError(
            f"expected generators of equal states on all ranks of {mesh}, got "
            f"{_odd_ones(mesh, states)}; call nbrt.distributed.manual_seed(seed, mesh) before"
        )


def _odd_ones(mesh: DeviceMesh, said: list[str]) -> str:
    """Say which ranks have another seed or state than most."""
    usual = Counter(said).most_common(1)[0][0]
    odd = [
        f"{each} on rank {rank}"
        for rank, each in zip(mesh.get_group().ranks, said, strict=True)
        if each != usual
    ]
    more = f" and {len(odd) - _MOST_NAMED} more" if len(odd) > _MOST_NAMED else ""
    return f"{', '.join(odd[:_MOST_NAMED])}{more}, and {usual} on the others"
