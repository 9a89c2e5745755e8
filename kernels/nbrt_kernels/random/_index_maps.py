"""Device code that maps the index of an element in a part to its index in the whole array.

Fill kernels take five arguments, which are a box or a table. A box is ``(base, run, inner_rows,
inner_stride, outer_stride)``: element ``r * run + j`` of the part, ``j < run``, is element ``base +
r // inner_rows * outer_stride + r % inner_rows * inner_stride + j`` of the draw.

A table is ``(starts, begins, runs, size, step)``: element ``r * size + i`` of the part, ``begins[k]
<= i < begins[k + 1]``, is element ``starts[k] + r * step + i - begins[k]`` of the draw. Both arrays
are int64; `begins` has ``runs + 1`` elements and ends with `size`.

`global_index` reads an index map, an int64 array: the start of the part, its number of axes, four
numbers for each axis, innermost first, then the runs of the axes.

- An axis is (size, stride, runs, at). Without runs, its index j adds ``j * stride``.
- With runs, each run covers a range of the indices; `at` is the position of the first run in the
  array. A run is (end, start, length, step) and covers the indices from the end of the previous run
  to `end`. They split into pieces of `length` indices, whose positions start at ``start``,
  ``start + step``, ... The position in the pieces, times the stride, is added.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, device_function

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "global_index",
    "make_blocks_of_run",
    "make_find_run",
    "make_index_map",
    "make_read_run",
]

_HEADER = 2
_NUMBERS = 4


@device_function
def _index_in_box(i: Scalar, box: Any) -> Scalar:
    base, run, inner_rows, inner_stride, outer_stride = box
    row = i // run
    outer = row // inner_rows
    inner = row - outer * inner_rows
    return base + outer * outer_stride + inner * inner_stride + (i - row * run)


@device_function
def _index_in_table(i: Scalar, box: Any) -> Scalar:
    starts, begins, runs, size, step = box
    outer = np.int64(i) // np.int64(size)
    rest = np.int64(i) - outer * np.int64(size)
    low, high = np.int64(0), np.int64(runs)
    while high - low > 1:
        middle = (low + high) // 2
        if begins[middle] <= rest:
            low = middle
        else:
            high = middle
    return starts[low] + outer * np.int64(step) + rest - begins[low]


def make_index_map(listed: bool) -> Callable[..., Any]:
    """Return the device function ``(i, box)`` that maps element i of the part to the draw.

    Parameters
    ----------
    listed : bool
        Whether the five arguments are a table.
    """
    return _index_in_table if listed else _index_in_box


@cache
def make_find_run(listed: bool, per_block: int) -> Callable[..., Any]:
    """Return the device function ``(block, box) -> (k, r)`` that finds the run of a block.

    Blocks are counted over all runs, as `make_read_run` counts them. k is the run in the box or
    table, r the repetition of the box or table.

    Parameters
    ----------
    listed : bool
        Whether the five arguments are a table.
    per_block : int
        Elements of a Philox block.
    """
    blocks_of, blocks_before = make_blocks_of_run(per_block), _blocks_before(per_block)

    @device_function
    def in_box(block: Scalar, box: Any) -> Any:
        inner_rows = box[2]
        row = block // blocks_of(box)
        return row % inner_rows, row // inner_rows

    @device_function
    def in_table(block: Scalar, box: Any) -> Any:
        _, begins, runs, _, _ = box
        outer = block // blocks_before(begins, runs)
        rest = block - outer * blocks_before(begins, runs)
        low, high = np.int64(0), np.int64(runs)
        while high - low > 1:
            middle = (low + high) // 2
            if blocks_before(begins, middle) <= rest:
                low = middle
            else:
                high = middle
        return low, outer

    return in_table if listed else in_box


@cache
def make_read_run(listed: bool, per_block: int) -> Callable[..., Any]:
    """Return the device function ``(k, r, box)`` that describes run k of repetition r.

    It returns the first element of the run in the draw and in the part, the length of the run, the
    number of blocks of the previous runs, and an upper bound of the number of blocks of the run.

    Parameters
    ----------
    listed, per_block
        As in `make_find_run`.
    """
    blocks_of, blocks_before = make_blocks_of_run(per_block), _blocks_before(per_block)

    @device_function
    def of_box(k: Scalar, outer: Scalar, box: Any) -> Any:
        base, run, inner_rows, inner_stride, outer_stride = box
        row, blocks = outer * inner_rows + k, blocks_of(box)
        first = base + outer * outer_stride + k * inner_stride
        return first, row * run, run, row * blocks, blocks

    @device_function
    def of_table(k: Scalar, outer: Scalar, box: Any) -> Any:
        starts, begins, runs, size, step = box
        begin, before = begins[k], blocks_before(begins, k)
        return (
            starts[k] + outer * step,
            begin + outer * size,
            begins[k + 1] - begin,
            before + outer * blocks_before(begins, runs),
            blocks_before(begins, k + 1) - before,
        )

    return of_table if listed else of_box


@cache
def make_blocks_of_run(per_block: int) -> Callable[..., Any]:
    """Return the device function ``(box)`` that bounds the number of blocks of a run of a box.

    The bound is exact if all runs start at the same place of a block: if both strides are whole
    blocks, as those of columns are where the rows of the whole are.

    Parameters
    ----------
    per_block : int
        Elements of a Philox block.
    """
    last, shift = per_block - 1, per_block // 2

    @device_function
    def blocks_of(box: Any) -> Scalar:
        base, run, _, inner_stride, outer_stride = box
        before = last if (inner_stride | outer_stride) & last else base & last
        return (run + before + last) >> shift

    return blocks_of


@cache
def _blocks_before(per_block: int) -> Callable[..., Any]:
    """Return the device function that bounds the number of blocks before a run of a table.

    A run of n elements touches at most ``n // 4 + 2`` blocks of 4, or ``n // 2 + 1`` blocks of 2.
    """
    shift = per_block // 2

    @device_function
    def blocks_before(begins: Any, k: Scalar) -> Scalar:
        return (begins[k] >> shift) + k * shift

    return blocks_before


@device_function
def _map_by_runs(index_map: Array, at: Scalar, runs: Scalar, index: Scalar) -> Scalar:
    before = np.int64(0)
    result = np.int64(0)
    for run in range(runs):
        entry = at + _NUMBERS * run
        end = index_map[entry]
        if before <= index < end:
            length = index_map[entry + 2]
            piece = (index - before) // length
            within = index - before - piece * length
            result = index_map[entry + 1] + piece * index_map[entry + 3] + within
        before = end
    return result


@device_function
def global_index(index_map: Array, index: Scalar) -> Scalar:
    """Return the index in the whole array of an element of a part.

    A part that is one block of memory, such as some rows, needs no division.

    Parameters
    ----------
    index_map : array of int64
        The map of the part, as ``nbrt.distributed.index_map`` returns it.
    index : int
        Index of the element in the part, in C order; below the size of the part.

    Returns
    -------
    index : int64
        Index of the element in the whole array, in C order.
    """
    rest = np.int64(index)
    result = index_map[0]
    axes = index_map[1]
    for axis in range(axes):
        entry = _HEADER + _NUMBERS * axis
        own = rest
        if axis < axes - 1:
            rest = own // index_map[entry]
            own = own - rest * index_map[entry]
        runs = index_map[entry + 2]
        if runs > 0:
            own = _map_by_runs(index_map, index_map[entry + 3], runs, own)
        result += own * index_map[entry + 1]
    return result
