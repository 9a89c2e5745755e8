"""`SharedLaunches`: launches of a plan that run in the calling thread and in idle helpers.

The calling thread offers the launch in native code, without the GIL, and works on it itself. It
never waits for a helper to become idle, so threads that launch at once do not block each other.
"""

from __future__ import annotations

import ctypes
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from nbrt.backends.cpu.block_scheduler import chunk_size, get_num_threads
from nbrt.backends.cpu.helpers import NativeLock, helper_slots, share_address, take_error
from nbrt.backends.cpu.interrupts import main_runner, run_stoppable

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.block_scheduler import LaunchRecord

__all__ = ["MIN_SHARED_NS", "SharedLaunches"]

MIN_SHARED_NS = 25_000
"""Shorter launches run in the calling thread alone."""

_MIN_WAKE_NS = 60_000
"""Shorter launches wake no sleeping helper, unless they follow each other without a pause."""

_MAX_PAUSED_NS = 2_000_000
"""Longer launches are always shared: two threads also get more of a busy machine than one."""

_PAUSE = 4
"""Time of launches in one thread, over the time that a shared launch has lost."""


class _Division(NamedTuple):
    """How launches of about the same time are divided; one value, as several threads launch.

    Attributes
    ----------
    threads : int
        Threads at most, from the settings.
    least, most : float
        Nanoseconds of the launches.
    chunk : int
        Blocks claimed at a time.
    helpers : int
        Helper threads that may take part.
    """

    threads: int
    least: float
    most: float
    chunk: int
    helpers: int


class SharedLaunches:
    """Runs launches of a plan in several threads.

    Parameters
    ----------
    entry : callable
        The entry function: takes the address of a `LaunchRecord` and the kernel's arguments.
    new_record : callable
        Returns the record of a launch; takes the number of blocks, those claimed at a time, and the
        first one.
    total : int
        Blocks of the grid.
    """

    __slots__ = ("_division", "_entry", "_new_record", "_paused_ns", "_total", "_unused")

    def __init__(
        self,
        entry: Callable[..., object],
        new_record: Callable[[int, int, int], LaunchRecord],
        total: int,
    ) -> None:
        self._entry = entry
        self._new_record = new_record
        self._total = total
        self._unused: list[LaunchRecord] = []
        self._division = _Division(0, 0.0, 0.0, 0, 0)
        self._paused_ns = 0.0

    def is_paused(self, expected_ns: float) -> bool:
        """Return whether a launch shall run in one thread, and count it.

        If other programs use the processors, the system may take a helper's processor in the middle
        of a block, for milliseconds. After a short launch that took longer than in one thread, the
        next ones are not shared: launches lose a quarter of their time at most.
        """
        if self._paused_ns <= 0:
            return False
        self._paused_ns -= expected_ns
        return True

    def run(self, args: tuple[Any, ...], expected_ns: float, first: int = 0) -> float:
        """Run the blocks from `first` on; return the nanoseconds to expect for the next launch.

        Raises
        ------
        Exception
            An exception of the kernel in any thread, with a note of the thread.
        """
        # The records of other threads are new, as cancelling a launch must end no later one.
        is_main = get_ident() == main_runner.ident
        record = self._unused.pop() if is_main and self._unused else self._new()
        threads, division = get_num_threads(), self._division
        if threads != division.threads or not division.least <= expected_ns <= division.most:
            division = self._division = self._divided(threads, expected_ns)
        record.next, record.chunk, record.activity = first, division.chunk, 0
        record.wakes = expected_ns >= _MIN_WAKE_NS
        record.slots, record.helpers = helper_slots(division.helpers)
        error: BaseException | None = None
        try:
            run_stoppable(self._entry, ctypes.addressof(record), record, args)
        except Exception as raised:
            record.note(raised)
            raise
        finally:
            # The exception of this thread is raised, if there are two.
            if record.helper_failed:
                error = take_error(record)
            elif is_main and not record.stop:
                self._unused.append(record)
        if error is not None:
            record.note(error)
            try:
                raise error
            finally:
                del error
        lost = record.elapsed_ns - expected_ns
        if lost > 0 and expected_ns < _MAX_PAUSED_NS:
            self._paused_ns = _PAUSE * lost
        # By the clock, which also runs while another program has the processor.
        return min(record.work_ns, 2 * expected_ns)

    def _divided(self, threads: int, expected_ns: float) -> _Division:
        """Decide on the chunks and helpers of launches of about the same time."""
        chunk = chunk_size(self._total, expected_ns)
        helpers = min(threads, -(-self._total // chunk)) - 1
        return _Division(threads, 0.8 * expected_ns, 1.25 * expected_ns, chunk, helpers)

    def _new(self) -> LaunchRecord:
        record = self._new_record(self._total, 1, 0)
        record.lock = NativeLock()  # lives as long as the record
        record.done = record.lock.address
        record.share = share_address()
        return record
