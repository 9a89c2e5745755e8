"""Runs of indices by the thousand, as arrays: where irregular cuts leave no closed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbrt.backends.draw import Runs
from nbrt.random.tables import expanded, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["picked"]


def picked(held: Sequence[Runs], piece: Runs, done: int = 0) -> list[Runs]:
    """Return the indices at positions of a sequence of indices.

    Parameters
    ----------
    held : sequence of Runs
        The sequence; all numbers below 2**62.
    piece : Runs
        The positions.
    done : int
        How many of the runs of `piece` to leave out.

    Returns
    -------
    runs : list of Runs
        In order; those that continue each other, or are alike at equal distances, are one.

    Examples
    --------
    >>> picked([Runs(0, 3, 4, 10)], Runs(1, 2, 4, 3))
    [Runs(start=1, length=2, count=4, step=10)]
    """
    starts, lengths = expanded(held)
    ends = np.cumsum(lengths)
    first = piece.start + piece.step * np.arange(done, piece.count)
    stop = first + piece.length
    low = np.searchsorted(ends, first, side="right")
    counts = np.searchsorted(ends, stop, side="left") - low + 1
    which = np.repeat(np.arange(first.size), counts)
    run = np.arange(which.size) + np.repeat(low - np.cumsum(counts) + counts, counts)
    begin = np.maximum(first[which], ends[run] - lengths[run])
    size = np.minimum(stop[which], ends[run]) - begin
    found, sizes = joined(starts[run] + begin - ends[run] + lengths[run], size)
    return _grouped(found.tolist(), sizes.tolist())


def _grouped(starts: list[int], lengths: list[int]) -> list[Runs]:
    """Return equal runs at equal distances as one."""
    found = []
    at, total = 0, len(starts)
    while at < total:
        start, length = starts[at], lengths[at]
        end, step = at + 1, 0
        if end < total and lengths[end] == length and starts[end] > start:
            step = starts[end] - start
            while end < total and lengths[end] == length and starts[end] - starts[end - 1] == step:
                end += 1
        found.append(Runs(start, length, end - at, step))
        at = end
    return found
