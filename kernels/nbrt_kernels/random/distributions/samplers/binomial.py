"""Binomial counts.

From a mean of 10 the transformed rejection BTRS of W. Hoermann, "The generation of binomial random
variates", Journal of Statistical Computation and Simulation 46, 1993; below, inversion by
sequential search.  Chances above 1/2 count failures.  As for Poisson counts, nothing large cancels:
with N = n + 2, K = k + 1, L = N - K, d = K - N p and Stirling's tail S,

    log f(k) = log(K L) / 2 - S(K) - S(L) - K log1p(d / (N p)) - L log1p(-d / (N q)) + constant.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, cuda, device_function
from nbrt_kernels.random.distributions.samplers._counts import (
    FAR,
    SMALL_MEAN,
    nearest,
    search,
    search_steps,
    stirling_tail,
    transformed,
)
from nbrt_kernels.random.distributions.samplers._tiles import (
    TILE_ELEMENTS,
    make_settle,
    no_attempts,
)
from nbrt_kernels.random.distributions.samplers._words import open_uniform_f64
from nbrt_kernels.random.math import exp_f64, log1p_f64, log_f64, select
from nbrt_kernels.random.philox import block_values

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction

__all__ = ["binomial", "binomial_count", "binomial_tile"]

_START, _NEXT = np.uint64(0), np.uint64(1)
_NO_COUNT = np.int64(0)
_ZERO, _HALF, _ONE, _TWO = (np.float64(c) for c in (0, 0.5, 1, 2))
# Of the paper: hat, squeeze and acceptance.
_B1, _B0, _A2, _A1, _A0 = (np.float64(c) for c in (2.53, 1.15, 0.0248, 0.01, -0.0873))
_V0, _V1 = (np.float64(c) for c in (0.92, 4.2))
_H0, _H1 = (np.float64(c) for c in (2.83, 5.1))
_SURE = np.float64(0.07)


@device_function
def _ratio(k: Scalar, n: Scalar, odds: Scalar, _c: Scalar) -> Scalar:
    """Return ``f(k) / f(k - 1)``."""
    return (n - (k - _ONE)) / k * odds


_search = search(_ratio)
_search_steps = search_steps(_ratio)


@device_function
def _less_density(d: Scalar, np_: Scalar, nq: Scalar, scale: Scalar) -> Scalar:
    """Return ``log(scale / f(k))`` but for the constant."""
    k, rest = np_ + d, nq - d
    logs = cuda.fma(k, log1p_f64(d / np_), rest * log1p_f64(-d / nq))
    logs = stirling_tail(rest, stirling_tail(k, logs, _ONE), _ONE)
    return cuda.fma(_HALF, log_f64(scale * (scale / (k * rest))), logs)


@device_function
def _candidate(
    first: Scalar, second: Scalar, n: Scalar, p: Scalar
) -> tuple[Scalar, Scalar, Scalar, Scalar, Scalar]:
    """Return a count, ``K - N p``, whether the squeeze accepts, the height, whether far outside."""
    trials = np.float64(n)
    spread = math.sqrt(trials * p * (_ONE - p))
    b = cuda.fma(_B1, spread, _B0)
    a = cuda.fma(_A2, b, cuda.fma(_A1, p, _A0))
    u, us, v = transformed(first, second)
    mean = np.int64(trials * p)
    fraction = cuda.fma(trials, p, -np.float64(mean))
    y = cuda.fma((a + a) / us + b, u, fraction)
    step, count = nearest(y)
    k = mean + count
    outside = (y > FAR) | (y < -FAR) | (k < _NO_COUNT) | (k > n)
    sure = (us >= _SURE) & (v <= _V0 - _V1 / b) & (not outside)
    height = v * ((_H0 + _H1 / b) * spread) / (a / (us * us) + b)
    return k, step + (cuda.fma(-_TWO, p, _ONE) - fraction), sure, height, outside


@device_function
def _above(d: Scalar, height: Scalar, n: Scalar, p: Scalar) -> Scalar:
    """Return whether a point lies above the density, whose top is the mode's."""
    trials, q = np.float64(n), _ONE - p
    np_, nq = cuda.fma(trials, p, p + p), cuda.fma(trials, q, q + q)
    fraction = cuda.fma(trials, p, -np.float64(np.int64(trials * p)))
    # The mode is the mean rounded down, or one more.
    mode = select(fraction + p >= _ONE, _ONE, _ZERO) + (cuda.fma(-_TWO, p, _ONE) - fraction)
    return _less_density(d, np_, nq, height) > _less_density(mode, np_, nq, _ONE)


