"""`DiscreteDistributions`: draws of integers, with NumPy's names, signatures and defaults."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.checks import as_dtype, checked_shape
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.random.arguments import (
    checked_flag,
    common_shape,
    exact_integers,
    integer,
    integer_dtype,
    is_array,
    number_dtype,
    probability,
    real,
    vector,
    vectors,
    whole,
)
from nbrt.random.distributions.base import BaseGenerator
from nbrt.runtime.array import asarray

if TYPE_CHECKING:
    from nbrt.typing import Array, ArrayLike, DTypeLike, Shape

__all__ = ["DiscreteDistributions", "check_integer_range"]

_ORDER = {
    (True, False): "high > 0, got high <= 0",
    (True, True): "high >= 0, got high < 0",
    (False, False): "low < high, got low >= high",
    (False, True): "low <= high, got low > high",
}
"""What is wrong with bounds, in NumPy's words, by whether low is 0 and high may be returned."""


class DiscreteDistributions(BaseGenerator):
    """Draws of integers and bits. A parameter may be an array with a value for each element."""

    def integers(
        self,
        low: ArrayLike,
        high: ArrayLike | None = None,
        size: Shape | None = None,
        dtype: DTypeLike = np.int64,
        endpoint: bool = False,  # NumPy's signature
        out: Array | None = None,
    ) -> Any:
        """Return integers in [low, high), each equally likely (Lemire's method with rejection).

        Parameters
        ----------
        low, high : int or array_like
            Bounds; with `high` None, [0, low). Arrays give each element a range, and then int64
            and uint64 take 64 bits an element, whatever the range. Fractions of floats are cut off.
        size : int or tuple of int, optional
            Shape of the result; a scalar if None. A result without elements may have no range.
        dtype : dtype
            An integer type that holds every value, or bool. Python's int and bool give scalars of
            these types.
        endpoint : bool
            Whether `high` itself may be returned.
        out : array, optional
            An array of that dtype on the generator's device to fill and return.
        """
        element_dtype = integer_dtype(dtype)
        is_closed = checked_flag("endpoint", endpoint)
        first, last = (0, low) if high is None else (low, high)
        if size is not None and _is_empty(size):
            return self._draw("bernoulli", (0.0,), size, element_dtype, out)
        if is_array(first) or is_array(last):
            bounds = self._bounds(first, last, element_dtype, is_closed)
            return self._draw("integers_each", bounds, size, element_dtype, out)
        least, most = whole("low", first), whole("high", last)
        check_integer_range(least, most + is_closed, element_dtype, is_closed)
        drawn = self._draw("integers", (least, most + is_closed), size, element_dtype, out)
        if (dtype is int or dtype is bool) and isinstance(drawn, np.generic):
            return drawn.item()
        return drawn

    def random_bits(
        self, size: Shape | None = None, dtype: DTypeLike = np.uint32, out: Array | None = None
    ) -> Any:
        """Return the words themselves: uint32, or uint64 of two words, the low one first."""
        element_dtype = as_dtype(dtype)
        if element_dtype not in (np.dtype(np.uint32), np.dtype(np.uint64)):
            raise ArgumentError(f"expected dtype uint32 or uint64, got {element_dtype}")
        return self._draw("bits", (), size, element_dtype, out)

    def bernoulli(
        self,
        p: ArrayLike = 0.5,
        size: Shape | None = None,
        dtype: DTypeLike = np.bool_,
        out: Array | None = None,
    ) -> Any:
        """Return 1 with probability `p` and else 0; p = 0 and p = 1 are certain.

        Parameters
        ----------
        p : float or array_like
            In [0, 1]; rounded to a multiple of 2**-32.
        size : int or tuple of int, optional
            Shape of the result; a scalar if None.
        dtype : dtype
            bool, an integer type or a float type.
        out : array, optional
            An array of that dtype on the generator's device to fill and return.
        """
        return self._draw("bernoulli", (probability("p", p),), size, number_dtype(dtype), out)

    def geometric(
        self,
        p: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.int64,
        out: Array | None = None,
    ) -> Any:
        """Return the number of trials up to the first success, at least 1.

        Parameters
        ----------
        p : float or array_like
            Chance of success, above 0.
        size, dtype, out
            As in `integers`.
        """
        return self._draw("geometric", (probability("p", p),), size, number_dtype(dtype), out)

    def poisson(
        self,
        lam: ArrayLike = 1.0,
        size: Shape | None = None,
        dtype: DTypeLike = np.int64,
        out: Array | None = None,
    ) -> Any:
        """Return Poisson counts (W. Hörmann, PTRS, Insurance: Math. and Econ. 12, 1993).

        Parameters
        ----------
        lam : float or array_like
            Mean, in [0, 9.2e18].
        size, dtype, out
            As in `integers`.
        """
        return self._draw("poisson", (real("lam", lam),), size, integer_dtype(dtype), out)

    def binomial(
        self,
        n: ArrayLike,
        p: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.int64,
        out: Array | None = None,
    ) -> Any:
        """Return successes in `n` trials (W. Hörmann, BTRS, J. Stat. Comput. Simul. 46, 1993).

        Parameters
        ----------
        n : int or array_like
            Trials, at least 0. Fractions of floats are cut off.
        p : float or array_like
            Chance of success.
        size, dtype, out
            As in `integers`.
        """
        parameters = (whole("n", n), probability("p", p))
        return self._draw("binomial", parameters, size, integer_dtype(dtype), out)

    def negative_binomial(
        self,
        n: ArrayLike,
        p: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.int64,
        out: Array | None = None,
    ) -> Any:
        """Return failures before `n` successes: a Poisson of gamma mean.

        Parameters
        ----------
        n : float or array_like
            Successes, above 0.
        p : float or array_like
            Chance of success, above 0. Counts of `n` and `p` have to fit int64.
        size, dtype, out
            As in `integers`.
        """
        parameters = (real("n", n), probability("p", p))
        return self._draw("negative_binomial", parameters, size, integer_dtype(dtype), out)

    def hypergeometric(
        self,
        ngood: ArrayLike,
        nbad: ArrayLike,
        nsample: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.int64,
        out: Array | None = None,
    ) -> Any:
        """Return good ones among `nsample` taken without replacement.

        Parameters
        ----------
        ngood, nbad, nsample : int or array_like
            Numbers of good, bad and taken ones, ``nsample <= ngood + nbad``. Fractions are cut off.
        size, dtype, out
            As in `integers`.
        """
        parameters = (whole("ngood", ngood), whole("nbad", nbad), whole("nsample", nsample))
        return self._draw("hypergeometric", parameters, size, integer_dtype(dtype), out)

    def logseries(
        self,
        p: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.int64,
        out: Array | None = None,
    ) -> Any:
        """Return integers of the logarithmic series distribution (A. W. Kemp, 1981).

        Parameters
        ----------
        p : float or array_like
            In [0, 1).
        size, dtype, out
            As in `integers`.
        """
        return self._draw("logseries", (probability("p", p),), size, integer_dtype(dtype), out)

    def zipf(
        self,
        a: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.int64,
        out: Array | None = None,
    ) -> Any:
        """Return integers k of probability proportional to ``k**-a`` (L. Devroye, 1986).

        Parameters
        ----------
        a : float or array_like
            Exponent, above 1.
        size, dtype, out
            As in `integers`.
        """
        return self._draw("zipf", (real("a", a),), size, integer_dtype(dtype), out)

    def multinomial(
        self,
        n: ArrayLike,
        pvals: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.int64,
        out: Array | None = None,
    ) -> Any:
        """Return how often each of k outcomes came up in `n` trials.

        Parameters
        ----------
        n : int or array_like
            Trials. Fractions of floats are cut off.
        pvals : array_like, shape (..., k)
            Chances of the outcomes; what is left to 1 belongs to the last one.
        size : int or tuple of int, optional
            Shape of the result without its last axis, which has length k. By default that to which
            `n` and the vectors of `pvals` broadcast.
        dtype, out
            As in `integers`.
        """
        chances = vectors("pvals", pvals)
        trials = whole("n", n)
        given = (np.shape(trials), chances.shape[:-1])
        width = chances.shape[-1]
        shape = (*self._leading(size, common_shape(given)), width)
        if is_array(trials):
            trials = _of_vectors("n", trials, shape)
        if chances.ndim > 1:
            chances = _of_vectors("pvals", chances, shape)
        return self._draw("multinomial", (trials, chances, width), shape, integer_dtype(dtype), out)

    def multivariate_hypergeometric(
        self,
        colors: ArrayLike,
        nsample: int,
        size: Shape | None = None,
        method: str = "marginals",
        dtype: DTypeLike = np.int64,
        out: Array | None = None,
    ) -> Any:
        """Return how many of each of k colours are among `nsample` taken without replacement.

        Parameters
        ----------
        colors : array_like of int, shape (k,)
            How many there are of each; k may be 0.
        nsample : int
            How many are taken, at most their sum.
        size : int or tuple of int, optional
            Shape of the result without its last axis, which has length k.
        method : {"marginals", "count"}
            Accepted as NumPy's generators do; always by marginals.
        dtype, out
            As in `integers`.
        """
        if method not in ("marginals", "count"):
            raise ArgumentError(f"expected method 'marginals' or 'count', got {method!r}")
        counts = vector("colors", colors, may_be_empty=True)
        taken = integer("nsample", nsample)
        if is_array(taken):
            raise ArgumentTypeError(f"expected nsample as one integer, got {nsample!r}")
        shape = (*self._leading(size), counts.size)
        parameters = (counts, taken, counts.size)
        element_dtype = integer_dtype(dtype)
        if not counts.size:
            if taken:
                raise ArgumentError(f"expected nsample <= sum(colors), got {taken} of no colors")
            return self._draw("bernoulli", (0.0,), shape, element_dtype, out)
        return self._draw("multivariate_hypergeometric", parameters, shape, element_dtype, out)

    def _bounds(self, low: Any, high: Any, dtype: np.dtype[Any], endpoint: bool) -> tuple[Any, Any]:
        """Return lower bounds and spans, checked, as arrays of uint64 modulo 2**64."""
        # As Python integers: a span of int64 bounds need not fit int64.
        first, last = exact_integers("low", low), exact_integers("high", high)
        common_shape((first.shape, last.shape))
        first, last = np.broadcast_arrays(first, np.add(last, int(endpoint), dtype=object))
        if first.size:
            narrowest = int((last - first).argmin())
            check_integer_range(first.flat[narrowest], last.flat[narrowest], dtype, endpoint)
            check_integer_range(first.min(), last.max(), dtype, endpoint)
        spans = ((last - first) % 2**64).astype(np.uint64)
        return (
            asarray((first % 2**64).astype(np.uint64), device=self.device, copy=None),
            asarray(spans, device=self.device, copy=None),
        )


