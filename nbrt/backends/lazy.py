"""Lazy initialisation of a backend: once, thread-safe, with queued calls and a fork check."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from nbrt._internal.callsite import CallSite
from nbrt.errors import DeferredCallError, ForkedProcessError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LazyInitializer"]

_all: weakref.WeakSet[LazyInitializer] = weakref.WeakSet()


class LazyInitializer:
    """Initialise a backend on first use.

    Parameters
    ----------
    name : str
        The backend's name in messages.
    initialize : callable
        Starts the backend. After an exception the next use tries again.

    Attributes
    ----------
    is_ready : bool
        Whether the backend is initialised in this process. Hot paths read it before they call
        `ensure`.
    """

    def __init__(self, name: str, initialize: Callable[[], None]) -> None:
        self.name = name
        self.is_ready = False
        self._initialize = initialize
        self._queued: list[tuple[Callable[..., object], tuple[Any, ...], CallSite]] = []
        self._lock = threading.RLock()
        self._is_running = False
        self._is_started = False
        self._is_forked = False
        _all.add(self)

    def ensure(self) -> None:
        """Initialise the backend if necessary.

        Raises
        ------
        ForkedProcessError
            If the process was forked after the backend was initialised in its parent.
        DeferredCallError
            If a queued call fails; the text shows where it was queued.
        """
        if self.is_ready:
            return
        if self._is_forked:
            raise ForkedProcessError(
                f"expected the {self.name} backend to be first used after the process started, got "
                f"a child forked after its parent had initialised it: its threads and driver state "
                f"do not survive fork. Start the child with 'spawn' "
                f"(multiprocessing.get_context('spawn')), or fork before the first use of nbrt"
            )
        with self._lock:
            if self.is_ready or self._is_running:
                return
            self._is_running = True
            try:
                if not self._is_started:
                    self._initialize()
                    self._is_started = True
                self._run_queued()
                self.is_ready = True
            finally:
                self._is_running = False

    def retire(self) -> None:
        """Let the next use call `initialize` again, which may refuse."""
        with self._lock:
            self.is_ready = self._is_started = False

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call ``function(*args)`` now, or, if the backend is not initialised, afterwards."""
        with self._lock:
            if not self.is_ready and not self._is_running:
                self._queued.append((function, args, CallSite.here(depth=1)))
                return
        function(*args)

    def _run_queued(self) -> None:
        while self._queued:
            function, args, site = self._queued[0]
            try:
                function(*args)
            except Exception as error:
                raise DeferredCallError(
                    f"a call queued before the {self.name} backend was initialised failed with "
                    f"{type(error).__name__}: {error}\nIt was queued here:\n{site.format()}"
                ) from error
            finally:
                # A failed call is dropped: each use would fail again.
                del self._queued[0]

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        if self._is_started or self._is_running:
            self._is_forked = True
            self.is_ready = False
            self._is_running = False


def _after_fork_in_child() -> None:
    for initializer in tuple(_all):
        initializer._after_fork()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)
