"""`PendingFrees`: memory without arrays, which other streams may still be using."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.queue import EventOptions
from nbrt.errors import NbrtError, StreamError

if TYPE_CHECKING:
    from nbrt.backends.queue import EventHandle
    from nbrt.runtime.memory.allocation import Allocation
    from nbrt.runtime.memory.device_allocator import DeviceAllocator
    from nbrt.runtime.memory.statistics import Tally
    from nbrt.runtime.stream import Stream

__all__ = ["PendingFrees"]


class PendingFrees:
    """Allocations that have ended, each with an event on every stream that has used it.

    Callers hold the lock of the books.
    """

    def __init__(self, books: DeviceAllocator) -> None:
        self._books = books
        self.waiting: list[tuple[Allocation, list[EventHandle]]] = []

    def add(self, allocation: Allocation) -> None:
        """Keep a block back until the streams that use it have passed this point."""
        events = []
        for stream in allocation.recorded or ():
            event = _mark(stream)
            if event is not None:
                events.append(event)
        self.waiting.append((allocation, events))
        self._move(allocation, 1)
        self.poll()

    def poll(self) -> None:
        """Let go of what no stream uses any more."""
        waiting, self.waiting = self.waiting, []
        still: list[tuple[Allocation, list[EventHandle]]] = []
        try:
            while waiting:
                allocation, events = waiting.pop()
                if _have_passed(events):
                    self._move(allocation, -1)
                    self._books.give_back(allocation)
                else:
                    still.append((allocation, events))
        finally:
            # A tap that is told of a free may have come here in the meantime.
            self.waiting += waiting + still[::-1]

    def events(self) -> list[EventHandle]:
        """Return what all that is pending waits for."""
        return [event for _, events in self.waiting for event in events]

    def _move(self, allocation: Allocation, by: int) -> None:
        for statistics in (self._books.statistics, allocation.pool.statistics):
            if statistics is not None:
                sized = statistics.small if allocation.is_small else statistics.large
                for tally in (statistics.all, sized):
                    _shift(tally, by, by * allocation.nbytes)


def _shift(tally: Tally, count: int, nbytes: int) -> None:
    if count < 0:
        tally.top()
    tally.pending += count
    tally.pending_bytes += nbytes


def _have_passed(events: list[EventHandle]) -> bool:
    """Return whether every event is reached; those that are get closed and dropped."""
    while events:
        try:
            if not events[-1].query():
                return False
        except NbrtError:
            # The device is broken, which the next synchronisation says; who knows what it does.
            return False
        events.pop().close()
    return True


def _mark(stream: Stream) -> EventHandle | None:
    event = stream.interface.create_event(stream.device.index, EventOptions())
    try:
        event.record(stream.queue)
    except StreamError:
        # Closed: all its work was done before that.
        event.close()
        return None
    return event
