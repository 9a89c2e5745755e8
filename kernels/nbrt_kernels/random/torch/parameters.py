"""Check the parameters of torch's distributions and convert them to the types of the kernels."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np

__all__ = ["ITEMSIZE", "converted", "integer_span", "modulus"]

#: Bytes of an element, by dtype name.
ITEMSIZE = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2,
    "uint32": 4, "int32": 4, "float32": 4, "uint64": 8, "int64": 8, "float64": 8,
}  # fmt: skip
# ``random_()`` draws [0, 2**exponent), and of floating types one number more.
_EXPONENT = {
    "bool": 1, "uint8": 8, "int8": 7, "int16": 15, "int32": 31, "int64": 63,
    "bfloat16": 8, "float16": 11, "float32": 24, "float64": 53,
}  # fmt: skip
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_MODULUS = 2**64


def converted(
    distribution: str, dtype: str, parameters: tuple[Any, ...]
) -> tuple[np.floating[Any], np.floating[Any], np.floating[Any]]:
    """Return the three parameters of a distribution's finish, float32 or (of float64) float64.

    Parameters
    ----------
    distribution : str
        One with floating-point parameters.
    dtype : str
        Name of the output's dtype.
    parameters : tuple of float
        (low, high) of "uniform", (mean, std) of "normal" and "log_normal", (scale,), which is 1 /
        lambda, of "exponential", (p,) of "geometric" and "bernoulli", (median, sigma) of "cauchy".

    Raises
    ------
    ValueError
        If a parameter is one that torch refuses.
    """
    real: Any = np.float64 if dtype == "float64" else np.float32
    zero, one = real(0), real(1)
    if distribution == "uniform":
        return _uniform(real, dtype, *parameters)
    if distribution in ("normal", "log_normal"):
        mean, std = parameters
        if not std >= 0 or (distribution == "log_normal" and std == 0):
            _refuse(distribution, "a positive standard deviation", std)
        return real(mean), real(std), zero
    if distribution == "exponential":
        (scale,) = parameters
        if not scale > 0:
            _refuse(distribution, "scale > 0", scale)
        epsilon = np.finfo(real).eps
        return -one / real(1.0 / scale), one - epsilon / 2, -epsilon / 2
    if distribution == "cauchy":
        median, sigma = parameters
        if not sigma > 0:
            _refuse(distribution, "sigma > 0", sigma)
        # In double precision, u is not kept away from 0 and 1.
        return real(median), real(sigma), zero if dtype == "float64" else np.finfo(real).eps
    (p,) = parameters
    if distribution == "bernoulli":
        if not 0 <= p <= 1:
            _refuse(distribution, "p in [0, 1]", p)
        return real(p), one, zero
    if not 0 < p < 1:
        _refuse(distribution, "p in (0, 1)", p)
    # log1p(-p) in double precision; in single, torch takes the logarithm of the rounded 1 - p.
    return (real(math.log1p(-p)) if dtype == "float64" else one - real(p)), zero, zero


def integer_span(dtype: str, low: int, high: int) -> int:
    """Return the number of integers in [low, high), if torch can draw them.

    Raises
    ------
    ValueError
        If the interval is empty, does not fit the dtype, or reaches past int64.
    """
    if dtype in _FLOATS:
        limit = 2 ** _EXPONENT[dtype]
        least, most = -limit, limit + 1
    elif dtype == "bool":
        least, most = 0, 2
    else:
        limits = np.iinfo(dtype)
        least, most = int(limits.min), int(min(limits.max, 2**63 - 1)) + 1
    if not least <= low < high <= most:
        message = (
            f"integers: expected {least} <= low < high <= {most} for {dtype} in the torch layout, "
            f"got low={low!r} and high={high!r}"
        )
        raise ValueError(message)
    return int(high) - int(low)


def modulus(dtype: str) -> int:
    """Return the number of integers from which ``random_()`` draws, by the dtype of the output.

    Raises
    ------
    TypeError
        If torch does not support the dtype.
    """
    exponent = _EXPONENT.get(dtype)
    if exponent is None:
        message = f"random: expected a dtype of {', '.join(_EXPONENT)}, got {dtype}; pass bounds"
        raise TypeError(message)
    return int(2**exponent) + (dtype in _FLOATS)


def _uniform(
    real: Any, dtype: str, low: float, high: float
) -> tuple[np.floating[Any], np.floating[Any], np.floating[Any]]:
    with np.errstate(over="ignore", invalid="ignore"):
        first, last = _rounded(low, dtype, real), _rounded(high, dtype, real)
        span = _rounded(last - first, dtype, real)
    if not (np.isfinite(span) and first <= last):
        _refuse("uniform", f"finite low <= high in {dtype}", (low, high))
    return first, span, last


def _rounded(value: Any, dtype: str, real: Any) -> Any:
    """Return a number rounded to a dtype, as float32 or float64."""
    number = real(value)
    if dtype == "float16":
        return real(np.float16(number))
    if dtype == "bfloat16":
        bits = int(number.view(np.uint32))
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return np.uint32(bits).view(np.float32)
    return number


def _refuse(distribution: str, expected: str, got: object) -> NoReturn:
    message = f"{distribution}: expected {expected}, got {got!r}"
    raise ValueError(message)
