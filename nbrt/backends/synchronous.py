"""A queue and an event for work that runs at once, in the caller's thread.

They serve the CPU default stream and any backend that has no queues of its own.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from nbrt.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.queue import EventOptions, Queue

__all__ = ["SynchronousEvent", "SynchronousQueue"]


class SynchronousQueue:
    """A queue whose work is done when `put` returns; errors are raised there.

    One lock keeps it a queue when several threads share it; it is re-entrant, because a host call
    may queue more work on the stream that runs it.
    """

    __slots__ = ("handle", "index", "lock", "name", "priority")

    def __init__(self, index: int, priority: int = 0) -> None:
        self.index = index
        self.priority = priority
        self.handle = 0
        self.name = "a stream that runs work at once"
        self.lock = threading.RLock()

    def put(self, function: Callable[..., object], *args: Any) -> None:
        """Call ``function(*args)`` now."""
        with self.lock:
            function(*args)

    def query(self) -> bool:
        """Return whether no other thread is running work of this queue."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
            return True
        return False

    def synchronize(self) -> None:
        """Wait for work that another thread is running."""
        with self.lock:
            pass

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """Call back when work of other threads is done, without waiting for it here."""
        if self.query():
            callback(None)
        else:
            threading.Thread(target=self._notify_later, args=(callback,), daemon=True).start()

    def _notify_later(self, callback: Callable[[BaseException | None], object]) -> None:
        self.synchronize()
        callback(None)

    def cancel(self) -> int:
        """Return 0: nothing is ever queued."""
        return 0

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class SynchronousEvent:
    """An event of a queue that is never behind: recording it completes it."""

    __slots__ = ("_options", "_seconds")

    def __init__(self, options: EventOptions) -> None:
        self._options = options
        self._seconds = 0.0

    def record(self, queue: Queue) -> None:
        """Take the time once the queue is idle."""
        queue.put(self._stamp)

    def _stamp(self) -> None:
        self._seconds = time.perf_counter()

    def wait(self, queue: Queue) -> None:
        """Do nothing: the record is done."""

    def query(self) -> bool:
        """Return True: the record is done."""
        return True

    def synchronize(self) -> None:
        """Do nothing: the record is done."""

    def host_wait(self) -> Callable[[], None]:
        """Return what does nothing: the record is done."""
        return _do_nothing

    def elapsed_time(self, end: SynchronousEvent) -> float:
        """Return the milliseconds between the two records."""
        return (end._seconds - self._seconds) * 1e3

    def ipc_handle(self) -> bytes:
        """Refuse: the event lives in this process."""
        raise NotSupportedError(
            "expected an event of a device with interprocess events, got one that lives in this "
            "process; ipc handles exist on cuda"
        )

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def _do_nothing() -> None:
    pass
