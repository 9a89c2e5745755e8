"""Scalar functions of the dialect on NumPy scalars: bits, ``fma``, ``fp16``, ``libdevice``."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HALF", "LIBDEVICE", "SCALARS"]


def _width(value: Any) -> int:
    return int(np.asarray(value).dtype.itemsize) * 8


def _bits(value: Any) -> int:
    return int(value) & ((1 << _width(value)) - 1)


def _popc(value: Any) -> Any:
    return np.asarray(value).dtype.type(_bits(value).bit_count())


def _clz(value: Any) -> Any:
    return np.asarray(value).dtype.type(_width(value) - _bits(value).bit_length())


def _ffs(value: Any) -> Any:
    bits = _bits(value)
    return np.uint32((bits & -bits).bit_length())


def _brev(value: Any) -> Any:
    width = _width(value)
    return np.asarray(value).dtype.type(int(f"{_bits(value):0{width}b}"[::-1], 2))


def _fma(a: Any, b: Any, c: Any) -> Any:
    """Multiply and add with one rounding, by exact arithmetic."""
    kind = np.result_type(a, b, c)
    plain = kind.type(a) * kind.type(b) + kind.type(c)
    if kind.kind != "f" or not all(map(math.isfinite, (a, b, c))):
        return plain
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return plain
    return _rounded(exact, kind)


def _rounded(exact: Fraction, kind: Any) -> Any:
    """Round a fraction to the nearest number of a format, ties to even."""
    limits = np.finfo(kind)
    digits = limits.nmant + 1
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, int(limits.minexp)) - digits + 1)
    # round() of a fraction rounds half to even; the product is exact until it overflows.
    value = round(magnitude / step) * step
    largest = Fraction(float(limits.max))
    result = math.inf if value > largest else float(value)
    return kind.type(math.copysign(result, exact))


SCALARS: dict[str, Callable[..., Any]] = {
    "popc": _popc,
    "clz": _clz,
    "ffs": _ffs,
    "brev": _brev,
    "cbrt": lambda value: np.cbrt(value),
    "selp": lambda test, first, second: first if test else second,
    "fma": _fma,
}
"""Name under ``numba.cuda`` -> function."""


def _in_double(function: Callable[..., Any], kind: Any, result: Any = None) -> Callable[..., Any]:
    """Return a function that computes in double precision and rounds once, to a type."""

    def compute(*args: Any) -> Any:
        value = function(*(np.float64(kind(arg)) for arg in args))
        return tuple(map(kind, value)) if isinstance(value, tuple) else (result or kind)(value)

    return compute


_REAL: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in (
        "sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "exp2", "expm1", "log", "log2",
        "log10", "log1p", "sqrt", "cbrt", "floor", "ceil", "trunc", "rint", "fabs", "fmin",
        "fmax", "fmod", "hypot", "copysign", "nextafter",
    )},
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "pow": np.power,
    "erf": lambda x: math.erf(x), "erfc": lambda x: math.erfc(x),
    "tgamma": lambda x: math.gamma(x), "lgamma": lambda x: math.lgamma(x),
    "exp10": lambda x: 10.0**x, "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "rcbrt": lambda x: 1.0 / np.cbrt(x), "nearbyint": np.rint,
    "remainder": lambda x, y: math.remainder(x, y),
    "fdim": lambda x, y: np.maximum(x - y, 0.0),
    "sincos": lambda x: (np.sin(x), np.cos(x)),
    "sinpi": lambda x: np.sin(np.pi * x), "cospi": lambda x: np.cos(np.pi * x),
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}  # fmt: skip

# Rounded from double precision, the last bit of a float32 is exact.
_ROUNDED: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt,
    "rcp": np.reciprocal,
}  # fmt: skip

_HALF_REAL: dict[str, Callable[..., Any]] = {
    **{name: _REAL[name] for name in (
        "sin", "cos", "tanh", "exp", "exp2", "exp10", "log", "log2", "log10", "rsqrt", "floor",
        "ceil", "trunc", "rint",
    )},
    **_ROUNDED, "neg": np.negative, "abs": np.abs, "max": np.fmax, "min": np.fmin,
    "fma": lambda a, b, c: _fma(np.float16(a), np.float16(b), np.float16(c)),
    "tanh_approx": np.tanh,
}  # fmt: skip
_HALF_TESTS: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip

HALF: dict[str, Callable[..., Any]] = {
    **{f"h{name}": _in_double(function, np.float16) for name, function in _HALF_REAL.items()},
    **{
        f"h{name}": _in_double(function, np.float16, bool) for name, function in _HALF_TESTS.items()
    },
}
"""Name under ``numba.cuda.fp16`` -> function."""

LIBDEVICE: dict[str, Callable[..., Any]] = {
    **{f"f{name}_rn": _in_double(function, np.float32) for name, function in _ROUNDED.items()},
    **{f"d{name}_rn": _in_double(function, np.float64) for name, function in _ROUNDED.items()},
    **{name: _in_double(function, np.float64) for name, function in _REAL.items()},
    **{f"{name}f": _in_double(function, np.float32) for name, function in _REAL.items()},
    **{f"fast_{name}f": _in_double(function, np.float32) for name, function in _REAL.items()},
    "fma": _fma, "fmaf": _fma, "fma_rn": _fma, "fmaf_rn": _fma,
    "popc": _popc, "popcll": _popc, "clz": _clz, "clzll": _clz,
    "ffs": _ffs, "ffsll": _ffs, "brev": _brev, "brevll": _brev,
    "abs": abs, "llabs": abs, "min": min, "max": max, "umin": min, "umax": max,
    "llmin": min, "llmax": max, "ullmin": min, "ullmax": max,
}  # fmt: skip
"""Name under ``numba.cuda.libdevice`` -> function."""
