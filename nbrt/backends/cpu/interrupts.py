"""End launches early: signals in the main thread, and cancellation of streams.

Python runs the handlers of signals in the main thread, between two bytecode instructions; native
code does not run any. While the main thread runs a launch, a daemon thread, the ticker, writes the
main thread's identifier into the launch's stop word every 50 ms. Native code polls the word and
runs the pending handlers (``simt/stop_codes.py``). An exception of a handler ends the launch.
"""

from __future__ import annotations

import os
import threading
import time
from queue import SimpleQueue
from threading import get_ident
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = [
    "STOP",
    "Runner",
    "Stoppable",
    "Watched",
    "forget_tick",
    "main_runner",
    "run_stoppable",
    "runners",
    "stop",
]

STOP = 1
"""Value of a stop word that ends the launch; no OS thread has this identifier."""

_TICK_SECONDS = 0.05
_IDLE_TICKS = 20
"""Ticks without a launch after which the ticker sleeps until the next launch."""

_words = threading.RLock()
"""Guards stop words that several threads write; re-entrant, because signal handlers write them."""


class Stoppable(Protocol):
    """A launch's record, which native code reads."""

    stop: int


def stop(record: Stoppable) -> None:
    """End a launch early: native code leaves it at its next poll."""
    with _words:
        record.stop = STOP


class Watched:
    """A launch's record as another object for each launch, so that no tick takes two for one.

    Parameters
    ----------
    record : Stoppable
        The record.
    """

    __slots__ = ("_record",)

    def __init__(self, record: Stoppable) -> None:
        self._record = record

    @property
    def stop(self) -> int:
        """The stop word."""
        return self._record.stop

    @stop.setter
    def stop(self, word: int) -> None:
        self._record.stop = word


class Runner:
    """A thread whose launches can be ended: the main thread, or that of a stream.

    Attributes
    ----------
    record : Stoppable or None
        The launch that the thread runs.
    is_stopping : bool
        Whether launches end at once: `accept_launches` was not called since `stop_launches`.
    stops : int
        The calls of `stop_launches`. A record that was used before the latest may be stopped.
    """

    __slots__ = ("is_stopping", "record", "stops")

    def __init__(self) -> None:
        self.record: Stoppable | None = None
        self.is_stopping = False
        self.stops = 0

    def begin(self, record: Stoppable) -> Stoppable | None:
        """Record the launch that the thread begins; return the launch that it is in already."""
        before, self.record = self.record, record
        # In this order: `stop_launches` sets the flag first and then reads the record.
        if self.is_stopping:
            stop(record)
        return before

    def stop_launches(self) -> None:
        """End the launch that runs, and those that begin before `accept_launches`."""
        self.stops += 1
        self.is_stopping = True
        record = self.record
        if record is not None:
            stop(record)

    def accept_launches(self) -> None:
        """Run launches to their end again."""
        self.is_stopping = False


class _MainRunner(Runner):
    """The main thread, and the ticker, which has it run signal handlers while it runs a launch.

    Attributes
    ----------
    ident : int
        The main thread's identifier.
    owner : list of int
        The same as an owner of queues.
    is_watched : bool
        Whether the ticker is awake.
    """

    __slots__ = ("_begin", "_thread", "ident", "is_watched", "owner")

    def __init__(self) -> None:
        super().__init__()
        self.ident = threading.main_thread().ident or 0
        self.owner = [self.ident]
        self.is_watched = False
        # One call in C puts an item: an interrupted `threading.Event.set` would do half of it.
        self._begin: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Wake the ticker; also if a signal handler has ended the call before."""
        self.is_watched = True
        try:
            if self._thread is None or self._thread.ident is None:
                self._thread = threading.Thread(target=self._serve, name="nbrt-ticker", daemon=True)
                self._thread.start()
            self._begin.put(None)
        except BaseException:
            self.is_watched = False
            raise

    def _serve(self) -> None:
        while True:
            self._begin.get()
            self._tick_until_idle()

    def _tick_until_idle(self) -> None:
        idle, last = 0, None
        while idle < _IDLE_TICKS:
            time.sleep(_TICK_SECONDS)
            record = self.record
            idle = 0 if record is not None else idle + 1
            if record is not None and record is last:
                self._tick(record)
            last = record
        self.is_watched = False
        if self.record is not None:  # a launch began before the line above
            self.watch()

    def _tick(self, record: Stoppable) -> None:
        with _words:
            # Only while the launch runs: later the word would stay set.
            if record.stop == 0 and self.record is record:
                record.stop = self.ident


main_runner = _MainRunner()
runners: dict[int, Runner] = {}
"""By the identifier of their thread."""


def run_stoppable(
    entry: Callable[..., object], address: int, record: Stoppable, arguments: tuple[Any, ...]
) -> None:
    """Run a launch that signals and cancellation can end, if the thread has a `Runner`.

    Parameters
    ----------
    entry : callable
        Takes the address of the record and the arguments.
    address : int
        Address of `record`.
    record : Stoppable
        The launch. No other thread with a `Runner` runs it.
    arguments : tuple
        The kernel's own arguments.
    """
    runner = runners.get(get_ident())
    if runner is None:
        entry(address, *arguments)
        return
    before = runner.begin(record)
    if runner is main_runner and not main_runner.is_watched:
        main_runner.watch()
    try:
        entry(address, *arguments)
    finally:
        runner.record = before


def forget_tick(record: Stoppable) -> None:
    """Clear a tick that the main thread has not seen before it left the launch."""
    with _words:
        if (word := record.stop) and word != STOP:
            record.stop = 0


def _begin_process() -> None:
    """Initialise the state of the process; a forked child has one thread, its main thread."""
    global _words
    _words = threading.RLock()
    main_runner.__init__()  # type: ignore[misc]  # other modules hold the object
    runners.clear()
    runners[main_runner.ident] = main_runner


_begin_process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_process)
