"""`Retired`: objects that live until running work is done, after their owner is gone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from nbrt.errors import NbrtError

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.events import CudaEvent

__all__ = ["Retired"]


class Retired:
    """Objects, each with an event behind the last work that uses it.

    Every operation of a queue drops those whose event is done.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._entries: list[tuple[CudaEvent, object]] = []
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, event: CudaEvent, resource: object) -> None:
        """Keep an object until an event."""
        # No lock: a finalizer may call this within `poll`.
        self._entries.append((event, resource))

    def poll(self) -> None:
        """Drop the objects whose events are done; none during a capture."""
        if self._driver.captures or not self._lock.acquire(blocking=False):
            return
        try:
            entries, self._entries = self._entries, []
            done: list[tuple[CudaEvent, object]] = []
            for entry in entries:
                (done if self._is_done(entry[0]) else self._entries).append(entry)
        finally:
            self._lock.release()

    def _is_done(self, event: CudaEvent) -> bool:
        try:
            return self._driver.query_event(event.handle)
        except NbrtError:
            return False  # the device has failed, and may use the object
