"""Device code that knows where the elements of a part of a draw are: in a box, or by a table.

Both are five arguments of a kernel. Those of a box are ``(base, run, inner_rows, inner_stride,
outer_stride)``: element ``r * run + j`` of the part, ``j < run``, is element ``base + r //
inner_rows * outer_stride + r % inner_rows * inner_stride + j`` of the draw.

Those of a table are ``(starts, begins, runs, size, step)``: element ``r * size + i`` of the part,
``begins[k] <= i < begins[k + 1]``, is element ``starts[k] + r * step + i - begins[k]`` of the draw.
Both arrays are int64; `begins` has one element more than there are runs, and ends with `size`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Scalar, device_function

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["placer", "run_finder", "run_reader"]


@device_function
def _place_in_box(i: Scalar, place: Any) -> Scalar:
    base, run, inner_rows, inner_stride, outer_stride = place
    row = i // run
    outer = row // inner_rows
    inner = row - outer * inner_rows
    return base + outer * outer_stride + inner * inner_stride + (i - row * run)


@device_function
def _place_in_table(i: Scalar, place: Any) -> Scalar:
    starts, begins, runs, size, step = place
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


def placer(listed: bool) -> Callable[..., Any]:
    """Return the device function ``(i, place)``: which element of the draw element i is.

    Parameters
    ----------
    listed : bool
        Whether the five arguments in `place` are those of a table, not of a box.
    """
    return _place_in_table if listed else _place_in_box


@cache
def run_finder(listed: bool, per_block: int) -> Callable[..., Any]:
    """Return the device function ``(block, place)`` -> (k, r): run k of turn r has that block.

    The blocks are those of all runs in turn, as many for each as `run_reader` says.

    Parameters
    ----------
    listed : bool
        As of `placer`.
    per_block : int
        Elements that a Philox block makes.
    """
    blocks_of, blocks_before = _blocks_of_box(per_block), _blocks_before(per_block)

    @device_function
    def in_box(block: Scalar, place: Any) -> Any:
        inner_rows = place[2]
        row = block // blocks_of(place)
        return row % inner_rows, row // inner_rows

    @device_function
    def in_table(block: Scalar, place: Any) -> Any:
        _, begins, runs, _, _ = place
        turn = block // blocks_before(begins, runs)
        rest = block - turn * blocks_before(begins, runs)
        low, high = np.int64(0), np.int64(runs)
        while high - low > 1:
            middle = (low + high) // 2
            if blocks_before(begins, middle) <= rest:
                low = middle
            else:
                high = middle
        return low, turn

    return in_table if listed else in_box


@cache
def run_reader(listed: bool, per_block: int) -> Callable[..., Any]:
    """Return the device function ``(k, r, place)`` that says all about run k of turn r.

    That is the element of the draw that it starts with, and the one of the part; its length; how
    many blocks the runs before it have, and how many it has, some of which may be in vain.

    Parameters
    ----------
    listed, per_block
        As of `run_finder`.
    """
    blocks_of, blocks_before = _blocks_of_box(per_block), _blocks_before(per_block)

    @device_function
    def of_box(k: Scalar, turn: Scalar, place: Any) -> Any:
        base, run, inner_rows, inner_stride, outer_stride = place
        row, blocks = turn * inner_rows + k, blocks_of(place)
        first = base + turn * outer_stride + k * inner_stride
        return first, row * run, run, row * blocks, blocks

    @device_function
    def of_table(k: Scalar, turn: Scalar, place: Any) -> Any:
        starts, begins, runs, size, step = place
        begin, before = begins[k], blocks_before(begins, k)
        return (
            starts[k] + turn * step,
            begin + turn * size,
            begins[k + 1] - begin,
            before + turn * blocks_before(begins, runs),
            blocks_before(begins, k + 1) - before,
        )

    return of_table if listed else of_box


@cache
def _blocks_of_box(per_block: int) -> Callable[..., Any]:
    """Return the device function that says how many blocks runs of a box have a part in, at most.

    Runs that all start with a block have fewer.
    """
    last, shift = per_block - 1, per_block // 2

    @device_function
    def blocks_of(place: Any) -> Scalar:
        base, run, _, inner_stride, outer_stride = place
        odd = (base | inner_stride | outer_stride) & last
        return (run + (last if odd else 0) + last) >> shift

    return blocks_of


@cache
def _blocks_before(per_block: int) -> Callable[..., Any]:
    """Return the device function that says how many blocks the runs of a table before one have.

    A run of n elements touches ``n // 4 + 2`` blocks of 4 at most, ``n // 2 + 1`` of 2: so many or
    more come between it and the next.
    """
    shift = per_block // 2

    @device_function
    def blocks_before(begins: Any, k: Scalar) -> Scalar:
        return (begins[k] >> shift) + k * shift

    return blocks_before
