"""`ImmediateWaits`: whether threads wait for each short launch of a stream as soon as it is queued.

Then another thread is of no use: the launch runs in the thread that submits it, as brief ones do,
which saves two changes of threads.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns

__all__ = ["ImmediateWaits"]

_WAITS = 4
"""Consecutive launches that a thread has waited for before one runs in that thread."""

_MAX_NS = 10_000
"""The time between a launch and the wait for it, in which the thread does little else."""


class _Latest(threading.local):
    """The latest submission of a thread."""

    stream: ImmediateWaits | None = None


_latest = _Latest()


class ImmediateWaits:
    """Counts the launches of a queue that the submitting thread waits for immediately.

    Threads that use the queue at the same time may lose counts of each other; the results of
    launches do not depend on them.

    Attributes
    ----------
    are_expected : bool
        Whether the thread that submits the next launch is expected to wait for it.
    is_open : bool
        Whether no thread has waited since the last launch.
    """

    __slots__ = ("_row", "_since", "are_expected", "is_open")

    def __init__(self) -> None:
        self.are_expected = False
        self.is_open = False
        self._row = 0
        self._since = 0

    def submitted(self) -> None:
        """Count a launch, at its submission or, if it runs in the submitting thread, at its end."""
        if self.is_open:
            self._row = 0
        self.is_open = True
        self.are_expected = False
        _latest.stream = self
        self._since = perf_counter_ns()

    def waited(self) -> None:
        """Count a wait after a launch; other submissions of the thread may come between."""
        self.is_open = False
        is_immediate = _latest.stream is self and perf_counter_ns() - self._since < _MAX_NS
        self._row = self._row + 1 if is_immediate else 0
        self.are_expected = self._row >= _WAITS
