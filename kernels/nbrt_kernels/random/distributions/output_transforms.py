"""Output transforms: from a standard variate and parameters to a value of the distribution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function
from nbrt_kernels.random.distributions.variates import middle
from nbrt_kernels.random.math import select

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction
    from nbrt_kernels.random.distributions._precision import Precision

__all__ = [
    "affine",
    "exponential_of",
    "geometric",
    "keep",
    "pareto",
    "power",
    "scaled",
    "triangular",
    "truncated_normal",
    "weibull",
]


@device_function
def affine(x: Scalar, loc: Scalar, scale: Scalar, _c: Scalar) -> Scalar:
    """Return ``loc + scale x``."""
    return cuda.fma(x, scale, loc)


@device_function
def scaled(x: Scalar, scale: Scalar, _b: Scalar, _c: Scalar) -> Scalar:
    """Return ``scale x``."""
    return x * scale


def exponential_of(precision: Precision) -> DeviceFunction:
    """Make ``exp(mean + sigma x)``: log-normal for normal x."""
    exp = precision.exp

    @device_function
    def finish(x: Scalar, mean: Scalar, sigma: Scalar, _c: Scalar) -> Scalar:
        return exp(cuda.fma(x, sigma, mean))

    return finish


def weibull(precision: Precision) -> DeviceFunction:
    """Make ``x**(1 / a)`` of an exponential x, and 0 for an `a` of 0."""
    power, zero, one = precision.power, precision.real(0), precision.real(1)

    @device_function
    def finish(x: Scalar, a: Scalar, _b: Scalar, _c: Scalar) -> Scalar:
        return select(a > zero, power(x, one / a), zero)

    return finish


def pareto(precision: Precision) -> DeviceFunction:
    """Make ``exp(x / a) - 1`` of an exponential x."""
    expm1 = precision.expm1

    @device_function
    def finish(x: Scalar, a: Scalar, _b: Scalar, _c: Scalar) -> Scalar:
        return expm1(x / a)

    return finish


def power(precision: Precision) -> DeviceFunction:
    """Make ``u**(1 / a)`` as ``exp(-x / a)`` of an exponential x."""
    exp = precision.exp

    @device_function
    def finish(x: Scalar, a: Scalar, _b: Scalar, _c: Scalar) -> Scalar:
        return exp(-x / a)

    return finish


def triangular(precision: Precision) -> DeviceFunction:
    """Make the quantile of a triangular density of a word, from the nearer bound."""
    u, word_type = middle(precision), precision.word

    @device_function
    def finish(word: Scalar, left: Scalar, mode: Scalar, right: Scalar) -> Scalar:
        base = right - left
        rising, falling = (mode - left) / base, (right - mode) / base
        below, above = u(word), u(word_type(~word))
        up = below <= rising
        root = math.sqrt(select(up, below * rising, above * falling))
        value = cuda.fma(root, select(up, base, -base), select(up, left, right))
        return select(value < left, left, select(value > right, right, value))

    return finish


def truncated_normal(precision: Precision) -> DeviceFunction:
    """Make the quantile of a normal within bounds of a word, from the tail that is nearer.

    A complex number holds both bounds, since a kernel takes three parameters.
    """
    u, word_type = middle(precision), precision.word
    ndtr, ndtri, zero = precision.ndtr, precision.ndtri, precision.real(0)

    @device_function
    def finish(word: Scalar, loc: Scalar, scale: Scalar, bounds: Scalar) -> Scalar:
        low, high = bounds.real, bounds.imag
        first, last = (low - loc) / scale, (high - loc) / scale
        before, after = ndtr(first), ndtr(-last)
        # The probability between the bounds, as the difference of the two smaller tails.
        right = first > zero
        mass = ndtr(select(right, -first, last)) - select(right, after, before)
        p = cuda.fma(u(word), mass, before)
        q = cuda.fma(u(word_type(~word)), mass, after)
        z = ndtri(select(p < q, p, q))
        value = cuda.fma(select(p < q, z, -z), scale, loc)
        return select(value < low, low, select(value > high, high, value))

    return finish


def geometric(precision: Precision) -> DeviceFunction:
    """Make ``ceil(x / -log(1 - p))`` of an exponential x, at least 1, as a float."""
    log1p, one, whole = precision.log1p, precision.real(1), precision.whole

    @device_function
    def finish(x: Scalar, p: Scalar, _b: Scalar, _c: Scalar) -> Scalar:
        trials = x / -log1p(-p)
        nearest = (trials + whole) - whole
        up = select(nearest < trials, nearest + one, nearest)
        count = select(trials < whole, up, trials)
        return select(count < one, one, count)

    return finish


@device_function
def keep(word: Scalar, threshold: Scalar, _b: Scalar, _c: Scalar) -> Scalar:
    """Return whether a 32-bit word is below a threshold in [0, 2**32]."""
    return np.uint64(word) < threshold
