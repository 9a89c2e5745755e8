"""Reductions, scans and statistics of fake arrays along axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nbrt.backends.fake.numpy_layouts import in_axis_order, iteration_axes, reduced
from nbrt.backends.fake.numpy_operands import lifted, replaced, sample, stored
from nbrt.backends.fake.numpy_rules import RULES, bound, given_options, new_result, rule
from nbrt.backends.fake.numpy_ufuncs import broadcast_shape, check_broadcast

__all__: list[str] = []

_UFUNCS = {
    np.sum: np.add,
    np.prod: np.multiply,
    np.max: np.maximum,
    np.amax: np.maximum,
    np.min: np.minimum,
    np.amin: np.minimum,
}

_ALONG_AXES = (
    np.argmax,
    np.argmin,
    np.mean,
    np.median,
    np.nanargmax,
    np.nanargmin,
    np.nanmax,
    np.nanmean,
    np.nanmedian,
    np.nanmin,
    np.nanprod,
    np.nanstd,
    np.nansum,
    np.nanvar,
    np.ptp,
    np.std,
    np.var,
)
"""Functions of an array `a` that remove the axes `axis`."""

_IN_C_ORDER = (np.argmax, np.argmin, np.nanargmax, np.nanargmin, np.nanmedian)

_QUANTILES = (np.nanpercentile, np.nanquantile, np.percentile, np.quantile)

_SCANS = (np.cumprod, np.cumsum, np.nancumprod, np.nancumsum)


def _by_ufunc(ufunc: np.ufunc) -> Any:
    def apply(
        a: Any, axis: Any = None, *args: Any, out: Any = None, dtype: Any = None, **options: Any
    ) -> Any:
        if args and ufunc in (np.add, np.multiply):
            dtype, *args = args  # type: ignore[assignment]
        if args:
            out, *args = args  # type: ignore[assignment]
        names = ("keepdims", "initial", "where")
        options.update(zip(names, args, strict=False))
        (source, _) = lifted(a, out)
        extra = {} if dtype is None else {"dtype": dtype}
        return ufunc.reduce(source, axis=axis, out=out, **extra, **given_options(**options))

    return apply


@rule(np.all)
def _all(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, **options: Any) -> Any:
    return _logical(np.logical_and, a, axis, out, keepdims, options)


@rule(np.any)
def _any(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, **options: Any) -> Any:
    return _logical(np.logical_or, a, axis, out, keepdims, options)


def _logical(
    ufunc: np.ufunc, a: Any, axis: Any, out: Any, keepdims: Any, options: dict[str, Any]
) -> Any:
    (source, _) = lifted(a, out)
    known = given_options(keepdims=keepdims, **options)
    return ufunc.reduce(source, axis=axis, out=out, **known)


def _along_axes(function: Any) -> Any:
    def apply(*args: Any, **kwargs: Any) -> Any:
        call = bound(function, args, kwargs)
        given = given_options(**call.arguments)
        out = given.pop("out", None)
        (source, _) = lifted(given.pop("a"), out)
        where = given.get("where", True)
        if np.ndim(where):
            check_broadcast(where.shape, source.shape)
        # The degrees of freedom do not change the dtype, and the sample has too few elements.
        options = {
            name: value for name, value in given.items() if name not in ("ddof", "correction")
        }
        result = function(sample(source), **replaced(options, sample))
        axis = given.get("axis") if source.ndim else None
        shape, axes = reduced(source, axis, given.get("keepdims", False))
        if out is not None:
            casting = "unsafe" if function in (np.std, np.var, np.mean) else "same_kind"
            return new_result(function, source, shape, result.dtype, out, casting)
        axes = None if function in _IN_C_ORDER else axes
        return in_axis_order(source.memory, shape, result.dtype, axes)

    return apply


def _quantile(function: Any) -> Any:
    def apply(*args: Any, **kwargs: Any) -> Any:
        call = bound(function, args, kwargs)
        given = given_options(**call.arguments)
        out = given.pop("out", None)
        wanted = given.pop("q")
        (source, q, _) = lifted(given.pop("a"), wanted, out)
        # The dtype of the result follows from q, but not where q is a number of Python.
        stand_in = wanted if type(wanted) in (int, float) else np.zeros(sample(q).shape, q.dtype)
        result = function(sample(source), stand_in, **replaced(given, sample))
        shape, _ = reduced(source, given.get("axis"), given.get("keepdims", False))
        return new_result(function, source, (*q.shape, *shape), result.dtype, out)

    return apply


def _scan(function: Any) -> Any:
    def apply(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        (source, _) = lifted(a, out)
        result = function(sample(source), axis=axis, dtype=dtype)
        if source.ndim == 0 or (axis is None and source.ndim != 1):
            return new_result(function, source, (source.size,), result.dtype, out)
        if out is not None:
            # NumPy computes in the dtype of `out`.
            return stored(
                out, source.shape, result.dtype, "unsafe", function.__name__, source.memory
            )
        axes = iteration_axes([source], source.ndim)
        return in_axis_order(source.memory, source.shape, result.dtype, axes)

    return apply


RULES.update({function: _by_ufunc(ufunc) for function, ufunc in _UFUNCS.items()})
RULES.update({function: _along_axes(function) for function in _ALONG_AXES})
RULES.update({function: _quantile(function) for function in _QUANTILES})
RULES.update({function: _scan(function) for function in _SCANS})


def _cumulative(function: Any) -> Any:
    def apply(
        x: Any,
        /,
        *,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        include_initial: bool = False,
    ) -> Any:
        (source, _) = lifted(x, out)
        options = {"axis": axis, "dtype": dtype, "include_initial": include_initial}
        result = function(sample(source), **options)
        at = 0 if axis is None else np.lib.array_utils.normalize_axis_index(axis, source.ndim)
        shape = list(source.shape or (1,))
        shape[at] += bool(include_initial)
        return new_result(function, source, tuple(shape), result.dtype, out)

    return apply


if hasattr(np, "cumulative_sum"):  # NumPy 2.1
    RULES[np.cumulative_sum] = _cumulative(np.cumulative_sum)
    RULES[np.cumulative_prod] = _cumulative(np.cumulative_prod)


@rule(np.count_nonzero)
def _count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    (source,) = lifted(a)
    np.count_nonzero(sample(source), axis)
    shape, axes = reduced(source, axis if source.ndim else None, keepdims)
    return in_axis_order(source.memory, shape, np.intp, axes)


@rule(np.average)
def _average(
    a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: Any = False
) -> Any:
    (source, scale) = lifted(a, weights)
    shape, axes = reduced(source, axis, given_options(keepdims=keepdims).get("keepdims", False))
    if scale is not None and scale.shape != source.shape:
        if axis is None:
            raise TypeError("Axis must be specified when shapes of a and weights differ.")
        along = np.lib.array_utils.normalize_axis_tuple(axis, source.ndim)
        if scale.shape != tuple(source.shape[at] for at in along):
            raise ValueError(
                "Shape of weights must be consistent with shape of a along specified axis."
            )
    kind = np.average(sample(source), axis, None if scale is None else sample(scale)).dtype
    result = in_axis_order(source.memory, shape, kind, axes)
    return (result, new_result(np.average, source, shape, kind)) if returned else result


@rule(np.trace)
def _trace(
    a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None
) -> Any:
    (source, _) = lifted(a, out)
    return np.add.reduce(np.diagonal(source, offset, axis1, axis2), axis=-1, dtype=dtype, out=out)


@rule(np.linalg.trace)
def _matrix_trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    (source,) = lifted(x)
    return np.add.reduce(np.linalg.diagonal(source, offset=offset), axis=-1, dtype=dtype)


@rule(np.trapezoid)
def _trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: Any = -1) -> Any:
    (source, places) = lifted(y, x)
    at = np.lib.array_utils.normalize_axis_index(axis, source.ndim)
    shape = (*source.shape[:at], *source.shape[at + 1 :])
    stand_in: Any = None
    if places is not None:
        wanted = source.shape[at : at + 1] if places.ndim == 1 else source.shape
        broadcast_shape([places.shape, wanted])
        stand_in = sample(places, 2)
    kind = np.trapezoid(sample(source, 2), stand_in, sample(dx), axis).dtype
    return new_result(np.trapezoid, source, shape, kind)


@rule(np.apply_over_axes)
def _apply_over_axes(func: Any, a: Any, axes: Any) -> Any:
    (result,) = lifted(a)
    for axis in np.atleast_1d(np.asarray(axes)).tolist():
        reduced = func(result, axis + result.ndim if axis < 0 else axis)
        if reduced.ndim != result.ndim:
            reduced = np.expand_dims(reduced, axis)
            if reduced.ndim != result.ndim:
                raise ValueError("function is not returning an array of the correct shape")
        result = reduced
    return result


@rule(np.apply_along_axis)
def _apply_along_axis(func1d: Any, axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    (source,) = lifted(arr)
    at = np.lib.array_utils.normalize_axis_index(axis, source.ndim)
    rest = [size for place, size in enumerate(source.shape) if place != at]
    if not math.prod(rest):
        raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
    line = np.moveaxis(source, at, -1)[(0,) * (source.ndim - 1)]
    (each,) = lifted_like(source, func1d(line, *args, **kwargs))
    result = new_result(np.apply_along_axis, source, (*rest, *each.shape), each.dtype)
    axes = list(range(result.ndim))
    order = (*axes[:at], *axes[len(rest) :], *axes[at : len(rest)])
    return result.as_owner(result.layout.transpose(order))


def lifted_like(known: Any, value: Any) -> list[Any]:
    """Return a value as a fake array of the memory of another."""
    return lifted(known, value)[1:]
