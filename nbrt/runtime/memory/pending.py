"""`PendingFrees`: memory without arrays, which other streams may still be using."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.queue import EventOptions
from nbrt.errors import StreamError

if TYPE_CHECKING:
    from nbrt.backends.queue import EventHandle
    from nbrt.runtime.memory.allocation import Allocation
    from nbrt.runtime.memory.books import DeviceBooks
    from nbrt.runtime.memory.statistics import Tally
    from nbrt.runtime.stream import Stream

__all__ = ["PendingFrees"]


class PendingFrees:
    """Allocations that have ended, each with an event on every stream that has used it.

    Callers hold the lock of the books.
    """

    def __init__(self, books: DeviceBooks) -> None:
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
        still: list[tuple[Allocation, list[EventHandle]]] = []
        waiting, self.waiting = self.waiting, still
        for allocation, events in waiting:
            while events and events[-1].query():
                events.pop().close()
            if events:
                still.append((allocation, events))
            else:
                self._move(allocation, -1)
                self._books.give_back(allocation)

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


def _mark(stream: Stream) -> EventHandle | None:
    event = stream.interface.create_event(stream.device.index, EventOptions())
    try:
        event.record(stream.queue)
    except StreamError:
        # Closed: all its work was done before that.
        event.close()
        return None
    return event
