"""Sequential search, and transformed points near a mean, for samplers of counts."""

from __future__ import annotations

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function
from nbrt_kernels.random._floats import DeviceFunction, from_hex, polynomial
from nbrt_kernels.random.distributions.samplers._words import open_uniform_f64
from nbrt_kernels.random.math import select

__all__ = ["FAR", "SMALL_MEAN", "nearest", "search", "search_steps", "stirling_tail", "transformed"]

#: Counts of at least this mean are drawn by rejection, others by search.
SMALL_MEAN = np.float64(10)
#: No count differs more from its mean; `nearest` is exact within this bound.
FAR = np.float64(2.0**50)

# Adding it rounds to an integer: the difference of the bits.
_ROUNDER = np.float64(1.5 * 2.0**52)
_ROUNDER_BITS = np.int64(0x4338000000000000)
_NO_COUNT, _NEXT_COUNT = np.int64(0), np.int64(1)
_HALF, _ONE = np.float64(0.5), np.float64(1)
# The probability beyond is less than the last bit of a uniform.
_NEGLIGIBLE = np.float64(2.0**-60)
# Terms of the search without a loop: at a mean of 10, 5 % of the counts are above.
_STEPS = 16
# Stirling's tail times x in 1 / x, interpolated at Chebyshev points.
_tail = polynomial(
    from_hex(
        np.float64,
        "0x1.55555553f2080p-4", "0x1.53a8825ddb39bp-28", "-0x1.6c1dc365f4c02p-9",
        "0x1.e12d813a9c218p-19", "0x1.8eec6131c2ee9p-11", "0x1.7a268dd679a13p-13",
        "-0x1.413a59a51aa53p-10", "0x1.6bd334c70f958p-10", "-0x1.baa10212c3e75p-11",
        "0x1.2b413548dc189p-12", "-0x1.62ee0839af22dp-15",
    )
)  # fmt: skip


@device_function
def stirling_tail(x: Scalar, other: Scalar, weight: Scalar) -> Scalar:
    """Return ``other + weight * (lgamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2)``, x >= 1.

    The error is 4e-12, far below the resolution of any sample, at half the cost of full precision.
    """
    z = _ONE / x
    return cuda.fma(z * weight, _tail(z), other)


@device_function
def nearest(y: Scalar) -> tuple[Scalar, Scalar]:
    """Return the integer next to `y` as float64 and as int64."""
    # Vector units before AVX-512 have no such conversion instruction.
    shifted = np.float64(y + _ROUNDER)
    return shifted - _ROUNDER, shifted.view(np.int64) - _ROUNDER_BITS


@device_function
def transformed(first: Scalar, second: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """Return u in (-1/2, 1/2), ``1/2 - |u|`` and v in (0, 1) of two uint64 values."""
    u = open_uniform_f64(first) - _HALF
    return u, _HALF - select(u < -u, -u, u), open_uniform_f64(second)


def search(ratio: DeviceFunction) -> DeviceFunction:
    """Return the inversion of a distribution by sequential search from 0.

    Parameters
    ----------
    ratio : DeviceFunction
        Takes (k, a, b, c), all float64; returns ``f(k) / f(k - 1)`` for k = 1, 2, ...

    Returns
    -------
    DeviceFunction
        Takes (u, p, a, b, c), p the probability of 0; returns the int64 count of a uniform u.
    """

    @device_function
    def find(u: Scalar, p: Scalar, a: Scalar, b: Scalar, c: Scalar) -> Scalar:
        count, k, total = _NO_COUNT, _ONE, p
        while u > total and p > _NEGLIGIBLE:
            r = ratio(k, a, b, c)
            total = cuda.fma(p, r, total)
            p = p * r
            count, k = count + _NEXT_COUNT, k + _ONE
        return count

    return find


def search_steps(ratio: DeviceFunction) -> DeviceFunction:
    """Return the first steps of `search` without a loop or branch.

    Returns
    -------
    DeviceFunction
        Takes (u, p, a, b, c); returns the count, and whether the search must continue.
    """

    @device_function
    def find(u: Scalar, p: Scalar, a: Scalar, b: Scalar, c: Scalar) -> tuple[Scalar, Scalar]:
        count, total = _NO_COUNT, p
        for k in range(1, _STEPS):
            count = count + select(u > total, _NEXT_COUNT, _NO_COUNT)
            r = ratio(np.float64(k), a, b, c)
            total = cuda.fma(p, r, total)
            p = p * r
        return count, u > total

    return find
