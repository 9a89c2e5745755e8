"""Thousands of runs of indices as arrays, and parts of a draw by a table of them."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.backends.draw import Runs, RunTable
from nbrt.runtime.array import asarray
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.random.axes import Strides
    from nbrt.typing import DeviceLike, HostArray

__all__ = ["MANY", "RunArrays", "expanded", "joined", "long_list", "run_table", "runs_of"]

MANY = 32
"""Pieces from which on a table of them is faster than a launch for each."""

_MOST_RUNS = 2**22


class RunArrays(NamedTuple):
    """Runs of neighbouring indices, one after the other; none continues the one before.

    Attributes
    ----------
    starts, lengths : numpy.ndarray of int64, shape (runs,)
        The first index of each, and how many it has, at least one.
    """

    starts: HostArray
    lengths: HostArray

    @property
    def size(self) -> int:
        """Indices in all."""
        return int(self.lengths.sum())


def expanded(runs: Sequence[Runs] | HostArray) -> tuple[HostArray, HostArray]:
    """Return the start and the length of each run of many `Runs`.

    Examples
    --------
    >>> expanded([Runs(0, 3, 2, 10), Runs(40, 5)])
    (array([ 0, 10, 40]), array([3, 3, 5]))
    """
    table = np.array(runs, np.int64).reshape(-1, 4)
    counts = table[:, 2]
    start, length, step = (np.repeat(table[:, column], counts) for column in (0, 1, 3))
    return start + _within(counts) * step, length


def _within(counts: HostArray) -> HostArray:
    """Return 0, 1, ... up to each of the counts, one after the other."""
    before: HostArray = np.repeat(np.cumsum(counts) - counts, counts)
    return np.arange(before.size) - before


def joined(starts: HostArray, lengths: HostArray) -> RunArrays:
    """Return as few runs: one that starts where the one before ends is part of it."""
    is_new = np.append(True, starts[1:] != starts[:-1] + lengths[:-1])
    first = np.flatnonzero(is_new)
    return RunArrays(starts[first], np.add.reduceat(lengths, first))


def long_list(index: Any, size: int) -> RunArrays | Runs | None:
    """Return the runs that a long list of slices and `Runs` takes of an axis of `size` indices.

    Returns
    -------
    runs : RunArrays, Runs or None
        `Runs` if they are equal and equally spaced. None where `axis_pieces` has to look: at lists
        that are short, wrong or empty, and at more runs than a table should have.
    """
    if not isinstance(index, (list, tuple)) or isinstance(index, Runs) or len(index) <= MANY:
        return None
    if not all(isinstance(one, (slice, Runs)) for one in index):
        return None
    try:
        rows = [_runs_of(one, size) if isinstance(one, slice) else one for one in index]
        numbers = list(itertools.chain.from_iterable(rows))
        if set(map(type, numbers)) != {int}:
            return None
        table = np.array(numbers, np.int64).reshape(-1, 4)
    except (OverflowError, TypeError, ValueError):  # too large, no integers, or a step of 0
        return None
    # What is out of range may be so far out that only floats can say so without wrapping around.
    start, length, count, step = table.T.astype(np.float64)
    is_wrong = (start < 0) | (length < 0) | (count < 0) | ((count > 1) & (step <= 0))
    ends = start + (count - 1) * step + length
    if is_wrong.any() or float(ends.max()) > 1.5 * size or float(count.sum()) > _MOST_RUNS:
        return None
    starts, lengths = expanded(table)
    starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    if not starts.size or int((starts + lengths).max()) > size:
        return None
    found = joined(starts, lengths)
    return _regular(found) or found


def _runs_of(index: slice, size: int) -> Runs:
    """Return what a slice takes; of a step that is refused, with negative numbers."""
    first, stop, step = index.indices(size)
    count = len(range(first, stop, step))
    if step == 1:
        return Runs(first, count)
    return Runs(first, 1, count if step > 0 else -1, step)


def _regular(runs: RunArrays) -> Runs | None:
    starts, lengths = runs
    step = int(starts[1] - starts[0]) if starts.size > 1 else 1
    if (lengths != lengths[0]).any() or (np.diff(starts) != step).any() or step <= 0:
        return None
    return Runs(int(starts[0]), int(lengths[0]), starts.size, step)


def runs_of(pieces: Sequence[Strides]) -> RunArrays | None:
    """Return the runs of pieces of an axis; None if they are more than a table should have."""
    tables, total = [], 0
    for first, dims in pieces:
        *outer, (length, _) = dims if dims[-1][1] == 1 else (*dims, (1, 1))
        total += math.prod([n for n, _ in outer])
        if total > _MOST_RUNS:
            return None
        starts = np.array([first])
        for n, over in outer:
            starts = np.add.outer(starts, np.arange(n) * over).reshape(-1)
        tables.append((starts, np.full(starts.size, length)))
    starts, lengths = map(np.concatenate, zip(*tables, strict=True))
    return joined(starts, lengths)


def run_table(
    start: int, axes: Sequence[tuple[RunArrays | None, int]], device: DeviceLike
) -> RunTable | None:
    """Return a part of a draw as a table in memory of a device.

    Parameters
    ----------
    start : int
        Element of the draw that indices 0 are.
    axes : sequence of (RunArrays, int)
        For each dimension of the part, indices that are taken, or None if they are too many runs,
        and elements from one to the next.
    device : Device, str, int or None
        Which.

    Returns
    -------
    table : RunTable or None
        None if it were larger than what it is for.
    """
    found = RunArrays(np.array([start]), np.array([1]))
    count, step = 1, 0
    for axis, (taken, over) in reversed(list(enumerate(axes))):
        if taken is None:
            return None
        starts, lengths = found
        if starts.size == 1 and lengths[0] == over:
            found = RunArrays(starts + taken.starts * over, taken.lengths * over)
        elif axis == 0 and taken.starts.size == 1:
            count, step = taken.size, over
            found = RunArrays(starts + taken.starts * over, lengths)
        elif taken.size * starts.size > _MOST_RUNS:
            return None
        else:
            each = np.repeat(taken.starts, taken.lengths) + _within(taken.lengths)
            found = joined((each[:, None] * over + starts).reshape(-1), np.tile(lengths, each.size))
    begins = np.append(0, np.cumsum(found.lengths))
    unit = int(np.gcd.reduce(np.concatenate(found)))
    stream = current_stream(device)
    starts, ends = found.starts, begins
    if not stream.interface.capabilities.host_addressable:
        starts, ends = (asarray(one, device=stream.device, stream=stream) for one in (starts, ends))
        stream.synchronize()  # it will be read on any stream
    return RunTable(starts, ends, found.size, unit, count, step)
