"""Inverses of the error function, and its scaled form, which the C library lacks.

Halley's steps on ``erf`` or ``erfc`` refine a first guess. The guess near the middle is
M. Giles, "Approximating the erfinv function" (GPU Computing Gems, 2011), single precision.
"""

from __future__ import annotations

import math
from typing import Any

from numba import njit

__all__ = ["erfcinv", "erfcx", "erfinv", "normcdfinv"]

# A division by zero returns an infinity, as in kernels.
_compiled = njit(error_model="numpy", no_cpython_wrapper=True)

_SLOPE = 2 / math.sqrt(math.pi)
_CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_FAR = 26.0  # above it, the series of erfcx is exact to the last bit


@_compiled
def _guess(y: Any) -> Any:
    """Return a first guess of ``erfcinv(y)`` for y in (0, 1]."""
    w = -math.log(y * (2.0 - y))
    if w >= 5.0:
        tail = math.sqrt(-math.log(y * math.sqrt(math.pi) * math.sqrt(w)))
        return max(tail, 1.0)
    p = 0.0
    for coefficient in _CENTRE:
        p = p * (w - 2.5) + coefficient
    return p * (1.0 - y)


@_compiled
def erfcinv(y: Any) -> Any:
    """Return x with ``erfc(x) == y``, in double."""
    if not 0.0 <= y <= 2.0:
        return math.nan
    if y == 0.0 or y == 2.0:
        return math.inf if y == 0.0 else -math.inf
    if y > 1.0:
        return -_small_erfcinv(2.0 - y)
    return _small_erfcinv(y)


@_compiled
def _small_erfcinv(y: Any) -> Any:
    x = _guess(y)
    for _ in range(3):
        step = (math.erfc(x) - y) / (_SLOPE * math.exp(-x * x))
        x += step / (1.0 - x * step)
    return x


@_compiled
def erfinv(y: Any) -> Any:
    """Return x with ``erf(x) == y``, in double."""
    if not abs(y) < 1.0:
        return math.copysign(math.inf, y) if abs(y) == 1.0 else math.nan
    if abs(y) >= 0.5:
        return math.copysign(_small_erfcinv(1.0 - abs(y)), y)
    x = _guess(1.0 - y) if y >= 0.0 else -_guess(1.0 + y)
    for _ in range(2):
        step = (math.erf(x) - y) / (_SLOPE * math.exp(-x * x))
        x -= step / (1.0 + x * step)
    return x


@_compiled
def normcdfinv(p: Any) -> Any:
    """Return the quantile of the standard normal distribution at probability p, in double."""
    return -math.sqrt(2.0) * erfcinv(2.0 * p)


@_compiled
def erfcx(x: Any) -> Any:
    """Return ``exp(x*x) * erfc(x)``, in double."""
    if x < _FAR:
        return math.exp(x * x) * math.erfc(x)
    z = 1.0 / (2.0 * x * x)
    series = 1.0 - z * (1.0 - 3.0 * z * (1.0 - 5.0 * z * (1.0 - 7.0 * z * (1.0 - 9.0 * z))))
    return series * _SLOPE / (2.0 * x)
