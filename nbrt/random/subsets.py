"""`Subset`: the elements of a whole draw that an array holds, from the indices that take them."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np

from nbrt._internal.checks import as_int
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.index_sets import (
    Region,
    RunArrays,
    Runs,
    RunTable,
    as_slice,
    count_up,
    dense,
    expand,
    join,
    join_arrays,
)
from nbrt.runtime.array import asarray
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from nbrt.typing import DeviceLike

__all__ = [
    "MAX_BLOCKS",
    "Index",
    "Subset",
    "SubsetBlock",
    "axis_regions",
    "checked_subset",
    "long_list",
    "run_table",
    "runs_of",
]

MAX_BLOCKS = 32
"""Blocks up to which a launch for each is faster than a table of their runs."""

_MAX_RUNS = 2**22

Index: TypeAlias = slice | int | Runs | Sequence[slice | Runs]
"""Indices of one axis; a list or tuple takes those of its items in turn."""


class SubsetBlock(NamedTuple):
    """A box of the array that one launch fills.

    Attributes
    ----------
    region : Region or RunTable
        Its elements of the whole draw; may have more dimensions than the array.
    slices : tuple of slice
        Its place in the array, one slice for each dimension.
    shape : tuple of int
        Its shape.
    """

    region: Region | RunTable
    slices: tuple[slice, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Subset:
    """The elements of a whole draw that an array holds.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array.
    blocks : tuple of SubsetBlock
        Disjoint boxes of the array, in the order in which they are drawn; one block if the elements
        are one region, or many runs that make a table.
    """

    shape: tuple[int, ...]
    blocks: tuple[SubsetBlock, ...]

    @property
    def is_stacked(self) -> bool:
        """Whether the blocks are whole rows, and so contiguous in a contiguous array."""
        return self.blocks[0].shape[1:] == self.shape[1:]


class _AxisIndices(NamedTuple):
    """The indices that are taken of an axis: as few regions, or as arrays of many runs.

    `stride` is the number of elements of the draw from one index to the next.
    """

    index: Any
    size: int
    number: int
    stride: int
    regions: list[Region]
    runs: RunArrays | None
    length: int


def checked_subset(shape: tuple[int, ...], region: Any, device: DeviceLike = None) -> Subset:
    """Return the subset of a whole draw of `shape` that indices take.

    Parameters
    ----------
    shape : tuple of int
        Shape of the whole draw.
    region : Region, or tuple of slice, int, Runs, and list of slice and Runs
        A region, or indices; missing ones are ``slice(None)``. One index needs no tuple.
    device : Device, str, int or None
        The device of the draws, whose memory holds a table of many irregular runs.

    Raises
    ------
    ArgumentError
        If it lies outside, or a step is negative.
    ArgumentTypeError
        If it is of another type.

    Examples
    --------
    >>> checked_subset((4, 10), (slice(1, 3), slice(0, 10, 5))).blocks[0].region
    Region(start=10, shape=(2, 2), strides=(10, 5))
    >>> checked_subset((10, 4), [slice(0, 2), slice(5, 7)]).blocks[0].region
    Region(start=0, shape=(2, 2, 4), strides=(20, 4, 1))
    """
    if isinstance(region, Region):
        return _single(_checked_region(shape, region))
    is_one = not isinstance(region, tuple) or isinstance(region, Runs)
    given = (region,) if is_one else region
    if len(given) > len(shape):
        raise ArgumentError(
            f"expected at most {len(shape)} indices of a draw of shape {shape}, got {len(given)}"
        )
    start, stride = 0, math.prod(shape)
    axes: list[_AxisIndices] = []
    for number, size in enumerate(shape):
        stride = stride // size if size else 0
        index = given[number] if number < len(given) else slice(None)
        if hasattr(index, "__index__"):
            start += _checked_index(index, size, number) * stride
        else:
            axes.append(_axis(index, size, number, stride))
    sizes = tuple([axis.length for axis in axes])
    if 0 in sizes:
        return _single(Region(0, sizes, (0,) * len(sizes)))
    table = _table(start, axes, device)
    if table is not None:
        return Subset(sizes, (SubsetBlock(table, _all_of(sizes), sizes),))
    boxes = itertools.product(*[_placed(axis) for axis in axes])
    return Subset(sizes, tuple([_block(start, box) for box in boxes]))


def _axis(index: Any, size: int, number: int, stride: int) -> _AxisIndices:
    runs = None if isinstance(index, slice) else long_list(index, size)
    if isinstance(runs, RunArrays):
        return _AxisIndices(index, size, number, stride, [], runs, runs.size)
    index = index if runs is None else runs
    regions = axis_regions(index, size, number)
    length = sum([region.size for region in regions])
    return _AxisIndices(index, size, number, stride, regions, None, length)


def _table(start: int, axes: list[_AxisIndices], device: DeviceLike) -> RunTable | None:
    """Return a subset of many blocks as a table of its runs, unless these are too many."""
    blocks = math.prod([MAX_BLOCKS + 1 if axis.runs else len(axis.regions) for axis in axes])
    if blocks <= MAX_BLOCKS:
        return None
    return run_table(
        start, [(axis.runs or runs_of(axis.regions), axis.stride) for axis in axes], device
    )


def _placed(axis: _AxisIndices) -> list[tuple[Region, slice]]:
    """Return the regions of an axis, in elements of the draw, and their slices of the array."""
    placed, stop = [], 0
    for region in axis.regions or axis_regions(axis.index, axis.size, axis.number):
        first, stop = stop, stop + region.size
        strides = tuple([step * axis.stride for step in region.strides])
        scaled = Region(region.start * axis.stride, region.shape, strides)
        placed.append((scaled, slice(first, stop)))
    return placed


def _block(start: int, box: tuple[tuple[Region, slice], ...]) -> SubsetBlock:
    region = Region(
        start + sum([part.start for part, _ in box]),
        tuple([size for part, _ in box for size in part.shape]),
        tuple([step for part, _ in box for step in part.strides]),
    )
    slices = tuple([place for _, place in box])
    return SubsetBlock(region, slices, tuple([place.stop - place.start for place in slices]))


def _single(region: Region) -> Subset:
    return Subset(region.shape, (SubsetBlock(region, _all_of(region.shape), region.shape),))


def _all_of(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple([slice(0, size) for size in shape])


# -- indices of one axis ---------------------------------------------------------------------------


def axis_regions(index: Any, size: int, axis: int) -> list[Region]:
    """Return the elements of an axis that an index takes, in its order, as few regions.

    Parameters
    ----------
    index : slice, Runs, or list or tuple of them
        Those of a list one after the other. Elements may come more than once.
    size : int
        Length of the axis.
    axis : int
        Its number, for messages.

    Examples
    --------
    >>> axis_regions([slice(0, 2), slice(5, 7)], 10, 0)
    [Region(start=0, shape=(2, 2), strides=(5, 1))]
    >>> axis_regions([slice(0, 3), slice(5, 7), slice(7, 8)], 10, 0)
    [Region(start=0, shape=(2, 3), strides=(5, 1))]
    """
    if isinstance(index, slice):  # the usual case, without the general way
        taken = _checked_runs(index, size, axis)
        number, step = (taken.length, 1) if taken.count == 1 else (taken.count, taken.step)
        return [Region(taken.start, (number,), (step,))] if number else []
    listed = index if isinstance(index, (list, tuple)) and not isinstance(index, Runs) else [index]
    runs = join([_checked_runs(one, size, axis) for one in listed])
    regions = [_region(run.start, (run.count, run.step), (run.length, 1)) for run in runs]
    before = len(regions) + 1
    while 1 < len(regions) < before:
        before, regions = len(regions), _nested(regions)
    return regions


def _region(start: int, *dims: tuple[int, int]) -> Region:
    merged = dense(dims) or ((1, 1),)
    return Region(start, tuple([n for n, _ in merged]), tuple([step for _, step in merged]))


def _nested(regions: list[Region]) -> list[Region]:
    """Join neighbours that differ in their starts only, at a constant distance."""
    joined: list[Region] = []
    at = 0
    while at < len(regions):
        start, shape, strides = (first := regions[at]).start, first.shape, first.strides
        distance = regions[at + 1].start - start if at + 1 < len(regions) else 0
        count = 1
        while (
            distance > 0
            and at + count < len(regions)
            and regions[at + count] == Region(start + count * distance, shape, strides)
        ):
            count += 1
        joined.append(_region(start, (count, distance), *zip(shape, strides, strict=True)))
        at += count
    return joined


def _checked_runs(index: Any, size: int, axis: int) -> Runs:
    if isinstance(index, slice):
        try:
            runs = _runs_of_slice(index, size)
        except (TypeError, ValueError) as error:
            raise ArgumentTypeError(
                f"expected slices of integers in a shard, got {index} on axis {axis}: {error}"
            ) from None
        if runs.count < 0:
            raise ArgumentError(f"expected positive steps in a shard, got {index} on axis {axis}")
        return runs
    if not isinstance(index, Runs):
        raise ArgumentTypeError(
            f"expected slices and ints as the region of a shard, or lists of slices and Runs, got "
            f"{index!r} on axis {axis}"
        )
    numbers = [as_int(one) for one in index]
    if None in numbers:
        raise ArgumentTypeError(f"expected integers in runs, got {index} on axis {axis}")
    runs = Runs(*map(operator.index, index))
    start, length, count, step = runs
    if min(start, length, count) < 0 or (step <= 0 and count > 1):
        raise ArgumentError(
            f"expected runs without negative numbers and a step above 0, got {runs} on axis {axis}"
        )
    if length * count and start + (count - 1) * step + length > size:
        raise ArgumentError(f"expected runs within {size} indices, got {runs} on axis {axis}")
    return runs


def _runs_of_slice(index: slice, size: int) -> Runs:
    """Return the indices of a slice; with a count of -1 if its step is negative."""
    first, stop, step = index.indices(size)
    count = len(range(first, stop, step))
    if step == 1:
        return Runs(first, count)
    return Runs(first, 1, count if step > 0 else -1, step)


# -- many runs -------------------------------------------------------------------------------------


def long_list(index: Any, size: int) -> RunArrays | Runs | None:
    """Return the runs that a long list of slices and `Runs` takes of an axis of `size` indices.

    Returns
    -------
    runs : RunArrays, Runs or None
        `Runs` if they are equal and equally spaced. None if `axis_regions` has to look at the list:
        it is short, wrong or empty, or has more runs than a table may have.
    """
    if not isinstance(index, (list, tuple)) or isinstance(index, Runs) or len(index) <= MAX_BLOCKS:
        return None
    if not all(isinstance(one, (slice, Runs)) for one in index):
        return None
    try:
        rows = [_runs_of_slice(one, size) if isinstance(one, slice) else one for one in index]
        numbers = list(itertools.chain.from_iterable(rows))
        if set(map(type, numbers)) != {int}:
            return None
        table = np.array(numbers, np.int64).reshape(-1, 4)
    except (OverflowError, TypeError, ValueError):  # too large, no integers, or a step of 0
        return None
    # Only floats represent numbers far out of range without wrapping around.
    start, length, count, step = table.T.astype(np.float64)
    is_wrong = (start < 0) | (length < 0) | (count < 0) | ((count > 1) & (step <= 0))
    ends = start + (count - 1) * step + length
    if is_wrong.any() or float(ends.max()) > 1.5 * size or float(count.sum()) > _MAX_RUNS:
        return None
    starts, lengths = expand(table)
    starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    if not starts.size or int((starts + lengths).max()) > size:
        return None
    runs = join_arrays(starts, lengths)
    spaced = as_slice(runs.starts)
    if isinstance(spaced, slice) and spaced.step > 0 and (runs.lengths == runs.lengths[0]).all():
        return Runs(spaced.start, int(runs.lengths[0]), runs.starts.size, spaced.step)
    return runs


def runs_of(regions: Sequence[Region]) -> RunArrays | None:
    """Return the runs of regions of an axis; None if they are more than a table may have."""
    tables, total = [], 0
    for region in regions:
        outer, length = region.rows
        total += math.prod([count for count, _ in outer])
        if total > _MAX_RUNS:
            return None
        starts = np.array([region.start])
        for count, step in outer:
            starts = np.add.outer(starts, np.arange(count) * step).reshape(-1)
        tables.append((starts, np.full(starts.size, length)))
    starts, lengths = map(np.concatenate, zip(*tables, strict=True))
    return join_arrays(starts, lengths)


def run_table(
    start: int, axes: Sequence[tuple[RunArrays | None, int]], device: DeviceLike
) -> RunTable | None:
    """Return a part of a draw as a table in memory of a device.

    Parameters
    ----------
    start : int
        Element of the draw with indices 0.
    axes : sequence of (RunArrays, int)
        For each dimension of the part, the indices taken (None if they are too many runs), and the
        elements from one index to the next.
    device : Device, str, int or None
        The device.

    Returns
    -------
    table : RunTable or None
        None if the table had more than 2**22 runs.
    """
    table = RunArrays(np.array([start]), np.array([1]))
    count, step = 1, 0
    for axis, (taken, stride) in reversed(list(enumerate(axes))):
        if taken is None:
            return None
        starts, lengths = table
        if starts.size == 1 and lengths[0] == stride:
            table = RunArrays(starts + taken.starts * stride, taken.lengths * stride)
        elif axis == 0 and taken.starts.size == 1:
            count, step = taken.size, stride
            table = RunArrays(starts + taken.starts * stride, lengths)
        elif taken.size * starts.size > _MAX_RUNS:
            return None
        else:
            indices = np.repeat(taken.starts, taken.lengths) + count_up(taken.lengths)
            first = (indices[:, None] * stride + starts).reshape(-1)
            table = join_arrays(first, np.tile(lengths, indices.size))
    begins = np.append(0, np.cumsum(table.lengths))
    unit = int(np.gcd.reduce(np.concatenate(table)))
    stream = current_stream(device)
    starts, ends = table.starts, begins
    if not stream.interface.capabilities.host_addressable:
        starts, ends = (asarray(one, device=stream.device, stream=stream) for one in (starts, ends))
        stream.synchronize()  # draws on any stream read the table
    return RunTable(starts, ends, table.size, unit, count, step)


# -- checks ----------------------------------------------------------------------------------------


def _checked_index(index: SupportsIndex, size: int, axis: int) -> int:
    number = as_int(index)
    if number is None:
        raise ArgumentTypeError(
            f"expected slices and ints as the region of a shard, got {index!r} on axis {axis}"
        )
    if not -size <= number < size:
        raise ArgumentError(f"expected an index in [{-size}, {size}) on axis {axis}, got {number}")
    return number % size


def _checked_region(shape: tuple[int, ...], region: Region) -> Region:
    if len(region.shape) != len(region.strides):
        raise ArgumentError(f"expected as many strides as sizes in a region, got {region}")
    numbers = [as_int(one) for one in (region.start, *region.shape, *region.strides)]
    if None in numbers:
        raise ArgumentTypeError(f"expected integers in a region, got {region}")
    sizes, steps = (tuple(map(operator.index, one)) for one in (region.shape, region.strides))
    region = Region(operator.index(region.start), sizes, steps)
    last = region.start + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    if min((*sizes, *steps, region.start), default=0) < 0:
        raise ArgumentError(f"expected a region without negative numbers, got {region}")
    if 0 not in sizes and last >= math.prod(shape):
        raise ArgumentError(
            f"expected a region within the {math.prod(shape)} elements of a draw of shape {shape}, "
            f"got one that reaches element {last}"
        )
    return region
