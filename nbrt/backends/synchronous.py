"""A queue and an event for work that runs synchronously in the caller's thread.

The CPU default stream uses them, and every backend without asynchronous queues.
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
    """A queue whose work is done when `put` returns, and raises there.

    A lock serialises the work of several threads. It is reentrant, because a host call may queue
    more work on its stream.
    """

    __slots__ = ("handle", "index", "lock", "name", "priority")

    def __init__(self, index: int, priority: int = 0) -> None:
        self.index = index
        self.priority = priority
        self.handle = 0
        self.name = "a synchronous stream"
        self.lock = threading.RLock()

    def put(self, function: Callable[..., object], *args: Any) -> None:
        """Call ``function(*args)`` now."""
        with self.lock:
            function(*args)

    def query(self) -> bool:
        """Return whether no other thread runs work of this queue."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
            return True
        return False

    def synchronize(self) -> None:
        """Wait for the work of other threads."""
        with self.lock:
            pass

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """Call back after the work of other threads, without blocking."""
        if self.query():
            callback(None)
        else:
            threading.Thread(target=self._call_later, args=(callback,), daemon=True).start()

    def _call_later(self, callback: Callable[[BaseException | None], object]) -> None:
        self.synchronize()
        callback(None)

    def cancel(self) -> int:
        """Return 0: no work is ever queued."""
        return 0

    def close(self) -> None:
        """Do nothing: there is no resource."""


class SynchronousEvent:
    """An event of a synchronous queue: recording completes it."""

    __slots__ = ("_options", "_seconds")

    def __init__(self, options: EventOptions) -> None:
        self._options = options
        self._seconds = 0.0

    def record(self, queue: Queue) -> None:
        """Record the time at which the queue is idle."""
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
        """Return a function that does nothing: the record is done."""
        return _do_nothing

    def elapsed_time(self, end: SynchronousEvent) -> float:
        """Return the milliseconds between the two records."""
        return (end._seconds - self._seconds) * 1e3

    def ipc_handle(self) -> bytes:
        """Raise NotSupportedError: the event lives in this process."""
        raise NotSupportedError(
            "expected an event of a device with interprocess events, got one that lives in this "
            "process; ipc handles exist on cuda"
        )

    def close(self) -> None:
        """Do nothing: there is no resource."""


def _do_nothing() -> None:
    pass
