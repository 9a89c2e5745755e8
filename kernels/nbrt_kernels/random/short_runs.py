"""The factory of kernels that fill an array with short runs of a larger draw, on a CPU.

A tile holds whole runs, all of the same number of Philox blocks. So every tile does the same work,
and no branch depends on where in the tile a run begins, as it does in `fills.fill_rows`, which cuts
runs at the ends of tiles. The used variates are moved together before they are stored, so the last
step is one loop over all of them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, cuda, device_function
from nbrt_kernels.random._index_maps import make_blocks_of_run
from nbrt_kernels.random._tiles import FillPlan, first_block, keys, listed_tile, make_redraw
from nbrt_kernels.random.fills import identity, touched_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SHORT_BLOCKS", "fill_short_runs", "short_runs_threads"]

SHORT_BLOCKS = 256
"""Philox blocks of half a tile: 4 KiB, and the used variates take as much."""

_STEP = 4
"""Block numbers that are written at a time, and a divisor of the blocks that are drawn."""


def short_runs_threads(n: int, run: int, *, wide: bool = False) -> int:
    """Return the number of threads of a fill of `n` elements in runs of `run`."""
    return -(-(n // run) // (2 * (SHORT_BLOCKS // touched_blocks(run, wide=wide))))


@cache
def fill_short_runs(
    standard: Callable[..., Any] | None = None,
    finish: Callable[..., Any] = identity,
    *,
    pairs: type[np.generic] | None = None,
    wide: bool = False,
    arrays: int = 0,
    rejects: bool = False,
) -> Callable[..., None]:
    """Return the kernel that fills a 1-D contiguous array with a box of short runs.

    Its arguments are those of `fills.fill_rows`, for runs of which `fills.touched_blocks` is at
    most `SHORT_BLOCKS`; `short_runs_threads` returns the number of threads, in blocks of one.

    Parameters
    ----------
    standard, finish, pairs, wide, arrays, rejects
        As of `fills.fill`.

    Returns
    -------
    function
        The kernel; equal arguments return the same one.
    """
    plan = FillPlan(standard, finish, pairs, wide, arrays, 2 * SHORT_BLOCKS)
    per_block, word, variate = plan.size // (2 * SHORT_BLOCKS), plan.word, plan.variate
    transform, put, redraw = plan.transform, plan.put, make_redraw(rejects, wide, SHORT_BLOCKS)
    draw, blocks_of_run = listed_tile(2 * SHORT_BLOCKS), make_blocks_of_run(per_block)
    number_blocks, pack = _make_number_blocks(per_block), _make_pack(per_block)
    half_size = np.int64(plan.size // 2)
    # Runs are written and read in whole steps, so up to a step behind the last one.
    numbers_size, values = 2 * SHORT_BLOCKS + _STEP, 4 * SHORT_BLOCKS + _STEP

    def fill_elements(
        out: Array, state: Array, skip: Scalar, base: Scalar, run: Scalar, inner_rows: Scalar,
        inner_stride: Scalar, outer_stride: Scalar, a: Any, b: Any, c: Any,
    ) -> None:  # fmt: skip
        box = (base, run, inner_rows, inner_stride, outer_stride)
        touched = blocks_of_run(box)
        most = SHORT_BLOCKS // touched
        row = cuda.grid(1) * (2 * most)
        start = row * run
        if start < out.shape[0]:
            left = (out.shape[0] - start) // run
            block = first_block(state, skip)
            key0, key1 = keys(state)
            tile = cuda.local.array(values, np.uint64)
            numbers = cuda.local.array(numbers_size, np.uint64)
            # Each half of the tile has its runs, so that they lie at a constant distance.
            rows, more = min(most, left), min(most, max(left - most, 0))
            number_blocks(numbers, 0, row, rows, touched, block, box)
            number_blocks(numbers, SHORT_BLOCKS, row + rows, more, touched, block, box)
            # Blocks behind the last run have any number, and are not used.
            n = (rows * touched + _STEP - 1) // _STEP * _STEP
            draw(tile, numbers, n, key0, key1)
            words, variates = tile.view(word), tile.view(variate)
            redraw(words, numbers, 0, rows * touched * per_block, key0, key1, b, c)
            end = half_size + more * touched * per_block
            redraw(words, numbers, half_size, end, key0, key1, b, c)
            transform(words, variates, n * per_block)
            packed = cuda.local.array(values, np.uint64).view(variate)
            pack(packed, 0, variates, 0, row, rows, touched, box)
            pack(packed, rows * run, variates, half_size, row + rows, more, touched, box)
            put(out, start, packed, 0, (rows + more) * run, a, b, c)

    return fill_elements


@cache
def _make_number_blocks(per_block: int) -> Callable[..., None]:
    """Make ``(numbers, at, row, rows, touched, block, box)``, which lists the blocks of rows."""
    shift = per_block // 2

    @device_function
    def number_blocks(
        numbers: Array, at: Scalar, row: Scalar, rows: Scalar, touched: Scalar, block: Scalar,
        box: Any,
    ) -> None:  # fmt: skip
        base, _, inner_rows, inner_stride, outer_stride = box
        outer = row // inner_rows
        k = row - outer * inner_rows
        last = at + rows * touched
        while at < last:
            first = base + outer * outer_stride + k * inner_stride
            end = min(last, at + (inner_rows - k) * touched)
            while at < end:
                near = block + np.uint64((first >> shift) - (at & (SHORT_BLOCKS - 1)))
                for i in range(_STEP):
                    numbers[np.uint64(at + i)] = near
                q = _STEP
                while q < touched:
                    for i in range(_STEP):
                        numbers[np.uint64(at + q + i)] = near
                    q += _STEP
                at += touched
                first += inner_stride
            k = 0
            outer += 1

    return number_blocks


@cache
def _make_pack(per_block: int) -> Callable[..., None]:
    """Make ``(packed, to, variates, at, row, rows, touched, box)``: move used variates together."""
    step, within = 2 * per_block, per_block - 1

    @device_function
    def pack(
        packed: Array, to: Scalar, variates: Array, at: Scalar, row: Scalar, rows: Scalar,
        touched: Scalar, box: Any,
    ) -> None:  # fmt: skip
        base, run, inner_rows, inner_stride, outer_stride = box
        outer = row // inner_rows
        k = row - outer * inner_rows
        last = to + rows * run
        distance = touched * per_block
        while to < last:
            first = base + outer * outer_stride + k * inner_stride
            end = min(last, to + (inner_rows - k) * run)
            while to < end:
                begin = at + (first & within)
                for i in range(step):
                    packed[np.uint64(to + i)] = variates[np.uint64(begin + i)]
                j = step
                while j < run:
                    for i in range(step):
                        packed[np.uint64(to + j + i)] = variates[np.uint64(begin + j + i)]
                    j += step
                to += run
                at += distance
                first += inner_stride
            k = 0
            outer += 1

    return pack
