"""Gamma variates and those derived from them: beta, chi-square, F, Student's t.

Trials of G. Marsaglia and W. W. Tsang, "A simple method for generating gamma variables", ACM
Transactions on Mathematical Software 26(3), 2000: ``d (1 + x / (3 sqrt(d)))**3`` of a normal x and
``d = shape - 1/3``, accepted if an exponential is large enough.  A shape below 1 is raised by 1 and
the gamma multiplied by ``exp(-E / shape)``, E exponential; for a shape of 0 that is 0.  The two
factors stay separate: ratios of gammas of tiny shapes are right although the gammas underflow.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function
from nbrt_kernels.random.distributions._precision import DOUBLE, Precision
from nbrt_kernels.random.distributions.samplers._words import half_of, low_word, words_of
from nbrt_kernels.random.distributions.samplers.poisson import poisson_count
from nbrt_kernels.random.math import select
from nbrt_kernels.random.philox import block_values
from nbrt_kernels.random.transforms import neg_log_32

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction

__all__ = [
    "beta",
    "chisquare",
    "f",
    "gamma",
    "gamma_factors",
    "make_trial",
    "noncentral_chisquare",
    "noncentral_f",
    "standard_t",
]

_ONE = np.uint64(1)


@cache
def make_trial(precision: Precision, lift: bool | None) -> DeviceFunction:
    """Make a trial of a normal and a value: a gamma of ``shape``, raised below 1, and rejection.

    `lift` is whether it is below; None: the trial tests it.
    """
    real, log1p = precision.real, precision.log1p
    third, zero, half, one, three = (real(c) for c in (1 / 3, 0, 0.5, 1, 3))
    raised, kept = real(1 - 1 / 3), -third
    below, above = (kept if lift is False else raised), (raised if lift else kept)

    @device_function
    def trial(x: Scalar, second: Scalar, shape: Scalar) -> tuple[Scalar, Scalar]:
        d = shape + select(shape < one, below, above)
        c = third / math.sqrt(d)
        y = x * c
        # s = (1 + y)**3 - 1, in which nothing cancels for large shapes.
        s = cuda.fma(y * y, cuda.fma(x, c, three), three * y)
        bound = cuda.fma(half * x, x, d * (log1p(s) - s))
        e = real(neg_log_32(low_word(second)))
        return cuda.fma(d, s, d), (cuda.fma(x, c, one) <= zero) | (e <= -bound)

    return trial


@cache
def gamma_factors(precision: Precision, lift: bool | None = None) -> DeviceFunction:
    """Make the gamma ``g * exp(-e)`` of a block, as ``(g, e, next attempt, is to be drawn again)``.

    Parameters
    ----------
    precision : Precision
        Of shape and result.
    lift : bool, optional
        Whether the shape is below 1. If given, there is one branch-free trial, which may be
        rejected; else trials repeat until one is accepted.

    Returns
    -------
    DeviceFunction
        Of (block, attempt, key0, key1, shape).
    """
    real, exponential = precision.real, words_of(precision).exponential
    trial, normal = make_trial(precision, lift), words_of(precision).normal
    zero, one, most = real(0), real(1), real(np.finfo(real).max)

    @device_function
    def once(
        block: Scalar, attempt: Scalar, key0: Scalar, key1: Scalar, shape: Scalar
    ) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        first, second = block_values(block, attempt, key0, key1)
        g, rejected = trial(normal(first, second), second, shape)
        if not lift:
            return g, zero, attempt + _ONE, rejected
        first, _ = block_values(block, attempt + _ONE, key0, key1)
        e = exponential(first) / shape
        return g, select(e < most, e, most), attempt + _ONE + _ONE, rejected

    @device_function
    def until_accepted(
        block: Scalar, attempt: Scalar, key0: Scalar, key1: Scalar, shape: Scalar
    ) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        rejected = True
        g, e = zero, zero
        while rejected:
            first, second = block_values(block, attempt, key0, key1)
            attempt = attempt + _ONE
            g, rejected = trial(normal(first, second), second, shape)
        if shape < one:
            first, second = block_values(block, attempt, key0, key1)
            attempt = attempt + _ONE
            e = exponential(first) / shape
            e = select(e < most, e, most)
        return g, e, attempt, False

    return until_accepted if lift is None else once


def gamma(precision: Precision, lift: bool | None = None) -> DeviceFunction:
    """Make gammas of (shape, scale)."""
    factors, exp, zero = gamma_factors(precision, lift), precision.exp, np.uint64(0)

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, shape: Scalar, scale: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        g, e, _, again = factors(block, zero, key0, key1, shape)
        return g * exp(-e) * scale, again

    return sample


def chisquare(precision: Precision, lift: bool | None = None) -> DeviceFunction:
    """Make chi-squares of (df,): twice a gamma of half of it."""
    gammas, halved, two = gamma(precision, lift), half_of(precision), precision.real(2)

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, df: Scalar, _b: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        x, again = gammas(block, key0, key1, halved(df), two, two)
        return x, again

    return sample


def beta(
    precision: Precision, lift_a: bool | None = None, lift_b: bool | None = None
) -> DeviceFunction:
    """Make betas of (a, b): ``x / (x + y)`` of two gammas."""
    first, second = gamma_factors(precision, lift_a), gamma_factors(precision, lift_b)
    exp, zero = precision.exp, np.uint64(0)

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, a: Scalar, b: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        x, e, attempt, again_x = first(block, zero, key0, key1, a)
        y, e_y, _, again_y = second(block, attempt, key0, key1, b)
        return x / cuda.fma(y, exp(e - e_y), x), again_x | again_y

    return sample


def f(precision: Precision) -> DeviceFunction:
    """Make F variates of (dfnum, dfden)."""
    factors, exp, halved = gamma_factors(precision), precision.exp, half_of(precision)
    zero = np.uint64(0)

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, dfnum: Scalar, dfden: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        x, e, attempt, _ = factors(block, zero, key0, key1, halved(dfnum))
        y, e_y, _, _ = factors(block, attempt, key0, key1, halved(dfden))
        return (x / dfnum) / (y / dfden) * exp(e_y - e), False

    return sample


def standard_t(precision: Precision) -> DeviceFunction:
    """Make Student's t of (df,): a normal over the root of a chi-square over df."""
    factors, exp, normal = gamma_factors(precision), precision.exp, words_of(precision).normal
    halved, zero, one = half_of(precision), np.uint64(0), _ONE

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, df: Scalar, _b: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        first, second = block_values(block, zero, key0, key1)
        g, e, _, _ = factors(block, one, key0, key1, halved(df))
        return normal(first, second) * math.sqrt(halved(df) / g) * exp(halved(e)), False

    return sample


