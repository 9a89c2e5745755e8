"""Reductions: every rank reduces its part, and the results are terms of the whole reduction.

Along dimensions of the mesh that split a reduced axis, the result is `Partial`: ranks communicate
only when an operation needs the values. The last bits of sums and products of floating-point
numbers therefore depend on the number of ranks; all other results do not.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt._internal.checks import checked_ints
from nbrt.distributed.ops.elementwise import elementwise, store
from nbrt.distributed.ops.operands import checked_call, is_dtensor, map_local, redistribute_to
from nbrt.distributed.ops.propagation import Placements, on_other_dim, replicate_dims, shard_dim
from nbrt.distributed.placements import Partial, Placement
from nbrt.errors import ArgumentError, ArgumentTypeError, PlacementError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.distributed.communicators.base import ReduceOp
    from nbrt.distributed.sharded_array import ShardedT
    from nbrt.typing import Array, DTypeLike

__all__ = [
    "checked_axes",
    "extreme",
    "kept_shape",
    "reduce_by",
    "reduced_placements",
]


class _Reduction(NamedTuple):
    """A reduction of arrays, and the reduction of the results of ranks."""

    function: Callable[..., Any]
    op: ReduceOp
    gives_bool: bool = False


_REDUCTIONS: dict[np.ufunc, _Reduction] = {
    np.add: _Reduction(np.sum, "sum"),
    np.multiply: _Reduction(np.prod, "prod"),
    np.minimum: _Reduction(np.min, "min"),
    np.maximum: _Reduction(np.max, "max"),
    np.logical_and: _Reduction(np.all, "min", gives_bool=True),
    np.logical_or: _Reduction(np.any, "max", gives_bool=True),
}


def reduce_by(
    ufunc: np.ufunc,
    tensor: ShardedT,
    axis: int | Sequence[int] | None = 0,
    dtype: DTypeLike | None = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> ShardedT:
    """Reduce along axes, as ``ufunc.reduce``; `initial` counts once for all ranks.

    Parameters
    ----------
    ufunc : numpy.ufunc
        One with two operands. Terms of add, multiply, minimum, maximum, logical_and and logical_or
        stay on their ranks; for the others the reduced axes are gathered first.
    tensor : DTensor
        The tensor to reduce.
    axis : int, tuple of int or None
        The axes; None: all.
    dtype, out, keepdims, initial
        As NumPy's.

    Raises
    ------
    PlacementError
        If `where` is given: ``np.where(mask, tensor, value)`` does the same first.
    """
    if where is not True and where is not np._NoValue:
        raise PlacementError(
            f"expected np.{ufunc.__name__}.reduce without where, got a mask; reduce "
            f"np.where(mask, tensor, identity)"
        )
    axes = checked_axes(axis, tensor.ndim)
    known = _REDUCTIONS.get(ufunc)
    if known is None:
        result = _reduce_whole(ufunc, tensor, axes, dtype, keepdims)
    else:
        result = _reduce_parts(known, tensor, axes, dtype, keepdims, initial is None)
    if initial is not None and initial is not np._NoValue:
        first = initial
        if not is_dtensor(initial):
            first = checked_call(np.full, (), initial, result.dtype)  # in its dtype, as in NumPy
        result = elementwise(ufunc, result, first, dtype=result.dtype, casting="same_kind")
    return store(out, result, ufunc.__name__)


def _reduce_whole(
    ufunc: np.ufunc, tensor: ShardedT, axes: tuple[int, ...], dtype: Any, keepdims: bool
) -> ShardedT:
    source = redistribute_to(tensor, replicate_dims(tensor.placements, axes, partial=True))
    kind = checked_call(ufunc.reduce, np.ones(1, tensor.dtype), dtype=dtype).dtype
    reduce_part = functools.partial(ufunc.reduce, axis=axes, dtype=dtype, keepdims=keepdims)
    placements = reduced_placements(source.placements, axes, None, keepdims)
    shape = kept_shape(tensor.shape, axes, keepdims)
    return map_local(source, reduce_part, placements, shape, dtype=kind)


def _reduce_parts(
    reduction: _Reduction,
    tensor: ShardedT,
    axes: tuple[int, ...],
    dtype: Any,
    keepdims: bool,
    needs_elements: bool,
) -> ShardedT:
    function, op, gives_bool = reduction
    options = {} if dtype is None or gives_bool or op in ("min", "max") else {"dtype": dtype}
    kind = checked_call(function, np.ones(1, tensor.dtype), **options).dtype
    shape = kept_shape(tensor.shape, axes, keepdims)
    identity = None if gives_bool or op in ("sum", "prod") else extreme(kind, op)
    if identity is not None:
        empty = any(not tensor.shape[axis] for axis in axes)
        if empty and needs_elements and all(shape):
            raise ArgumentError(
                f"expected elements to take the {op} of, got shape {tensor.shape}: {op} has no "
                f"identity; pass initial"
            )
    source = tensor
    terms = [each for each in tensor.placements if isinstance(each, Partial)]
    if any(each.op != op for each in terms) or (terms and kind != tensor.dtype):
        source = redistribute_to(tensor, replicate_dims(tensor.placements, partial=True))
    placements = reduced_placements(source.placements, axes, op, keepdims)

    def reduce_part(part: Array) -> Array:
        if identity is not None and any(not part.shape[axis] for axis in axes):
            local_shape = kept_shape(part.shape, axes, keepdims)
            return np.full_like(part, identity, dtype=kind, shape=local_shape)
        return function(part, axis=axes, keepdims=keepdims, **options)

    return map_local(source, reduce_part, placements, shape, dtype=kind)


def extreme(dtype: np.dtype[Any], op: ReduceOp) -> Any:
    """Return the identity of a minimum ("min") or maximum ("max") of a dtype.

    Examples
    --------
    >>> extreme(np.dtype("int8"), "min"), extreme(np.dtype("float32"), "max")
    (np.int8(127), np.float32(-inf))
    """
    sign = 1.0 if op == "min" else -1.0
    if dtype.kind == "b":
        return np.bool_(op == "min")
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return dtype.type(info.max if op == "min" else info.min)
    if dtype.kind == "c":
        return dtype.type(complex(sign * np.inf, sign * np.inf))
    if dtype.kind == "f" or (dtype.kind == "V" and dtype.names is None):
        return np.array(sign * np.inf).astype(dtype)[()]  # also of ml_dtypes' types
    raise ArgumentTypeError(f"expected numbers to take the {op} of, got {dtype}")


def checked_axes(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Return the axes of NumPy's `axis`, none negative.

    Examples
    --------
    >>> checked_axes(None, 2), checked_axes(-1, 3), checked_axes((0, -1), 2)
    ((0, 1), (2,), (0, 1))
    """
    if axis is None:
        return tuple(range(ndim))
    given = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    axes = checked_ints("axes", given)
    if any(not -ndim <= one < ndim for one in axes):
        raise ArgumentError(f"expected axes of a {ndim}-d tensor, got {axis}")
    axes = tuple(one % ndim for one in axes)
    if len(set(axes)) != len(axes):
        raise ArgumentError(f"expected every axis once, got {axis}")
    return axes


def kept_shape(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """Return the shape after a reduction."""
    if keepdims:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def reduced_placements(
    placements: Placements, axes: Sequence[int], op: ReduceOp | None, keepdims: bool
) -> Placements:
    """Return the placements of a reduction's result.

    `op` is the reduction over ranks; None: no reduced axis is split.

    Examples
    --------
    >>> from nbrt.distributed import Replicate, Shard
    >>> reduced_placements((Shard(0), Shard(1)), (0,), "sum", False)
    (Partial(op='sum'), Shard(dim=0))
    """

    def after(placement: Placement) -> Placement:
        dim = shard_dim(placement)
        if dim is None:
            return placement
        if dim in axes:
            assert op is not None, "reduced axes are whole"
            return Partial(op)
        return on_other_dim(placement, dim if keepdims else dim - sum(axis < dim for axis in axes))

    return tuple(map(after, placements))
