"""Kernels that fill arrays by samplers.

Every element is a function of (seed, offset, index, parameters) and uses the Philox blocks of its
index, one per attempt. Where the first attempt mostly succeeds, two launches share the work: a
branch-free one, which vectorises, marks the rejected elements, and a second one draws these. On a
CPU, that is so for counts of small mean only; `_tiles` draws the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, cuda, device_function
from nbrt_kernels.random._index_maps import make_index_map
from nbrt_kernels.random._tiles import first_block, keys
from nbrt_kernels.random.math import select

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction

__all__ = ["Kernel", "all_kernel", "marked_kernel", "once_kernel", "stored", "vectors_kernel"]

#: Takes the array to fill and the arguments in the docstring of its factory.
Kernel = Callable[..., None]


def _reader(kind: Any, is_array: bool) -> DeviceFunction:
    """Make the conversion of an element's parameter to a type."""

    @device_function
    def of_each(values: Array, i: Scalar) -> Scalar:
        return kind(values[i])

    @device_function
    def of_all(value: Scalar, _i: Scalar) -> Scalar:
        return kind(value)

    return of_each if is_array else of_all


@cache
def _stored_count(dtype: str) -> DeviceFunction:
    """Make the conversion of a count to `dtype`: too large ones saturate; bool: whether it is 0."""
    integer = np.uint8 if dtype == "bool" else np.dtype(dtype).type
    most = np.int64(min(np.iinfo(integer).max, np.iinfo(np.int64).max))

    @device_function
    def as_bool(k: Scalar) -> Scalar:
        return np.uint8(k != 0)

    @device_function
    def as_integer(k: Scalar) -> Scalar:
        return integer(select(k > most, most, k))

    return as_bool if dtype == "bool" else as_integer


@device_function
def _as_it_is(x: Scalar) -> Scalar:
    return x


@device_function
def _is_nan(x: Scalar) -> Scalar:
    return x != x


def stored(dtype: str, is_count: bool) -> DeviceFunction:
    """Make the conversion of a value to the dtype of the array."""
    return _stored_count(dtype) if is_count else _as_it_is


@cache
def _is_marked(dtype: str, is_count: bool) -> DeviceFunction:
    """Make the test for elements that were marked: by -1 in its dtype, or NaN.

    An element that has this value is drawn again, with the same result.
    """
    store = stored(dtype, is_count)

    @device_function
    def is_no_count(x: Scalar) -> Scalar:
        return x == store(np.int64(-1))

    return is_no_count if is_count else _is_nan


@cache
def once_kernel(sample: DeviceFunction, dtype: str, is_count: bool, real: Any) -> Kernel:
    """Return the kernel ``(out, state, skip, base, a, b, c)`` of one trial for each element.

    Element i of `out` is element ``base + i`` of the draw; rejected ones are marked.
    """
    store, mark = stored(dtype, is_count), np.int64(-1) if is_count else real(np.nan)

    def fill_once(
        out: Array, state: Array, skip: Scalar, base: Scalar, a: Scalar, b: Scalar, c: Scalar
    ) -> None:
        i = cuda.grid(1)
        # Uniform over the thread block, so that a CPU compiler vectorises the first branch.
        if (cuda.blockIdx.x + 1) * cuda.blockDim.x <= out.shape[0]:
            key0, key1 = keys(state)
            block = first_block(state, skip) + base + np.uint64(i)
            value, again = sample(block, key0, key1, a, b, c)
            out[i] = store(select(again, mark, value))
        elif i < out.shape[0]:
            out[i] = store(mark)

    return fill_once


@cache
def marked_kernel(sample: DeviceFunction, dtype: str, is_count: bool) -> Kernel:
    """Return the kernel ``(out, state, skip, base, a, b, c)`` that draws marked elements."""
    store, is_marked = stored(dtype, is_count), _is_marked(dtype, is_count)

    def fill_marked(
        out: Array, state: Array, skip: Scalar, base: Scalar, a: Scalar, b: Scalar, c: Scalar
    ) -> None:
        i = cuda.grid(1)
        if i < out.shape[0] and is_marked(out[i]):
            key0, key1 = keys(state)
            block = first_block(state, skip) + base + np.uint64(i)
            value, _ = sample(block, key0, key1, a, b, c)
            out[i] = store(value)

    return fill_marked


@cache
def all_kernel(
    sample: DeviceFunction,
    dtype: str,
    is_count: bool,
    kinds: tuple[Any, ...],
    arrays: tuple[bool, ...],
    listed: bool,
) -> Kernel:
    """Return the kernel that draws every element of a region until it is accepted.

    Its arguments are ``(out, state, skip, base, run, inner_rows, inner_stride, outer_stride, a, b,
    c)``: element ``r * run + j`` of `out` is element ``base + r // inner_rows * outer_stride + r %
    inner_rows * inner_stride + j`` of the draw.

    Parameters
    ----------
    sample : DeviceFunction
        Takes (block, key0, key1, a, b, c); returns a value, and False.
    dtype : str
        Of `out`.
    is_count : bool
        Whether the values are int64 counts.
    kinds : tuple of type
        Types to which a, b and c are converted.
    arrays : tuple of bool
        Which of a, b and c are arrays, read at the element's index.
    listed : bool
        Whether the box is a table, see `nbrt_kernels.random._index_maps`.
    """
    place_of = make_index_map(listed)
    store = stored(dtype, is_count)
    get_a, get_b, get_c = map(_reader, kinds, arrays)

    def fill_all(
        out: Array, state: Array, skip: Scalar, base: Any, run: Any, inner_rows: Scalar,
        inner_stride: Scalar, outer_stride: Scalar, a: Any, b: Any, c: Any,
    ) -> None:  # fmt: skip
        i = cuda.grid(1)
        if i < out.shape[0]:
            key0, key1 = keys(state)
            place = (base, run, inner_rows, inner_stride, outer_stride)
            block = first_block(state, skip) + np.uint64(place_of(np.uint64(i), place))
            value, _ = sample(block, key0, key1, get_a(a, i), get_b(b, i), get_c(c, i))
            out[i] = store(value)

    return fill_all


@cache
def vectors_kernel(
    make: Callable[[DeviceFunction], DeviceFunction], dtype: str, is_count: bool, listed: bool
) -> Kernel:
    """Return the kernel that draws vectors, one per thread.

    Its arguments are those of `all_kernel`; c is the length of a vector, and vectors do not cross
    the ends of runs.
    """
    draw, place_of = make(stored(dtype, is_count)), make_index_map(listed)

    def fill_vectors(
        out: Array, state: Array, skip: Scalar, base: Any, run: Any, inner_rows: Scalar,
        inner_stride: Scalar, outer_stride: Scalar, a: Any, b: Any, width: Scalar,
    ) -> None:  # fmt: skip
        start = cuda.grid(1) * width
        if start < out.shape[0]:
            key0, key1 = keys(state)
            place = (base, run, inner_rows, inner_stride, outer_stride)
            block = first_block(state, skip) + np.uint64(place_of(np.uint64(start), place))
            draw(out, start, block, key0, key1, a, b, width)

    return fill_vectors
