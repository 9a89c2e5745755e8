"""`Sampling`: choices and permutations, made of other draws."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nbrt._internal.checks import checked_int, checked_shape
from nbrt.errors import ArgumentError, ArgumentTypeError, UnsupportedArgumentError
from nbrt.random.arguments import (
    checked_array,
    checked_flag,
    checked_out,
    integer,
    is_array,
    rectangular,
    vector,
)
from nbrt.random.continuous import Continuous
from nbrt.random.discrete import Discrete
from nbrt.random.exceptions import ArgumentAxisError
from nbrt.random.layouts.torch import permutation_keys
from nbrt.runtime.array import asarray, copy, to_host
from nbrt.runtime.guard import OptionalStreamGuard
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.typing import Array, ArrayLike, Shape

__all__ = ["Sampling", "checked_axis", "checked_samples", "multinomial_indices"]

_TOLERANCE = 1e-8
"""How far chances may add up to something else than 1, as in NumPy; the root of eps, if more."""


class Sampling(Continuous, Discrete):
    """Draws that pick from or reorder something that exists.

    A permutation sorts by 64-bit random keys, ties by index, so it is uniform up to a chance of
    about ``n**2 / 2**65`` of a tie. It depends on n: the shorter one is no prefix of the longer.
    """

    def choice(
        self,
        a: ArrayLike,
        size: Shape | None = None,
        replace: bool = True,
        p: ArrayLike | None = None,
        axis: int = 0,
        shuffle: bool = True,
    ) -> Any:
        """Return elements picked at random.

        Parameters
        ----------
        a : int or array_like
            What to pick from: an array, along `axis`, or ``arange(a)``.
        size : int or tuple of int, optional
            How many, as a shape; a single one if None.
        replace : bool
            Whether an element may be picked more than once.
        p : array_like, shape (n,), optional
            Chances of the elements, of sum 1; equal ones by default.
        axis : int
            Of the array to pick along.
        shuffle : bool
            Accepted as NumPy's generators do; what is picked without replacement always comes in
            random order.
        """
        array = self._population("a", a)
        count = _size_of_range(a) if array is None else array.shape[checked_axis(axis, array.ndim)]
        shape = () if size is None else checked_shape(size)
        wanted = math.prod(shape)
        if count <= 0 and wanted:
            raise ArgumentError(f"expected something to pick from, got {count} elements")
        chances = None if p is None else _chances(p, count)
        if replace:
            index = self._with_replacement(count, shape, chances)
        else:
            index = self._without_replacement(count, wanted, chances).reshape(shape)
        if array is not None and array.dtype.hasobject and array.ndim == 1 and not shape:
            return _object_at(array, int(to_host(index, copy=None)), size is None)
        picked = index if array is None else self._picked(array, index, axis)
        if isinstance(picked, np.generic):
            return picked if size is None else np.asarray(picked)
        if size is None and not picked.shape:
            return self._scalar(current_stream(self.device), picked)
        return picked

    def permutation(self, x: int | ArrayLike, axis: int = 0) -> Any:
        """Return a shuffled copy of an array along an axis, or of ``arange(x)``.

        Parameters
        ----------
        x : int or array_like
            What to permute.
        axis : int
            Slices along it keep their contents.
        """
        array = self._population("x", x)
        if array is None:
            try:
                count = operator.index(x)  # type: ignore[arg-type]  # no array, as it turned out
            except TypeError:
                raise ArgumentAxisError(
                    f"expected x as an integer or an array with at least one axis, got {x!r}"
                ) from None
            if count < 0:
                raise ArgumentError(f"expected x >= 0, got {count}")
            return self._order(count)
        order = self._order(array.shape[checked_axis(axis, array.ndim)])
        return self._picked(array, order, axis)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        """Shuffle an array or a list in place, along an axis.

        Parameters
        ----------
        x : array or list
            What to shuffle.
        axis : int
            Slices along it keep their contents; 0 for a list.
        """
        if isinstance(x, list):
            if axis != 0:
                raise UnsupportedArgumentError(
                    f"expected axis 0 for a list, got {axis}; shuffle an array along other axes"
                )
            x[:] = [x[index] for index in to_host(self._order(len(x)), copy=None)]
            return
        wanted: Any = getattr(x, "dtype", None)
        if wanted is None or not getattr(x, "ndim", 0):
            raise ArgumentTypeError(
                f"expected a list or an array of at least one dimension to shuffle, got {x!r}"
            )
        if isinstance(x, np.ndarray) and _is_shuffled_by_numpy(x):
            if not x.flags.writeable:
                raise ArgumentError("expected an array that can be written to, got a read-only one")
            order = to_host(self._order(x.shape[checked_axis(axis, x.ndim)]), copy=None)
            x[...] = x.take(order, axis)
            return
        array = checked_out(current_stream(self.device), x, None, wanted)
        copy(array, self.permutation(array, axis))

    def permuted(self, x: ArrayLike, *, axis: int | None = None, out: Array | None = None) -> Any:
        """Return a copy of an array with each slice along an axis shuffled for itself.

        Parameters
        ----------
        x : array_like
            What to permute.
        axis : int, optional
            Each line along it is shuffled independently; None: all elements together.
        out : array, optional
            Of the shape of `x` and a dtype that `x` casts to within its kind; may be `x` itself.
        """
        array = self._population("x", x)
        if array is None:
            array = asarray(x, device=self.device, copy=None)
        if axis is None and not array.ndim:
            raise ArgumentTypeError(
                f"expected x as an array with at least one axis, got {x!r}; for range(x) use "
                f"permutation"
            )
        if out is not None:
            out = self._permuted_out(out, array)
        if axis is None:
            result = self._picked(array.reshape(-1), self._order(array.size), 0)
            result = result.reshape(array.shape)
        else:
            chosen = checked_axis(axis, array.ndim)
            self._check_whole()
            keys = self.random_bits(array.shape, np.uint64)
            order = self._on_arrays(np.argsort, keys, chosen, "stable")
            if array.dtype.hasobject:
                order = to_host(order, copy=None)
            result = self._on_arrays(np.take_along_axis, array, order, chosen)
        if out is None:
            return result
        if array.dtype.hasobject:
            out[...] = result
        else:
            copy(out, result)
        return out

    def _permuted_out(self, out: Any, array: Any) -> Array:
        """Return `out` if it can hold a permuted array."""
        checked_array("out", out)
        if out.shape != array.shape:
            raise ArgumentError(
                f"expected out of the same shape as x, {array.shape}, got {out.shape}"
            )
        if not np.can_cast(array.dtype, out.dtype, "same_kind"):
            raise ArgumentTypeError(
                f"expected out of a dtype of the kind of x. Cannot cast {array.dtype} to "
                f"{out.dtype}"
            )
        if array.dtype.hasobject and out.flags.writeable:
            return cast("Array", out)
        return checked_out(current_stream(self.device), out, None, out.dtype)

    def _population(self, name: str, value: Any) -> Any:
        """Return what is picked from or permuted as an array; None if it has no dimensions.

        On the generator's device, or on the host if its elements are Python objects.
        """
        if is_array(value):
            array = rectangular(name, value)
        elif hasattr(value, "__array__") and not hasattr(value, "ndim"):
            array = np.asarray(value)
        else:
            return None
        if isinstance(array, np.ndarray) and array.dtype.hasobject:
            return array
        return asarray(array, device=self.device, copy=None)

    def _picked(self, array: Any, index: Any, axis: int) -> Any:
        """Return elements of an array of `_population` along an axis."""
        if array.dtype.hasobject:
            return array.take(to_host(index, copy=None), axis)
        return self._on_arrays(array.take, index, axis)

    def _order(self, count: int) -> Any:
        """Return a random permutation of range(count), int64."""
        self._check_whole()
        if self.layout.name == "torch" and count:
            return self._torch_order(count)
        keys = self.random_bits(count, np.uint64)
        return self._on_arrays(np.argsort, keys, 0, "stable")

    def _check_whole(self) -> None:
        if self._part is not None:
            raise ArgumentError(
                "expected a generator of whole draws for a permutation, got a shard; permute with "
                "the generator itself and take the part"
            )

    def _torch_order(self, count: int) -> Any:
        """Return what torch.randperm returns."""
        dtype, low, high, mask = permutation_keys(count)
        keys = self.integers(low, high, count, dtype)
        order, ranked = self._on_arrays(_ranked, keys, mask)
        # Equal keys are drawn once more: torch shuffles the elements that share one.
        stream = current_stream(self.device)
        self._fill(stream, order, "shuffle_runs", (ranked,), order.shape, has_arrays=True)
        return order

    def _with_replacement(self, count: int, shape: tuple[int, ...], chances: Any) -> Any:
        if chances is None:
            if not math.prod(shape):
                return self.random_bits(shape, np.uint64).astype(np.int64)
            return self.integers(0, count, size=shape)
        # Summed on the host, in one order, so that every device cuts at the same places.
        sums = np.cumsum(chances)
        sums /= sums[-1]
        table = asarray(sums, device=self.device, copy=None)
        return self._on_arrays(np.searchsorted, table, self.random(shape), "right")

    def _without_replacement(self, count: int, wanted: int, chances: Any) -> Any:
        available = count if chances is None else int(np.count_nonzero(chances))
        if wanted > available:
            raise ArgumentError(
                f"expected at most {available} elements to pick without replacement, got {wanted}; "
                f"pass replace=True or fewer"
            )
        if chances is None:
            return self._order(count)[:wanted]
        # The smallest of exponentials over their rates is element i with chance p[i]: sorted, they
        # are a draw without replacement (P. Efraimidis, P. Spirakis, 2006).
        waits = self.standard_exponential(count)
        rates = asarray(chances, device=self.device, copy=None)
        return self._on_arrays(_order_of_ratios, waits, rates)[:wanted]

    def _on_arrays(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the arrays' own library once the draws before it are done."""
        stream = current_stream(self.device)
        if stream.interface.capabilities.host_addressable:
            stream.synchronize()
        with OptionalStreamGuard(stream):
            return function(*args)


