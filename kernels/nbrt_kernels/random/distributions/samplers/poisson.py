"""Poisson counts.

From a mean of 10 the transformed rejection PTRS of W. Hoermann, "The transformed rejection method
for generating Poisson random variables", Insurance: Mathematics and Economics 12, 1993; below,
inversion by sequential search.  Counts are formed as an integer next to the mean and a difference
to it, so that they are exact where a float64 is not.  The densities are Stirling's formula around
the mean, in which nothing large cancels: with K = k + 1, d = K - lam and Stirling's tail S,

    log f(k) = log(K) / 2 - S(K) - (K log1p(d / lam) - d) - log(lam) - log(2 pi) / 2.
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
from nbrt_kernels.random.math import exp_f64, log1p_f64, log_f64
from nbrt_kernels.random.philox import block_values

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction

__all__ = ["poisson", "poisson_count", "poisson_tile"]

_START, _NEXT = np.uint64(0), np.uint64(1)
_NONE = np.int64(0)
_ZERO, _HALF, _ONE = (np.float64(c) for c in (0, 0.5, 1))
_TWO_PI = np.float64(2 * math.pi)
# Of the paper: hat, squeeze and acceptance.
_B1, _B0, _A1, _A0 = (np.float64(c) for c in (2.53, 0.931, 0.02483, -0.059))
_V0, _V1, _V2 = (np.float64(c) for c in (0.9277, 3.6224, 2.0))
_I0, _I1, _I2 = (np.float64(c) for c in (1.1239, 1.1328, 3.4))
_SHIFT = np.float64(0.43)
_SURE = np.float64(0.07)


@device_function
def _ratio(k: Scalar, lam: Scalar, _b: Scalar, _c: Scalar) -> Scalar:
    """Return ``f(k) / f(k - 1)``."""
    return lam / k


_search = search(_ratio)
_search_steps = search_steps(_ratio)


@device_function
def _candidate(
    first: Scalar, second: Scalar, lam: Scalar
) -> tuple[Scalar, Scalar, Scalar, Scalar, Scalar]:
    """Return a count, its exact difference to the mean, and the terms of the acceptance test.

    These are whether the squeeze accepts it, the height of the point under the hat, and whether it
    is out of range.
    """
    b = cuda.fma(_B1, math.sqrt(lam), _B0)
    a = cuda.fma(_A1, b, _A0)
    u, us, v = transformed(first, second)
    mean = np.int64(lam)
    whole = np.float64(mean)
    y = cuda.fma((a + a) / us + b, u, (lam - whole) + (_SHIFT - _HALF))
    step, count = nearest(y)
    k = mean + count
    sure = (us >= _SURE) & (v <= _V0 - _V1 / (b - _V2))
    height = v * (_I0 + _I1 / (b - _I2)) / (a / (us * us) + b)
    return k, step + ((whole - lam) + _ONE), sure, height, (y > FAR) | (y < -FAR) | (k < _NONE)


@device_function
def _above(d: Scalar, height: Scalar, lam: Scalar) -> Scalar:
    """Return whether a point lies above the density."""
    k = lam + d
    log_ratio = log_f64((height * lam) * (height * lam) / k * _TWO_PI)
    rest = stirling_tail(k, cuda.fma(k, log1p_f64(d / lam), -d), _ONE)
    return cuda.fma(_HALF, log_ratio, rest) > _ZERO


@device_function
def poisson_count(
    block: Scalar, attempt: Scalar, key0: Scalar, key1: Scalar, lam: Scalar
) -> tuple[Scalar, Scalar]:
    """Return an int64 count of mean `lam`, a float64, and the next attempt."""
    first, second = block_values(block, attempt, key0, key1)
    attempt = attempt + _NEXT
    if not lam >= SMALL_MEAN:
        count = _search(open_uniform_f64(first), exp_f64(-lam), lam, _ZERO, _ZERO)
        return count, attempt
    k, d, sure, height, outside = _candidate(first, second, lam)
    while not sure and (outside or _above(d, height, lam)):
        first, second = block_values(block, attempt, key0, key1)
        attempt = attempt + _NEXT
        k, d, sure, height, outside = _candidate(first, second, lam)
    return k, attempt


@device_function
def _quick(
    first: Scalar, second: Scalar, lam: Scalar, _b: Scalar, _c: Scalar
) -> tuple[Scalar, Scalar]:
    k, _, sure, _, _ = _candidate(first, second, lam)
    return k, not sure


@device_function
def _trial(
    first: Scalar, second: Scalar, lam: Scalar, _b: Scalar, _c: Scalar
) -> tuple[Scalar, Scalar]:
    k, d, sure, height, outside = _candidate(first, second, lam)
    return k, (not sure) & (outside | _above(d, height, lam))


@cache
def poisson_tile() -> DeviceFunction:
    """Make a tile of Poisson counts of (lam,), which is at least 10."""
    settle = make_settle(_quick, _trial, np.int64)

    @device_function
    def draw(
        values: Array, block: Scalar, key0: Scalar, key1: Scalar, lam: Scalar, b: Scalar, c: Scalar
    ) -> None:
        attempts = cuda.local.array(TILE_ELEMENTS, np.uint64)
        no_attempts(attempts)
        settle(values, attempts, block, key0, key1, lam, b, c)

    return draw


def poisson(small: bool | None = None) -> DeviceFunction:
    """Make Poisson counts of (lam,); with `small`, whether it is below 10, one quick trial."""

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, lam: Scalar, _b: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        k, _ = poisson_count(block, _START, key0, key1, lam)
        return k, False

    @device_function
    def searched(
        block: Scalar, key0: Scalar, key1: Scalar, lam: Scalar, _b: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        first, _ = block_values(block, _START, key0, key1)
        k, again = _search_steps(open_uniform_f64(first), exp_f64(-lam), lam, _ZERO, _ZERO)
        return k, again

    @device_function
    def tried(
        block: Scalar, key0: Scalar, key1: Scalar, lam: Scalar, b: Scalar, c: Scalar
    ) -> tuple[Scalar, Scalar]:
        first, second = block_values(block, _START, key0, key1)
        return _trial(first, second, lam, b, c)

    return sample if small is None else searched if small else tried
