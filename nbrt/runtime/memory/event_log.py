"""`EventLog`: allocations and frees, appended without a lock and counted later."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from nbrt.runtime import commands
from nbrt.runtime.memory.allocation import Allocation, FreeRecord, HookedFree
from nbrt.runtime.memory.pool_state import PoolState

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.runtime.memory.statistics import Statistics

__all__ = ["EventLog"]

Free: TypeAlias = "FreeRecord | HookedFree"
_Three: TypeAlias = tuple[int, int, int]
"""A count, bytes, and requested bytes."""


class EventLog:
    """Events in the order in which they happened, and the statistics that follow from them.

    Attributes
    ----------
    events : deque
        The unprocessed events: an `Allocation` that was made, a `FreeRecord` or `HookedFree` of one
        that ended, a `PoolState` of a pool that was closed. `deque.append` is atomic.
    is_paused : bool
        `process` does nothing. Finalizers and signal handlers may call it during a change that
        has several steps.
    """

    def __init__(self, statistics: Statistics) -> None:
        self.events: deque[Allocation | Free | PoolState] = deque()
        self.statistics = statistics
        self.is_paused = False

    def statistics_of(self, pool: PoolState) -> tuple[Statistics, ...]:
        """Return all statistics that a pool's events change."""
        own = pool.statistics
        return (self.statistics,) if own is None else (self.statistics, own)

    def process(
        self, on_free: Callable[[Free], object], on_close: Callable[[PoolState], object]
    ) -> None:
        """Count the events, and return freed blocks to their bins.

        Parameters
        ----------
        on_free : callable
            Called with the free of a block that cannot return to its bin directly: it has no bin,
            its pool is closed, other streams use it, or hooks have not seen the free yet.
        on_close : callable
            Called with the state of a closed pool.
        """
        if self.is_paused:
            return
        events = self.events
        # A signal handler may call this again, so each event is removed before it is looked at.
        while events:
            try:
                event = events.popleft()
            except IndexError:
                break
            is_reused = False
            if type(event) is Allocation:
                allocation = event
                free_type: type[Free] = HookedFree if commands.memory_is_hooked else FreeRecord
            elif isinstance(event, PoolState):
                on_close(event)
                continue
            else:
                free: Any = event
                allocation, free_type, is_reused = free.allocation, type(free), free.is_reused
            pool = allocation.pool
            if (
                (allocation.bin is not None or is_reused)
                and allocation.recorded is None
                and not pool.is_closed
                and not (free_type is FreeRecord and commands.memory_is_hooked)
            ):
                events.appendleft(event)
                self.is_paused = True
                try:
                    self._process_run(pool, free_type, allocation.is_small)
                finally:
                    self.is_paused = False
                continue
            if event is allocation:
                self._count_allocation(allocation)
                continue
            self._count_free(allocation)
            if is_reused:
                self._count_allocation(allocation)
            else:
                on_free(free)

    def _count_allocation(self, allocation: Allocation) -> None:
        nbytes, requested, own = allocation.nbytes, allocation.requested, allocation.pool.statistics
        for statistics in (self.statistics,) if own is None else (self.statistics, own):
            sized = statistics.small if allocation.is_small else statistics.large
            for counters in (statistics.all, sized):
                counters.count += 1
                counters.bytes += nbytes
                counters.requested += requested
                counters.made += 1
                counters.made_bytes += nbytes
                counters.made_requested += requested

    def _count_free(self, allocation: Allocation) -> None:
        nbytes, requested, own = allocation.nbytes, allocation.requested, allocation.pool.statistics
        for statistics in (self.statistics,) if own is None else (self.statistics, own):
            sized = statistics.small if allocation.is_small else statistics.large
            for counters in (statistics.all, sized):
                if (
                    counters.bytes > counters.peak_bytes
                    or counters.count > counters.peak
                    or counters.requested > counters.peak_requested
                    or counters.pending
                ):
                    counters.update_peaks()
                counters.count -= 1
                counters.bytes -= nbytes
                counters.requested -= requested

    def _process_run(self, pool: PoolState, free_type: type[Free], is_small: bool) -> None:
        """Process events from the front while they are alike; local variables hold the sums."""
        # Each `max` instead of a comparison would take a tenth of the time of an event.
        events, pop = self.events, self.events.popleft
        count = nbytes = requested = made = made_bytes = made_requested = 0
        top = top_bytes = top_requested = 0
        while events:
            event: Any = pop()
            if type(event) is Allocation:
                if event.pool is not pool or event.is_small is not is_small:
                    events.appendleft(event)
                    break
                size, request, made = event.nbytes, event.requested, made + 1
                made_bytes += size
                made_requested += request
                free: Any = pop() if events else None
                if (
                    type(free) is free_type
                    and free.allocation is event
                    and not free.is_reused
                    and event.recorded is None
                    and event.bin is not None
                ):
                    # Freed at once, as most: it may make a peak, and changes nothing else.
                    top = count + 1 if count >= top else top
                    top_bytes = nbytes + size if nbytes + size > top_bytes else top_bytes
                    if requested + request > top_requested:
                        top_requested = requested + request
                    event.site = None
                    event.bin.append(event)
                    continue
                count, nbytes, requested = count + 1, nbytes + size, requested + request
                if free is not None:
                    events.appendleft(free)
                continue
            allocation = event.allocation if type(event) is free_type else None
            if (
                allocation is None
                or allocation.pool is not pool
                or allocation.is_small is not is_small
                or allocation.recorded is not None
                or (allocation.bin is None and not event.is_reused)
            ):
                events.appendleft(event)
                break
            top = count if count > top else top
            top_bytes = nbytes if nbytes > top_bytes else top_bytes
            top_requested = requested if requested > top_requested else top_requested
            if event.is_reused:
                made += 1
                made_bytes += allocation.nbytes
                made_requested += allocation.requested
            else:
                count -= 1
                nbytes -= allocation.nbytes
                requested -= allocation.requested
                allocation.site = None
                allocation.bin.append(allocation)  # type: ignore[union-attr]  # tested
        tops = max(top, count), max(top_bytes, nbytes), max(top_requested, requested)
        made_all = made, made_bytes, made_requested
        _count_run(self.statistics_of(pool), is_small, tops, (count, nbytes, requested), made_all)


def _count_run(
    several: tuple[Statistics, ...], is_small: bool, tops: _Three, rise: _Three, made: _Three
) -> None:
    """Count the sums of many events; `tops` are the peaks since the first of them."""
    for statistics in several:
        for counters in (statistics.small if is_small else statistics.large, statistics.all):
            top, top_bytes = counters.count + tops[0], counters.bytes + tops[1]
            if top > counters.peak:
                counters.peak = top
            if top_bytes > counters.peak_bytes:
                counters.peak_bytes = top_bytes
            if counters.requested + tops[2] > counters.peak_requested:
                counters.peak_requested = counters.requested + tops[2]
            if counters.pending:
                active, active_bytes = top + counters.pending, top_bytes + counters.pending_bytes
                counters.active_peak = max(counters.active_peak, active)
                counters.active_peak_bytes = max(counters.active_peak_bytes, active_bytes)
            counters.count += rise[0]
            counters.bytes += rise[1]
            counters.requested += rise[2]
            counters.made += made[0]
            counters.made_bytes += made[1]
            counters.made_requested += made[2]
