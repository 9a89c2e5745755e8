"""Rejection sampling of tiles of elements on a CPU, in loops that vectorise.

A first pass over a tile makes one quick trial of each element, without the costly part of the
acceptance test: what it accepts, the whole test would accept. The elements that it leaves open are
listed, and passes over the list make whole trials, until the list is empty. Every element has its
own blocks and attempts, so the order of the passes does not change a bit.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, cuda, device_function
from nbrt_kernels.random._tiles import first_block, keys
from nbrt_kernels.random.distributions.samplers._kernels import Kernel, stored
from nbrt_kernels.random.math import select
from nbrt_kernels.random.philox import two_blocks

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction
    from nbrt_kernels.random.distributions.samplers._words import Words

__all__ = [
    "TILE_ELEMENTS",
    "make_settle",
    "no_attempts",
    "second_half",
    "tile_kernel",
    "tile_threads",
]

TILE_ELEMENTS = 512
"""Elements of a tile: 28 KiB of the first-level cache. Tiles are computed whole, also the last.

Smaller tiles leave too few open elements to fill the vectors that try them again.
"""

_HALF = np.uint64(TILE_ELEMENTS // 2)
_NONE, _ONE, _VECTOR = np.uint64(0), np.uint64(1), np.uint64(8)
_WHOLE_VECTORS = ~np.uint64(7)
_MIN_PART = 8
"""The least iterations of a loop over normals: those of a vector of eight float64."""


def tile_threads(n: int) -> int:
    """Return the number of threads, in blocks of one, that draw n elements."""
    return -(-n // TILE_ELEMENTS)


@device_function
def second_half(i: Scalar) -> Scalar:
    """Return the element that is computed beside element i of the first half of a tile.

    Two chains of dependent operations hide each other's latencies, and share the loads of constants
    (1.5 times as fast with AVX2).
    """
    return i + _HALF


@device_function
def no_attempts(attempts: Array) -> None:
    """Set the first attempts of a tile to 0."""
    for j in range(TILE_ELEMENTS):
        attempts[np.uint64(j)] = _NONE


@cache
def make_settle(
    quick: DeviceFunction, trial: DeviceFunction, kind: Any, normal_of: Words | None = None
) -> DeviceFunction:
    """Make ``(values, attempts, block, key0, key1, a, b, c)``, which draws the elements of a tile.

    Element i has the Philox block ``block + i``. On entry ``attempts[i]`` is its first attempt, on
    return the accepted one; `values` are of type `kind`. Each step is a separate loop: in one loop,
    the chains of operations of an element are too long for a processor to overlap them with those
    of the next elements.

    Parameters
    ----------
    quick : DeviceFunction
        Takes (x, second, a, b, c); returns the value, and whether it is open. A value that is not
        open is the one that `trial` accepts. x and `second` are both values of a block.
    trial : DeviceFunction
        Takes the same; returns the value, and whether it is rejected.
    kind : type
        The type of the values.
    normal_of : Words or None
        If given, x is the normal of both values, and of the type `kind`.
    """
    drawn = np.uint64 if normal_of is None else kind
    prepare = _first_values if normal_of is None else _make_normals(normal_of)

    @device_function
    def settle(
        values: Array, attempts: Array, block: Scalar, key0: Scalar, key1: Scalar, a: Scalar,
        b: Scalar, c: Scalar,
    ) -> None:  # fmt: skip
        # Each half of the tile has its list of elements and their attempts, at its beginning.
        listed = cuda.local.array(TILE_ELEMENTS, np.uint64)
        tries = cuda.local.array(TILE_ELEMENTS, np.uint64)
        first = cuda.local.array(TILE_ELEMENTS, np.uint64)
        second = cuda.local.array(TILE_ELEMENTS, np.uint64)
        xs = cuda.local.array(TILE_ELEMENTS, drawn)
        tried = cuda.local.array(TILE_ELEMENTS, kind)
        # The first values are not used once the normals are computed.
        rejected = first
        for j in range(TILE_ELEMENTS):
            i = np.uint64(j)
            listed[i], tries[i] = i, attempts[i]
        count, other_count = _HALF, _HALF
        is_first = True
        while count + other_count > _NONE:
            # Whole vectors: the places behind a list hold other elements of the tile.
            n = np.int64((max(count, other_count) + _VECTOR - _ONE) & _WHOLE_VECTORS)
            _draw(first, second, listed, tries, n, block, key0, key1)
            prepare(first, second, xs, n)
            if is_first:
                for j in range(n):
                    i = np.uint64(j)
                    k = second_half(i)
                    value, is_open = quick(xs[i], second[i], a, b, c)
                    other, other_is_open = quick(xs[k], second[k], a, b, c)
                    values[i], values[k] = value, other
                    rejected[i] = select(is_open, _ONE, _NONE)
                    rejected[k] = select(other_is_open, _ONE, _NONE)
                is_first = False
                count = _compact(listed, tries, rejected, _NONE, _HALF, _NONE)
                other_count = _compact(listed, tries, rejected, _HALF, _HALF, _NONE)
            else:
                for j in range(n):
                    i = np.uint64(j)
                    k = second_half(i)
                    value, again = trial(xs[i], second[i], a, b, c)
                    other, other_again = trial(xs[k], second[k], a, b, c)
                    tried[i], tried[k] = value, other
                    rejected[i] = select(again, _ONE, _NONE)
                    rejected[k] = select(other_again, _ONE, _NONE)
                _keep(values, attempts, tried, listed, tries, _NONE, count)
                _keep(values, attempts, tried, listed, tries, _HALF, other_count)
                count = _compact(listed, tries, rejected, _NONE, count, _ONE)
                other_count = _compact(listed, tries, rejected, _HALF, other_count, _ONE)

    return settle


@device_function
def _draw(
    first: Array, second: Array, listed: Array, tries: Array, n: Scalar, block: Scalar,
    key0: Scalar, key1: Scalar,
) -> None:  # fmt: skip
    """Draw the blocks of the first n listed elements of each half."""
    for j in range(n):
        i = np.uint64(j)
        k = second_half(i)
        which = tries[i], tries[k]
        v0, v1, u0, u1 = two_blocks(block + listed[i], block + listed[k], which, key0, key1)
        first[i], second[i] = v0, v1
        first[k], second[k] = u0, u1


@device_function
def _first_values(first: Array, _second: Array, xs: Array, n: Scalar) -> None:
    for j in range(n):
        i = np.uint64(j)
        k = second_half(i)
        xs[i], xs[k] = first[i], first[k]


@cache
def _make_normals(words: Words) -> DeviceFunction:
    """Make ``(first, second, xs, n)``, the normals of the first n blocks of each half."""
    radius, cosine = words.radius, words.cosine

    @device_function
    def normals(first: Array, second: Array, xs: Array, n: Scalar) -> None:
        # Four at a time, of which each waits for its polynomials. At least whole vectors of each:
        # the places behind the first n have any values, and are not used.
        part = max(n // 2, _MIN_PART)
        for j in range(part):
            i, i2 = np.uint64(j), np.uint64(j + part)
            k, k2 = second_half(i), second_half(i2)
            x, y = radius(first[i]), radius(first[k])
            x2, y2 = radius(first[i2]), radius(first[k2])
            xs[i], xs[k], xs[i2], xs[k2] = x, y, x2, y2
        for j in range(part):
            i, i2 = np.uint64(j), np.uint64(j + part)
            k, k2 = second_half(i), second_half(i2)
            x, y = cosine(first[i], second[i]), cosine(first[k], second[k])
            x2, y2 = cosine(first[i2], second[i2]), cosine(first[k2], second[k2])
            xs[i], xs[k] = x * xs[i], y * xs[k]
            xs[i2], xs[k2] = x2 * xs[i2], y2 * xs[k2]

    return normals


@device_function
def _compact(
    listed: Array, tries: Array, rejected: Array, begin: Scalar, count: Scalar, step: Scalar
) -> Scalar:
    """Move the rejected ones of `count` listed elements to the front; return their number.

    Their attempts go on by `step`.
    """
    left = _NONE
    for j in range(np.int64(count)):
        i, to = begin + np.uint64(j), begin + left
        # Written for each element, and overwritten if this one is not rejected.
        listed[to] = listed[i]
        tries[to] = tries[i] + step
        left += rejected[i]
    return left


@device_function
def _keep(
    values: Array, attempts: Array, tried: Array, listed: Array, tries: Array, begin: Scalar,
    count: Scalar,
) -> None:  # fmt: skip
    """Keep the values of the listed elements, and their attempts."""
    for j in range(np.int64(count)):
        i = begin + np.uint64(j)
        element = listed[i]
        values[element] = tried[i]
        attempts[element] = tries[i]


@cache
def tile_kernel(draw: DeviceFunction, dtype: str, is_count: bool, kind: Any) -> Kernel:
    """Return the kernel ``(out, state, skip, base, a, b, c)`` that draws all elements of `out`.

    Element i of `out` is element ``base + i`` of the draw; `tile_threads` is the number of threads.

    Parameters
    ----------
    draw : DeviceFunction
        Takes (values, block, key0, key1, a, b, c); draws a tile, element i from ``block + i``.
    dtype : str
        Of `out`.
    is_count : bool
        Whether the values are int64 counts.
    kind : type
        Of the values.
    """
    store = stored(dtype, is_count)

    def fill_tiles(
        out: Array, state: Array, skip: Scalar, base: Scalar, a: Scalar, b: Scalar, c: Scalar
    ) -> None:
        start = cuda.grid(1) * TILE_ELEMENTS
        if start < out.shape[0]:
            n = min(out.shape[0] - start, TILE_ELEMENTS)
            values = cuda.local.array(TILE_ELEMENTS, kind)
            key0, key1 = keys(state)
            block = first_block(state, skip) + base + np.uint64(start)
            draw(values, block, key0, key1, a, b, c)
            for j in range(n):
                out[np.uint64(start + j)] = store(values[np.uint64(j)])

    return fill_tiles
