"""`Discrete`: distributions of integers, with NumPy's names, signatures and defaults."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.checks import as_dtype, checked_shape
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.random.arguments import (
    checked_array,
    checked_flag,
    checked_out,
    exact_integers,
    float_dtype,
    integer,
    integer_dtype,
    is_array,
    most_integer,
    number_dtype,
    probability,
    real,
    vector,
    vectors,
    whole,
)
from nbrt.random.core import GeneratorCore, common_shape
from nbrt.random.memory_order import as_kernel_view
from nbrt.runtime.array import asarray, copy, to_host
from nbrt.runtime.creation import empty
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from nbrt.typing import Array, ArrayLike, DTypeLike, Shape

__all__ = ["Discrete"]

_ORDER = {
    (True, False): "high > 0, got high <= 0",
    (True, True): "high >= 0, got high < 0",
    (False, False): "low < high, got low >= high",
    (False, True): "low <= high, got low > high",
}
"""What is wrong with bounds, in NumPy's words, by whether low is 0 and high may be returned."""


class Discrete(GeneratorCore):
    """Draws of integers and bits. A parameter may be an array, with a value for each element."""

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
        kind = integer_dtype(dtype)
        is_closed = checked_flag("endpoint", endpoint)
        first, last = (0, low) if high is None else (low, high)
        if size is not None and _is_empty(size):
            return self._draw("bernoulli", (0.0,), size, kind, out)
        if is_array(first) or is_array(last):
            bounds = self._bounds(first, last, kind, is_closed)
            return self._draw("integers_each", bounds, size, kind, out)
        least, most = whole("low", first), whole("high", last)
        _check_integer_range(least, most + is_closed, kind, is_closed)
        drawn = self._draw("integers", (least, most + is_closed), size, kind, out)
        if (dtype is int or dtype is bool) and isinstance(drawn, np.generic):
            return drawn.item()
        return drawn

    def random_bits(
        self, size: Shape | None = None, dtype: DTypeLike = np.uint32, out: Array | None = None
    ) -> Any:
        """Return the words themselves: uint32, or uint64 of two words, the low one first."""
        kind = as_dtype(dtype)
        if kind not in (np.dtype(np.uint32), np.dtype(np.uint64)):
            raise ArgumentError(f"expected dtype uint32 or uint64, got {kind}")
        return self._draw("bits", (), size, kind, out)

    def bytes(self, length: int) -> bytes:
        """Return random bytes, drawn as whole 32-bit words.

        Parameters
        ----------
        length : int
            How many.
        """
        count = integer("length", length)
        if is_array(count) or count < 0:
            raise ArgumentError(f"expected a length >= 0, got {length!r}")
        words = to_host(self.random_bits(-(-count // 4)), copy=None)
        return words.astype("<u4").tobytes()[:count]

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

    def dropout(self, x: ArrayLike, p: float = 0.5, training: bool = True) -> tuple[Any, Any]:
        """Zero elements with probability `p` and scale the rest by ``1 / (1 - p)``, in one pass.

        Parameters
        ----------
        x : array_like of floats
            What to thin out.
        p : float
            In [0, 1]; 1 gives zeros.
        training : bool
            False: return a copy and a mask of True.

        Returns
        -------
        result, mask : arrays
            In the shape of `x`; the mask, of bool, says which elements were kept. Nothing is drawn
            where the outcome is certain.
        """
        stream = current_stream(self.device)
        values = asarray(x, device=self.device, stream=stream)
        if isinstance(values, np.ndarray):
            values = values.view(np.ndarray)
        kind = float_dtype(values.dtype)
        chance = probability("p", p)
        if is_array(chance):
            raise ArgumentTypeError(f"expected p as one number, got {p!r}")
        is_training = checked_flag("training", training)
        axes = self._axes(values)
        ordered = values if axes is None else values.transpose(axes)
        if not ordered.flags.c_contiguous:
            gathered = empty(ordered.shape, kind, stream=stream)
            copy(gathered, ordered, stream=stream)
            ordered = gathered
        result = empty(ordered.shape, kind, stream=stream)
        mask = empty(ordered.shape, np.bool_, stream=stream)
        if not is_training or chance == 0.0:
            copy(result, ordered, stream=stream)
            copy(mask, np.True_, stream=stream)
        elif chance == 1.0:
            copy(result, kind.type(0), stream=stream)
            copy(mask, np.False_, stream=stream)
        else:
            parameters = (chance, as_kernel_view(ordered), as_kernel_view(mask))
            self._fill(stream, result, "dropout", parameters, values.shape, has_arrays=True)
        if axes is None:
            return result, mask
        back = np.argsort(axes)
        return result.transpose(back), mask.transpose(back)

    def fill_integers(self, out: Array, low: int | None = None, high: int | None = None) -> Array:
        """Fill an array of any numbers with integers of [low, high), and return it.

        Parameters
        ----------
        out : array
            Of integers, floats or bool.
        low, high : int, optional
            Bounds, or without them the range of the dtype as torch has it: [0, 2**(bits - 1)) of
            signed integers, [0, 2**bits) of unsigned ones, both values of bool, and [0, 2**p] of
            floats with p bits of precision.
        """
        kind = number_dtype(checked_array("out", out).dtype)
        is_torch = self.layout.name == "torch"
        if (low is None) != (high is None):
            raise ArgumentError(f"expected both bounds or none, got low={low}, high={high}")
        if low is None or high is None:
            if is_torch:
                return self._draw("random", (), None, kind, out)
            low, high = 0, most_integer(kind) + 1
        if kind.kind in "iub":
            return self.integers(low, high, dtype=kind, out=out)
        _check_integer_range(integer("low", low), integer("high", high), np.dtype(np.int64))
        if is_torch:
            return self._draw("integers", (low, high), None, kind, out)
        into = checked_out(current_stream(self.device), out, None, kind)
        copy(into, self.integers(low, high, into.shape))
        return out

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
        parameters = (probability("p", p),)
        return self._draw("geometric", parameters, size, number_dtype(dtype), out)

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
        parameters = (real("lam", lam),)
        return self._draw("poisson", parameters, size, integer_dtype(dtype), out)

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
        ngood : int or array_like
            Good ones, at least 0.
        nbad : int or array_like
            Bad ones, at least 0.
        nsample : int or array_like
            How many are taken, at most ``ngood + nbad``. Of all three, fractions are cut off.
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
        parameters = (probability("p", p),)
        return self._draw("logseries", parameters, size, integer_dtype(dtype), out)

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
        parameters = (real("a", a),)
        return self._draw("zipf", parameters, size, integer_dtype(dtype), out)

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
        kind = integer_dtype(dtype)
        if not counts.size:
            if taken:
                raise ArgumentError(f"expected nsample <= sum(colors), got {taken} of no colors")
            return self._draw("bernoulli", (0.0,), shape, kind, out)
        return self._draw("multivariate_hypergeometric", parameters, shape, kind, out)

    def _bounds(self, low: Any, high: Any, dtype: np.dtype[Any], endpoint: bool) -> tuple[Any, Any]:
        """Return lower bounds and spans, checked, as arrays of uint64 modulo 2**64."""
        # As Python integers: a span of int64 bounds need not fit int64.
        first, last = exact_integers("low", low), exact_integers("high", high)
        common_shape((first.shape, last.shape))
        first, last = np.broadcast_arrays(first, np.add(last, int(endpoint), dtype=object))
        if first.size:
            narrowest = int((last - first).argmin())
            _check_integer_range(first.flat[narrowest], last.flat[narrowest], dtype, endpoint)
            _check_integer_range(first.min(), last.max(), dtype, endpoint)
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
    each = array if name == "pvals" else array[..., None]
    try:
        return np.broadcast_to(each, shape)
    except ValueError:
        raise ArgumentError(
            f"expected {name} to broadcast to shape {shape[:-1]}, got shape {array.shape}"
        ) from None


def _check_integer_range(low: int, high: int, dtype: np.dtype[Any], endpoint: bool = False) -> None:
    if low >= high:
        bounds = f"[{low}, {high - 1}]" if endpoint else f"[{low}, {high})"
        raise ArgumentError(f"expected {_ORDER[low == 0, endpoint]} in {bounds}")
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if low < least or high - 1 > most:
        raise ArgumentError(
            f"expected a range within {dtype}, [{least}, {most + 1}), got [{low}, {high}); "
            f"pass a wider dtype"
        )
