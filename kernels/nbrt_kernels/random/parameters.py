"""Check the parameters of draws, round them and convert them to the types of the kernels.

A parameter is a number, or a contiguous 1-D array with a value for each element, of NumPy or of a
library that implements NumPy's functions. If one is an array, numbers become arrays of its length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "RangeOverflowError",
    "bernoulli_parameters",
    "each_integer_parameters",
    "integer_parameters",
    "no_parameters",
    "normal_parameters",
    "real_parameters",
    "uniform_parameters",
]

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
# Largest distance of a truncation from the mean: beyond, the probability is subnormal.
_FAR = {"float32": 12.0, "float64": 37.0}

_Rule = tuple[str, Callable[[Any], Any] | None]
_FINITE: _Rule = ("finite {}", None)
# Negative zero is refused like negative numbers, as in NumPy.
_SCALE: _Rule = ("finite {} >= 0", lambda value: (value >= 0) & ~np.signbit(value))
_POSITIVE: _Rule = ("finite {} > 0", lambda value: value > 0)
_CHANCE: _Rule = ("{} in (0, 1]", lambda value: (value > 0) & (value <= 1))
_LOC_SCALE = (("loc", _FINITE), ("scale", _SCALE))
_RULES: dict[str, tuple[tuple[str, _Rule], ...]] = {
    "normal": _LOC_SCALE,
    "log_normal": (("mean", _FINITE), ("sigma", _SCALE)),
    "exponential": (("scale", _SCALE),),
    "rayleigh": (("scale", _SCALE),),
    "cauchy": (("median", _FINITE), ("sigma", _SCALE)),
    "laplace": _LOC_SCALE,
    "logistic": _LOC_SCALE,
    "gumbel": _LOC_SCALE,
    "weibull": (("a", _SCALE),),
    "pareto": (("a", _POSITIVE),),
    "power": (("a", _POSITIVE),),
    "triangular": (("left", _FINITE), ("mode", _FINITE), ("right", _FINITE)),
    "truncated_normal": (
        ("loc", _FINITE), ("scale", _POSITIVE), ("low", _FINITE), ("high", _FINITE),
    ),
    "geometric": (("p", _CHANCE),),
}  # fmt: skip


class RangeOverflowError(OverflowError, ValueError):
    """A range, or one of its bounds, is beyond what a dtype holds."""


def no_parameters(parameters: tuple[()], _dtype: str) -> tuple[Any, Any, Any]:
    """Return three zeros for a draw that has no parameters."""
    _require(len(parameters) == 0, "bits", "no parameters", {"parameters": parameters})
    zero = np.uint64(0)
    return zero, zero, zero


@cache
def real_parameters(distribution: str) -> Callable[[tuple[Any, ...], str], tuple[Any, Any, Any]]:
    """Make the function that checks the parameters of a distribution of floats.

    Parameters
    ----------
    distribution : str
        One of those with real parameters, such as "normal".

    Returns
    -------
    callable
        Takes the parameters and the name of a dtype, and returns a, b and c of the kernel, of
        float64 for a dtype of 8 bytes and else of float32; zeros where there are fewer.  Raises
        ValueError for parameters out of range.
    """
    names = tuple(name for name, _ in _RULES[distribution])

    def checked(parameters: tuple[Any, ...], dtype: str) -> tuple[Any, Any, Any]:
        kind = np.dtype(np.float64 if dtype in ("float64", "int64", "uint64") else np.float32)
        given = dict(zip(names, parameters, strict=True))
        values = _typed(parameters, kind)
        for (name, (phrase, holds)), value in zip(_RULES[distribution], values, strict=True):
            fine = np.isfinite(value)
            if holds is not None:
                fine = fine & holds(value)
            _require(fine, distribution, phrase.format(name), given)
        if distribution == "triangular":
            _check_triangle(values, given)
        if distribution == "truncated_normal":
            return _truncated(values, given, kind)
        a, b, c = values + (kind.type(0),) * (3 - len(values))
        return a, b, c

    return checked


def _check_triangle(values: tuple[Any, ...], given: dict[str, Any]) -> None:
    left, mode, right = values
    in_order = (left <= mode) & (mode <= right) & (left < right) & np.isfinite(right - left)
    expected = "left <= mode <= right with left < right and a finite right - left"
    _require(in_order, "triangular", expected, given)


def _truncated(
    values: tuple[Any, ...], given: dict[str, Any], kind: np.dtype[Any]
) -> tuple[Any, Any, Any]:
    """Return loc, scale and both bounds as one complex number."""
    loc, scale, low, high = values
    _require(low < high, "truncated_normal", "low < high", given)
    far = _FAR[kind.name] * scale
    expected = f"a bound within {_FAR[kind.name]} standard deviations of loc in {kind}"
    _require((low < loc + far) & (high > loc - far), "truncated_normal", expected, given)
    complex_type = np.result_type(kind, np.complex64).type
    return loc, scale, low + complex_type(1j) * high


def uniform_parameters(
    low: Any = 0.0, high: Any = 1.0, dtype: npt.DTypeLike = np.float32
) -> tuple[Any, Any, Any]:
    """Return ``(low, span, top)`` of a uniform draw in [low, high).

    Parameters
    ----------
    low, high : float or array
        Bounds, rounded to `dtype` first.  Equal bounds give that value.
    dtype : dtype_like
        float16, bfloat16, float32 or float64.

    Returns
    -------
    low, span, top : scalars or arrays of float64 for that dtype, else of float32
        Lower bound, rounded ``high - low``, largest value of `dtype` that may be returned.

    Raises
    ------
    TypeError
        If `dtype` is none of these.
    RangeOverflowError
        If a bound or the span is not finite.
    ValueError
        If ``high < low``.
    """
    name = _checked(dtype, _FLOATS, "uniform")
    kind = np.dtype(np.float64 if name == "float64" else np.float32)
    first, last = (_rounded(value, name) for value in _typed((low, high), kind))
    with np.errstate(over="ignore", invalid="ignore"):
        span = last - first
    given = {"low": low, "high": high}
    fine = np.isfinite(first) & np.isfinite(last) & np.isfinite(span)
    expected = f"finite low <= high with a finite high - low in {name}"
    _require(fine, "uniform", expected, given, RangeOverflowError)
    _require(span >= 0, "uniform", expected, given)
    return first, span, np.maximum(first, _below(last, name))


def normal_parameters(
    loc: Any = 0.0, scale: Any = 1.0, dtype: npt.DTypeLike = np.float32
) -> tuple[Any, Any]:
    """Return ``(loc, scale)`` of a normal draw, rounded to the dtype of the computation.

    Parameters
    ----------
    loc, scale : float or array
        Mean and standard deviation.
    dtype : dtype_like
        float16, bfloat16, float32 or float64.

    Returns
    -------
    loc, scale : scalars or arrays of float64 for that dtype, else of float32
        The arguments of the kernel.

    Raises
    ------
    TypeError
        If `dtype` is none of these.
    ValueError
        If `scale` is negative, or either is not finite.
    """
    name = _checked(dtype, _FLOATS, "normal")
    mean, deviation, _ = real_parameters("normal")((loc, scale), name)
    return mean, deviation


def bernoulli_parameters(parameters: tuple[Any, ...], _dtype: str) -> tuple[Any, Any, Any]:
    """Return ``(threshold, 0, 0)`` of a Bernoulli draw: a word below it is a success.

    Parameters
    ----------
    parameters : tuple of one float or array
        p in [0, 1].

    Returns
    -------
    tuple of uint64
        p as a multiple of 2**-32, rounded to nearest: 0 and 1 are certain.

    Raises
    ------
    ValueError
        If p is out of range.
    """
    (p,) = _typed(parameters, np.dtype(np.float64))
    _require((p >= 0) & (p <= 1), "bernoulli", "p in [0, 1]", {"p": parameters[0]})
    threshold = np.rint(p * 2.0**32).astype(np.uint64)
    return threshold, np.uint64(0), np.uint64(0)


def integer_parameters(
    low: int, high: int, dtype: npt.DTypeLike = np.int64
) -> tuple[str, tuple[np.uint64, np.uint64, np.uint64]]:
    """Return the distribution name and ``(low, span, threshold)`` of a draw in [low, high).

    Parameters
    ----------
    low, high : int
        Bounds; ``high`` is excluded and may be one more than the largest value of `dtype`.
    dtype : dtype_like
        Any integer dtype of 8 to 64 bits, or bool.

    Returns
    -------
    distribution : str
        "integers", or "integers_wide" for ranges above 2**32, which take two words an element.
    parameters : tuple of uint64
        Lower bound modulo 2**64, span (0 for 2**64), ``2**bits mod span``.

    Raises
    ------
    TypeError
        If `dtype` is not an integer dtype.
    ValueError
        If the interval is empty or does not fit `dtype`.
    """
    name = _checked(dtype, _INTEGERS, "integers")
    least, most = (0, 1) if name == "bool" else (np.iinfo(name).min, np.iinfo(name).max)
    in_range = int(least) <= low < high <= int(most) + 1
    expected = f"{least} <= low < high <= {int(most) + 1} for {name}"
    _require(in_range, "integers", expected, {"low": low, "high": high})
    span = int(high) - int(low)
    wide = span > 2**32
    threshold = (2**64 if wide else 2**32) % span
    numbers = (int(low) % 2**64, span % 2**64, threshold)
    distribution = "integers_wide" if wide else "integers"
    return distribution, (np.uint64(numbers[0]), np.uint64(numbers[1]), np.uint64(numbers[2]))


def each_integer_parameters(low: Any, span: Any, dtype: str) -> tuple[Any, Any, Any]:
    """Return arrays ``(low, span, threshold)`` of a draw with a range for each element.

    Parameters
    ----------
    low, span : arrays of uint64
        Lower bounds modulo 2**64, and numbers of values; 0 stands for 2**64.
    dtype : str
        Of the elements: ranges of those with 8 bytes are drawn from 64 bits, of others from 32.

    Returns
    -------
    low, span, threshold : arrays of uint64
        The arguments, and ``2**bits mod span``.

    Raises
    ------
    ValueError
        If a span does not fit the bits.
    """
    low, span = _typed((low, span), np.dtype(np.uint64))
    one = np.uint64(1)
    if dtype in ("int64", "uint64"):
        # 2**64 - span = ~span + 1; modulo 1 where the span is 2**64.
        return low, span, (~span + one) % np.maximum(span, one)
    most = np.uint64(2**32)
    expected = f"spans in [1, 2**32] for {dtype}"
    _require((span >= one) & (span <= most), "integers", expected, {"span": span})
    return low, span, most % span


def _is_array(value: Any) -> bool:
    return bool(getattr(value, "ndim", 0))


def _typed(values: tuple[Any, ...], kind: np.dtype[Any]) -> tuple[Any, ...]:
    """Return parameters of a dtype: all scalars, or all arrays if one is an array."""
    arrays = [value for value in values if _is_array(value)]
    with np.errstate(over="ignore"):
        if not arrays:
            return tuple(kind.type(value) for value in values)
        lengths = {value.shape for value in arrays}
        if len(lengths) > 1 or arrays[0].ndim != 1:
            shapes = ", ".join(str(value.shape) for value in arrays)
            message = f"expected parameters as 1-D arrays of one length, got shapes {shapes}"
            raise ValueError(message)
        return tuple(
            value.astype(kind, copy=False)
            if _is_array(value)
            else np.full_like(arrays[0], value, dtype=kind)
            for value in values
        )


def _rounded(value: Any, name: str) -> Any:
    """Return a float32, or a float64 of that dtype, rounded to the dtype."""
    if name == "float16":
        with np.errstate(over="ignore"):
            return value.astype(np.float16).astype(np.float32)
    if name == "bfloat16":
        bits = value.view(np.uint32).astype(np.uint64)
        even = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))).astype(
            np.uint32
        )
        return (even & np.uint32(0xFFFF0000)).view(np.float32)
    return value


def _below(value: Any, name: str) -> Any:
    """Return the next value below of a dtype, in the dtype of the computation."""
    kind = value.dtype.type
    if name == "float16":
        value = value.astype(np.float16)
    word = np.dtype(f"uint{8 * value.dtype.itemsize}").type
    step, sign = word(0x10000 if name == "bfloat16" else 1), word(1 << (8 * value.itemsize - 1))
    bits = value.view(word)
    # Floats of one sign are ordered as their bits are; of zeros, the difference is not used.
    with np.errstate(over="ignore"):
        lower = np.where(value > 0, bits - step, np.where(value < 0, bits + step, sign | step))
    return lower.astype(word).view(value.dtype).astype(kind)[()]


def _checked(dtype: npt.DTypeLike, allowed: tuple[str, ...], what: str) -> str:
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name not in allowed:
        message = f"{what}: expected a dtype of {', '.join(allowed)}, got {name}"
        raise TypeError(message)
    return name


def _require(
    holds: Any,
    what: str,
    expected: str,
    given: dict[str, Any],
    error: type[Exception] = ValueError,
) -> None:
    if not bool(np.all(holds)):
        found = " and ".join(_shown(name, value) for name, value in given.items())
        message = f"{what}: expected {expected}, got {found}"
        raise error(message)


def _shown(name: str, value: Any) -> str:
    if _is_array(value):
        return f"{name} in [{value.min()}, {value.max()}]"
    return f"{name}={value!r}"