def _is_empty(size: Shape) -> bool:
    return not (size if type(size) is int else math.prod(checked_shape(size)))


def _of_vectors(name: str, values: Any, shape: tuple[int, ...]) -> Any:
    """Return numbers, or vectors, with a value for each element of vectors of a shape."""
    array = np.asarray(values)
    vectors_of_values = array if name == "pvals" else array[..., None]
    try:
        return np.broadcast_to(vectors_of_values, shape)
    except ValueError:
        raise ArgumentError(
            f"expected {name} to broadcast to shape {shape[:-1]}, got shape {array.shape}"
        ) from None


@functools.cache
def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the largest integer of a dtype; NumPy takes microseconds for them."""
    if dtype.kind == "b":
        return 0, 1
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def check_integer_range(low: int, high: int, dtype: np.dtype[Any], endpoint: bool = False) -> None:
    """Check that [low, high) is not empty and within a dtype."""
    if low >= high:
        bounds = f"[{low}, {high - 1}]" if endpoint else f"[{low}, {high})"
        raise ArgumentError(f"expected {_ORDER[low == 0, endpoint]} in {bounds}")
    least, most = _limits(dtype)
    if low < least or high - 1 > most:
        raise ArgumentError(
            f"expected a range within {dtype}, [{least}, {most + 1}), got [{low}, {high}); "
            f"pass a wider dtype"
        )
