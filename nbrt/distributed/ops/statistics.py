"""Means, variances and counts, computed from sums over the whole tensor."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.distributed.ops.elementwise import astype, elementwise, store
from nbrt.distributed.ops.operands import checked_call, redistribute_to
from nbrt.distributed.ops.propagation import replicate_dims
from nbrt.distributed.ops.reductions import checked_axes, reduce_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.distributed.sharded_array import ShardedT
    from nbrt.typing import DTypeLike

__all__ = ["count_nonzero", "mean", "std", "var"]

_Axis = "int | Sequence[int] | None"


def mean(
    tensor: ShardedT,
    axis: int | Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    keepdims: bool = False,
) -> ShardedT:
    """Return the mean along axes; of integers in float64, of float16 by sums in float32."""
    work, kind = _dtypes(tensor, dtype)
    count = math.prod(tensor.shape[each] for each in checked_axes(axis, tensor.ndim))
    total = reduce_by(np.add, tensor, axis, work, None, keepdims)
    return store(out, _as(_divided(total, count), kind), "mean")


def var(
    tensor: ShardedT,
    axis: int | Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
) -> ShardedT:
    """Return the variance along axes: the mean squared distance from the mean, in two passes."""
    work, kind = _dtypes(tensor, dtype)
    axes = checked_axes(axis, tensor.ndim)
    count = math.prod(tensor.shape[each] for each in axes)
    centre = _divided(reduce_by(np.add, tensor, axes, work, None, True), count)
    centre = redistribute_to(centre, replicate_dims(centre.placements, partial=True))
    distance = elementwise(np.subtract, tensor, centre)
    squares = elementwise(np.multiply, distance, elementwise(np.conjugate, distance))
    if squares.dtype.kind == "c":
        squares = elementwise(np.real, squares)
        kind = np.empty(0, kind).real.dtype
    total = reduce_by(np.add, squares, axes, None, None, keepdims)
    free = max(checked_call(operator.sub, count, ddof), 0)
    return store(out, _as(_divided(total, free), kind), "var")


def std(
    tensor: ShardedT,
    axis: int | Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
) -> ShardedT:
    """Return the square root of the variance along axes."""
    return store(out, elementwise(np.sqrt, var(tensor, axis, dtype, None, ddof, keepdims)), "std")


def count_nonzero(
    tensor: ShardedT, axis: int | Sequence[int] | None = None, *, keepdims: bool = False
) -> ShardedT:
    """Return how many elements along axes are not zero."""
    return reduce_by(np.add, elementwise(np.not_equal, tensor, 0), axis, np.intp, None, keepdims)


def _dtypes(tensor: ShardedT, dtype: DTypeLike | None) -> tuple[Any, np.dtype[Any]]:
    """Return the dtypes of the sum, None for that of the tensor, and of the result, as in NumPy."""
    if dtype is not None:
        kind = checked_call(np.dtype, dtype)
        return kind, kind
    if tensor.dtype.kind in "iub":
        return np.dtype(np.float64), np.dtype(np.float64)
    if tensor.dtype == np.float16:
        return np.dtype(np.float32), tensor.dtype
    return None, tensor.dtype.newbyteorder("=")


def _divided(total: ShardedT, count: float) -> ShardedT:
    """Return sums divided by a count, in the dtype of the sums, so that terms stay terms."""
    return elementwise(np.true_divide, total, total.dtype.type(count))


def _as(tensor: ShardedT, dtype: np.dtype[Any]) -> ShardedT:
    return tensor if tensor.dtype == dtype else astype(tensor, dtype)