@device_function
def _lesser_count(
    block: Scalar, attempt: Scalar, key0: Scalar, key1: Scalar, n: Scalar, p: Scalar
) -> tuple[Scalar, Scalar]:
    """Return a count for a chance of at most 1/2, and the next attempt."""
    trials = np.float64(n)
    first, second = block_values(block, attempt, key0, key1)
    attempt = attempt + _NEXT
    if not trials * p >= SMALL_MEAN:
        none = exp_f64(trials * log1p_f64(-p))
        return _search(open_uniform_f64(first), none, trials, p / (_ONE - p), _ZERO), attempt
    k, d, sure, height, outside = _candidate(first, second, n, p)
    while not sure and (outside or _above(d, height, n, p)):
        first, second = block_values(block, attempt, key0, key1)
        attempt = attempt + _NEXT
        k, d, sure, height, outside = _candidate(first, second, n, p)
    return k, attempt


@device_function
def binomial_count(
    block: Scalar, attempt: Scalar, key0: Scalar, key1: Scalar, n: Scalar, p: Scalar
) -> tuple[Scalar, Scalar]:
    """Return the int64 count of successes in `n` trials, an int64, and the next attempt."""
    flip = p > _HALF
    k, attempt = _lesser_count(block, attempt, key0, key1, n, select(flip, _ONE - p, p))
    return select(flip, n - k, k), attempt


@device_function
def _quick(
    first: Scalar, second: Scalar, n: Scalar, p: Scalar, _c: Scalar
) -> tuple[Scalar, Scalar]:
    flip = p > _HALF
    k, _, sure, _, _ = _candidate(first, second, n, select(flip, _ONE - p, p))
    return select(flip, n - k, k), not sure


@device_function
def _trial(
    first: Scalar, second: Scalar, n: Scalar, p: Scalar, _c: Scalar
) -> tuple[Scalar, Scalar]:
    flip = p > _HALF
    lesser = select(flip, _ONE - p, p)
    k, d, sure, height, outside = _candidate(first, second, n, lesser)
    return select(flip, n - k, k), (not sure) & (outside | _above(d, height, n, lesser))


@cache
def binomial_tile() -> DeviceFunction:
    """Make a tile of binomial counts of (n, p); the lesser outcome has a mean of at least 10."""
    settle = make_settle(_quick, _trial, np.int64)

    @device_function
    def draw(
        values: Array, block: Scalar, key0: Scalar, key1: Scalar, n: Scalar, p: Scalar, c: Scalar
    ) -> None:
        attempts = cuda.local.array(TILE_ELEMENTS, np.uint64)
        no_attempts(attempts)
        settle(values, attempts, block, key0, key1, n, p, c)

    return draw


def binomial(small: bool | None = None, flip: bool = False) -> DeviceFunction:
    """Make binomial counts of (n, p).

    With `small`, whether the mean of the lesser of both outcomes is below 10, one quick trial;
    `flip` then says that this is the failures.
    """

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, n: Scalar, p: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        k, _ = binomial_count(block, _START, key0, key1, n, p)
        return k, False

    @device_function
    def searched(
        block: Scalar, key0: Scalar, key1: Scalar, n: Scalar, p: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        trials, lesser = np.float64(n), _ONE - p if flip else p
        first, _ = block_values(block, _START, key0, key1)
        none = exp_f64(trials * log1p_f64(-lesser))
        odds = lesser / (_ONE - lesser)
        k, again = _search_steps(open_uniform_f64(first), none, trials, odds, _ZERO)
        return (n - k if flip else k), again

    @device_function
    def tried(
        block: Scalar, key0: Scalar, key1: Scalar, n: Scalar, p: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        first, second = block_values(block, _START, key0, key1)
        lesser = _ONE - p if flip else p
        k, d, sure, height, outside = _candidate(first, second, n, lesser)
        again = (not sure) & (outside | _above(d, height, n, lesser))
        return (n - k if flip else k), again

    return sample if small is None else searched if small else tried
