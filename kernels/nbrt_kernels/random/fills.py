"""Factories of fill kernels: element i of a draw is a function of (seed, offset, i) alone.

A fill of n elements from a position in a Philox stream::

    kernel = fill(uniform_f32, scale_uniform)
    threads = fill_threads(n)                  # one thread per tile
    kernel[ceil(threads / block_size), block_size](out, (seed, offset), skip, low, span, top)

`state` is a tuple of uint64 or a uint64[2] array (seed and offset in words); `skip` (uint64) is the
number of Philox blocks to skip. The bits depend neither on the block size nor on the number of
Philox blocks in a tile: use `TILE_BLOCKS` and blocks of one thread on a CPU, tiles of 1 on a GPU.
More threads than needed are allowed.

Element i takes word ``i % 4`` of block ``offset // 4 + skip + i // 4``, or the 64-bit value
``i % 2`` of block ``offset // 4 + skip + i // 2`` in a wide draw.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, cuda, device_function
from nbrt_kernels.random._index_maps import make_find_run, make_index_map, make_read_run
from nbrt_kernels.random._tiles import (
    FillPlan,
    first_block,
    keys,
    listed_tile,
    make_redraw,
    tile_of,
)
from nbrt_kernels.random.philox import block_values
from nbrt_kernels.random.transforms import (
    remainder_32,
    remainder_64,
    scale_integer_32,
    scale_integer_64,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "TILE_BLOCKS",
    "each_integer_kernel",
    "fill",
    "fill_rows",
    "fill_rows_threads",
    "fill_table_threads",
    "fill_threads",
    "identity",
    "touched_blocks",
]

_HALF = np.uint64(32)

TILE_BLOCKS = 64
"""Philox blocks in a tile on a CPU: 1 KiB of the first-level cache."""


@device_function
def identity(x: Scalar, _a: Scalar, _b: Scalar, _c: Scalar) -> Scalar:
    """Return the variate unchanged, for draws without parameters."""
    return x


def fill_threads(n: int, *, wide: bool = False, blocks: int = TILE_BLOCKS) -> int:
    """Return the number of threads, one per tile, of a fill of `n` elements."""
    return -(-n // (blocks * (2 if wide else 4)))


def touched_blocks(run: int, *, wide: bool = False) -> int:
    """Return a bound of the Philox blocks that a run of `run` elements touches."""
    per_block = 2 if wide else 4
    return (run + 2 * per_block - 2) // per_block


def fill_rows_threads(n: int, run: int, *, wide: bool = False, blocks: int = TILE_BLOCKS) -> int:
    """Return the number of threads of a fill of `n` elements in runs of `run`."""
    return -(-(n // run * touched_blocks(run, wide=wide)) // blocks)


def fill_table_threads(
    n: int, runs: int, size: int, *, wide: bool = False, blocks: int = TILE_BLOCKS
) -> int:
    """Return the number of threads of a fill of `n` elements by a table of `runs` runs."""
    shift = 1 if wide else 2
    return -(-(n // size * ((size >> shift) + runs * shift)) // blocks)


@cache
def fill(
    standard: Callable[..., Any] | None = None,
    finish: Callable[..., Any] = identity,
    *,
    pairs: type[np.generic] | None = None,
    wide: bool = False,
    arrays: int = 0,
    rejects: bool = False,
    blocks: int = TILE_BLOCKS,
) -> Callable[..., None]:
    """Return the kernel ``(out, state, skip, a, b, c)`` that fills a 1-D contiguous array.

    Parameters
    ----------
    standard : device function or None
        Takes a word, uint32 or in a wide draw uint64, and returns a variate.  None: the word.
    finish : device function, optional
        Takes a variate and the parameters a, b, c; returns the element to store.
    pairs : type or None
        If `standard` takes two neighbouring words and returns two variates: their NumPy type, of
        the size of a word.
    wide : bool, optional
        Whether an element takes 64 bits of its block, not 32.
    arrays : int, optional
        Number of leading parameters among a, b, c that are arrays of the length of `out`, read at
        the element's index. The others are scalars.
    rejects : bool, optional
        Whether b and c are the span and the threshold of unbiased integers (see
        `integer_parameters`), and the kernel redraws words that would bias them.
    blocks : int, optional
        Philox blocks in a tile, 1 or an even number.

    Returns
    -------
    function
        The kernel; equal arguments return the same one.
    """
    plan = FillPlan(standard, finish, pairs, wide, arrays, blocks)
    values, size, word, variate = 2 * blocks, plan.size, plan.word, plan.variate
    draw, transform, half, whole = tile_of(blocks), plan.transform, plan.half, plan.whole
    put, put_part, redraw = plan.put, plan.put_part, make_redraw(rejects, wide)

    def fill_elements(out: Array, state: Array, skip: Scalar, a: Any, b: Any, c: Any) -> None:
        thread = cuda.grid(1)
        start = thread * size
        if start < out.shape[0]:
            tile = cuda.local.array(values, np.uint64)
            words, variates = tile.view(word), tile.view(variate)
            key0, key1 = keys(state)
            block = first_block(state, skip) + np.uint64(thread * blocks)
            draw(tile, block, key0, key1)
            redraw(words, block, 0, whole, key0, key1, b, c)
            transform(words, variates, half)
            if start + size <= out.shape[0]:
                put(out, start, variates, 0, whole, a, b, c)
            else:
                put_part(out, start, variates, 0, out.shape[0] - start, a, b, c)

    return fill_elements


@cache
def fill_rows(
    standard: Callable[..., Any] | None = None,
    finish: Callable[..., Any] = identity,
    *,
    pairs: type[np.generic] | None = None,
    wide: bool = False,
    arrays: int = 0,
    rejects: bool = False,
    blocks: int = TILE_BLOCKS,
    listed: bool = False,
) -> Callable[..., None]:
    """Return the kernel that fills a 1-D contiguous array with a box of a larger draw.

    Its arguments are ``(out, state, skip, base, run, inner_rows, inner_stride, outer_stride, a, b,
    c)``: element ``r * run + j`` of `out`, ``j < run``, is element ``base + r // inner_rows *
    outer_stride + r % inner_rows * inner_stride + j`` of the draw.  All five are int64; the size
    of `out` is a multiple of `run`.  `fill_rows_threads` returns the number of threads.

    A tile on a CPU holds the blocks of consecutive runs, so that few blocks are unused.

    Parameters
    ----------
    standard, finish, pairs, wide, arrays, rejects, blocks
        As of `fill`.  Parameter arrays have the length of `out`.
    listed : bool, optional
        Whether the five arguments are a table, see `_index_maps`; then `fill_table_threads`
        returns the number of threads.

    Returns
    -------
    function
        The kernel; equal arguments return the same one.
    """
    plan = FillPlan(standard, finish, pairs, wide, arrays, blocks)
    size, per_block = plan.size, plan.size // blocks
    find, read = make_find_run(listed, per_block), make_read_run(listed, per_block)
    fill_whole = _whole_tile(plan, rejects, wide, blocks)
    make = _part_of_block if blocks == 1 else _run_pieces
    fill_part = make(plan, rejects, wide, blocks, read)

    def fill_elements(
        out: Array, state: Array, skip: Scalar, base: Any, run: Any, inner_rows: Scalar,
        inner_stride: Scalar, outer_stride: Scalar, a: Any, b: Any, c: Any,
    ) -> None:  # fmt: skip
        box = (base, run, inner_rows, inner_stride, outer_stride)
        start = cuda.grid(1) * blocks
        position = find(start, box)
        first, to, length, before, _ = read(position[0], position[1], box)
        if to < out.shape[0]:
            block = first_block(state, skip)
            key0, key1 = keys(state)
            # Start of the tile, relative to the run.
            at = (start - before) * per_block - first % per_block
            if at >= 0 and at + size <= length:
                near = block + np.uint64((first + at) // per_block)
                fill_whole(out, to + at, near, key0, key1, a, b, c)
            else:
                fill_part(out, start, position, box, block, key0, key1, a, b, c)

    return fill_elements


@cache
def each_integer_kernel(wide: bool, listed: bool) -> Callable[..., None]:
    """Return the kernel of integers with a range for each element.

    Its arguments are ``(out, state, skip, base, run, inner_rows, inner_stride, outer_stride, low,
    span, threshold)``: a box as in `fill_rows`, and three arrays of uint64, see
    `each_integer_parameters`. It needs one thread for each element.

    Parameters
    ----------
    wide : bool
        Whether an element takes 64 bits of its block, not 32.
    listed : bool
        Whether the box is a table, see `_index_maps`.
    """
    index_map = make_index_map(listed)
    per_block = 2 if wide else 4
    remainder = remainder_64 if wide else remainder_32
    scale = scale_integer_64 if wide else scale_integer_32
    word: Any = np.uint64 if wide else np.uint32

    def fill_each(
        out: Array, state: Array, skip: Scalar, base: Any, run: Any, inner_rows: Scalar,
        inner_stride: Scalar, outer_stride: Scalar, low: Array, span: Array, threshold: Array,
    ) -> None:  # fmt: skip
        i = cuda.grid(1)
        if i < out.shape[0]:
            index = index_map(i, (base, run, inner_rows, inner_stride, outer_stride))
            key0, key1 = keys(state)
            block = first_block(state, skip) + np.uint64(index // per_block)
            position = index % per_block
            attempt = np.uint64(0)
            searching = True
            drawn = word(0)
            while searching:
                v0, v1 = block_values(block, attempt, key0, key1)
                if wide:
                    drawn = v0 if position == 0 else v1
                else:
                    value = v0 if position < 2 else v1
                    drawn = word(value >> _HALF if position % 2 else value)
                searching = remainder(drawn, span[i]) < word(threshold[i])
                attempt += np.uint64(1)
            out[i] = scale(drawn, low[i], span[i], threshold[i])

    return fill_each


def _whole_tile(plan: FillPlan, rejects: bool, wide: bool, blocks: int) -> Callable[..., None]:
    """Return the device function that stores all elements of consecutive blocks."""
    values, word, variate = 2 * blocks, plan.word, plan.variate
    draw, transform, put, whole = tile_of(blocks), plan.transform, plan.put, plan.whole
    redraw, half = make_redraw(rejects, wide), plan.half

    @device_function
    def fill_whole(
        out: Array, to: Scalar, near: Scalar, key0: Scalar, key1: Scalar, a: Any, b: Any, c: Any
    ) -> None:
        tile = cuda.local.array(values, np.uint64)
        words, variates = tile.view(word), tile.view(variate)
        draw(tile, near, key0, key1)
        redraw(words, near, 0, whole, key0, key1, b, c)
        transform(words, variates, half)
        put(out, to, variates, 0, whole, a, b, c)

    return fill_whole


def _part_of_block(
    plan: FillPlan, rejects: bool, wide: bool, blocks: int, read: Callable[..., Any]
) -> Callable[..., None]:
    """Return the device function that fills the elements of a run in a tile of one block."""
    size, word, variate = plan.size, plan.word, plan.variate
    draw, transform, put_part = tile_of(blocks), plan.transform, plan.put_part
    redraw, half, whole = make_redraw(rejects, wide), plan.half, plan.whole

    @device_function
    def fill_part(
        out: Array, start: Scalar, position: Any, box: Any, block: Scalar, key0: Scalar,
        key1: Scalar, a: Any, b: Any, c: Any,
    ) -> None:  # fmt: skip
        first, to, length, before, _ = read(position[0], position[1], box)
        at = (start - before) * size - first % size
        if at < length:
            tile = cuda.local.array(2, np.uint64)
            words, variates = tile.view(word), tile.view(variate)
            near = block + np.uint64((first + at) // size)
            draw(tile, near, key0, key1)
            redraw(words, near, 0, whole, key0, key1, b, c)
            transform(words, variates, half)
            put_part(out, to + at, variates, max(-at, 0), min(length - at, size), a, b, c)

    return fill_part


def _run_pieces(
    plan: FillPlan, rejects: bool, wide: bool, blocks: int, read: Callable[..., Any]
) -> Callable[..., None]:
    """Return the device function that fills the parts of several runs in a tile."""
    values, size, word, variate = 2 * blocks, plan.size, plan.word, plan.variate
    per_block, transform, put = size // blocks, plan.transform, plan.put
    draw, redraw = listed_tile(blocks), make_redraw(rejects, wide, blocks // 2)
    half, whole, half_blocks = plan.half, plan.whole, np.int64(blocks // 2)
    shift = 1 if wide else 2

    @device_function
    def fill_pieces(
        out: Array, start: Scalar, position: Any, box: Any, block: Scalar, key0: Scalar,
        key1: Scalar, a: Any, b: Any, c: Any,
    ) -> None:  # fmt: skip
        tile = cuda.local.array(values, np.uint64)
        numbers = cuda.local.array(blocks, np.uint64)
        words, variates = tile.view(word), tile.view(variate)
        k, outer = position
        end = 0
        while end < blocks:
            first, _, _, before, touched = read(k, outer, box)
            begin = before - start
            end = begin + touched
            near = block + np.uint64((first >> shift) - begin)
            for q in range(max(begin, 0), min(end, blocks)):
                numbers[np.uint64(q)] = near + np.uint64(half_blocks if q >= half_blocks else 0)
            k += 1
            if k == box[2]:
                k = 0
                outer += 1
        draw(tile, numbers, half_blocks, key0, key1)
        redraw(words, numbers, 0, whole, key0, key1, b, c)
        transform(words, variates, half)
        k, outer = position
        end = 0
        while end < blocks:
            first, to, length, before, touched = read(k, outer, box)
            begin = before - start
            end = begin + touched
            skip = begin * per_block + (first & (per_block - 1))
            if to < out.shape[0]:
                put(out, to - skip, variates, max(skip, 0), min(skip + length, size), a, b, c)
            k += 1
            if k == box[2]:
                k = 0
                outer += 1

    return fill_pieces
