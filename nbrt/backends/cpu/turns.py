"""Threads that run launches in turn, and threads that wait for those that have reserved a queue."""

from __future__ import annotations

import threading
import time
from _thread import get_ident
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Turn", "wait_for_owner"]

_Result = TypeVar("_Result")

_MAX_POLL = 1e-3
"""The longest period at which the thread of a queue looks for the end of work in another thread."""


class Turn:
    """A lock for speed only: results are the same if two threads have it.

    Native code releases the interpreter's lock. A thread that would use it meanwhile makes the
    launching thread wait for it, for longer than a short launch takes. Threads that wait for a turn
    do not use it. A `threading.RLock` in a ``with`` statement takes as long as a short launch, so a
    thread acquires it only where another one has the turn or waits for it.

    Attributes
    ----------
    owner : list of int or None
        An object of the thread that has the turn without the lock, with its identifier. A thread
        that finds neither an owner nor others that wait may set it to an own object, and calls
        `leave` in the end, if `latch` is set.
    waiting : int
        The threads in `run`.
    latch : lock or None
        The owner releases it when it leaves.
    """

    __slots__ = ("_lock", "latch", "owner", "waiting")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.reset()

    def reset(self) -> None:
        """Forget the threads that have it: those of the parent do not exist in a forked child."""
        self.owner: list[int] | None = None
        self.waiting = 0
        self.latch: threading.Lock | None = None
        self._lock = threading.RLock()

    def run(self, function: Callable[[], _Result]) -> _Result:
        """Call a function when no other thread has the turn.

        A thread that has it already does not wait: a signal handler may launch within a launch.
        """
        owner = self.owner
        if owner is not None and owner[0] == get_ident():
            return function()
        # No call comes between the increment and `try`, where a signal handler could raise.
        self.waiting += 1
        try:
            with self._lock:
                self._wait_for_owner()
                return function()
        finally:
            self.waiting -= 1

    def _wait_for_owner(self) -> None:
        """Wait for an owner that took the turn before this thread began to wait."""
        while True:
            latch = threading.Lock()
            latch.acquire()
            # Test and assignment are one step, as `leave` is: see `WorkerQueue.owner`.
            owner = self.owner
            if owner is None:
                return
            self.latch = latch
            if self.owner is not owner:
                continue
            latch.acquire()


class _Reservable(Protocol):
    owner: list[int] | None


def wait_for_owner(queue: _Reservable) -> None:
    """Wait until no thread has reserved a queue; an interrupt could prevent a message."""
    seconds = 0.0
    while queue.owner is not None:
        time.sleep(seconds)
        seconds = min(_MAX_POLL, 2 * seconds + 10e-6)
