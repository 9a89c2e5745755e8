"""`Mark`: one point in a CPU queue, reached once."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbrt.backends.cpu.failures import Failure

__all__ = ["Mark"]


class Mark:
    """A latch that opens once.

    Attributes
    ----------
    is_done : bool
        Whether it is open.
    seconds : float
        When it opened, on the clock of `time.perf_counter`.
    failure : Failure or None
        What had failed in the queue, and was not yet raised, when the mark was reached.
    """

    __slots__ = ("_lock", "failure", "is_done", "seconds")

    def __init__(self) -> None:
        self.is_done = False
        self.seconds = 0.0
        self.failure: Failure | None = None
        # A held lock is the cheapest latch there is: threading.Event costs ten times as much.
        self._lock = threading.Lock()
        self._lock.acquire()

    def complete(self, failure: Failure | None = None) -> None:
        """Open the latch; called once."""
        self.seconds = time.perf_counter()
        self.failure = failure
        self.is_done = True
        self._lock.release()

    def wait(self) -> None:
        """Block until the latch is open."""
        if not self.is_done:
            with self._lock:
                pass

    def wait_for(self, seconds: float) -> bool:
        """Block until the latch is open, or for some seconds; return whether it is open."""
        if not self.is_done and self._lock.acquire(timeout=seconds):
            self._lock.release()
        return self.is_done
