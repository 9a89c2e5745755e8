"""`ImmediateWaits`: whether threads wait for each command of a stream as soon as it is submitted.

Then a short launch need not go to the thread of the stream: the thread that submits it runs it, as
it does brief ones, which saves two changes of threads.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns

__all__ = ["ImmediateWaits"]

_WAITS = 4
"""Consecutive commands with an immediate wait before a launch runs in the submitting thread."""

_MAX_NS = 10_000
"""The longest time from a submission to an immediate wait."""


class _Latest(threading.local):
    """The latest submission of a thread."""

    waits: ImmediateWaits | None = None


_latest = _Latest()


class ImmediateWaits:
    """Counts the commands of a queue that the submitting thread waits for immediately.

    Threads that use the queue at the same time may lose counts of each other; the results of
    launches do not depend on them.

    Attributes
    ----------
    are_expected : bool
        Whether the thread that submits the next launch is expected to wait for it.
    is_pending : bool
        Whether no thread has waited since the last command.
    """

    __slots__ = ("_row", "_since", "are_expected", "is_pending")

    def __init__(self) -> None:
        self.are_expected = False
        self.is_pending = False
        self._row = 0
        self._since = 0

    def submitted(self) -> None:
        """Count a command: when it is queued or, if the submitting thread runs it, when it ends."""
        if self.is_pending:
            self._row = 0
        self.is_pending = True
        self.are_expected = False
        _latest.waits = self
        self._since = perf_counter_ns()

    def waited(self) -> None:
        """Count a wait, immediate or not, for the commands so far."""
        self.is_pending = False
        is_immediate = _latest.waits is self and perf_counter_ns() - self._since < _MAX_NS
        self._row = self._row + 1 if is_immediate else 0
        self.are_expected = self._row >= _WAITS
