"""Logarithms: ``log``, ``log1p``, and the two-word logarithm for powers.

The argument is ``f * 2**e`` with f in [sqrt(1/2), sqrt(2)), and the polynomial in ``t = f - 1`` is
that of `nbrt_kernels.random.transforms`.  The two-word logarithm is 2 atanh(s) of
``s = (f - 1) / (f + 1)``, the leading terms in pairs of words (minimax fit of the rest, relative
error 2**-37 in float32 and 2**-66 in float64).

Measured errors in ulps of the exact result. float32, over all arguments: ``log`` 0.83, ``log1p``
0.84, at most one neighbour away from the correctly rounded result. float64, over 2**20 arguments
of all magnitudes and near 1: ``log`` 0.80, ``log1p`` 0.81.
"""

from __future__ import annotations

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function
from nbrt_kernels.random._floats import (
    FLOAT32,
    FLOAT64,
    DeviceFunction,
    FloatKind,
    from_hex,
    polynomial,
    select,
)
from nbrt_kernels.random.transforms import LN2_32, LN2_64, LOG_32, LOG_64

__all__ = [
    "log1p_f32",
    "log1p_f64",
    "log_f32",
    "log_f64",
    "two_word_log_f32",
    "two_word_log_f64",
]

# 2 atanh(s) = 2 s + s**3 * (A0 + u * R(u)), u = s**2 <= 0.0296; the first of each is A0 rounded,
# the second what is left of 2/3.
_ATANH_32 = from_hex(np.float32, "0x1.555556p-1", "-0x1.555556p-26")
_ATANH_64 = from_hex(np.float64, "0x1.5555555555555p-1", "0x1.5555555555555p-55")


def _make_log_of_step(
    coefficients: tuple[Scalar, ...], ln2: tuple[Scalar, Scalar]
) -> DeviceFunction:
    """Make ``log((1 + t) * 2**e) + rest`` for 1 + t in [sqrt(1/2), sqrt(2)) and a small rest."""
    high, low = ln2
    tail = polynomial(coefficients)

    @device_function
    def log_of_step(t: Scalar, rest: Scalar, e: Scalar) -> Scalar:
        return cuda.fma(e, high, t + cuda.fma(t * t, -tail(t), cuda.fma(e, low, rest)))

    return log_of_step


def _make_log(kind: FloatKind, log_of_step: DeviceFunction) -> DeviceFunction:
    split = kind.split
    zero, one, infinity, nan = (kind.real(c) for c in (0, 1, np.inf, np.nan))

    @device_function
    def log(x: Scalar) -> Scalar:
        """Return log(x): -inf of 0, NaN of a negative number."""
        f, e = split(x)
        inside = (x > zero) & (x < infinity)
        # Infinity and NaN are their own logarithms.
        outside = select(x == zero, -infinity, select(x < zero, nan, x))
        return select(inside, log_of_step(f - one, zero, e), outside)

    return log


def _make_log1p(kind: FloatKind, log_of_step: DeviceFunction) -> DeviceFunction:
    split, power_of_two = kind.split, kind.power_of_two
    zero, one, infinity, nan = (kind.real(c) for c in (0, 1, np.inf, np.nan))
    large, shrink = kind.real(2.0**64), kind.real(2.0**-64)
    shrunk = kind.real(64)

    @device_function
    def log1p(x: Scalar) -> Scalar:
        """Return log(1 + x): -inf of -1, NaN below."""
        # 1 is negligible beside a large x. Scale x down, so that its power of two has an inverse.
        is_large = x > large
        y = select(is_large, x * shrink, x)
        addend = select(is_large, zero, one)
        _, e = split(y + addend)
        scale = power_of_two(np.int32(-e))
        # 1 + t = (y + addend) * scale; t is exact where e is 0, else it has a low word.
        c = cuda.fma(addend, scale, -one)
        t = cuda.fma(y, scale, c)
        low = cuda.fma(y, scale, c - t)
        value = log_of_step(t, cuda.fma(-t, low, low), e + select(is_large, shrunk, zero))
        inside = (x > -one) & (x < infinity)
        outside = select(x == -one, -infinity, select(x < -one, nan, x))
        # Minus zero keeps its sign.
        return select(inside & (x != zero), value, select(inside, x, outside))

    return log1p


def _make_two_word_log(
    kind: FloatKind,
    leading: tuple[Scalar, Scalar],
    coefficients: tuple[Scalar, ...],
    ln2: tuple[Scalar, Scalar],
) -> DeviceFunction:
    split = kind.split
    one, two = kind.real(1), kind.real(2)
    ln2_high, ln2_low = ln2
    a0, a0_low = leading
    tail = polynomial(coefficients)

    @device_function
    def two_word_log(x: Scalar) -> tuple[Scalar, Scalar]:
        """Return a high and a low word of log(x), x positive and finite."""
        f, e = split(x)
        # s = (f - 1) / (f + 1) in two words.
        n, d = f - one, f + one
        s = n / d
        s_low = cuda.fma(-s, f - (d - one), cuda.fma(-s, d, n)) / d
        u = s * s
        u_low = cuda.fma(two * s, s_low, cuda.fma(s, s, -u))
        # a = A0 + u R(u), p = u a.
        r = tail(u)
        a = cuda.fma(u, r, a0)
        a_low = cuda.fma(u, r, a0 - a) + a0_low
        p = u * a
        p_low = cuda.fma(u_low, a, cuda.fma(u, a_low, cuda.fma(u, a, -p)))
        # e log 2 + 2 s, then + s p; each first word is rounded, and the rest collected.
        first = s + s
        sum_ = cuda.fma(e, ln2_high, first)
        rest = cuda.fma(e, ln2_low, first + cuda.fma(e, ln2_high, -sum_))
        high = cuda.fma(s, p, sum_)
        low = cuda.fma(s, p, sum_ - high)
        low = cuda.fma(s_low, p, cuda.fma(s, p_low, low))
        return high, low + cuda.fma(two, s_low, rest)

    return two_word_log


_log_of_step_f32 = _make_log_of_step(LOG_32, LN2_32)
_log_of_step_f64 = _make_log_of_step(LOG_64, LN2_64)
log_f32 = _make_log(FLOAT32, _log_of_step_f32)
log_f64 = _make_log(FLOAT64, _log_of_step_f64)
log1p_f32 = _make_log1p(FLOAT32, _log_of_step_f32)
log1p_f64 = _make_log1p(FLOAT64, _log_of_step_f64)
# Here e * log 2 must be exact but for the low word, so the high one is short.
two_word_log_f32 = _make_two_word_log(
    FLOAT32,
    _ATANH_32,
    from_hex(np.float32, "0x1.999bd4p-2", "0x1.23f1b0p-2", "0x1.ec191cp-3"),
    from_hex(np.float32, "0x1.62e4p-1", "0x1.7f7d1cp-20"),
)
two_word_log_f64 = _make_two_word_log(
    FLOAT64,
    _ATANH_64,
    from_hex(
        np.float64,
        "0x1.9999999999d19p-2", "0x1.2492492438643p-2", "0x1.c71c724d22a1bp-3",
        "0x1.745ce1234299fp-3", "0x1.3b20446da4b2ep-3", "0x1.0f643109b6adep-3",
        "0x1.0f2bc676bd7b3p-3",
    ),
    from_hex(np.float64, "0x1.62e42fefa38p-1", "0x1.ef35793c7673p-45"),
)  # fmt: skip
