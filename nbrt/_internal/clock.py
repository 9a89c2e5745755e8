"""The time that deadlines are measured by. Tests replace the functions of this module.

A caller looks a function up at each call, ``clock.monotonic()``, and does not import it by name.
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
    """Acquire a lock within so many seconds, which may be infinite; return whether it was."""
    return lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


def get(queue: SimpleQueue[_T], seconds: float | None) -> _T:
    """Return the next item of a queue; raise `queue.Empty` after so many seconds. None: never."""
    return queue.get(
        timeout=None if seconds is None else min(max(seconds, 0.0), threading.TIMEOUT_MAX)
    )
