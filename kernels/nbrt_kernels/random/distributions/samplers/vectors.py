"""Vector distributions: Dirichlet, multinomial, multivariate hypergeometric.

An element of a vector uses the Philox blocks of the same element in a scalar draw. One thread draws
a vector, in the order of its elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, cuda, device_function
from nbrt_kernels.random.distributions.samplers.binomial import binomial_count
from nbrt_kernels.random.distributions.samplers.gammas import gamma_factors
from nbrt_kernels.random.distributions.samplers.hypergeometric import hypergeometric_count
from nbrt_kernels.random.math import select

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction
    from nbrt_kernels.random.distributions._precision import Precision

__all__ = ["dirichlet", "multinomial", "multivariate_hypergeometric"]

_START = np.uint64(0)
_NO_COUNT = np.int64(0)
_ONE = np.float64(1)


def dirichlet(precision: Precision, store: DeviceFunction) -> DeviceFunction:
    """Make gammas over their sum, added in order, scaled so that nothing underflows.

    Each gamma is drawn twice, for the sum and to be stored: an element cannot hold both of its
    factors in between. A concentration of 0 gives 0, also where all concentrations are 0.
    """
    real, exp, factors = precision.real, precision.exp, gamma_factors(precision)
    zero, most = real(0), real(np.finfo(real).max)

    @device_function
    def draw(
        out: Array, start: Scalar, block: Scalar, key0: Scalar, key1: Scalar, alpha: Array,
        _b: Scalar, width: Scalar,
    ) -> None:  # fmt: skip
        first = start % alpha.shape[0]
        total, least = zero, most
        for j in range(width):
            shape = real(alpha[first + j])
            g, e, _, _ = factors(block + np.uint64(j), _START, key0, key1, shape)
            lower = select(e < least, e, least)
            part = select(shape > zero, g, zero)
            total = cuda.fma(total, exp(lower - least), cuda.fma(part, exp(lower - e), zero))
            least = lower
        for j in range(width):
            shape = real(alpha[first + j])
            g, e, _, _ = factors(block + np.uint64(j), _START, key0, key1, shape)
            out[start + j] = store(select(shape > zero, g * exp(least - e) / total, zero))

    return draw


def multinomial(has_trials: bool, store: DeviceFunction) -> DeviceFunction:
    """Make counts of outcomes: each binomial among the trials that those before have left.

    With `has_trials`, the number of trials is an array with a value for each element.
    """

    @device_function
    def of_each(trials: Array, i: Scalar) -> Scalar:
        return np.int64(trials[i])

    @device_function
    def of_all(trials: Scalar, _i: Scalar) -> Scalar:
        return trials

    trials = of_each if has_trials else of_all

    @device_function
    def draw(
        out: Array, start: Scalar, block: Scalar, key0: Scalar, key1: Scalar, n: Any,
        chances: Array, width: Scalar,
    ) -> None:  # fmt: skip
        first = start % chances.shape[0]
        left, rest = trials(n, start), _ONE
        for j in range(width - 1):
            p = np.float64(chances[first + j])
            share = select(p < rest, p / rest, _ONE)
            k, _ = binomial_count(block + np.uint64(j), _START, key0, key1, left, share)
            out[start + j] = store(k)
            left, rest = left - k, rest - p
        out[start + width - 1] = store(left)

    return draw


def multivariate_hypergeometric(store: DeviceFunction) -> DeviceFunction:
    """Make counts of colours: each hypergeometric among those that are left."""

    @device_function
    def draw(
        out: Array, start: Scalar, block: Scalar, key0: Scalar, key1: Scalar, colors: Array,
        sample: Scalar, width: Scalar,
    ) -> None:  # fmt: skip
        first = start % colors.shape[0]
        left, others = sample, _NO_COUNT
        for j in range(width):
            others = others + np.int64(colors[first + j])
        for j in range(width):
            good = np.int64(colors[first + j])
            others = others - good
            number = block + np.uint64(j)
            k, _ = hypergeometric_count(number, _START, key0, key1, good, others, left)
            out[start + j] = store(k)
            left = left - k

    return draw
