"""Gammas, chi-squares and betas of one shape, tile by tile on a CPU; see `gammas` and `_tiles`.

With y = x / (3 sqrt(d)), a trial of a normal x is accepted if an exponential E exceeds
``h = d (y**3 - 3 y**2 / 2 + 3 y - 3 log(1 + y))``. As ``dh/dy = 3 d y**3 / (1 + y)``, h is at most
``3 d y**4 / 4`` for y >= 0 and at most ``3 d y**4 / 2`` for -1/2 <= y < 0. For E = -log(U), E is at
least 1 - U, and for all 2**32 words the computed E is, too. So ``1 - U > 1.51 d y**4 + margin``
implies that the whole test accepts, as it is computed:

- With u the unit roundoff, the computed ``d y**4`` has a relative error below 16 u, for which the
  factor is 1.51 instead of 1.5.
- The computed h is off by less than ``u (4 x**2 + 4 |x|**3 + 2 |x| sqrt(d))``: the first terms are
  those of x, y and the sums, the last is the rounding of log1p, at most one ulp of ``3 log(1 + y)``
  times d. As |x| < 9.5, ``u (2**14 + 2**6 sqrt(d))`` is more than twice as much.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, cuda, device_function
from nbrt_kernels.random.distributions.samplers._tiles import (
    TILE_ELEMENTS,
    make_settle,
    no_attempts,
    second_half,
)
from nbrt_kernels.random.distributions.samplers._words import half_of, words_of
from nbrt_kernels.random.distributions.samplers.gammas import make_trial
from nbrt_kernels.random.math import select
from nbrt_kernels.random.philox import block_values

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction
    from nbrt_kernels.random.distributions._precision import Precision

__all__ = ["beta_tile", "chisquare_tile", "gamma_tile"]

_ONE = np.uint64(1)
_LOW, _DROPPED = np.uint64(0xFFFFFFFF), np.uint64(8)


@cache
def _quick(precision: Precision) -> DeviceFunction:
    """Make the trial without the whole test: (gamma, whether it is open)."""
    real = precision.real
    third, one, three, least = real(1 / 3), real(1), real(3), real(-0.5)
    raised, kept = real(1 - 1 / 3), -third
    factor, unit = real(1.51), real(2.0**-24)
    roundoff = float(np.finfo(real).eps) / 2
    margin, margin_root = real(2.0**14 * roundoff), real(2.0**6 * roundoff)

    @device_function
    def quick(
        x: Scalar, second: Scalar, shape: Scalar, _b: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        d = shape + select(shape < one, raised, kept)
        root = math.sqrt(d)
        c = third / root
        y = x * c
        square = y * y
        s = cuda.fma(square, cuda.fma(x, c, three), three * y)
        # 1 - U rounded down: of the 32 bits, 24 are exact in float32.
        rest = real(np.int32((_LOW - (second & _LOW)) >> _DROPPED)) * unit
        limit = cuda.fma(square * square, factor * d, cuda.fma(margin_root, root, margin))
        # Not the opposite comparisons: a NaN leaves the element open.
        return cuda.fma(d, s, d), not ((y > least) & (rest > limit))

    return quick


@cache
def _factors(precision: Precision) -> DeviceFunction:
    """Make ``(g, e, attempts, block, key0, key1, shape)``, which draws gammas ``g * exp(-e)``.

    `attempts` are the first ones on entry, and the next ones on return.
    """
    tried, words = make_trial(precision, None), words_of(precision)
    exponential = words.exponential
    zero, one, most = (precision.real(x) for x in (0, 1, np.finfo(precision.real).max))

    @device_function
    def trial(
        x: Scalar, second: Scalar, shape: Scalar, _b: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        value, rejected = tried(x, second, shape)
        return value, rejected

    settle = make_settle(_quick(precision), trial, precision.real, words)

    @device_function
    def power(block: Scalar, attempt: Scalar, key0: Scalar, key1: Scalar, shape: Scalar) -> Scalar:
        first, _ = block_values(block, attempt, key0, key1)
        e = exponential(first) / shape
        return select(e < most, e, most)

    @device_function
    def factors(
        g: Array, e: Array, attempts: Array, block: Scalar, key0: Scalar, key1: Scalar,
        shape: Scalar,
    ) -> None:  # fmt: skip
        settle(g, attempts, block, key0, key1, shape, zero, zero)
        for j in range(TILE_ELEMENTS):
            attempts[np.uint64(j)] += _ONE
            e[np.uint64(j)] = zero
        if shape < one:
            for j in range(TILE_ELEMENTS // 2):
                i = np.uint64(j)
                k = second_half(i)
                e[i] = power(block + i, attempts[i], key0, key1, shape)
                e[k] = power(block + k, attempts[k], key0, key1, shape)
                attempts[i] += _ONE
                attempts[k] += _ONE

    return factors


@cache
def gamma_tile(precision: Precision) -> DeviceFunction:
    """Make a tile of gammas of (shape, scale)."""
    factors, real, exp = _factors(precision), precision.real, precision.exp
    one = real(1)

    @device_function
    def draw(
        values: Array, block: Scalar, key0: Scalar, key1: Scalar, shape: Scalar, scale: Scalar,
        _c: Scalar,
    ) -> None:  # fmt: skip
        attempts = cuda.local.array(TILE_ELEMENTS, np.uint64)
        e = cuda.local.array(TILE_ELEMENTS, real)
        no_attempts(attempts)
        factors(values, e, attempts, block, key0, key1, shape)
        if shape < one:  # else e is 0, and the factor 1
            for j in range(TILE_ELEMENTS // 2):
                i = np.uint64(j)
                k = second_half(i)
                x, y = values[i] * exp(-e[i]), values[k] * exp(-e[k])
                values[i], values[k] = x, y
        for j in range(TILE_ELEMENTS):
            values[np.uint64(j)] *= scale

    return draw


@cache
def chisquare_tile(precision: Precision) -> DeviceFunction:
    """Make a tile of chi-squares of (df,): twice gammas of half of it."""
    gammas, halved, two = gamma_tile(precision), half_of(precision), precision.real(2)

    @device_function
    def draw(
        values: Array, block: Scalar, key0: Scalar, key1: Scalar, df: Scalar, _b: Scalar, _c: Scalar
    ) -> None:
        gammas(values, block, key0, key1, halved(df), two, two)

    return draw


@cache
def beta_tile(precision: Precision) -> DeviceFunction:
    """Make a tile of betas of (a, b): ``x / (x + y)`` of two gammas."""
    factors, real, exp = _factors(precision), precision.real, precision.exp

    @device_function
    def ratio(x: Scalar, y: Scalar, e: Scalar, e_y: Scalar) -> Scalar:
        return x / cuda.fma(y, exp(e - e_y), x)

    @device_function
    def draw(
        values: Array, block: Scalar, key0: Scalar, key1: Scalar, a: Scalar, b: Scalar, _c: Scalar
    ) -> None:
        attempts = cuda.local.array(TILE_ELEMENTS, np.uint64)
        g = cuda.local.array(TILE_ELEMENTS, real)
        e = cuda.local.array(TILE_ELEMENTS, real)
        e_x = cuda.local.array(TILE_ELEMENTS, real)
        no_attempts(attempts)
        # A loop, so that the code of a gamma is there once.
        for number in range(2):
            factors(g, e, attempts, block, key0, key1, select(number == 0, a, b))
            if number == 0:
                for j in range(TILE_ELEMENTS):
                    i = np.uint64(j)
                    values[i], e_x[i] = g[i], e[i]
        for j in range(TILE_ELEMENTS // 2):
            i = np.uint64(j)
            k = second_half(i)
            one, other = ratio(values[i], g[i], e_x[i], e[i]), ratio(values[k], g[k], e_x[k], e[k])
            values[i], values[k] = one, other

    return draw
