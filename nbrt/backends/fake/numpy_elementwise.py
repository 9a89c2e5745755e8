"""NumPy's elementwise functions that are not universal functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbrt.backends.fake.numpy_layouts import copied_like, in_axis_order, iteration_axes
from nbrt.backends.fake.numpy_operands import batch, empty, lifted, sample
from nbrt.backends.fake.numpy_rules import RULES, elementwise, new_result, rule
from nbrt.backends.fake.numpy_sorting import value_dependent
from nbrt.backends.fake.numpy_ufuncs import broadcast_shape

__all__: list[str] = []

_PARAMETERS: dict[Any, tuple[str, ...]] = {
    np.angle: ("z",),
    np.clip: ("a", "a_min", "a_max", "min", "max"),
    np.fix: ("x",),
    np.i0: ("x",),
    np.isclose: ("a", "b", "rtol", "atol"),
    np.iscomplex: ("x",),
    np.isneginf: ("x",),
    np.isposinf: ("x",),
    np.isreal: ("x",),
    np.nan_to_num: ("x",),
    np.sinc: ("x",),
}
"""Function -> its parameters that broadcast against each other."""

RULES.update({function: elementwise(function, names) for function, names in _PARAMETERS.items()})
RULES[np.select] = elementwise(np.select, ("condlist", "choicelist", "default"), "C")


@rule(np.where)
def _where(condition: Any, /, *choices: Any) -> Any:
    if not choices:
        return np.nonzero(*lifted(condition))
    if len(choices) != 2:
        raise ValueError("either both or neither of x and y should be given")
    mask, *_ = lifted(condition, *choices)
    arrays = [each for each in lifted(condition, *choices) if each.ndim]
    kind = np.where(np.empty(0, np.bool_), *map(empty, choices)).dtype
    shape = broadcast_shape([each.shape for each in arrays])
    return in_axis_order(mask.memory, shape, kind, iteration_axes(arrays, len(shape)))


@rule(np.round, np.around)
def _round(a: Any, decimals: int = 0, out: Any = None) -> Any:
    source, _ = lifted(a, out)
    kind = np.round(batch(source), decimals).dtype
    if out is not None:
        return new_result(np.round, source, source.shape, kind, out)
    order = "A" if decimals and kind.kind in "fc" else "K"
    return copied_like(source, source.memory, kind, order)


@rule(np.unwrap)
def _unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: Any = 2 * np.pi) -> Any:
    (source,) = lifted(p)
    kind = np.unwrap(sample(source), axis=axis, period=sample(period)).dtype
    return copied_like(source, source.memory, kind)


@rule(np.interp)
def _interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    source, places, values = lifted(x, xp, fp)
    if places.ndim != 1 or values.ndim != 1:
        raise ValueError("object too deep for desired array")
    if places.shape != values.shape:
        raise ValueError("fp and xp are not of the same length.")
    kind = np.interp(sample(source), sample(places), sample(values)).dtype
    return new_result(np.interp, source, source.shape, kind)


@rule(np.piecewise)
def _piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    (source,) = lifted(x)
    count = len(condlist) if isinstance(condlist, (list, tuple)) else 1
    if len(funclist) not in (count, count + 1):
        raise ValueError(
            f"with {count} condition(s), either {count} or {count + 1} functions are expected"
        )
    return copied_like(source, source.memory, source.dtype)


@rule(np.packbits)
def _packbits(a: Any, /, axis: Any = None, bitorder: Any = "big") -> Any:
    (source,) = lifted(a)
    np.packbits(sample(source), axis, bitorder)
    return _with_length(np.packbits, source, axis, lambda size: -(-size // 8))


@rule(np.unpackbits)
def _unpackbits(
    a: Any, /, axis: Any = None, count: int | None = None, bitorder: Any = "big"
) -> Any:
    (source,) = lifted(a)
    np.unpackbits(sample(source), axis, count, bitorder)

    def length(size: int) -> int:
        if count is None:
            return 8 * size
        return count if count >= 0 else 8 * size + count

    return _with_length(np.unpackbits, source, axis, length)


def _with_length(function: Any, source: Any, axis: int | None, length: Any) -> Any:
    shape = [source.size] if axis is None else list(source.shape)
    at = 0 if axis is None else np.lib.array_utils.normalize_axis_index(axis, source.ndim)
    shape[at] = length(shape[at])
    return new_result(function, source, tuple(shape), np.uint8)


@rule(np.ravel_multi_index)
def _ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: str = "C") -> Any:
    arrays = lifted(*multi_index)
    if len(arrays) != len(np.atleast_1d(dims)):
        raise ValueError(
            f"parameter multi_index must be a sequence of length {len(np.atleast_1d(dims))}"
        )
    shape = broadcast_shape([each.shape for each in arrays])
    return new_result(np.ravel_multi_index, arrays[0], shape, np.intp)


@rule(np.unravel_index)
def _unravel_index(indices: Any, shape: Any, order: str = "C") -> Any:
    (source,) = lifted(indices)
    if not np.can_cast(source.dtype, np.intp, "same_kind"):
        raise TypeError("only int indices permitted")
    return tuple(
        new_result(np.unravel_index, source, source.shape, np.intp)
        for _ in np.atleast_1d(np.asarray(shape))
    )


# -- polynomials -----------------------------------------------------------------------------------


@rule(np.poly)
def _poly(seq_of_zeros: Any) -> Any:
    (source,) = lifted(seq_of_zeros)
    if source.ndim == 2 and source.shape[0] != source.shape[1]:
        raise ValueError("input must be 1d or non-empty square 2d array.")
    kind = np.poly(np.ones(1, source.dtype)).dtype
    return new_result(np.poly, source, (source.shape[0] + 1,), kind)


@rule(np.polyval)
def _polyval(p: Any, x: Any) -> Any:
    coefficients, source = lifted(p, x)
    kind = np.result_type(coefficients.dtype, source.dtype)
    return copied_like(source, source.memory, kind)


@rule(np.polyadd, np.polysub)
def _polyadd(a1: Any, a2: Any) -> Any:
    first, second = (each.reshape(-1) for each in lifted(a1, a2))
    kind = np.result_type(first.dtype, second.dtype)
    return new_result(np.polyadd, first, (max(first.size, second.size),), kind)


@rule(np.polyder)
def _polyder(p: Any, m: int = 1) -> Any:
    (source,) = lifted(p)
    kind = np.polyder(np.ones(2, source.dtype), m).dtype
    return new_result(np.polyder, source, (max(source.size - m, 0),), kind)


@rule(np.polyint)
def _polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    (source,) = lifted(p)
    kind = np.polyint(np.ones(2, source.dtype), m).dtype
    return new_result(np.polyint, source, (source.size + m,), kind)


@rule(np.polyfit)
def _polyfit(
    x: Any,
    y: Any,
    deg: Any,
    rcond: Any = None,
    full: bool = False,
    w: Any = None,
    cov: bool | str = False,
) -> Any:
    places, values = lifted(x, y)
    if places.ndim != 1:
        raise TypeError("expected 1D vector for x")
    if places.size == 0:
        raise TypeError("expected non-empty vector for x")
    if values.ndim < 1 or values.ndim > 2:
        raise TypeError("expected 1D or 2D array for y")
    if places.shape[0] != values.shape[0]:
        raise TypeError("expected x and y to have same length")
    if full:
        reason = "its values decide the rank"
        return value_dependent(np.polyfit, reason)(x, y, deg, rcond, full, w, cov)
    order = int(deg) + 1
    kind = np.result_type(places.dtype, values.dtype, np.float64)
    shape = (order, *values.shape[1:])
    result = new_result(np.polyfit, places, shape, kind)
    if not cov:
        return result
    extra = (order, order, *values.shape[1:])
    return result, new_result(np.polyfit, places, extra, kind)
