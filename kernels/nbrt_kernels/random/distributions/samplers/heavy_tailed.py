"""Counts with long tails: negative binomial, logarithmic series, zeta (Zipf)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function
from nbrt_kernels.random.distributions._precision import DOUBLE
from nbrt_kernels.random.distributions.samplers._words import half_of, open_uniform_f64
from nbrt_kernels.random.distributions.samplers.gammas import gamma_factors
from nbrt_kernels.random.distributions.samplers.poisson import poisson_count
from nbrt_kernels.random.math import exp_f64, expm1_f64, log1p_f64, log_f64, select
from nbrt_kernels.random.philox import block_values

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction

__all__ = ["logseries", "negative_binomial", "zipf"]

_START, _NEXT = np.uint64(0), np.uint64(1)
_FIRST_COUNT, _SECOND_COUNT = np.int64(1), np.int64(2)
_ZERO, _ONE = np.float64(0), np.float64(1)
# Upper bound of means, far out on the tail, so that counts fit int64.
_MAX_MEAN = np.float64(2.0**63 - 2.0**40)
_MOST = np.float64(2.0**63 - 2.0**10)
_LOG_2 = np.float64(math.log(2))
_LOG_MOST = np.float64(63 * math.log(2))
# Above this exponent, the probability of 2 is below 2**-64.
_STEEP = np.float64(64)

_gamma_factors = gamma_factors(DOUBLE)
_halved = half_of(DOUBLE)


def negative_binomial() -> DeviceFunction:
    """Make counts of (n, p): Poisson counts whose mean is a gamma."""

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, n: Scalar, p: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        g, e, attempt, _ = _gamma_factors(block, _START, key0, key1, n)
        mean = cuda.fma(g * exp_f64(-e), (_ONE - p) / p, _ZERO)
        mean = select(mean > _MAX_MEAN, _MAX_MEAN, mean)
        k, _ = poisson_count(block, attempt, key0, key1, mean)
        return k, False

    return sample


def logseries() -> DeviceFunction:
    """Make counts of (p,).

    Algorithm LK of A. W. Kemp, "Efficient generation of logarithmically distributed pseudo-random
    variables", Applied Statistics 30(3), 1981.
    """

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, p: Scalar, _b: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        first, second = block_values(block, _START, key0, key1)
        v = open_uniform_f64(first)
        exponent = log1p_f64(-p) * open_uniform_f64(second)
        q = -expm1_f64(exponent)
        # log(q) from its complement, as q may be next to 1; in halves, for a product is not added.
        half = _halved(exp_f64(exponent))
        log_q = log1p_f64(-(half + half))
        k = log_f64(v) / log_q + _ONE
        large = np.int64(select(k < _MOST, k, _MOST))
        small = select(v >= q, _FIRST_COUNT, _SECOND_COUNT)
        k_int = select(v <= q * q, large, small)
        return select(v < p, k_int, _FIRST_COUNT), False

    return sample


def zipf() -> DeviceFunction:
    """Make counts of (a,) that fit int64.

    By rejection from a Pareto density: L. Devroye, "Non-uniform random variate generation",
    Springer, 1986, section X.6.1.
    """

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, a: Scalar, _b: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        s = select(a - _ONE > _STEEP, _STEEP, a - _ONE)
        # The excluded share of the Pareto density above 2**63, minus 1.
        kept = expm1_f64(-s * _LOG_MOST)
        power, less = exp_f64(s * _LOG_2), expm1_f64(s * _LOG_2)
        attempt = _START
        while True:
            first, second = block_values(block, attempt, key0, key1)
            attempt = attempt + _NEXT
            y = exp_f64(-log1p_f64(cuda.fma(kept, open_uniform_f64(first), _ZERO)) / s)
            k = np.int64(select(y < _MOST, y, _MOST))
            x = np.float64(k)
            exponent = s * log1p_f64(_ONE / x)
            above = open_uniform_f64(second) * x * expm1_f64(exponent) / less
            if not above > exp_f64(exponent) / power:
                return k, False

    return sample
