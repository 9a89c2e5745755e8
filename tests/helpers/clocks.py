"""Clocks that a test controls, for code with deadlines.

Every other wait uses `HANG_TIMEOUT`: it ends tests that hang, and no result depends on it.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from nbrt._internal import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

__all__ = ["HANG_TIMEOUT", "JumpingClock", "ManualClock"]

HANG_TIMEOUT = 300.0
_LOOK = 1e-3


class ManualClock:
    """Time that stands still until a test moves it, for waits in several threads.

    A wait ends when what it waits for comes, however long that takes on a loaded machine, and
    times out only when the test has moved the clock to the wait's end.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._waiting = 0
        self._changed = threading.Condition()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let nbrt measure its deadlines by this clock."""
        for name in ("monotonic", "sleep", "acquire", "get"):
            monkeypatch.setattr(clock, name, getattr(self, name))

    def advance(self, seconds: float) -> None:
        with self._changed:
            self._now += seconds

    def wait_until_waiting(self, threads: int) -> None:
        """Wait until so many threads are in waits that can time out."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._waiting == threads, HANG_TIMEOUT)

    # -- what takes the place of nbrt's clock ------------------------------------------------------

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        def pause() -> bool:
            time.sleep(_LOOK)
            return False

        self._wait(pause, seconds)

    def acquire(self, lock: threading.Lock, seconds: float) -> bool:
        return self._wait(lambda: lock.acquire(timeout=_LOOK), seconds)

    def get(self, queue: SimpleQueue[Any], seconds: float | None) -> Any:
        if seconds is None:
            return queue.get()
        found: list[Any] = []

        def look() -> bool:
            try:
                found.append(queue.get(timeout=_LOOK))
            except Empty:
                return False
            return True

        if not self._wait(look, seconds):
            raise Empty
        return found[0]

    def _wait(self, look: Callable[[], bool], seconds: float) -> bool:
        with self._counted():
            deadline = self._now + seconds
            while True:
                is_over = self._now >= deadline  # before the look, so that the last one counts
                if look():
                    return True
                if is_over:
                    return False

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._changed:
            self._waiting += change
            self._changed.notify_all()


class JumpingClock(ManualClock):
    """Time that jumps to the end of each wait, for tests in which nothing comes any more."""

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def _wait(self, look: Callable[[], bool], seconds: float) -> bool:
        if look():
            return True
        self.advance(seconds)
        return False
