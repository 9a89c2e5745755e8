"""`__array_function__` of distributed tensors: a table of the supported functions of NumPy."""

from __future__ import annotations

import functools
import inspect
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.distributed.ops import creation, joining, matmul, shapes, statistics
from nbrt.distributed.ops.elementwise import elementwise, store
from nbrt.distributed.ops.extrema import arg_extreme
from nbrt.distributed.ops.indexing import setitem
from nbrt.distributed.ops.operands import checked_call, is_dtensor, map_local, redistribute_to
from nbrt.distributed.ops.propagation import replicate_dims
from nbrt.distributed.ops.reductions import checked_axes, reduce_by
from nbrt.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.distributed.sharded_array import ShardedT

__all__ = ["array_function", "clip", "reduction", "same_shape"]


def array_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the rule of a NumPy function for distributed tensors.

    Raises
    ------
    PlacementError
        If there is no rule for the function or for these arguments.
    """
    name = f"np.{function.__name__}"
    rule = _RULES.get(function)
    if rule is None:
        raise PlacementError(
            f"expected a function with a rule for distributed tensors, got {name}; "
            f"{_ADVICE.get(function, 'use it on full_tensor() or to_local()')}"
        )
    try:
        _signature(rule).bind(*args, **kwargs)
    except TypeError as error:
        raise PlacementError(
            f"expected the arguments that {name} takes for distributed tensors, got others: "
            f"{error}; use it on full_tensor() or to_local()"
        ) from None
    return rule(*args, **kwargs)


def reduction(ufunc: np.ufunc) -> Callable[..., Any]:
    """Return the reduction of a ufunc, with the parameters of ``np.sum``."""

    def reduce(
        a: ShardedT,
        axis: int | Sequence[int] | None = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> ShardedT:
        return reduce_by(ufunc, a, axis, dtype, out, keepdims, initial, where)

    return reduce


def _order(ufunc: np.ufunc) -> Callable[..., Any]:
    """Return the reduction of a ufunc, with the parameters of ``np.max``: there is no dtype."""

    def reduce(
        a: ShardedT,
        axis: int | Sequence[int] | None = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> ShardedT:
        return reduce_by(ufunc, a, axis, None, out, keepdims, initial, where)

    return reduce


def _logical(ufunc: np.ufunc) -> Callable[..., Any]:
    """Return the reduction of a ufunc, with the parameters of ``np.all``."""

    def reduce(
        a: ShardedT,
        axis: int | Sequence[int] | None = None,
        out: Any = None,
        keepdims: bool = False,
        *,
        where: Any = True,
    ) -> ShardedT:
        return reduce_by(ufunc, a, axis, None, out, keepdims, None, where)

    return reduce


def same_shape(function: Callable[..., Any], default: int | None) -> Callable[..., Any]:
    """Return a function along one axis that keeps the shape; a split axis is gathered."""

    def along(
        a: ShardedT, axis: int | None = default, *, out: Any = None, **kwargs: Any
    ) -> ShardedT:
        tensor = shapes.reshape(a, -1) if axis is None else a
        axes = (0,) if axis is None else checked_axes(axis, tensor.ndim)
        source = redistribute_to(tensor, replicate_dims(tensor.placements, axes, partial=True))
        kind = checked_call(function, np.ones(1, tensor.dtype), **kwargs).dtype
        work = functools.partial(function, axis=axes[0], **kwargs)
        result = map_local(source, work, source.placements, source.shape, dtype=kind)
        return store(out, result, function.__name__)

    return along


def clip(
    a: ShardedT,
    a_min: Any = None,
    a_max: Any = None,
    out: Any = None,
    *,
    min: Any = None,
    max: Any = None,
) -> ShardedT:
    """Return the tensor with elements outside an interval set to its ends, as ``np.clip``."""
    low, high = (min if a_min is None else a_min), (max if a_max is None else a_max)
    if low is None and high is None:
        return store(out, elementwise(np.copy, a), "clip")
    if high is None:
        return elementwise(np.maximum, a, low, out=out)
    if low is None:
        return elementwise(np.minimum, a, high, out=out)
    return elementwise(np.clip, a, low, high, out=out)


def _where(condition: Any, x: Any, y: Any) -> Any:
    return elementwise(np.where, condition, x, y)


def _isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    return elementwise(np.isclose, a, b, rtol, atol, equal_nan=equal_nan)


def _allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> bool:
    return bool(reduce_by(np.logical_and, _isclose(a, b, rtol, atol, equal_nan), None))


def _array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> bool:
    if np.shape(a1) != np.shape(a2):
        return False
    equal = elementwise(np.equal, a1, a2)
    if equal_nan:
        equal = equal | (elementwise(np.isnan, a1) & elementwise(np.isnan, a2))
    return bool(reduce_by(np.logical_and, equal, None))


def _dot(a: Any, b: Any, out: Any = None) -> Any:
    if not np.ndim(a) or not np.ndim(b):
        return elementwise(np.multiply, a, b, out=out)
    if np.ndim(b) > 2:
        raise PlacementError("expected b of at most two dimensions for np.dot; use np.matmul")
    return matmul.matmul(a, b, out)


def _ptp(a: ShardedT, axis: Any = None, out: Any = None, keepdims: bool = False) -> ShardedT:
    high, low = (reduce_by(each, a, axis, None, None, keepdims) for each in _ENDS)
    return store(out, elementwise(np.subtract, high, low), "ptp")


def _result_type(*values: Any) -> np.dtype[Any]:
    return np.result_type(*(each.dtype if is_dtensor(each) else each for each in values))


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a: elementwise(function, a)


_signature = functools.cache(inspect.signature)

_ENDS = (np.maximum, np.minimum)

_RULES: dict[Any, Callable[..., Any]] = {
    np.all: _logical(np.logical_and),
    np.allclose: _allclose,
    np.any: _logical(np.logical_or),
    np.argmax: lambda a, axis=None, out=None, *, keepdims=False: arg_extreme(
        np.maximum, a, axis, out, keepdims
    ),
    np.argmin: lambda a, axis=None, out=None, *, keepdims=False: arg_extreme(
        np.minimum, a, axis, out, keepdims
    ),
    np.argsort: same_shape(np.argsort, -1),
    np.array_equal: _array_equal,
    np.clip: clip,
    np.concatenate: joining.concatenate,
    np.copy: _unary(np.copy),
    np.copyto: lambda dst, src: setitem(dst, ..., src),
    np.count_nonzero: statistics.count_nonzero,
    np.cumprod: same_shape(np.cumprod, None),
    np.cumsum: same_shape(np.cumsum, None),
    np.dot: _dot,
    np.empty_like: creation.empty_like,
    np.expand_dims: shapes.expand_dims,
    np.full_like: creation.full_like,
    np.imag: _unary(np.imag),
    np.isclose: _isclose,
    np.max: _order(np.maximum),
    np.mean: statistics.mean,
    np.min: _order(np.minimum),
    np.moveaxis: shapes.moveaxis,
    np.nan_to_num: lambda x, *, nan=0.0, posinf=None, neginf=None: elementwise(
        np.nan_to_num, x, nan=nan, posinf=posinf, neginf=neginf
    ),
    np.ndim: lambda a: a.ndim,
    np.ones_like: creation.ones_like,
    np.prod: reduction(np.multiply),
    np.ptp: _ptp,
    np.ravel: lambda a: shapes.reshape(a, -1),
    np.real: _unary(np.real),
    np.reshape: lambda a, /, shape: shapes.reshape(a, shape),
    np.result_type: _result_type,
    np.round: lambda a, decimals=0, out=None: elementwise(np.round, a, out=out, decimals=decimals),
    np.shape: lambda a: a.shape,
    np.size: lambda a, axis=None: math.prod(a.shape[each] for each in checked_axes(axis, a.ndim)),
    np.sort: same_shape(np.sort, -1),
    np.squeeze: shapes.squeeze,
    np.stack: joining.stack,
    np.std: statistics.std,
    np.sum: reduction(np.add),
    np.swapaxes: shapes.swapaxes,
    np.transpose: shapes.transpose,
    np.var: statistics.var,
    np.where: _where,
    np.zeros_like: creation.zeros_like,
}
"""The rule of each function; a rule lacks arguments that are not supported."""

_ADVICE: dict[Any, str] = {
    np.einsum: "write it with np.matmul, np.transpose, products and sums",
    np.inner: "use np.matmul",
    np.nonzero: "how many elements each rank gets depends on values: use np.where(mask, a, b)",
    np.tensordot: "use np.matmul of reshaped tensors",
}
