"""`PendingFrees`: freed blocks that other streams may still use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from nbrt.backends.queue import EventOptions
from nbrt.errors import NbrtError, StreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nbrt.backends.queue import EventHandle
    from nbrt.runtime.memory.allocation import Allocation
    from nbrt.runtime.memory.pool_state import PoolState
    from nbrt.runtime.memory.statistics import Statistics
    from nbrt.runtime.stream import Stream

__all__ = ["PendingFrees"]

_Waiting: TypeAlias = "EventHandle | _LaterEvent"


class PendingFrees:
    """Freed allocations, each with an event on every other stream that has used it.

    Callers hold the lock of the allocator.
    """

    def __init__(self, statistics_of: Callable[[PoolState], Iterable[Statistics]]) -> None:
        self._statistics_of = statistics_of
        self.waiting: list[tuple[Allocation, list[_Waiting]]] = []

    def add(self, allocation: Allocation) -> None:
        """Keep a block until the streams that use it have passed this point."""
        events = [
            _event(stream)
            if stream.capture is None and stream.deferral is None
            else _LaterEvent(stream)
            for stream in allocation.recorded or ()
        ]
        self.waiting.append((allocation, [event for event in events if event is not None]))
        self._count(allocation, 1)

    def poll(self, free: Callable[[Allocation], object]) -> None:
        """Call `free` with each allocation that no stream uses any more."""
        waiting, self.waiting = self.waiting, []
        still: list[tuple[Allocation, list[_Waiting]]] = []
        try:
            while waiting:
                allocation, events = waiting.pop()
                if _have_passed(events):
                    self._count(allocation, -1)
                    free(allocation)
                else:
                    still.append((allocation, events))
        finally:
            # `free` may run hooks, which may add to the list.
            self.waiting += waiting + still[::-1]

    def events(self) -> list[EventHandle]:
        """Return the events that the allocations wait for."""
        return [
            event
            for _, waiting in self.waiting
            for each in waiting
            for event in ((each.events or ()) if isinstance(each, _LaterEvent) else (each,))
        ]

    def _count(self, allocation: Allocation, change: int) -> None:
        for statistics in self._statistics_of(allocation.pool):
            sized = statistics.small if allocation.is_small else statistics.large
            for counters in (statistics.all, sized):
                if change < 0:
                    counters.update_peaks()
                counters.pending += change
                counters.pending_bytes += change * allocation.nbytes


def _have_passed(events: list[_Waiting]) -> bool:
    """Return whether every event is reached; close and remove those that are."""
    while events:
        try:
            if not events[-1].query():
                return False
        except NbrtError:
            # The device has failed, which the next synchronisation raises; it may use the block.
            return False
        events.pop().close()
    return True


class _LaterEvent:
    """Records the event of a stream after the end of its capture, or of its deferral.

    In a capture an event is no point in time, and a branch that is not joined may use the block.
    Work that is deferred is not on the stream yet.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.events: list[Any] | None = None

    def query(self) -> bool:
        """Return whether the event could be recorded, and the stream has passed it."""
        if self.events is None:
            if self._stream.capture is not None or self._stream.deferral is not None:
                return False
            event = _event(self._stream)
            self.events = [] if event is None else [event]
        return _have_passed(self.events)

    def close(self) -> None:
        """Do nothing: an event that is passed is closed."""


def _event(stream: Stream) -> EventHandle | None:
    event = stream.interface.create_event(stream.device.index, EventOptions())
    try:
        event.record(stream.queue)
    except StreamError:
        # The stream is closed: its work is done.
        event.close()
        return None
    return event
