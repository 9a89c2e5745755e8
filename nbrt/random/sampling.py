"""Choices and permutations, made of other draws: the methods of `nbrt.Generator` as functions."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nbrt._internal.checks import checked_int, checked_shape
from nbrt.errors import ArgumentError, ArgumentTypeError, UnsupportedArgumentError
from nbrt.random.arguments import (
    ArgumentAxisError,
    checked_array,
    checked_flag,
    checked_out,
    integer,
    is_array,
    rectangular,
    vector,
)
from nbrt.random.array_filler import call_on_stream, host_scalar
from nbrt.random.layouts import follows_torch
from nbrt.random.layouts.torch import permutation_keys
from nbrt.runtime.array import asarray, copy, to_host
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from nbrt.random.distributions import Distributions
    from nbrt.typing import Array, ArrayLike, Shape

__all__ = [
    "checked_axis",
    "checked_samples",
    "choice",
    "multinomial_indices",
    "permutation",
    "permuted",
    "shuffle",
]

_TOLERANCE = 1e-8
"""Tolerance of the sum of probabilities, as in NumPy: this, or the root of eps if larger."""


def choice(
    generator: Distributions,
    a: ArrayLike,
    size: Shape | None,
    replace: bool,
    p: ArrayLike | None,
    axis: int,
) -> Any:
    """Return elements picked at random; see `nbrt.Generator.choice`."""
    array = _population(generator, "a", a)
    count = _size_of_range(a) if array is None else array.shape[checked_axis(axis, array.ndim)]
    shape = () if size is None else checked_shape(size)
    wanted = math.prod(shape)
    if count <= 0 and wanted:
        raise ArgumentError(f"expected something to pick from, got {count} elements")
    chances = None if p is None else _chances(p, count)
    if replace:
        index = _with_replacement(generator, count, shape, chances)
    else:
        index = _without_replacement(generator, count, wanted, chances).reshape(shape)
    if array is not None and array.dtype.hasobject and array.ndim == 1 and not shape:
        return _object_at(array, int(to_host(index, copy=None)), size is None)
    picked = index if array is None else _picked(generator, array, index, axis)
    if isinstance(picked, np.generic):
        return picked if size is None else np.asarray(picked)
    if size is None and not picked.shape:
        return host_scalar(current_stream(generator.device), picked)
    return picked


def permutation(generator: Distributions, x: int | ArrayLike, axis: int) -> Any:
    """Return a shuffled copy; see `nbrt.Generator.permutation`."""
    array = _population(generator, "x", x)
    if array is None:
        try:
            count = operator.index(x)  # type: ignore[arg-type]  # no array, as it turned out
        except TypeError:
            raise ArgumentAxisError(
                f"expected x as an integer or an array with at least one axis, got {x!r}"
            ) from None
        if count < 0:
            raise ArgumentError(f"expected x >= 0, got {count}")
        return _order(generator, count)
    order = _order(generator, array.shape[checked_axis(axis, array.ndim)])
    return _picked(generator, array, order, axis)


def shuffle(generator: Distributions, x: Any, axis: int) -> None:
    """Shuffle an array or a list in place; see `nbrt.Generator.shuffle`."""
    if isinstance(x, list):
        if axis != 0:
            raise UnsupportedArgumentError(
                f"expected axis 0 for a list, got {axis}; shuffle an array along other axes"
            )
        x[:] = [x[index] for index in to_host(_order(generator, len(x)), copy=None)]
        return
    wanted: Any = getattr(x, "dtype", None)
    if wanted is None or not getattr(x, "ndim", 0):
        raise ArgumentTypeError(
            f"expected a list or an array of at least one dimension to shuffle, got {x!r}"
        )
    if isinstance(x, np.ndarray) and _is_shuffled_by_numpy(x):
        if not x.flags.writeable:
            raise ArgumentError("expected an array that can be written to, got a read-only one")
        order = to_host(_order(generator, x.shape[checked_axis(axis, x.ndim)]), copy=None)
        x[...] = x.take(order, axis)
        return
    array = checked_out(current_stream(generator.device), x, None, wanted)
    copy(array, permutation(generator, array, axis))


def permuted(generator: Distributions, x: ArrayLike, axis: int | None, out: Array | None) -> Any:
    """Return a copy with each slice shuffled for itself; see `nbrt.Generator.permuted`."""
    array = _population(generator, "x", x)
    if array is None:
        array = asarray(x, device=generator.device, copy=None)
    if axis is None and not array.ndim:
        raise ArgumentTypeError(
            f"expected x as an array with at least one axis, got {x!r}; for range(x) use "
            f"permutation"
        )
    if out is not None:
        out = _permuted_out(generator, out, array)
    if axis is None:
        result = _picked(generator, array.reshape(-1), _order(generator, array.size), 0)
        result = result.reshape(array.shape)
    else:
        chosen = checked_axis(axis, array.ndim)
        _check_whole(generator)
        keys = generator.random_bits(array.shape, np.uint64)
        order = call_on_stream(generator.device, np.argsort, keys, chosen, "stable")
        if array.dtype.hasobject:
            order = to_host(order, copy=None)
        result = call_on_stream(generator.device, np.take_along_axis, array, order, chosen)
    if out is None:
        return result
    if array.dtype.hasobject:
        out[...] = result
    else:
        copy(out, result)
    return out


def _permuted_out(generator: Distributions, out: Any, array: Any) -> Array:
    """Return `out` if it can hold a permuted array."""
    checked_array("out", out)
    if out.shape != array.shape:
        raise ArgumentError(f"expected out of the same shape as x, {array.shape}, got {out.shape}")
    if not np.can_cast(array.dtype, out.dtype, "same_kind"):
        raise ArgumentTypeError(
            f"expected out of a dtype of the kind of x. Cannot cast {array.dtype} to {out.dtype}"
        )
    if array.dtype.hasobject and out.flags.writeable:
        return cast("Array", out)
    return checked_out(current_stream(generator.device), out, None, out.dtype)


def _population(generator: Distributions, name: str, value: Any) -> Any:
    """Return the argument of a choice or permutation as an array; None if it is a number.

    It is on the generator's device, or on the host if its elements are Python objects.
    """
    if is_array(value):
        array = rectangular(name, value)
    elif hasattr(value, "__array__") and not hasattr(value, "ndim"):
        array = np.asarray(value)
    else:
        return None
    if isinstance(array, np.ndarray) and array.dtype.hasobject:
        return array
    return asarray(array, device=generator.device, copy=None)


def _picked(generator: Distributions, array: Any, index: Any, axis: int) -> Any:
    """Return elements of an array of `_population` along an axis."""
    if array.dtype.hasobject:
        return array.take(to_host(index, copy=None), axis)
    return call_on_stream(generator.device, array.take, index, axis)


def _order(generator: Distributions, count: int) -> Any:
    """Return a random permutation of range(count), int64."""
    _check_whole(generator)
    if follows_torch(generator.layout) and count:
        return _torch_order(generator, count)
    keys = generator.random_bits(count, np.uint64)
    return call_on_stream(generator.device, np.argsort, keys, 0, "stable")


def _check_whole(generator: Distributions) -> None:
    if generator._is_shard:
        raise ArgumentError(
            "expected a generator of whole draws for a permutation, got a shard; permute with "
            "the generator itself and take the part"
        )


def _torch_order(generator: Distributions, count: int) -> Any:
    """Return the permutation of ``torch.randperm``."""
    dtype, low, high, mask = permutation_keys(count)
    keys = generator.integers(low, high, count, dtype)
    order, ranked = call_on_stream(generator.device, _ranked, keys, mask)
    # Torch shuffles the elements whose keys are equal.
    return generator._draw("shuffle_runs", (ranked,), None, order.dtype, order)


def _with_replacement(
    generator: Distributions, count: int, shape: tuple[int, ...], chances: Any
) -> Any:
    if chances is None:
        if not math.prod(shape):
            words = generator.random_bits(shape, np.uint64)
            return call_on_stream(generator.device, words.astype, np.int64)
        return generator.integers(0, count, size=shape)
    # The host sums in one order, so all devices have the same sums.
    sums = np.cumsum(chances)
    sums /= sums[-1]
    table = asarray(sums, device=generator.device, copy=None)
    return call_on_stream(
        generator.device, np.searchsorted, table, generator.random(shape), "right"
    )


def _without_replacement(generator: Distributions, count: int, wanted: int, chances: Any) -> Any:
    available = count if chances is None else int(np.count_nonzero(chances))
    if wanted > available:
        raise ArgumentError(
            f"expected at most {available} elements to pick without replacement, got {wanted}; "
            f"pass replace=True or fewer"
        )
    if chances is None:
        return _order(generator, count)[:wanted]
    # Exponentials over their rates, sorted, are a draw without replacement (P. Efraimidis,
    # P. Spirakis, 2006): the smallest one is that of element i with probability p[i].
    waits = generator.standard_exponential(count)
    rates = asarray(chances, device=generator.device, copy=None)
    return call_on_stream(generator.device, _order_of_ratios, waits, rates)[:wanted]


def checked_samples(shape: tuple[int, ...], num_samples: int, replacement: bool) -> int:
    """Return `num_samples` after a check against the shape of the weights."""
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
    generator: Distributions, weights: Any, num_samples: int, replacement: bool
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
    return call_on_stream(generator.device, _order_of_ratios, waits, rates)[..., :count]


def _too_many(fewest: int, count: int) -> ArgumentError:
    return ArgumentError(
        f"expected at most {fewest} samples without replacement, the weights that are not 0 in a "
        f"row, got {count}; pass replacement=True"
    )


def _rows_with_replacement(generator: Distributions, weights: Any, count: int) -> Any:
    # The host sums in one order, so all devices have the same sums.
    sums = np.cumsum(weights / weights.max(axis=-1, keepdims=True), axis=-1)
    sums /= sums[..., -1:]
    draws = to_host(generator.random((*weights.shape[:-1], count)), copy=None)
    if sums.ndim == 1:
        indices = np.searchsorted(sums, draws, "right")
    else:
        rows = [np.searchsorted(*row, "right") for row in zip(sums, draws, strict=True)]
        indices = np.stack(rows)
    return asarray(indices.astype(np.int64), device=generator.device, copy=None)


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
    """Return whether an array has Python objects or a mask, which kernels cannot move."""
    return array.dtype.hasobject or (
        type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray)
    )


def _chances(p: ArrayLike, count: int) -> Any:
    values = vector("p", p)
    chances = values.astype(np.float64)
    coarsest = np.finfo(values.dtype).eps if values.dtype.kind == "f" else 0.0
    tolerance = max(_TOLERANCE, float(np.sqrt(coarsest)))
    if chances.size != count:
        raise ArgumentError(f"expected p to have {count} chances, got {chances.size}")
    if chances.min() < 0 or abs(chances.sum() - 1.0) > tolerance:
        raise ArgumentError(
            f"expected chances p >= 0 that add up to 1, got a least of {chances.min()} and a sum "
            f"of {chances.sum()}"
        )
    return chances