def checked_samples(shape: tuple[int, ...], num_samples: int, replacement: bool) -> int:
    """Return how many samples `multinomial_indices` draws of each row of weights of a shape."""
    count = integer("num_samples", num_samples)
    if len(shape) not in (1, 2) or shape[-1] == 0 or is_array(count) or count <= 0:
        raise ArgumentError(
            f"expected weights of shape (k,) or (rows, k), k > 0, and num_samples > 0, got shape "
            f"{shape} and {num_samples}"
        )
    if not checked_flag("replacement", replacement) and count > shape[-1]:
        raise _too_many(shape[-1], count)
    return int(count)


def multinomial_indices(
    generator: Sampling, weights: Any, num_samples: int, replacement: bool
) -> Any:
    """Return indices drawn with chances in proportion to weights; see `random.multinomial`."""
    count = checked_samples(weights.shape, num_samples, replacement)
    table = np.asarray(to_host(weights, copy=None), np.float64)
    if not np.isfinite(table).all() or table.min() < 0 or not table.any(axis=-1).all():
        raise ArgumentError("expected finite weights >= 0, not all 0 in a row")
    if replacement:
        return _rows_with_replacement(generator, table, count)
    fewest = int(np.count_nonzero(table, axis=-1).min())
    if count > fewest:
        raise _too_many(fewest, count)
    waits = generator.standard_exponential(table.shape)
    rates = asarray(table, device=generator.device, copy=None)
    return generator._on_arrays(_order_of_ratios, waits, rates)[..., :count]


