"""Sets of indices: affine runs along an axis, boxes of a whole array, and tables of runs.

Parts of arrays are described by few numbers wherever they are regular, so a part of an array of
2**62 elements costs no more than a small one:

- `Runs` are equal runs of neighbouring indices at equal distances, along one axis. A sequence of
  `Runs` holds any indices of an axis, in order; `join`, `compose`, and `intersect` work on these.
- `Region` is a box of the elements of a whole array, with any number of dimensions.
- `RunArrays` are runs of any lengths and starts, in arrays of the host; `RunTable` is such a table
  in memory of a device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nbrt.typing import HostArray

__all__ = [
    "IndexBox",
    "Overlap",
    "Region",
    "RunArrays",
    "RunTable",
    "Runs",
    "Selection",
    "as_slice",
    "box_shape",
    "compose",
    "count_up",
    "dense",
    "expand",
    "index_at",
    "indices",
    "intersect",
    "join",
    "join_arrays",
    "open_mesh",
]

_MAX_LOOP = 256
"""Runs up to which a loop is faster than arrays."""


class Runs(NamedTuple):
    """Indices along one axis: runs of equal length and spacing, one after the other.

    Index ``i * length + j`` of them is ``start + i * step + j``, for i < count and j < length.

    Attributes
    ----------
    start : int
        The first index.
    length : int
        Indices of a run.
    count : int
        Number of runs.
    step : int
        Distance between the starts of neighbouring runs.
    """

    start: int
    length: int
    count: int = 1  # type: ignore[assignment]  # hides tuple.count
    step: int = 0

    @property
    def size(self) -> int:
        """Number of indices."""
        return self.length * self.count


@dataclass(frozen=True, slots=True)
class Region:
    """A box of the elements of a whole array, for an array that holds them.

    The array's element with indices ``(i, j, ...)`` is element ``start + i * strides[0] + j *
    strides[1] + ...`` of the whole. A slice, a shard, or a strided shard (with its dimension split
    in two) is one region.

    Parameters
    ----------
    start : int
        Element of the whole that the array's first one is.
    shape : tuple of int
        Shape of the array, without zeros.
    strides : tuple of int
        Elements of the whole from one element to the next along each dimension.
    """

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def rows(self) -> tuple[tuple[tuple[int, int], ...], int]:
        """(count, stride) of the dimensions that step over contiguous runs, and a run's length.

        The outermost dimension comes first; dimensions that are dense in one another are merged.
        """
        dims = dense(zip(self.shape, self.strides, strict=True))
        if dims and dims[-1][1] == 1:
            return dims[:-1], dims[-1][0]
        return dims, 1


class RunArrays(NamedTuple):
    """Runs of neighbouring indices, one after the other; none continues the one before.

    Attributes
    ----------
    starts, lengths : numpy.ndarray of int64, shape (runs,)
        First index and length (at least 1) of each.
    """

    starts: HostArray
    lengths: HostArray

    @property
    def size(self) -> int:
        """Number of indices."""
        return int(self.lengths.sum())


@dataclass(frozen=True, slots=True, repr=False)
class RunTable:
    """A table of runs of the elements of a whole array, in memory of a device.

    Element ``r * begins[-1] + i`` of the array that holds them, ``begins[k] <= i < begins[k + 1]``,
    is element ``starts[k] + r * step + i - begins[k]`` of the whole, for r < count.

    Parameters
    ----------
    starts : array of int64, shape (runs,)
        First element of each run.
    begins : array of int64, shape (runs + 1,)
        Number of elements in the runs before each run, and in all.
    size : int
        Number of elements in all runs.
    unit : int
        A common divisor of all numbers in the table.
    count : int
        How often the table is repeated.
    step : int
        Elements of the whole between two repetitions.
    """

    starts: Any
    begins: Any
    size: int
    unit: int
    count: int = 1
    step: int = 0

    def __repr__(self) -> str:
        runs = f"{len(self.starts)} runs, {self.size} elements"
        return f"RunTable({runs}, count={self.count}, step={self.step})"

    @property
    def shape(self) -> tuple[int, int]:
        """Repetitions, and elements of each."""
        return self.count, self.size


IndexBox: TypeAlias = "Sequence[Sequence[Runs]]"
"""A part of an array: its indices along each dimension."""

Selection: TypeAlias = "tuple[slice | HostArray, ...]"
"""Indices along each dimension: a slice where they are evenly spaced, else an int64 array."""


class Overlap(NamedTuple):
    """The elements that two parts of an array have in common.

    Attributes
    ----------
    shape : tuple of int
        Of a box that holds them.
    first, second : Selection
        Their positions in each part.
    """

    shape: tuple[int, ...]
    first: Selection
    second: Selection

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


# -- affine runs -----------------------------------------------------------------------------------


def dense(dims: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Merge (count, step) of neighbouring dimensions, outermost first, where they are dense.

    Examples
    --------
    >>> dense([(2, 30), (1, 7), (5, 4), (4, 1)])
    ((2, 30), (20, 1))
    """
    merged: list[tuple[int, int]] = []
    for count, step in dims:
        if count == 1:
            continue
        if merged and merged[-1][1] == count * step:
            merged[-1] = merged[-1][0] * count, step
        else:
            merged.append((count, step))
    return tuple(merged)


