"""Von Mises angles and Wald (inverse Gaussian) variates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function
from nbrt_kernels.random._floats import (
    FLOAT32,
    FLOAT64,
    DeviceFunction,
    from_hex,
    polynomial,
)
from nbrt_kernels.random.distributions._precision import SINGLE, Precision
from nbrt_kernels.random.distributions.samplers._words import low_word, words_of
from nbrt_kernels.random.math import select
from nbrt_kernels.random.philox import block_values
from nbrt_kernels.random.transforms import PIO4_32, PIO4_64, neg_log_32

__all__ = ["vonmises", "wald"]

_START, _NEXT = np.uint64(0), np.uint64(1)
# atan(y) = y + y z A(z), z = y**2 <= tan(pi / 8)**2; relative errors 2**-28.5 and 2**-56.9.
_ATAN_32 = from_hex(
    np.float32,
    "-0x1.555554p-2", "0x1.999730p-3", "-0x1.24202ep-3", "0x1.b80f88p-4", "-0x1.08432cp-4",
)  # fmt: skip
_ATAN_64 = from_hex(
    np.float64,
    "-0x1.5555555555555p-2", "0x1.999999999934ap-3", "-0x1.24924924360cbp-3",
    "0x1.c71c7185314cbp-4", "-0x1.745d0b26b83e7p-4", "0x1.3b1262d95579ep-4",
    "-0x1.10fa75382537fp-4", "0x1.dfe61e80903d2p-5", "-0x1.a098bb6ba4941p-5",
    "0x1.41603647c7a7cp-5", "-0x1.3a2b7a07caea9p-6",
)  # fmt: skip


def _half_turns(precision: Precision) -> tuple[Any, Any]:
    """Return a high and a low word of pi."""
    high, low = PIO4_32 if precision is SINGLE else PIO4_64
    return precision.real(4) * high, precision.real(4) * low


def _twice_atan(precision: Precision) -> DeviceFunction:
    """Make ``2 atan(y)`` for any y, infinity too."""
    tail = polynomial(_ATAN_32 if precision is SINGLE else _ATAN_64)
    pi, _ = _half_turns(precision)
    zero, one, two = (precision.real(c) for c in (0, 1, 2))
    quarter, eighth = precision.real(0.5) * pi, precision.real(math.tan(math.pi / 8))

    @device_function
    def twice_atan(y: Scalar) -> Scalar:
        a = select(y < zero, -y, y)
        is_large = a > one
        b = select(is_large, one / a, a)
        # Turned back by an eighth of a turn, the tangent is small.
        turned = b > eighth
        c = select(turned, (b - one) / (b + one), b)
        z = c * c
        angle = cuda.fma(two, cuda.fma(c * z, tail(z), c), select(turned, quarter, zero))
        angle = select(is_large, pi - angle, angle)
        return select(y < zero, -angle, angle)

    return twice_atan


def vonmises(precision: Precision) -> DeviceFunction:
    """Make von Mises angles of (mu, kappa).

    By rejection from a wrapped Cauchy density: D. J. Best, N. I. Fisher, "Efficient simulation of
    the von Mises distribution", Applied Statistics 28(2), 1979.  With ``q = sqrt(1 + 4 kappa**2)``
    its angle is ``2 atan(t tan(alpha))``, alpha uniform and ``t = sqrt(2 (q + 1)) / (q + 1 + 2
    kappa)``, which holds for every kappa from 0; the paper's Y is ``(q + 1) / (1 + 1 / (q + 2
    kappa) + 4 kappa cos(alpha)**2)``.
    """
    turn, log, twice_atan = words_of(precision).turn, precision.log, _twice_atan(precision)
    real, rounder = precision.real, (FLOAT32 if precision is SINGLE else FLOAT64).rounder
    zero, one, two, four, large = (real(c) for c in (0, 1, 2, 4, 2.0**30))
    pi, pi_low = _half_turns(precision)
    whole, whole_low, turns = two * pi, two * pi_low, real(1 / (2 * math.pi))

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, mu: Scalar, kappa: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        twice = kappa + kappa
        q = select(kappa > large, twice, math.sqrt(cuda.fma(twice, twice, one)))
        top, least = q + one, one + one / (q + twice)
        t = math.sqrt(top + top) / (top + twice)
        attempt = _START
        while True:
            first, second = block_values(block, attempt, key0, key1)
            attempt = attempt + _NEXT
            sine, cosine = turn(first)
            y = top / cuda.fma(four * kappa, cosine * cosine, least)
            # An exponential is -log(V).
            e = real(neg_log_32(low_word(second)))
            if not (log(y) + e) - (y - one) < zero:
                break
        angle = mu + twice_atan(cuda.fma(t, sine / cosine, zero))
        n = cuda.fma(angle, turns, rounder) - rounder
        angle = cuda.fma(-n, whole_low, cuda.fma(-n, whole, angle))
        return select(angle > pi, pi, select(angle < -pi, -pi, angle)), False

    return sample


def wald(precision: Precision) -> DeviceFunction:
    """Make inverse Gaussian variates of (mean, scale).

    J. R. Michael, W. R. Schucany, R. W. Haas, "Generating random variates using transformations
    with multiple roots", The American Statistician 30(2), 1976.  The two roots are ``mean * r`` and
    ``mean / r``; r is taken from the larger one, where nothing cancels.
    """
    normal, real, log1p = words_of(precision).normal, precision.real, precision.log1p
    half, one, two = (real(c) for c in (0.5, 1, 2))

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, mean: Scalar, scale: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        first, second = block_values(block, _START, key0, key1)
        x = normal(first, second)
        w = (half * mean) * (x * x) / scale
        larger = one + cuda.fma(math.sqrt(w), math.sqrt(w + two), w)
        smaller = one / larger
        e = real(neg_log_32(low_word(second)))
        # The smaller one has the chance 1 / (1 + r), as an exponential above log(1 + r).
        take = e > log1p(smaller)
        return mean * select(take, smaller, larger), False

    return sample
