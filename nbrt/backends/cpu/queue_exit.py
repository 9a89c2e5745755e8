"""The end of CPU queues at interpreter exit."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Protocol

from nbrt.config import settings
from nbrt.errors import NbrtCleanupWarning

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

__all__ = ["close_at_exit"]

_POLL_SECONDS = 0.05
"""The period at which the state of the queues is read."""

_CANCEL_SECONDS = 1.0
"""The time that interpreter exit waits for cancelled streams after Ctrl-C."""


class _Queue(Protocol):
    """The part of a `WorkerQueue` that its end uses."""

    name: str
    pid: int

    def end(self) -> threading.Thread | None: ...
    def close(self) -> None: ...
    def cancel(self) -> int: ...
    def running_launch(self) -> tuple[object, str] | None: ...


_queues: weakref.WeakSet[_Queue] = weakref.WeakSet()


def close_at_exit(queue: _Queue) -> None:
    """Finish the work of a queue when the interpreter ends, if the queue still exists."""
    _queues.add(queue)


def _close_all() -> None:
    """Finish all work at interpreter exit; cancel launches that exceed the time limit."""
    queues = [worker for worker in _queues if worker.pid == os.getpid()]
    try:
        _join(queues, settings().exit_timeout)
    except KeyboardInterrupt:
        # A second Ctrl-C ends all launches at once, without a message.
        with contextlib.suppress(KeyboardInterrupt):
            _cancel_all(queues)
        return
    for worker in queues:
        _call_printing_warnings(worker.close)


def _cancel_all(queues: list[_Queue]) -> None:
    """Drop all work and wait for the running launches, but not for host functions."""
    for worker in queues:
        worker.cancel()
    limit = time.monotonic() + _CANCEL_SECONDS
    while any(worker.running_launch() for worker in queues) and time.monotonic() < limit:
        time.sleep(_POLL_SECONDS)


def _join(queues: list[_Queue], limit: float) -> None:
    """Wait for the threads to end; cancel a stream whose launch runs for `limit` seconds."""
    threads = [(worker, thread) for worker in queues if (thread := worker.end()) is not None]
    running_since: dict[_Queue, tuple[object, float]] = {}
    while threads:
        threads[0][1].join(_POLL_SECONDS)
        threads = [(worker, thread) for worker, thread in threads if thread.is_alive()]
        for worker, _ in threads:
            launch, now = worker.running_launch(), time.monotonic()
            record = None if launch is None else launch[0]
            if worker not in running_since or running_since[worker][0] is not record:
                running_since[worker] = (record, now)
            elif launch is not None and now - running_since[worker][1] >= limit:
                running_since[worker] = (None, now)
                _call_printing_warnings(_cancel_overdue, worker, launch[1], limit)


def _cancel_overdue(queue: _Queue, launch: str, seconds: float) -> None:
    """Cancel a launch that delays interpreter exit, and warn."""
    dropped = queue.cancel()
    more = f", {dropped} command(s) behind it were dropped" if dropped else ""
    warnings.warn(
        f"{launch} was stopped on {queue.name}: it ran for {seconds:g} s after the end of the "
        f"program{more}; synchronize the stream before, or raise NBRT_EXIT_TIMEOUT",
        NbrtCleanupWarning,
        stacklevel=2,
    )


def _call_printing_warnings(function: Callable[..., object], *args: object) -> None:
    try:
        function(*args)
    except NbrtCleanupWarning as warning:
        # A warning that is an error must not prevent the close of other queues.
        sys.stderr.write(f"{type(warning).__name__}: {warning}\n")


atexit.register(_close_all)