def join(runs: Iterable[Runs]) -> list[Runs]:
    """Return the same indices in fewer `Runs`, without empty ones.

    A run that continues the one before it becomes part of it, and equal runs at equal distances
    become one `Runs`.

    Examples
    --------
    >>> join([Runs(0, 2), Runs(2, 1), Runs(5, 3), Runs(10, 3), Runs(16, 0)])
    [Runs(start=0, length=3, count=3, step=5)]
    """
    joined: list[Runs] = []
    for run in runs:
        if not run.size:
            continue
        last = joined[-1] if joined else None
        if last is None or run.count > 1:
            joined.append(run)
        elif last.count == 1 and last.start + last.length == run.start:
            joined[-1] = Runs(last.start, last.length + run.length)
        elif run.length == last.length and _continues(last, run.start):
            step = run.start - last.start if last.count == 1 else last.step
            joined[-1] = Runs(last.start, last.length, last.count + 1, step)
        else:
            joined.append(run)
    return joined


def _continues(last: Runs, start: int) -> bool:
    if last.count == 1:
        return start > last.start
    return start == last.start + last.count * last.step


def compose(runs: Sequence[Runs], positions: Runs) -> list[Runs]:
    """Return the indices at some positions of a sequence of indices.

    Parameters
    ----------
    runs : sequence of Runs
        The sequence; all numbers below 2**62.
    positions : Runs
        The positions, within the sequence.

    Examples
    --------
    >>> compose([Runs(0, 3, 4, 10)], Runs(1, 2, 4, 3))
    [Runs(start=1, length=2, count=4, step=10)]
    """
    first = runs[0]
    composed: list[Runs] = []
    done = 0
    row, column = divmod(positions.start, first.length)
    if not positions.step % first.length and column + positions.length <= first.length:
        # The positions lie alike in all runs of the first of `runs`, as far as these go.
        fitting = (first.size - positions.start - positions.length) // (positions.step or 1) + 1
        done = max(0, min(positions.count, fitting))
        step = positions.step // first.length * first.step
        composed.append(Runs(first.start + row * first.step + column, positions.length, done, step))
    if positions.length and positions.count - done > _MAX_LOOP:
        return [*composed, *_compose_arrays(runs, positions, done)]
    for number in range(done, positions.count):
        low = positions.start + number * positions.step
        composed += _between(runs, low, low + positions.length)
    return composed


def _between(runs: Sequence[Runs], first: int, stop: int) -> Iterator[Runs]:
    """Return the indices at positions [first, stop): at most 3 `Runs` for each of `runs`."""
    for run in runs:
        low, high = max(first, 0), min(stop, run.size)
        first, stop = first - run.size, stop - run.size
        if low >= high:
            continue
        (head, into), (tail, beyond) = divmod(low, run.length), divmod(high, run.length)
        if head == tail:
            yield Runs(run.start + head * run.step + into, beyond - into)
            continue
        if into:
            yield Runs(run.start + head * run.step + into, run.length - into)
            head += 1
        if tail > head:
            yield Runs(run.start + head * run.step, run.length, tail - head, run.step)
        if beyond:
            yield Runs(run.start + tail * run.step, beyond)


def _compose_arrays(runs: Sequence[Runs], positions: Runs, done: int) -> list[Runs]:
    """Return `compose` of all runs of `positions` but the first `done`, by arrays."""
    starts, lengths = expand(runs)
    ends = np.cumsum(lengths)
    first = positions.start + positions.step * np.arange(done, positions.count)
    stop = first + positions.length
    low = np.searchsorted(ends, first, side="right")
    counts = np.searchsorted(ends, stop, side="left") - low + 1
    which = np.repeat(np.arange(first.size), counts)
    run = count_up(counts) + np.repeat(low, counts)
    begin = np.maximum(first[which], ends[run] - lengths[run])
    size = np.minimum(stop[which], ends[run]) - begin
    joined = join_arrays(starts[run] + begin - ends[run] + lengths[run], size)
    return [Runs(*pair) for pair in zip(*(column.tolist() for column in joined), strict=True)]


