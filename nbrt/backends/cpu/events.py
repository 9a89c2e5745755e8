"""`CpuEvent`: an event of CPU devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from nbrt.backends.cpu.queue_items import Completion
from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.queues import WorkerQueue
    from nbrt.backends.queue import EventOptions, Queue

__all__ = ["CpuEvent"]


class CpuEvent:
    """An event of CPU devices: the completion that it recorded last."""

    __slots__ = ("_completion", "_options", "_queue")

    def __init__(self, options: EventOptions) -> None:
        self._options = options
        self._completion: Completion | None = None
        self._queue: WorkerQueue | None = None

    def record(self, queue: Queue) -> None:
        """Queue a new completion behind the work queued so far."""
        completion = Completion()
        if isinstance(queue, SynchronousQueue):
            queue.put(completion.complete)
            self._queue = None
        else:
            self._queue = cast("WorkerQueue", queue)
            self._queue.put_completion(completion)
        self._completion = completion

    def wait(self, queue: Queue) -> None:
        """Make later work of `queue` wait for the last record."""
        completion = self._completion
        if completion is None or completion.is_done:
            return
        if isinstance(queue, SynchronousQueue):
            queue.put(completion.wait)
        else:
            cast("WorkerQueue", queue).put_wait(completion)

    def query(self) -> bool:
        """Return whether the last record is done; True if there is none."""
        return self._completion is None or self._completion.is_done

    def host_wait(self) -> Callable[[], None]:
        """Return a function that waits for the present last record, also after later records."""
        return _do_nothing if self._completion is None else self._completion.wait

    def synchronize(self) -> None:
        """Wait for the last record; raise the failure of work before it."""
        completion, queue = self._completion, self._queue
        if completion is None:
            return
        if queue is not None and not completion.is_done:
            queue.check_outside()
        completion.wait()
        if completion.failure is not None and queue is not None:
            queue.raise_failure(completion.failure)

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds between the two marks."""
        first, second = self._completion, end._completion
        assert first is not None
        return float((second.seconds - first.seconds) * 1e3)

    def ipc_handle(self) -> bytes:
        """Raise NotSupportedError: the event lives in this process."""
        raise NotSupportedError(
            "expected an event of a device with interprocess events, got one of a cpu device, "
            "which lives in this process; ipc handles exist on cuda"
        )

    def close(self) -> None:
        """Drop the last record."""
        self._completion = None


def _do_nothing() -> None:
    pass
