"""Named streams of Megatron-LM.

Seeds and names follow megatron/core/tensor_parallel/random.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.distributed.mesh import checked_mesh
from nbrt.distributed.random.state_tracker import MODEL_PARALLEL, current_tracker
from nbrt.random import defaults
from nbrt.random.state import checked_seed

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.random.state_tracker import RNGStateTracker
    from nbrt.random.generator import Generator

__all__ = ["fork", "get_rng_tracker", "model_parallel_manual_seed"]

_DATA_PARALLEL = "data-parallel-rng"
_EXPERT_PARALLEL = "expert-parallel-rng"
_BEYOND_DATA = 2718
_BEYOND_DATA_FOR_EXPERTS = 1024
_BETWEEN_EXPERTS = 100


def model_parallel_manual_seed(
    seed: int,
    mesh: DeviceMesh,
    tensor_parallel: str | int | None = "tp",
    *,
    expert_parallel: str | int | None = None,
    expert_tensor_parallel: str | int | None = None,
) -> RNGStateTracker:
    """Seed this rank as Megatron's ``model_parallel_cuda_manual_seed`` does.

    The default generators start from `seed`, on all ranks. In the block of `fork` they follow the
    stream "model-parallel-rng" of seed ``seed + 2718 + t``, where t is the rank's number in its
    tensor parallel group: ranks of that group draw different values, and those that differ in
    data parallel place alone draw the same ones. Previous streams are removed.

    Parameters
    ----------
    seed : int
        The seed, equal on all ranks.
    mesh : DeviceMesh
        Holds this rank.
    tensor_parallel : str, int or None
        The dimension of tensor parallel ranks in the mesh; None: there is none.
    expert_parallel, expert_tensor_parallel : str, int or None
        The dimensions of experts; with one of them there is a stream "expert-parallel-rng", of seed
        ``seed + 1024 + 100 * e + t``.

    Returns
    -------
    tracker : RNGStateTracker
        The running rank's.
    """
    checked_mesh(mesh)
    checked_seed(seed)
    streams = {
        _DATA_PARALLEL: seed,
        MODEL_PARALLEL: seed + _BEYOND_DATA + _place(mesh, tensor_parallel),
    }
    if expert_parallel is not None or expert_tensor_parallel is not None:
        place = _BETWEEN_EXPERTS * _place(mesh, expert_parallel)
        place += _place(mesh, expert_tensor_parallel)
        streams[_EXPERT_PARALLEL] = seed + _BEYOND_DATA_FOR_EXPERTS + place
    for number in streams.values():
        checked_seed(number)
    tracker = current_tracker()
    tracker.reset()
    defaults.manual_seed(seed)
    for name, number in streams.items():
        tracker.add(name, number)
    return tracker


def fork(name: str = MODEL_PARALLEL) -> AbstractContextManager[Generator]:
    """Draw from a named stream inside a block; see `RNGStateTracker.fork`.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> mesh = dist.init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    >>> with nbrt.random.isolated_default_generators():
    ...     _ = dist.model_parallel_manual_seed(42, mesh)
    ...     with dist.fork("model-parallel") as generator:
    ...         generator.initial_seed()
    2760
    >>> dist.get_rng_tracker().reset()
    """
    return current_tracker().fork(name)


def get_rng_tracker() -> RNGStateTracker:
    """Return `current_tracker`, under its name in Megatron."""
    return current_tracker()


def _place(mesh: DeviceMesh, dim: str | int | None) -> int:
    return 0 if dim is None else mesh.get_local_rank(dim)