def index_at(runs: Sequence[Runs], position: int) -> int:
    """Return the index at a position of a sequence of indices."""
    for run in runs:
        if position < run.size:
            number, within = divmod(position, run.length)
            return run.start + number * run.step + within
        position -= run.size
    raise IndexError(position)


# -- arrays of runs --------------------------------------------------------------------------------


def expand(runs: Sequence[Runs] | HostArray) -> tuple[HostArray, HostArray]:
    """Return the start and the length of each run.

    Examples
    --------
    >>> expand([Runs(0, 3, 2, 10), Runs(40, 5)])
    (array([ 0, 10, 40]), array([3, 3, 5]))
    """
    table = np.array(runs, np.int64).reshape(-1, 4)
    counts = table[:, 2]
    start, length, step = (np.repeat(table[:, column], counts) for column in (0, 1, 3))
    return start + count_up(counts) * step, length


def count_up(counts: HostArray) -> HostArray:
    """Return 0, 1, ... up to each of the counts, one after the other."""
    before: HostArray = np.repeat(np.cumsum(counts) - counts, counts)
    return np.arange(before.size) - before


def join_arrays(starts: HostArray, lengths: HostArray) -> RunArrays:
    """Join each run with the one before it, if it starts at that one's end."""
    is_new = np.append(True, starts[1:] != starts[:-1] + lengths[:-1])
    first = np.flatnonzero(is_new)
    return RunArrays(starts[first], np.add.reduceat(lengths, first))


def indices(runs: Sequence[Runs]) -> HostArray:
    """Return all indices as an array of int64.

    Examples
    --------
    >>> indices([Runs(0, 2, 2, 10), Runs(40, 1)])
    array([ 0,  1, 10, 11, 40])
    """
    starts, lengths = expand(runs)
    return np.repeat(starts, lengths) + count_up(lengths)


def as_slice(array: HostArray) -> slice | HostArray:
    """Return indices as a slice if they are evenly spaced, else the array itself.

    Examples
    --------
    >>> as_slice(np.array([5, 3, 1])), as_slice(np.array([7]))
    (slice(5, None, -2), slice(7, 8, 1))
    """
    if not len(array):
        return slice(0, 0, 1)
    first = int(array[0])
    step = int(array[1]) - first if len(array) > 1 else 1
    if (np.diff(array) != step).any():
        return array
    stop = first + len(array) * step
    return slice(first, stop if stop >= 0 else None, step)


def open_mesh(shape: Sequence[int], selection: Selection) -> tuple[HostArray, ...]:
    """Return a selection of an array of `shape` as an index, as `numpy.ix_` makes it."""
    return np.ix_(
        *(
            np.arange(size)[positions] if isinstance(positions, slice) else positions
            for size, positions in zip(shape, selection, strict=True)
        )
    )


# -- boxes -----------------------------------------------------------------------------------------


def box_shape(box: IndexBox) -> tuple[int, ...]:
    """Return the number of indices along each dimension."""
    return tuple([sum([run.size for run in runs]) for runs in box])


def intersect(first: IndexBox, second: IndexBox) -> Overlap:
    """Return the elements that two parts have in common; both hold their indices in order.

    Examples
    --------
    >>> intersect([[Runs(0, 4)]], [[Runs(1, 8)]])
    Overlap(shape=(3,), first=(slice(1, 4, 1),), second=(slice(0, 3, 1),))
    """
    overlaps = [_intersect_axis(one, other) for one, other in zip(first, second, strict=True)]
    return Overlap(
        tuple(count for count, _, _ in overlaps),
        tuple(one for _, one, _ in overlaps),
        tuple(other for _, _, other in overlaps),
    )


def _intersect_axis(
    first: Sequence[Runs], second: Sequence[Runs]
) -> tuple[int, slice | HostArray, slice | HostArray]:
    if len(first) == len(second) == first[0].count == second[0].count == 1:
        start = max(first[0].start, second[0].start)
        stop = min(first[0].start + first[0].length, second[0].start + second[0].length)
        count = max(0, stop - start)
        if not count:
            return 0, slice(0, 0, 1), slice(0, 0, 1)
        ours, theirs = start - first[0].start, start - second[0].start
        return count, slice(ours, ours + count, 1), slice(theirs, theirs + count, 1)
    _, inner, outer = np.intersect1d(
        indices(first), indices(second), assume_unique=True, return_indices=True
    )
    return len(inner), as_slice(inner), as_slice(outer)
