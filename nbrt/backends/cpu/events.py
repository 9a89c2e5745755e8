"""`CpuEvent`: an event of CPU devices, which moves from mark to mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from nbrt.backends.cpu.completion import Mark
from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.queues import WorkerQueue
    from nbrt.backends.queue import EventOptions, Queue

__all__ = ["CpuEvent"]


class CpuEvent:
    """An event of CPU devices: the mark recorded last."""

    __slots__ = ("_mark", "_options", "_queue")

    def __init__(self, options: EventOptions) -> None:
        self._options = options
        self._mark: Mark | None = None
        self._queue: WorkerQueue | None = None

    def record(self, queue: Queue) -> None:
        """Put a new mark behind everything queued so far."""
        mark = Mark()
        if isinstance(queue, SynchronousQueue):
            queue.put(mark.complete)
            self._queue = None
        else:
            self._queue = cast("WorkerQueue", queue)
            self._queue.put_mark(mark)
        self._mark = mark

    def wait(self, queue: Queue) -> None:
        """Make later work of `queue` wait for the mark that is current now."""
        mark = self._mark
        if mark is None or mark.is_done:
            return
        if isinstance(queue, SynchronousQueue):
            queue.put(mark.wait)
        else:
            cast("WorkerQueue", queue).put_wait(mark)

    def query(self) -> bool:
        """Return whether the mark is reached; True if there is none."""
        return self._mark is None or self._mark.is_done

    def host_wait(self) -> Callable[[], None]:
        """Return what waits for the mark that is current now, wherever the event moves later."""
        return _do_nothing if self._mark is None else self._mark.wait

    def synchronize(self) -> None:
        """Wait for the mark; raise the failure of work before it."""
        mark, queue = self._mark, self._queue
        if mark is None:
            return
        if queue is not None and not mark.is_done:
            queue.check_outside()
        mark.wait()
        if mark.failure is not None and queue is not None:
            queue.surface(mark.failure)

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds between the two marks."""
        first, second = self._mark, end._mark
        assert first is not None
        return float((second.seconds - first.seconds) * 1e3)

    def ipc_handle(self) -> bytes:
        """Refuse: the event lives in this process."""
        raise NotSupportedError(
            "expected an event of a device with interprocess events, got one of a cpu device, "
            "which lives in this process; ipc handles exist on cuda"
        )

    def close(self) -> None:
        """Forget the mark."""
        self._mark = None


def _do_nothing() -> None:
    pass
