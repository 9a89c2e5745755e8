"""How events of the log change the numbers: one at a time, and many small ones at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.runtime.memory.allocation import Allocation, Ending

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Sequence

    from nbrt.runtime.memory.core import PoolCore
    from nbrt.runtime.memory.statistics import Statistics, Tally

__all__ = ["add", "remove", "replay_small"]


def add(tally: Tally, allocation: Allocation) -> None:
    """Count an allocation."""
    requested, nbytes = allocation.requested, allocation.nbytes
    tally.count += 1
    tally.bytes += nbytes
    tally.requested += requested
    tally.made += 1
    tally.made_bytes += nbytes
    tally.made_requested += requested


def remove(tally: Tally, allocation: Allocation) -> None:
    """Count the end of one."""
    tally.top()
    tally.count -= 1
    tally.bytes -= allocation.nbytes
    tally.requested -= allocation.requested


def replay_small(log: deque[Any], pool: PoolCore, books: Sequence[Statistics]) -> None:
    """Read events from the front of the log, as long as they are of small blocks of one pool.

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
        if type(event) is Ending:
            allocation = event.allocation
            bin_ = allocation.bin
            if bin_ is None or allocation.recorded is not None or allocation.pool is not pool:
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
            allocation.site = None
            bin_.append(allocation)
        elif type(event) is not Allocation or event.bin is None or event.pool is not pool:
            log.appendleft(event)
            break
        else:
            count += 1
            nbytes += event.nbytes
            requested += event.requested
            made += 1
            made_bytes += event.nbytes
            made_requested += event.requested
    tops = (max(top, count), max(top_bytes, nbytes), max(top_requested, requested))
    for tally in [each for statistics in books for each in (statistics.small, statistics.all)]:
        _raise_peaks(tally, *tops)
        tally.count += count
        tally.bytes += nbytes
        tally.requested += requested
        tally.made += made
        tally.made_bytes += made_bytes
        tally.made_requested += made_requested


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
