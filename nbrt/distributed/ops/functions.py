"""NumPy's protocols for distributed tensors: rules of ufuncs, and a table of functions."""

from __future__ import annotations

import functools
import inspect
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.distributed.ops import joining, matmul, shapes, statistics
from nbrt.distributed.ops.elementwise import elementwise, elementwise_all, store
from nbrt.distributed.ops.extrema import arg_extreme
from nbrt.distributed.ops.indexing import setitem
from nbrt.distributed.ops.operands import checked_call, is_dtensor, map_local, redistribute_to
from nbrt.distributed.ops.propagation import replicate_dims
from nbrt.distributed.ops.reductions import checked_axes, reduce_by
from nbrt.errors import PlacementError
from nbrt.runtime.creation import empty, full

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.distributed.sharded_array import ShardedT
    from nbrt.distributed.spec import DTensorSpec
    from nbrt.typing import DTypeLike

__all__ = [
    "array_function",
    "array_ufunc",
    "clip",
    "logical_reduction",
    "order_reduction",
    "reduction",
]


def array_ufunc(
    ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run the call or ``reduce`` of a ufunc that NumPy dispatches."""
    if any(map(_has_other_protocol, inputs)):
        return NotImplemented
    out = kwargs.get("out")
    if isinstance(out, tuple) and len(out) == 1:
        kwargs["out"] = out[0]
    if ufunc is np.matmul and method == "__call__":
        return matmul.matmul(*inputs, **kwargs)
    if ufunc.signature is None and method == "__call__":
        results = elementwise_all(ufunc, inputs, **kwargs)
        return results if ufunc.nout > 1 else results[0]
    if ufunc.signature is None and method == "reduce":
        return reduce_by(ufunc, *inputs, **kwargs)
    called = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    raise PlacementError(
        f"expected an element-wise operation or a reduction, got np.{called}, which has no rule "
        f"for distributed tensors; use it on full_tensor() or to_local()"
    )


def _has_other_protocol(value: Any) -> bool:
    """Return whether NumPy should try the protocol of another library's type."""
    if is_dtensor(value) or hasattr(value, "shape"):
        return False
    return hasattr(value, "__array_ufunc__") and not isinstance(value, np.generic)


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

    return _documented(reduce, ufunc)


def order_reduction(ufunc: np.ufunc) -> Callable[..., Any]:
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

    return _documented(reduce, ufunc)


def logical_reduction(ufunc: np.ufunc) -> Callable[..., Any]:
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

    return _documented(reduce, ufunc)


def _documented(reduce: Callable[..., Any], ufunc: np.ufunc) -> Callable[..., Any]:
    reduce.__doc__ = f"Return ``np.{ufunc.__name__}.reduce`` along axes, all by default."
    return reduce


def _same_shape(function: Callable[..., Any], default: int | None) -> Callable[..., Any]:
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


def full_like(tensor: ShardedT, fill_value: Any, dtype: DTypeLike | None = None) -> ShardedT:
    """Return a tensor of one value with the shape and the splits of another; none is partial."""
    spec = _spec_like(tensor, dtype)
    local = full(spec.local_shape, fill_value, spec.dtype, device=spec.mesh.device)
    return type(tensor)(local, spec)


def zeros_like(tensor: ShardedT, dtype: DTypeLike | None = None) -> ShardedT:
    """Return a tensor of zeros; see `full_like`."""
    return full_like(tensor, 0, dtype)


def ones_like(tensor: ShardedT, dtype: DTypeLike | None = None) -> ShardedT:
    """Return a tensor of ones; see `full_like`."""
    return full_like(tensor, 1, dtype)


def empty_like(tensor: ShardedT, dtype: DTypeLike | None = None) -> ShardedT:
    """Return a tensor of arbitrary values; see `full_like`."""
    spec = _spec_like(tensor, dtype)
    return type(tensor)(empty(spec.local_shape, spec.dtype, device=spec.mesh.device), spec)


def _spec_like(tensor: ShardedT, dtype: DTypeLike | None) -> DTensorSpec:
    placements = replicate_dims(tensor.placements, partial=True)
    changes = {} if dtype is None else {"dtype": dtype}
    return tensor._spec.replaced(placements=placements, **changes)


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
    np.all: logical_reduction(np.logical_and),
    np.allclose: _allclose,
    np.any: logical_reduction(np.logical_or),
    np.argmax: lambda a, axis=None, out=None, *, keepdims=False: arg_extreme(
        np.maximum, a, axis, out, keepdims
    ),
    np.argmin: lambda a, axis=None, out=None, *, keepdims=False: arg_extreme(
        np.minimum, a, axis, out, keepdims
    ),
    np.argsort: _same_shape(np.argsort, -1),
    np.array_equal: _array_equal,
    np.clip: clip,
    np.concatenate: joining.concatenate,
    np.copy: _unary(np.copy),
    np.copyto: lambda dst, src: setitem(dst, ..., src),
    np.count_nonzero: statistics.count_nonzero,
    np.cumprod: _same_shape(np.cumprod, None),
    np.cumsum: _same_shape(np.cumsum, None),
    np.dot: _dot,
    np.empty_like: empty_like,
    np.expand_dims: shapes.expand_dims,
    np.full_like: full_like,
    np.imag: _unary(np.imag),
    np.isclose: _isclose,
    np.max: order_reduction(np.maximum),
    np.mean: statistics.mean,
    np.min: order_reduction(np.minimum),
    np.moveaxis: shapes.moveaxis,
    np.nan_to_num: lambda x, *, nan=0.0, posinf=None, neginf=None: elementwise(
        np.nan_to_num, x, nan=nan, posinf=posinf, neginf=neginf
    ),
    np.ndim: lambda a: a.ndim,
    np.ones_like: ones_like,
    np.prod: reduction(np.multiply),
    np.ptp: _ptp,
    np.ravel: lambda a: shapes.reshape(a, -1),
    np.real: _unary(np.real),
    np.reshape: lambda a, /, shape: shapes.reshape(a, shape),
    np.result_type: _result_type,
    np.round: lambda a, decimals=0, out=None: elementwise(np.round, a, out=out, decimals=decimals),
    np.shape: lambda a: a.shape,
    np.size: lambda a, axis=None: math.prod(a.shape[each] for each in checked_axes(axis, a.ndim)),
    np.sort: _same_shape(np.sort, -1),
    np.squeeze: shapes.squeeze,
    np.stack: joining.stack,
    np.std: statistics.std,
    np.sum: reduction(np.add),
    np.swapaxes: shapes.swapaxes,
    np.transpose: shapes.transpose,
    np.var: statistics.var,
    np.where: _where,
    np.zeros_like: zeros_like,
}
"""The rule of each function; a rule lacks arguments that are not supported."""

_ADVICE: dict[Any, str] = {
    np.einsum: "write it with np.matmul, np.transpose, products and sums",
    np.inner: "use np.matmul",
    np.nonzero: "how many elements each rank gets depends on values: use np.where(mask, a, b)",
    np.tensordot: "use np.matmul of reshaped tensors",
}
