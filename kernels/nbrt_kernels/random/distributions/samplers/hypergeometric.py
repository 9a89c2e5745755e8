"""Hypergeometric counts.

Symmetries make both the good ones and the sample at most half of all. From a mean of 10 the ratio
of uniforms HRUA of E. Stadlober, "The ratio of uniforms approach for generating discrete random
variates", Journal of Computational and Applied Mathematics 31, 1990; below, inversion by sequential
search.  With K = k + 1 and the like for the other three cells of the table, d the difference of K
to ``M = (good + 2) (sample + 2) / (all + 4)`` and Stirling's tail S, summed over the cells,

    log f(k) = sum(log(K) / 2 - S(K) - K log1p(+-d / M)) + constant.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function
from nbrt_kernels.random.distributions.samplers._counts import (
    FAR,
    SMALL_MEAN,
    nearest,
    search,
    stirling_tail,
)
from nbrt_kernels.random.distributions.samplers._words import open_uniform_f64
from nbrt_kernels.random.math import exp_f64, log1p_f64, log_f64, select
from nbrt_kernels.random.philox import block_values

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction

__all__ = ["hypergeometric", "hypergeometric_count"]

_START, _NEXT = np.uint64(0), np.uint64(1)
_NO_COUNT = np.int64(0)
_ZERO, _HALF, _ONE, _TWO, _FOUR = (np.float64(c) for c in (0, 0.5, 1, 2, 4))
# 2 sqrt(2 / e) and 3 - 2 sqrt(3 / e): the width of the hat, of its standard deviation.
_WIDTH, _MORE_WIDTH = (
    np.float64(c) for c in (2 * math.sqrt(2 / math.e), 3 - 2 * math.sqrt(3 / math.e))
)


@device_function
def _ratio(k: Scalar, good: Scalar, sample: Scalar, rest: Scalar) -> Scalar:
    """Return ``f(k) / f(k - 1)``; `rest` is ``bad - sample``."""
    return (good - (k - _ONE)) / k * ((sample - (k - _ONE)) / (rest + k))


_search = search(_ratio)


@device_function
def _chance_of_none(good: Scalar, sample: Scalar, bad: Scalar) -> Scalar:
    """Return f(0), all in float64, the mean below 10: then one of good and sample is small."""
    s = select(good < sample, good, sample)
    g = select(good < sample, sample, good)
    # As if s were drawn from all, of which g are good: (all - g)! (all - s)! / (all - g - s)! all!
    total = good + bad
    a, b = (total - g) + _ONE, (total - s) + _ONE
    c, d = ((total - g) - s) + _ONE, total + _ONE
    value = stirling_tail(a, s * log1p_f64(-g / d), _ONE)
    value = stirling_tail(c, stirling_tail(b, value, _ONE), -_ONE)
    value = stirling_tail(d, value, -_ONE)
    value = cuda.fma(-(c - _HALF), log1p_f64(-s / a), value)
    return exp_f64(cuda.fma(b - _HALF, log1p_f64(-s / d), value))


@device_function
def _log_density(d: Scalar, m1: Scalar, m2: Scalar, m3: Scalar, m4: Scalar) -> Scalar:
    k1, k2, k3, k4 = m1 + d, m2 - d, m3 - d, m4 + d
    # Paired, as the product of four large numbers may overflow.
    value = _HALF * log_f64(k1 * k2)
    value = cuda.fma(_HALF, log_f64(k3 * k4), value)
    value = cuda.fma(-k1, log1p_f64(d / m1), cuda.fma(-k2, log1p_f64(-d / m2), value))
    value = cuda.fma(-k3, log1p_f64(-d / m3), cuda.fma(-k4, log1p_f64(d / m4), value))
    value = stirling_tail(k1, stirling_tail(k2, value, -_ONE), -_ONE)
    return stirling_tail(k3, stirling_tail(k4, value, -_ONE), -_ONE)


@device_function
def _by_rejection(
    block: Scalar, attempt: Scalar, key0: Scalar, key1: Scalar, good: Scalar, bad: Scalar,
    sample: Scalar,
) -> tuple[Scalar, Scalar]:  # fmt: skip
    g, s, total = np.float64(good), np.float64(sample), np.float64(good + bad)
    share = g / total
    mean = np.int64(s * share)
    whole = np.float64(mean)
    fraction = cuda.fma(s, share, -whole)
    variance = cuda.fma((s * share) * (_ONE - share), (total - s) / (total - _ONE), _HALF)
    width = cuda.fma(_WIDTH, math.sqrt(variance), _MORE_WIDTH)
    ratio, moved = (g + _TWO) / (total + _FOUR), s + _TWO
    m1, m4 = cuda.fma(ratio, moved, _ZERO), cuda.fma(ratio, moved, np.float64(bad - sample))
    m2, m3 = cuda.fma(-ratio, moved, g + _TWO), cuda.fma(-ratio, moved, moved)
    # Differences are relative to the mean; d needs this correction.
    offset = cuda.fma(ratio, moved, -whole) - _ONE
    mode, _ = nearest(cuda.fma((g + _ONE) / (total + _TWO), s + _ONE, -whole) - _HALF)
    top = _log_density(mode - offset, m1, m2, m3, m4)
    rejected, k = True, mean
    while rejected:
        first, second = block_values(block, attempt, key0, key1)
        attempt = attempt + _NEXT
        u = open_uniform_f64(first)
        y = cuda.fma((open_uniform_f64(second) - _HALF) / u, width, fraction)
        step, count = nearest(y)
        k = mean + count
        outside = (y > FAR) | (y < -FAR) | (k < _NO_COUNT) | (k > good) | (k > sample)
        log_u = log_f64(u)
        density = _log_density(step - offset, m1, m2, m3, m4)
        rejected = outside | (log_u + log_u > density - top)
    return k, attempt


@device_function
def hypergeometric_count(
    block: Scalar, attempt: Scalar, key0: Scalar, key1: Scalar, good: Scalar, bad: Scalar,
    sample: Scalar,
) -> tuple[Scalar, Scalar]:  # fmt: skip
    """Return the good ones in a sample from `good` and `bad`, all int64, and the next attempt."""
    swapped, mostly = good > bad, sample > (good + bad) - sample
    lesser, more = select(swapped, bad, good), select(swapped, good, bad)
    taken = select(mostly, (good + bad) - sample, sample)
    g, b, s = np.float64(lesser), np.float64(more), np.float64(taken)
    if s * (g / (g + b)) >= SMALL_MEAN:
        k, attempt = _by_rejection(block, attempt, key0, key1, lesser, more, taken)
    else:
        first, _ = block_values(block, attempt, key0, key1)
        attempt = attempt + _NEXT
        k = _search(open_uniform_f64(first), _chance_of_none(g, s, b), g, s, b - s)
    k = select(swapped, taken - k, k)
    return select(mostly, good - k, k), attempt


def hypergeometric() -> DeviceFunction:
    """Make hypergeometric counts of (good, bad, sample)."""

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, good: Scalar, bad: Scalar, taken: Scalar
    ) -> tuple[Scalar, Scalar]:
        k, _ = hypergeometric_count(block, _START, key0, key1, good, bad, taken)
        return k, False

    return sample