@cache
def _noncentral(precision: Precision) -> DeviceFunction:
    """Make half a noncentral chi-square, ``g * exp(-e)``, and the next attempt.

    A Poisson mixture: of ``df + 2 k`` degrees of freedom, k Poisson of mean nonc / 2. A `nonc` of
    NaN gives NaN.
    """
    real, factors = precision.real, gamma_factors(precision)
    none = np.float64(0)
    half, halved = real(0.5), half_of(DOUBLE)

    @device_function
    def draw(
        block: Scalar, attempt: Scalar, key0: Scalar, key1: Scalar, df: Scalar, nonc: Scalar
    ) -> tuple[Scalar, Scalar, Scalar]:
        is_number = nonc == nonc
        mean = select(is_number, halved(np.float64(nonc)), none)
        k, attempt = poisson_count(block, attempt, key0, key1, mean)
        shape = select(is_number, cuda.fma(half, df, real(k)), nonc)
        g, e, attempt, _ = factors(block, attempt, key0, key1, shape)
        return g, e, attempt

    return draw


def noncentral_chisquare(precision: Precision) -> DeviceFunction:
    """Make noncentral chi-squares of (df, nonc)."""
    draw, exp, zero = _noncentral(precision), precision.exp, np.uint64(0)

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, df: Scalar, nonc: Scalar, _c: Scalar
    ) -> tuple[Scalar, Scalar]:
        g, e, _ = draw(block, zero, key0, key1, df, nonc)
        return (g + g) * exp(-e), False

    return sample


def noncentral_f(precision: Precision) -> DeviceFunction:
    """Make noncentral F variates of (dfnum, dfden, nonc)."""
    draw, factors, exp = _noncentral(precision), gamma_factors(precision), precision.exp
    halved, zero = half_of(precision), np.uint64(0)

    @device_function
    def sample(
        block: Scalar, key0: Scalar, key1: Scalar, dfnum: Scalar, dfden: Scalar, nonc: Scalar
    ) -> tuple[Scalar, Scalar]:
        x, e, attempt = draw(block, zero, key0, key1, dfnum, nonc)
        y, e_y, _, _ = factors(block, attempt, key0, key1, halved(dfden))
        return (x / dfnum) / (y / dfden) * exp(e_y - e), False

    return sample
