"""Operations that change only the shape: transpose, squeeze, reshape.

A split moves with its dimension. Only `reshape` may gather: it keeps a split if the dimension is
unchanged, or leads the dimensions that it becomes or merges with and divides evenly.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.checks import checked_ints
from nbrt.distributed.ops.operands import map_local, redistribute_to
from nbrt.distributed.ops.propagation import Placements, on_other_dim, replicate_dims, shard_dim
from nbrt.distributed.ops.reductions import checked_axes, kept_shape
from nbrt.distributed.placements import Shard
from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nbrt.distributed.sharded_array import ShardedT

__all__ = ["expand_dims", "moveaxis", "renumbered", "reshape", "squeeze", "swapaxes", "transpose"]


def renumbered(placements: Placements, dims: Mapping[int, int]) -> Placements:
    """Return placements with other numbers of dimensions."""
    return tuple(
        each if (dim := shard_dim(each)) is None else on_other_dim(each, dims[dim])
        for each in placements
    )


def transpose(tensor: ShardedT, axes: Sequence[int] | None = None) -> ShardedT:
    """Return the tensor with its dimensions in another order, reversed by default."""
    order = tuple(range(tensor.ndim))[::-1] if axes is None else checked_axes(axes, tensor.ndim)
    if len(order) != tensor.ndim:
        raise ArgumentError(f"expected every axis of a {tensor.ndim}-d tensor, got {axes}")
    placements = renumbered(tensor.placements, {old: new for new, old in enumerate(order)})
    shape = tuple(tensor.shape[dim] for dim in order)
    return map_local(tensor, lambda part: part.transpose(order), placements, shape)


def swapaxes(tensor: ShardedT, axis1: int, axis2: int) -> ShardedT:
    """Return the tensor with two dimensions exchanged."""
    (first,), (second,) = checked_axes(axis1, tensor.ndim), checked_axes(axis2, tensor.ndim)
    order = list(range(tensor.ndim))
    order[first], order[second] = second, first
    return transpose(tensor, order)


def moveaxis(
    tensor: ShardedT, source: int | Sequence[int], destination: int | Sequence[int]
) -> ShardedT:
    """Return the tensor with dimensions moved to other places, the rest in order."""
    sources, targets = checked_axes(source, tensor.ndim), checked_axes(destination, tensor.ndim)
    if len(sources) != len(targets):
        raise ArgumentError(
            f"expected as many destinations as sources, got {source}, {destination}"
        )
    order = [dim for dim in range(tensor.ndim) if dim not in sources]
    for target, dim in sorted(zip(targets, sources, strict=True)):
        order.insert(target, dim)
    return transpose(tensor, order)


def expand_dims(tensor: ShardedT, axis: int | Sequence[int]) -> ShardedT:
    """Return the tensor with new dimensions of size 1, `axis` of the result."""
    count = len(axis) if isinstance(axis, (tuple, list)) else 1
    new = checked_axes(axis, tensor.ndim + count)
    kept = [dim for dim in range(tensor.ndim + count) if dim not in new]
    placements = renumbered(tensor.placements, dict(enumerate(kept)))
    sizes = iter(tensor.shape)
    shape = tuple(1 if dim in new else next(sizes) for dim in range(tensor.ndim + count))
    return map_local(tensor, lambda part: np.expand_dims(part, new), placements, shape)


def squeeze(tensor: ShardedT, axis: int | Sequence[int] | None = None) -> ShardedT:
    """Return the tensor without dimensions of size 1; split ones are gathered first."""
    ones = tuple(dim for dim, size in enumerate(tensor.shape) if size == 1)
    gone = ones if axis is None else checked_axes(axis, tensor.ndim)
    if not set(gone) <= set(ones):
        raise ArgumentError(f"expected axes of one element, got {axis} of shape {tensor.shape}")
    source = redistribute_to(tensor, replicate_dims(tensor.placements, gone))
    kept = [dim for dim in range(tensor.ndim) if dim not in gone]
    placements = renumbered(source.placements, {old: new for new, old in enumerate(kept)})
    shape = kept_shape(tensor.shape, gone, keepdims=False)
    return map_local(source, lambda part: part.squeeze(gone), placements, shape)


def reshape(tensor: ShardedT, shape: int | Sequence[int]) -> ShardedT:
    """Return the tensor with another shape of as many elements, in row-major order.

    One size may be -1. The result shares memory if the reshape of the array library does.
    """
    target = _checked_target(tensor, shape)
    kept = _kept_dims(tensor, target)
    cut = {dim for each in tensor.placements if (dim := shard_dim(each)) is not None}
    source = redistribute_to(tensor, replicate_dims(tensor.placements, tuple(cut - set(kept))))
    placements = renumbered(source.placements, kept)
    pieces = [1] * len(target)
    for old, new in kept.items():
        if target[new] != tensor.shape[old]:
            pieces[new] = _pieces(source, old)
    same = {new: old for old, new in kept.items() if target[new] == tensor.shape[old]}

    def reshape_part(part: Any) -> Any:
        sizes = [size // count for size, count in zip(target, pieces, strict=True)]
        for new, old in same.items():
            sizes[new] = part.shape[old]
        return part.reshape(sizes)

    return map_local(source, reshape_part, placements, target)


def _checked_target(tensor: ShardedT, shape: int | Sequence[int]) -> tuple[int, ...]:
    given = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    sizes = checked_ints("sizes", given)
    rest = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and rest and tensor.size % rest == 0:
        sizes = tuple(tensor.size // rest if size == -1 else size for size in sizes)
    if any(size < 0 for size in sizes) or math.prod(sizes) != tensor.size:
        raise ArgumentError(
            f"expected a shape of {tensor.size} elements for a tensor of shape {tensor.shape}, got "
            f"{shape}"
        )
    return sizes


def _kept_dims(tensor: ShardedT, target: tuple[int, ...]) -> dict[int, int]:
    """Return the dimensions that may stay split, with their numbers in the result."""
    kept: dict[int, int] = {}
    for old, new in _groups(tensor.shape, target):
        if len(old) == len(new) == 1:
            kept[old[0]] = new[0]
        elif old and new:
            first, into = old[0], new[0]
            plain = all(isinstance(p, Shard) for p in tensor.placements if shard_dim(p) == first)
            pieces = _pieces(tensor, first)
            if plain and tensor.shape[first] % pieces == target[into] % pieces == 0:
                kept[first] = into
    return kept


def _pieces(tensor: ShardedT, dim: int) -> int:
    return math.prod(
        ranks
        for ranks, each in zip(tensor.device_mesh.shape, tensor.placements, strict=True)
        if shard_dim(each) == dim
    )


def _groups(old: tuple[int, ...], new: tuple[int, ...]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield groups of old and new dimensions of equal products, without dimensions of size 1."""
    if 0 in old:
        return
    olds = [dim for dim, size in enumerate(old) if size != 1]
    news = [dim for dim, size in enumerate(new) if size != 1]
    while olds:
        left, right = [olds.pop(0)], [news.pop(0)]
        while (a := math.prod(old[d] for d in left)) != (b := math.prod(new[d] for d in right)):
            if a < b:
                left.append(olds.pop(0))
            else:
                right.append(news.pop(0))
        yield left, right
