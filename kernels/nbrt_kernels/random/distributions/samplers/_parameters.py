"""Check the parameters of samplers and convert them to the types of the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ABOVE_ONE",
    "AT_LEAST_ZERO",
    "AT_LEAST_ZERO_OR_NAN",
    "CHANCE",
    "CHANCE_BELOW_ONE",
    "FINITE",
    "MEAN",
    "MEAN_OR_NAN",
    "POSITIVE",
    "POSITIVE_CHANCE",
    "SHARE",
    "WHOLE",
    "Parameter",
    "Range",
    "check_mean",
    "check_sample",
    "check_vector",
]


class Range(NamedTuple):
    """The values that a parameter may have.

    Attributes
    ----------
    text : str
        The condition in words.
    holds : callable
        The condition, of a scalar or an array.
    """

    text: str
    holds: Callable[[Any], Any]


def _is_not_negative(x: Any) -> Any:
    """Return whether a number is at least 0, and no negative zero, which NumPy refuses too."""
    return (x >= 0) & ~np.signbit(x)


_MAX_MEAN = 9.223e18
"""Counts of a larger mean would not fit int64."""

FINITE = Range("finite", np.isfinite)
POSITIVE = Range("> 0 and finite", lambda x: (x > 0) & (x < np.inf))
AT_LEAST_ZERO = Range(">= 0 and finite", lambda x: _is_not_negative(x) & (x < np.inf))
AT_LEAST_ZERO_OR_NAN = Range(
    ">= 0 and finite, or NaN", lambda x: AT_LEAST_ZERO.holds(x) | np.isnan(x)
)
ABOVE_ONE = Range("> 1 and finite", lambda x: (x > 1) & (x < np.inf))
CHANCE = Range("in [0, 1]", lambda x: (x >= 0) & (x <= 1))
CHANCE_BELOW_ONE = Range("in [0, 1)", lambda x: (x >= 0) & (x < 1))
POSITIVE_CHANCE = Range("in (0, 1]", lambda x: (x > 0) & (x <= 1))
MEAN = Range("in [0, 9.223e18]", lambda x: (x >= 0) & (x <= _MAX_MEAN))
MEAN_OR_NAN = Range(
    "in [0, 9.223e18] or NaN",
    lambda x: (_is_not_negative(x) & (x <= _MAX_MEAN)) | np.isnan(x),
)
SHARE = Range(">= 0 and finite", lambda x: (x >= 0) & (x < np.inf))
WHOLE = Range("in [0, 2**61]", lambda x: (x >= 0) & (x <= 2**61))


class Parameter(NamedTuple):
    """A parameter of a distribution.

    Attributes
    ----------
    name : str
        Its name in the public API.
    range : Range
        The accepted values.
    """

    name: str
    range: Range

    def typed(self, value: Any, kind: Any, distribution: str) -> Any:
        """Return a number converted to `kind`, or an array unchanged.

        Raises
        ------
        TypeError
            If integers are expected and the array has another dtype.
        ValueError
            If a value is out of range.
        OverflowError
            If an integer does not fit int64.
        """
        is_array = np.ndim(value) > 0
        if is_array and kind is np.int64 and value.dtype.kind not in "iub":
            message = f"{distribution}: expected {self.name} to be integers, got {value.dtype}"
            raise TypeError(message)
        if kind is np.int64 and not is_array and not bool(self.range.holds(value)):
            # Test before the conversion, which may overflow.
            fits = -(2**63) <= value < 2**63
            raise (ValueError if fits else OverflowError)(self._message(distribution, value))
        with np.errstate(over="ignore"):
            converted = value if is_array else kind(value)
        if not bool(self.range.holds(converted).all()):
            kind_name = "" if kind is np.int64 else f" as {np.dtype(kind).name}"
            raise ValueError(self._message(distribution, value) + kind_name)
        return converted

    def _message(self, distribution: str, value: Any) -> str:
        got = "an array with values that are not" if np.ndim(value) else repr(value)
        return f"{distribution}: expected {self.name} {self.range.text}, got {got}"


def check_mean(n: Any, chance: Any) -> None:
    """Raise ValueError if the failures before `n` successes may not fit int64.

    The bound is NumPy's: ten standard deviations of the gamma that is the mean of the counts.
    """
    with np.errstate(over="ignore"):
        most = (1 - chance) / chance * (n + 10 * np.sqrt(n))
    if not bool(np.all(most <= _MAX_MEAN)):
        message = "negative_binomial: expected counts that fit int64, got a larger n or smaller p"
        raise ValueError(message)


def check_sample(good: Any, bad: Any, sample: Any) -> None:
    """Raise ValueError if a sample is larger than its population."""
    if not bool(np.all(sample <= good + bad)):
        message = "hypergeometric: expected nsample <= ngood + nbad, got a larger nsample"
        raise ValueError(message)


def check_vector(distribution: str, values: Any, sample: Any, width: int) -> None:
    """Raise ValueError if probabilities exceed 1 or a sample exceeds its population.

    Parameters
    ----------
    distribution : str
        "multinomial" or "multivariate_hypergeometric"; others are not checked.
    values : array, shape (m * width,)
        Probabilities or colour counts of one vector, or of each vector.
    sample : int
        Sample size of the latter.
    width : int
        Length of a vector.
    """
    rows = np.reshape(values, (-1, width))
    # As NumPy, which allows for rounding, and gives the rest to the last outcome.
    if distribution == "multinomial":
        sums = rows[:, :-1].astype(np.float64).sum(axis=1)
        if bool((sums > 1 + 1e-12).any()):
            message = (
                "multinomial: expected sum(pvals[:-1]) <= 1, got a larger sum; divide by the sum "
                "in float64: the pvals array is cast to 64-bit floating point before it is summed"
            )
            raise ValueError(message)
    if distribution == "multivariate_hypergeometric":
        total = rows.sum(axis=1)
        if bool((total < sample).any()) or bool((total > 2**61).any()):
            message = f"{distribution}: expected nsample <= sum(colors) <= 2**61, got {sample}"
            raise ValueError(message)
