"""`FreeNotifier`: how the taps are shown the ends of allocations."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nbrt._internal.interrupts import re_raise_interrupt
from nbrt.runtime import commands
from nbrt.runtime.commands import Command
from nbrt.runtime.memory.allocation import FreeRecord, HookedFree
from nbrt.runtime.stream import default_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.queue import Queue
    from nbrt.runtime.memory.allocation import Allocation
    from nbrt.runtime.memory.device_allocator import DeviceAllocator

__all__ = ["FreeNotifier"]


class FreeNotifier:
    """Shows taps the ends of a device's allocations, without the lock: they may look anywhere.

    Attributes
    ----------
    untold : deque of FreeRecord
        What was read from the log and is to be told as soon as this thread has no lock.
    is_mine : callable
        Returns whether this thread has the lock of the books.
    """

    __slots__ = ("_books", "_lazy", "_log", "is_mine", "untold")

    def __init__(self, books: DeviceAllocator) -> None:
        self.untold: deque[FreeRecord] = deque()
        self._books = books
        self._lazy = books.interface.lazy
        self._log = books.log
        # As threading.Condition asks a lock; there is no public name for it.
        self.is_mine: Callable[[], bool] = books.lock._is_owned  # type: ignore[attr-defined]

    def note(self, ending: FreeRecord) -> None:
        """Show the end of an allocation that taps saw begin, then put it into the log.

        Finalizers call this, at any moment. The block is in use until the log is read, so a small
        one takes no lock.
        """
        allocation = ending.allocation
        entry: FreeRecord | HookedFree = ending
        try:
            try:
                if (
                    allocation.bin is not None
                    and allocation.recorded is None
                    and not allocation.pool.is_retired
                    and commands.memory_is_hooked
                    and self._lazy.is_ready
                    and not self.is_mine()
                    and not self.is_behind()
                ):
                    entry = told = allocation.told or self._told_of(allocation)
                    stream = allocation.stream_ref() or default_stream(allocation.pool.device)
                    commands.dispatch_with_hooks(stream, told)
            finally:
                # Whatever a tap or an interrupt did: the memory is not lost.
                self._log.append(entry)
            if entry is ending:
                self._books.catch_up()
        except KeyboardInterrupt:
            if not re_raise_interrupt():
                raise

    def _told_of(self, allocation: Allocation) -> HookedFree:
        told = allocation.told = HookedFree(allocation, self.complete)
        return told

    def is_behind(self) -> bool:
        """Return whether the last end was told to nobody; it is to be told before what comes next.

        That of an array from before anybody looked is such: it runs no Python code.
        """
        try:
            return type(self._log[-1]) is FreeRecord
        except IndexError:
            return False

    def complete(self, queue: Queue, allocation: Allocation) -> None:  # noqa: ARG002  # a command
        """Tell that nothing uses a block any more."""
        recorded = allocation.recorded
        if commands.event_listeners["free_completed"] or recorded:
            pool, stream = allocation.pool, allocation.stream_ref()
            facts = (pool.device, stream, allocation, allocation.nbytes, pool.id)
            commands.emit("free_completed", *facts)
            if recorded:
                commands.emit("late_free_completed", *facts)
        allocation.ending = None

    def tell(self) -> None:
        """Show the taps what was read from the log; the caller does not hold the lock."""
        while self.untold:
            try:
                end = self.untold.popleft()
            except IndexError:
                break
            allocation = end.allocation
            release = self._books.release
            try:
                stream = allocation.stream or default_stream(allocation.device)
                commands.dispatch_with_hooks(stream, Command("free", release, (allocation,)))
            except BaseException:
                if not end.is_taken:
                    release(allocation.home, allocation)
                raise
