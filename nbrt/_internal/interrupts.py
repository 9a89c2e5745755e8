"""`DeferInterrupt`: defer SIGINT until a multi-step change or a callback is complete."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal's own functions convert to enums
import signal
import threading
from _thread import get_ident, interrupt_main
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["DeferInterrupt", "re_raise_interrupt"]

_MAIN = threading.main_thread().ident
_INTERRUPT = int(signal.SIGINT)


def re_raise_interrupt() -> bool:
    """Ask again for the KeyboardInterrupt that came in a callback; False: not in the main thread.

    Python prints what a callback of a weak reference raises, and goes on: Ctrl-C would be lost. It
    looks for signals after each call that its bytecode makes; `map` makes this one, so that the
    signal is found after the callback.
    """
    if get_ident() != _MAIN:
        return False
    [*map(interrupt_main, (signal.SIGINT,))]
    return True


class _Lock(Protocol):
    def _is_owned(self) -> bool: ...


class DeferInterrupt:
    """Put under a lock: a SIGINT that comes while the main thread holds it comes afterwards.

    Python runs the handlers of signals in the main thread, between any two steps, and that of
    Ctrl-C raises there: a change of several steps would be left half done. So the handler is
    replaced meanwhile, which takes one to two microseconds. Handlers of other signals run as ever;
    if one raises in the middle of `__enter__` or `__exit__`, the next SIGINT puts things right.

    Parameters
    ----------
    lock : threading.RLock
        The lock: ``with lock, patience: ...``. Taken first, in C, where nothing can come between.
        A lock that is only tried is taken within the block; an interrupt before that is not held.
    """

    __slots__ = ("_came", "_depth", "_lock", "_previous")

    def __init__(self, lock: _Lock) -> None:
        self._lock = lock
        self._depth = 0
        self._previous: Any = None
        self._came = False

    def __enter__(self) -> None:
        if get_ident() == _MAIN:
            handler = _signal.getsignal(_INTERRUPT)
            # What is no Python function raises nothing here; inside another block it is ours.
            if callable(handler) and handler != self._note:
                self._previous = handler
                _signal.signal(_INTERRUPT, self._note)
            # Last: an interrupt that comes before has entered nothing.
            self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if get_ident() == _MAIN:
            if self._depth:  # else an interrupt without the lock has left all blocks
                self._depth -= 1
            if self._depth == 0 and self._previous is not None:
                self._restore()

    def _restore(self) -> None:
        previous, self._previous = self._previous, None
        came, self._came = self._came, False
        if previous is not None:
            _signal.signal(_INTERRUPT, previous)
        if came:
            signal.raise_signal(signal.SIGINT)

    def _note(self, number: int, frame: object) -> None:  # noqa: ARG002  # of every handler
        self._came = True
        if not self._lock._is_owned():
            self._depth = 0
            self._previous = self._previous or signal.default_int_handler
            self._restore()
