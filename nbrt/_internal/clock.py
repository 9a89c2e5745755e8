"""The clock of deadlines. Tests replace the functions of this module.

Callers write ``clock.monotonic()`` and do not import the functions by name.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from queue import SimpleQueue

__all__ = ["acquire", "get", "monotonic", "sleep"]

_T = TypeVar("_T")

monotonic = time.monotonic
sleep = time.sleep


def acquire(lock: threading.Lock, seconds: float) -> bool:
    """Acquire a lock within some seconds, perhaps infinitely many; return whether it succeeded."""
    return lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


def get(queue: SimpleQueue[_T], seconds: float | None) -> _T:
    """Return the next item of a queue; raise `queue.Empty` after some seconds; None: never."""
    return queue.get(
        timeout=None if seconds is None else min(max(seconds, 0.0), threading.TIMEOUT_MAX)
    )
