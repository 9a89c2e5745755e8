"""`distribute_tensor`: distributes an array over a mesh."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.distributed.consistency import check_alike
from nbrt.distributed.dtensor import DTensor, on_device_of
from nbrt.distributed.mesh import current_mesh
from nbrt.distributed.redistribution.execute import take
from nbrt.distributed.sharding import local_runs
from nbrt.distributed.spec import DTensorSpec
from nbrt.errors import ArgumentError, ArgumentTypeError, PlacementError
from nbrt.index_sets import intersect
from nbrt.runtime.array import asarray, copy
from nbrt.runtime.creation import empty
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.placements import Placement
    from nbrt.typing import Array, ArrayLike

__all__ = ["distribute_tensor"]


def distribute_tensor(
    array: ArrayLike,
    device_mesh: DeviceMesh | None = None,
    placements: Placement | Sequence[Placement] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> DTensor:
    """Return the values of an array as a tensor over a mesh; each rank has a copy of its part.

    The result never shares memory with `array`, whatever the placements and the number of ranks.

    Parameters
    ----------
    array : array_like
        The whole, of one shape and dtype on every rank.
    device_mesh : DeviceMesh, optional
        The ranks; the mesh of the innermost ``with mesh:`` by default.
    placements : sequence of Placement, optional
        The placement along each dimension of the mesh; replicated by default.
    src_data_rank : int or None
        The rank whose values count, by its number in the mesh in row-major order. It sends them in
        one collective, after a check that all ranks pass the same source. None: every rank takes
        its part of its array without communication; the arrays must be equal.

    Returns
    -------
    tensor : DTensor
        On a rank off the mesh, with an empty part.

    Raises
    ------
    RankMismatchError
        On every rank, if shapes, dtypes, placements or sources differ; it names the rank.
    PlacementError
        If placements have `Partial`, whose terms are undefined here.

    Examples
    --------
    >>> import numpy as np
    >>> import nbrt.distributed as dist
    >>> def part():
    ...     mesh = dist.init_device_mesh("cpu", (2,))
    ...     return dist.distribute_tensor(np.arange(5), mesh, [dist.Shard(0)]).to_local()
    >>> dist.run(part, ranks=2)
    [array([0, 1, 2]), array([3, 4])]
    """
    if isinstance(array, DTensor):
        raise ArgumentTypeError("expected an array, got a DTensor; use its redistribute()")
    mesh = current_mesh() if device_mesh is None else device_mesh
    values = asarray(array, copy=None)
    spec = _checked_spec(mesh, placements, values)
    source = _checked_source(src_data_rank, mesh.size())
    local = empty(spec.local_shape, spec.dtype, device=mesh.device)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return DTensor(local, spec)
    if source is None or mesh.size() == 1:
        return DTensor(_cut(values, spec, coordinate, local), spec)
    return DTensor(_given(values, spec, source, local), spec)


def _checked_spec(
    mesh: DeviceMesh, placements: Placement | Sequence[Placement] | None, values: Array
) -> DTensorSpec:
    spec = DTensorSpec(mesh, placements, values.shape, values.dtype)
    if spec.is_partial:
        raise PlacementError(
            f"expected Shard, StridedShard or Replicate, got {list(spec.placements)}; distribute "
            f"it replicated and redistribute to Partial"
        )
    return spec


def _checked_source(rank: Any, size: int) -> int | None:
    if rank is None:
        return None
    if isinstance(rank, bool) or not hasattr(rank, "__index__") or not 0 <= rank < size:
        raise ArgumentError(
            f"expected src_data_rank as None or a rank of the mesh, in [0, {size}), got {rank!r}"
        )
    return int(rank)


def _given(values: Array, spec: DTensorSpec, source: int, local: Array) -> Array:
    """Return this rank's part of what one rank has, once all agree on what it is."""
    mesh = spec.mesh
    group = mesh.get_group()
    places = [str(each) for each in spec.placements]
    said = group.all_gather_object((values.shape, str(values.dtype), str(places), source))
    ranks = [int(rank) for rank in np.ravel(mesh.mesh)]
    check_alike(said, ranks, "shape", lambda each: each[0])
    check_alike(said, ranks, "dtype", lambda each: each[1])
    check_alike(said, ranks, "placements", lambda each: each[2])
    check_alike(said, ranks, "src_data_rank", lambda each: each[3])
    there = on_device_of(mesh, values) if group.rank == source else local
    if all(each.is_replicate() for each in spec.placements):
        return group.broadcast(there, source)
    return group.scatter(_pieces(there, spec) if group.rank == source else None, local, source)


def _cut(values: Array, spec: DTensorSpec, coordinate: tuple[int, ...], local: Array) -> Array:
    stream = current_stream(spec.mesh.device)
    copy(local, _piece(values, spec, coordinate), stream=stream)
    return local


def _pieces(values: Array, spec: DTensorSpec) -> list[Array]:
    coordinates = itertools.product(*(range(n) for n in spec.mesh.shape))
    return [_piece(values, spec, coordinate) for coordinate in coordinates]


def _piece(values: Array, spec: DTensorSpec, coordinate: tuple[int, ...]) -> Array:
    whole = local_runs(spec.shape, (), (), ())
    selection = intersect(whole, spec.runs_of(coordinate)).first
    return take(values, selection, current_stream(spec.mesh.device))
