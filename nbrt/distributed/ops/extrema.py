"""`argmax` and `argmin`: a minimum over the ranks' global indices of the extreme."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.distributed.ops.elementwise import store
from nbrt.distributed.ops.operands import map_local, redistribute_to
from nbrt.distributed.ops.propagation import replicate_dims, shard_dim
from nbrt.distributed.ops.reductions import (
    checked_axes,
    kept_shape,
    reduce_by,
    reduced_placements,
)
from nbrt.errors import ArgumentError
from nbrt.index_sets import indices
from nbrt.runtime.array import asarray

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.distributed.sharded_array import ShardedT
    from nbrt.typing import Array, HostArray

__all__ = ["arg_extreme", "held_indices"]

_NOWHERE = np.iinfo(np.int64).max


def arg_extreme(
    ufunc: np.ufunc,
    tensor: ShardedT,
    axis: int | None = None,
    out: Any = None,
    keepdims: bool = False,
) -> ShardedT:
    """Return the index of the first maximum or minimum along an axis, as NumPy does.

    An ``all_reduce`` over the dimensions of the mesh that split the axis computes the extreme. The
    result is the smallest index of the ranks that hold it, in int64.
    """
    name, find = ("argmax", np.argmax) if ufunc is np.maximum else ("argmin", np.argmin)
    axes = checked_axes(axis, tensor.ndim)
    if axis is not None and len(axes) != 1:
        raise ArgumentError(f"expected one axis or None for {name}, got {axis}")
    if any(not tensor.shape[each] for each in axes):
        raise ArgumentError(f"expected elements for {name}, got shape {tensor.shape}")
    source = redistribute_to(tensor, replicate_dims(tensor.placements, partial=True))
    best = reduce_by(ufunc, source, axes, None, None, True)
    best = redistribute_to(best, replicate_dims(best.placements, partial=True))
    shape = kept_shape(tensor.shape, axes, keepdims)
    placements = reduced_placements(source.placements, axes, "min", keepdims)

    def offer(part: Array) -> Array:
        local_shape = kept_shape(part.shape, axes, keepdims)
        if any(not part.shape[each] for each in axes):
            return np.full_like(part, _NOWHERE, dtype=np.int64, shape=local_shape)
        return _offered(find, source, axis, part, best._local).reshape(local_shape)

    return store(out, map_local(source, offer, placements, shape, dtype=np.int64), name)


def _offered(
    find: Callable[..., Any], source: ShardedT, axis: int | None, part: Array, value: Array
) -> Array:
    """Return the global index of this rank's first extreme, if it is the global extreme."""
    place = find(part, axis=axis, keepdims=True)
    if axis is None:
        flat = place.reshape(-1)
        own = part.reshape(-1)[flat].reshape(value.shape)
        index = _flat_index(source, flat, part.shape).reshape(value.shape)
    else:
        own = np.take_along_axis(part, place, axis)
        index = _index(source, axis % source.ndim, place)
    is_best = (own == value) | ((own != own) & (value != value))  # NaN is every extreme
    return np.where(is_best, index, np.full_like(index, _NOWHERE))


def _flat_index(source: ShardedT, flat: Array, local_shape: tuple[int, ...]) -> Array:
    """Return global row-major indices of row-major positions of a part."""
    index, stride = np.zeros_like(flat), 1
    for dim in reversed(range(source.ndim)):
        flat, at = divmod(flat, local_shape[dim])
        index = index + stride * _index(source, dim, at)
        stride *= source.shape[dim]
    return index


def _index(source: ShardedT, dim: int, positions: Array) -> Array:
    """Return global indices of positions of a part along a dimension."""
    if not any(shard_dim(each) == dim for each in source.placements):
        return positions
    return asarray(held_indices(source, dim), device=source.device_mesh.device, copy=None)[
        positions
    ]


def held_indices(tensor: ShardedT, dim: int) -> HostArray:
    """Return the indices along a dimension that this rank holds, in its order, as int64."""
    runs = tensor._spec.local_runs
    assert runs is not None, "the rank is in the mesh"
    return indices(runs[dim])
