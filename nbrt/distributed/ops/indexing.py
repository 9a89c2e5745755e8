"""``x[index]`` and ``x[index] = value`` with ints, slices, None and ``...``.

Reading keeps the cut of a dimension that is taken whole, and gathers other dimensions that are
indexed first. Writing gathers nothing: each rank writes to its elements of the index.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.distributed.ops.extrema import held_indices
from nbrt.distributed.ops.operands import (
    checked_call,
    has_dims,
    is_dtensor,
    local_call,
    map_local,
    redistribute_to,
    sorted_operands,
)
from nbrt.distributed.ops.propagation import Placements, on_other_dim, replicate_dims, shard_dim
from nbrt.distributed.ops.shapes import renumbered
from nbrt.distributed.placements import Placement, Replicate
from nbrt.errors import ArgumentError, ArgumentTypeError, PlacementError
from nbrt.index_sets import as_slice, open_mesh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.distributed.sharded_array import ShardedT
    from nbrt.typing import Array, HostArray

__all__ = ["getitem", "setitem"]


class _DimIndex(NamedTuple):
    """The indices along a dimension of the tensor that an index takes."""

    dim: int
    indices: range
    is_whole: bool
    is_dropped: bool

    @property
    def as_slice(self) -> slice:
        start, stop, step = self.indices.start, self.indices.stop, self.indices.step
        if not self.indices:
            return slice(0, 0)
        return slice(start, stop if stop >= 0 else None, step)


def getitem(tensor: ShardedT, index: Any) -> ShardedT:
    """Return part of a tensor, which shares memory if nothing is gathered.

    Raises
    ------
    PlacementError
        If the index has a mask or an array of indices.
    """
    items = _parsed(index, tensor.shape)
    taken = [item for item in items if item is not None]
    source = redistribute_to(
        tensor, replicate_dims(tensor.placements, [item.dim for item in taken if not item.is_whole])
    )
    key = tuple(
        None if item is None else item.indices[0] if item.is_dropped else item.as_slice
        if not item.is_whole else slice(None)
        for item in items
    )  # fmt: skip
    placements = renumbered(source.placements, _numbers(items))
    return map_local(source, lambda part: part[key], placements, _shape(items))


def setitem(tensor: ShardedT, index: Any, value: Any) -> None:
    """Set part of a tensor, in place, on the ranks that hold it.

    Parameters
    ----------
    tensor : DTensor
        The tensor; none of its elements are communicated.
    index
        Ints, slices, None and ``...``.
    value : scalar or DTensor
        Redistributed to where it is written: to the cut of the dimensions that are set whole, else
        replicated.

    Raises
    ------
    PlacementError
        If the tensor is partial and `value` is not partial alike: which of the terms to change is
        undefined.
    """
    items = _parsed(index, tensor.shape)
    shape = _shape(items)
    sorted_operands([tensor, value], "an assignment")
    needed = _needed(tensor, items, shape, value)
    part: Any = value
    if is_dtensor(value):
        part = redistribute_to(value, needed)._local
    elif isinstance(value, np.ndarray):
        part = value[()]
    if tensor.device_mesh.get_coordinate() is not None:
        local_call(tensor, _write, tensor, items, part, len(shape))


def _needed(
    tensor: ShardedT, items: Sequence[_DimIndex | None], shape: tuple[int, ...], value: Any
) -> Placements:
    """Return the placements that a value needs for an assignment."""
    terms = [each for each in tensor.placements if each.is_partial()]
    if not is_dtensor(value):
        if terms:
            raise _partial_error(tensor)
        return ()
    try:
        fits = np.broadcast_shapes(value.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ArgumentError(
            f"expected a value that broadcasts to shape {shape} to assign, got shape {value.shape}"
        )
    numbers = _numbers(items)
    whole = {item.dim for item in items if item is not None and item.is_whole}

    def need(mesh_dim: int, placement: Placement) -> Placement:
        if placement.is_partial():
            if value.placements[mesh_dim] != placement:
                raise _partial_error(tensor)
            return placement
        dim = shard_dim(placement)
        if dim is None or dim not in whole:
            return Replicate()
        own = numbers[dim] + value.ndim - len(shape)
        follows = own >= 0 and value.shape[own] == shape[numbers[dim]]
        return on_other_dim(placement, own) if follows else Replicate()

    return tuple(need(*each) for each in enumerate(tensor.placements))


def _partial_error(tensor: ShardedT) -> PlacementError:
    places = ", ".join(map(str, tensor.placements))
    return PlacementError(
        f"expected a tensor without partial terms to assign to, got placements [{places}]; "
        f"redistribute it to Replicate() or Shard(dim) first"
    )


def _write(tensor: ShardedT, items: Sequence[_DimIndex | None], value: Any, ndim: int) -> None:
    """Write a value, or this rank's part of it, to this rank's part of a tensor."""
    values = value
    if has_dims(value):
        values = value[(None,) * (ndim - value.ndim)]
        values = values[tuple(
            0 if item is None else None if item.is_dropped else slice(None) for item in items
        )]  # fmt: skip
    cut = {shard_dim(each) for each in tensor.placements}
    into: list[slice | HostArray] = []
    for item in items:
        if item is None:
            continue
        if item.is_whole or item.dim not in cut:
            into.append(slice(None) if item.is_whole else item.as_slice)
            continue
        here, there = _held_of(held_indices(tensor, item.dim), item.indices)
        into.append(here)
        if has_dims(values) and values.shape[item.dim] != 1:
            values = values[(slice(None),) * item.dim + (there,)]
    part: Array = tensor._local
    if all(isinstance(each, slice) for each in into):
        part[tuple(into)] = values
        return
    part[open_mesh(part.shape, tuple(into))] = values


def _held_of(held: HostArray, wanted: range) -> tuple[slice | HostArray, slice | HostArray]:
    """Return the positions of the common indices, in `held` and in `wanted`."""
    number, beside = np.divmod(held - wanted.start, wanted.step)
    here = np.flatnonzero((beside == 0) & (number >= 0) & (number < len(wanted)))
    return as_slice(here), as_slice(number[here])


def _parsed(index: Any, shape: tuple[int, ...]) -> list[_DimIndex | None]:
    """Return the indices of each dimension, in the order of the result; None: a new dimension."""
    given = list(index) if isinstance(index, tuple) else [index]
    for one in given:
        _check_is_basic(one)
    used = sum(one is not None and one is not Ellipsis for one in given)
    dots = [place for place, one in enumerate(given) if one is Ellipsis]
    if used > len(shape) or len(dots) > 1:
        raise ArgumentError(f"expected an index of a {len(shape)}-d tensor, got {index!r}")
    place = dots[0] if dots else len(given)
    given[place : place + 1] = [slice(None)] * (len(shape) - used)
    dims = iter(enumerate(shape))
    return [None if one is None else _taken(one, *next(dims)) for one in given]


def _taken(one: Any, dim: int, size: int) -> _DimIndex:
    if isinstance(one, slice):
        indices = range(*checked_call(one.indices, size))
        return _DimIndex(dim, indices, indices == range(size), is_dropped=False)
    at = operator.index(one)
    if not -size <= at < size:
        raise ArgumentError(f"expected an index in [{-size}, {size}) of dimension {dim}, got {at}")
    at %= size
    return _DimIndex(dim, range(at, at + 1), is_whole=False, is_dropped=True)


def _check_is_basic(one: Any) -> None:
    if one is None or one is Ellipsis or isinstance(one, slice):
        return
    dtype = getattr(one, "dtype", None)
    if isinstance(one, (bool, np.bool_)) or (dtype is not None and dtype == np.bool_):
        raise PlacementError(
            "expected ints, slices, None or ... as an index, got a mask; how many elements it "
            "takes of each rank depends on values: use np.where(mask, value, tensor) instead"
        )
    if isinstance(one, (list, tuple)) or has_dims(one) or is_dtensor(one):
        raise PlacementError(
            f"expected ints, slices, None or ... as an index, got a {type(one).__name__} of "
            f"indices; use full_tensor()[index]"
        )
    if not hasattr(one, "__index__"):
        raise ArgumentTypeError(f"expected ints, slices, None or ... as an index, got {one!r}")


def _numbers(items: Sequence[_DimIndex | None]) -> dict[int, int]:
    """Return the dimension of the result of each dimension that is not dropped."""
    kept = [item for item in items if item is None or not item.is_dropped]
    return {item.dim: number for number, item in enumerate(kept) if item is not None}


def _shape(items: Sequence[_DimIndex | None]) -> tuple[int, ...]:
    return tuple(
        1 if item is None else len(item.indices)
        for item in items
        if item is None or not item.is_dropped
    )