def _too_many(fewest: int, count: int) -> ArgumentError:
    return ArgumentError(
        f"expected at most {fewest} samples without replacement, the weights that are not 0 in a "
        f"row, got {count}; pass replacement=True"
    )


def _rows_with_replacement(generator: Sampling, weights: Any, count: int) -> Any:
    # Summed on the host, in one order, so that every device cuts at the same places.
    sums = np.cumsum(weights / weights.max(axis=-1, keepdims=True), axis=-1)
    sums /= sums[..., -1:]
    draws = to_host(generator.random((*weights.shape[:-1], count)), copy=None)
    if sums.ndim == 1:
        found = np.searchsorted(sums, draws, "right")
    else:
        rows = [np.searchsorted(*row, "right") for row in zip(sums, draws, strict=True)]
        found = np.stack(rows)
    return asarray(found.astype(np.int64), device=generator.device, copy=None)


def _ranked(keys: Any, mask: int | None) -> tuple[Any, Any]:
    counted = keys if mask is None else keys & keys.dtype.type(mask)
    order = np.argsort(counted, 0, "stable")
    return order, counted[order]


def _order_of_ratios(waits: Any, rates: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.argsort(waits / rates, -1, "stable")


def checked_axis(axis: int, ndim: int) -> int:
    """Return an axis of `ndim` dimensions, counted from the first one."""
    number = checked_int("an axis", axis)
    if not -ndim <= number < ndim:
        raise ArgumentAxisError(f"expected an axis in [{-ndim}, {ndim}), got {number}")
    return number % ndim


def _size_of_range(a: Any) -> int:
    try:
        return operator.index(a)
    except TypeError:
        raise ArgumentError(
            f"expected a as a sequence, an array or an integer to pick from, got {a!r}"
        ) from None


def _object_at(array: Any, index: int, is_scalar: bool) -> Any:
    """Return an element of a vector of Python objects, or an array without dimensions of it."""
    return array[index] if is_scalar else array[index : index + 1].reshape(()).copy()


def _is_shuffled_by_numpy(array: Any) -> bool:
    """Return whether an array has what no kernel moves: Python objects or a mask."""
    return array.dtype.hasobject or (
        type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray)
    )


def _chances(p: ArrayLike, count: int) -> Any:
    given = vector("p", p)
    chances = given.astype(np.float64)
    coarsest = np.finfo(given.dtype).eps if given.dtype.kind == "f" else 0.0
    tolerance = max(_TOLERANCE, float(np.sqrt(coarsest)))
    if chances.size != count:
        raise ArgumentError(f"expected p to have {count} chances, got {chances.size}")
    if chances.min() < 0 or abs(chances.sum() - 1.0) > tolerance:
        raise ArgumentError(
            f"expected chances p >= 0 that add up to 1, got a least of {chances.min()} and a sum "
            f"of {chances.sum()}"
        )
    return chances
