"""How events of the log change the numbers: one at a time, and many small ones at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.runtime.memory.allocation import Allocation

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Sequence

    from nbrt.runtime.memory.allocation import FreeRecord, HookedFree
    from nbrt.runtime.memory.core import PoolImpl
    from nbrt.runtime.memory.statistics import Statistics, Tally

    Ended = FreeRecord | HookedFree

__all__ = ["add", "remove", "replay_small"]


def add(books: Sequence[Statistics], allocation: Allocation) -> None:
    """Count an allocation."""
    requested, nbytes = allocation.requested, allocation.nbytes
    for statistics in books:
        for tally in (
            statistics.all,
            statistics.small if allocation.is_small else statistics.large,
        ):
            tally.count += 1
            tally.bytes += nbytes
            tally.requested += requested
            tally.made += 1
            tally.made_bytes += nbytes
            tally.made_requested += requested


def remove(books: Sequence[Statistics], allocation: Allocation) -> None:
    """Count the end of one."""
    requested, nbytes = allocation.requested, allocation.nbytes
    for statistics in books:
        for tally in (
            statistics.all,
            statistics.small if allocation.is_small else statistics.large,
        ):
            tally.top()
            tally.count -= 1
            tally.bytes -= nbytes
            tally.requested -= requested


def replay_small(
    log: deque[Any], pool: PoolImpl, books: Sequence[Statistics], ended: type[Ended]
) -> None:
    """Read events from the front of the log, as long as they are of small blocks of one pool.

    And as long as its ends are of one type: where taps look on, only those they have been told of.

    The same as `add` and `remove` of each in all `books`, and giving the blocks back to their bins.
    Most programs make most of their events here, so the changes since the first event are local
    variables: what else there is stays as it is meanwhile, so the peaks follow from theirs.
    """
    pop = log.popleft
    count = nbytes = requested = 0
    made = made_bytes = made_requested = 0
    top = top_bytes = top_requested = 0
    while log:
        event = pop()
        if type(event) is Allocation:
            if event.bin is None or event.pool is not pool:
                log.appendleft(event)
                break
            size, asked = event.nbytes, event.requested
            made += 1
            made_bytes += size
            made_requested += asked
            end = pop() if log else None
            if type(end) is ended and end.allocation is event and event.recorded is None:
                # Ended at once, as most: it can have made a peak, and leaves all as it was.
                if count >= top:
                    top = count + 1
                if nbytes + size > top_bytes:
                    top_bytes = nbytes + size
                if requested + asked > top_requested:
                    top_requested = requested + asked
                if not end.is_taken:
                    event.site = None
                    event.bin.append(event)
                continue
            if end is not None:
                log.appendleft(end)
            count += 1
            nbytes += size
            requested += asked
            continue
        allocation = event.allocation if type(event) is ended else None
        if (
            allocation is None
            or allocation.bin is None
            or allocation.recorded is not None
            or allocation.pool is not pool
        ):
            log.appendleft(event)
            break
        if count > top:
            top = count
        if nbytes > top_bytes:
            top_bytes = nbytes
        if requested > top_requested:
            top_requested = requested
        count -= 1
        nbytes -= allocation.nbytes
        requested -= allocation.requested
        if not event.is_taken:
            allocation.site = None
            allocation.bin.append(allocation)
    tops = (max(top, count), max(top_bytes, nbytes), max(top_requested, requested))
    _change(books, tops, (count, nbytes, requested), (made, made_bytes, made_requested))


_Three = tuple[int, int, int]
"""A count, bytes, and bytes asked for."""


def _change(books: Sequence[Statistics], tops: _Three, rise: _Three, made: _Three) -> None:
    for statistics in books:
        for tally in (statistics.small, statistics.all):
            _raise_peaks(tally, *tops)
            tally.count += rise[0]
            tally.bytes += rise[1]
            tally.requested += rise[2]
            tally.made += made[0]
            tally.made_bytes += made[1]
            tally.made_requested += made[2]


def _raise_peaks(tally: Tally, count: int, nbytes: int, requested: int) -> None:
    count += tally.count
    nbytes += tally.bytes
    if count > tally.peak:
        tally.peak = count
    if nbytes > tally.peak_bytes:
        tally.peak_bytes = nbytes
    if requested + tally.requested > tally.peak_requested:
        tally.peak_requested = requested + tally.requested
    if tally.pending:
        tally.active_peak = max(tally.active_peak, count + tally.pending)
        tally.active_peak_bytes = max(tally.active_peak_bytes, nbytes + tally.pending_bytes)
