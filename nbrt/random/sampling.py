"""`Sampling`: choices and permutations, made of other draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.random.arguments import (
    checked_flag,
    checked_out,
    integer,
    is_array,
    rectangular,
    vector,
)
from nbrt.random.continuous import Continuous
from nbrt.random.discrete import Discrete
from nbrt.random.layouts.torch import permutation_keys
from nbrt.random.state import checked_int
from nbrt.runtime.array import asarray, copy, to_host
from nbrt.runtime.guard import OptionalStreamGuard
from nbrt.runtime.new_array import checked_shape
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
        array = (
            None if not is_array(a) else asarray(rectangular("a", a), device=self.device, copy=None)
        )
        count = integer("a", a) if array is None else array.shape[checked_axis(axis, array.ndim)]
        shape = () if size is None else checked_shape(size)
        wanted = math.prod(shape)
        if count <= 0 and wanted:
            raise ArgumentError(f"expected something to pick from, got {count} elements")
        chances = None if p is None else _chances(p, count)
        if replace:
            index = self._with_replacement(count, shape, chances)
        else:
            index = self._without_replacement(count, wanted, chances).reshape(shape)
        picked = index if array is None else self._on_arrays(array.take, index, axis)
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
        if not is_array(x):
            count = integer("x", x)
            if count < 0:
                raise ArgumentError(f"expected x >= 0, got {count}")
            return self._order(count)
        array = asarray(rectangular("x", x), device=self.device, copy=None)
        order = self._order(array.shape[checked_axis(axis, array.ndim)])
        return self._on_arrays(array.take, order, axis)

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
                raise ArgumentError(f"expected axis 0 for a list, got {axis}")
            x[:] = [x[index] for index in to_host(self._order(len(x)), copy=None)]
            return
        wanted: Any = getattr(x, "dtype", None)
        if wanted is None or not getattr(x, "ndim", 0):
            raise ArgumentTypeError(
                f"expected a list or an array of at least one dimension to shuffle, got {x!r}"
            )
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
            Of the shape and dtype of `x`; may be `x` itself.
        """
        array = asarray(rectangular("x", x), device=self.device, copy=None)
        if out is not None:
            out = checked_out(current_stream(self.device), out, array.shape, array.dtype)
        if axis is None:
            result = self._on_arrays(array.reshape(-1).take, self._order(array.size))
            result = result.reshape(array.shape)
        else:
            chosen = checked_axis(axis, array.ndim)
            self._check_whole()
            keys = self.random_bits(array.shape, np.uint64)
            order = self._on_arrays(np.argsort, keys, chosen, "stable")
            result = self._on_arrays(np.take_along_axis, array, order, chosen)
        if out is None:
            return result
        copy(out, result)
        return out

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
        raise ArgumentError(f"expected an axis in [{-ndim}, {ndim}), got {number}")
    return number % ndim


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
