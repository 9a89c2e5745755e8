"""Exponentials: ``exp``, ``expm1``, and ``exp`` of a sum of two words.

``exp(x) = 2**n exp(r)``, the multiple of log(2) taken off in two words; the polynomial is a
minimax fit with a relative error of 2**-31.0 in float32 and 2**-61.5 in float64.

Measured errors in ulps of the exact result. float32, over all arguments (``expm1`` above 2**-24,
below it every 64th): ``exp`` 0.98, ``expm1`` 1.29, at most one neighbour away from the correctly
rounded result. float64, over 2**20 arguments: ``exp`` 0.96, ``expm1`` 1.28.
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

__all__ = [
    "exp_f32",
    "exp_f64",
    "expm1_f32",
    "expm1_f64",
    "two_word_exp_f32",
    "two_word_exp_f64",
]

_LOG2E = float.fromhex("0x1.71547652b82fep+0")
# exp(r) = 1 + r + r**2 * E(r) for |r| <= log(2) / 2.
_EXP_32 = from_hex(
    np.float32,
    "0x1.000000p-1", "0x1.555554p-3", "0x1.5554f0p-5", "0x1.111302p-7", "0x1.6d4378p-10",
    "0x1.9e1586p-13",
)  # fmt: skip
_EXP_64 = from_hex(
    np.float64,
    "0x1.0000000000000p-1", "0x1.5555555555559p-3", "0x1.555555555554dp-5",
    "0x1.111111110f652p-7", "0x1.6c16c16c1ab09p-10", "0x1.a01a01b00565ep-13",
    "0x1.a01a018e09e5ap-16", "0x1.71ddf8091405ap-19", "0x1.27e51345c1e73p-22",
    "0x1.af5f39a19a9f7p-26", "0x1.1f1a251933605p-29",
)  # fmt: skip
# log(2), the high word short enough for exact products with every exponent.
_LN2_32 = from_hex(np.float32, "0x1.62e4p-1", "0x1.7f7d1cp-20")
_LN2_64 = from_hex(np.float64, "0x1.62e42fefa38p-1", "0x1.ef35793c7673p-45")


def _make_reduce(kind: FloatKind, ln2: tuple[Scalar, Scalar]) -> DeviceFunction:
    """Make ``x = n log(2) + r + r_low``, n an int32 and |r| <= log(2) / 2."""
    log2e, rounder, low_bits = kind.real(_LOG2E), kind.rounder, kind.low_bits
    high, low = ln2

    @device_function
    def reduce(x: Scalar) -> tuple[Scalar, Scalar, Scalar]:
        shifted = cuda.fma(x, log2e, rounder)
        k = shifted - rounder
        first = cuda.fma(-k, high, x)
        r = cuda.fma(-k, low, first)
        return low_bits(shifted), r, cuda.fma(-k, low, first - r)

    return reduce


def _make_exp(
    kind: FloatKind, reduce: DeviceFunction, tail: DeviceFunction, lowest: float, highest: float
) -> DeviceFunction:
    power_of_two = kind.power_of_two
    one = kind.real(1)
    low, high = kind.real(lowest), kind.real(highest)

    @device_function
    def exp(x: Scalar) -> Scalar:
        """Return exp(x): infinity beyond the largest number, gradual underflow to 0."""
        # Beyond the bounds, the results are 0 and infinity.
        x = select(x < low, low, x)
        x = select(x > high, high, x)
        n, r, _ = reduce(x)
        half = np.int32(n >> np.int32(1))
        value = one + cuda.fma(r * r, tail(r), r)
        # In two steps, since 2**n may overflow or be subnormal where the result is not.
        return value * power_of_two(half) * power_of_two(np.int32(n - half))

    return exp


def _make_two_word_exp(
    kind: FloatKind, reduce: DeviceFunction, tail: DeviceFunction, lowest: float, highest: float
) -> DeviceFunction:
    power_of_two = kind.power_of_two
    zero, one = kind.real(0), kind.real(1)
    bottom, top = kind.real(lowest), kind.real(highest)

    @device_function
    def two_word_exp(high: Scalar, low: Scalar) -> Scalar:
        """Return exp(high + low), low within an ulp of high; no product, since it is added."""
        x = select(high < bottom, bottom, high)
        x = select(x > top, top, x)
        n, r, r_low = reduce(x)
        half = np.int32(n >> np.int32(1))
        # Where the bounds cut high off, low is not its low word.
        rest = r_low + select((high < bottom) | (high > top), zero, low)
        square, t = r * r, tail(r)
        # exp(r + rest) = exp(r) + exp(r) rest
        rest = cuda.fma(cuda.fma(square, t, r), rest, rest)
        value = one + (r + cuda.fma(square, t, rest))
        return value * power_of_two(half) * power_of_two(np.int32(n - half))

    return two_word_exp


def _make_expm1(
    kind: FloatKind, reduce: DeviceFunction, tail: DeviceFunction, lowest: float, highest: float
) -> DeviceFunction:
    power_of_two = kind.power_of_two
    zero = kind.real(0)
    low, high = kind.real(lowest), kind.real(highest)

    @device_function
    def expm1(x: Scalar) -> Scalar:
        """Return exp(x) - 1, without cancellation near 0."""
        y = select(x < low, low, x)
        y = select(y > high, high, y)
        n, r, r_low = reduce(y)
        q = cuda.fma(r * r, tail(r), cuda.fma(r_low, r, r_low))
        # 2**n (1 + r + q) - 1, over the second factor of 2**n, which may overflow.
        half = np.int32(n >> np.int32(1))
        first, rest = power_of_two(half), np.int32(n - half)
        value = cuda.fma(first, q, cuda.fma(first, r, first - power_of_two(np.int32(-rest))))
        # The sum has lost the sign of minus zero.
        return select(x == zero, x, value * power_of_two(rest))

    return expm1


_reduce_f32 = _make_reduce(FLOAT32, _LN2_32)
_reduce_f64 = _make_reduce(FLOAT64, _LN2_64)
_tail_f32, _tail_f64 = polynomial(_EXP_32), polynomial(_EXP_64)
exp_f32 = _make_exp(FLOAT32, _reduce_f32, _tail_f32, -104.0, 89.0)
exp_f64 = _make_exp(FLOAT64, _reduce_f64, _tail_f64, -746.0, 710.0)
two_word_exp_f32 = _make_two_word_exp(FLOAT32, _reduce_f32, _tail_f32, -104.0, 89.0)
two_word_exp_f64 = _make_two_word_exp(FLOAT64, _reduce_f64, _tail_f64, -746.0, 710.0)
expm1_f32 = _make_expm1(FLOAT32, _reduce_f32, _tail_f32, -18.0, 89.0)
expm1_f64 = _make_expm1(FLOAT64, _reduce_f64, _tail_f64, -38.0, 710.0)
