"""Keep exceptions out of multi-step changes: `DeferInterrupt`, `ensure_stack_headroom`."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal's own functions convert to enums
import signal
import sys
import threading
from _thread import get_ident, interrupt_main
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["DeferInterrupt", "ensure_stack_headroom", "has_stack_headroom", "re_raise_interrupt"]

_MAIN = threading.main_thread().ident
_INTERRUPT = int(signal.SIGINT)
_getsignal, _set_handler = _signal.getsignal, _signal.signal
_MIN_HEADROOM = 40
"""Nested calls that a multi-step change may make."""


def re_raise_interrupt() -> bool:
    """Raise a KeyboardInterrupt again after the callback that it came in; False: another thread.

    Python prints the exceptions of a weak reference's callback and continues: Ctrl-C would be lost.
    It looks for signals after each call that its bytecode makes; `map` makes this one, so the
    signal is found after the callback.
    """
    if get_ident() != _MAIN:
        return False
    [*map(interrupt_main, (signal.SIGINT,))]
    return True


class _Lock(Protocol):
    def _is_owned(self) -> bool: ...


class DeferInterrupt:
    """Defer SIGINT until the main thread releases a lock.

    Python runs signal handlers in the main thread, between any two instructions. The handler of
    Ctrl-C raises there and would leave a change of several steps half done. So this context manager
    replaces the handler, in one to two microseconds. Handlers of other signals run as usual; if one
    raises in the middle of `__enter__` or `__exit__`, the next SIGINT restores the handler.

    Parameters
    ----------
    lock : threading.RLock
        The lock: ``with lock, defer_interrupt: ...``. It is taken first, in C, where no interrupt
        comes between. Code that only tries to take the lock does so within the block; interrupts
        before that are not deferred.
    """

    __slots__ = ("_came", "_depth", "_lock", "_noting", "_previous")

    def __init__(self, lock: _Lock) -> None:
        self._lock = lock
        self._depth = 0
        self._previous: Any = None
        self._came = False
        self._noting = self._note

    def __enter__(self) -> None:
        if get_ident() == _MAIN:
            handler = _getsignal(_INTERRUPT)
            # Skip non-callable handlers (SIG_DFL, SIG_IGN) and our own, when nested.
            if handler is not self._noting and callable(handler):
                self._previous = handler
                _set_handler(_INTERRUPT, self._noting)
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
            _set_handler(_INTERRUPT, previous)
        if came:
            signal.raise_signal(signal.SIGINT)

    def _note(self, number: int, frame: object) -> None:  # noqa: ARG002  # of every handler
        self._came = True
        if not self._lock._is_owned():
            self._depth = 0
            self._previous = self._previous or signal.default_int_handler
            self._restore()


_nested_classes: Any = str
for _ in range(_MIN_HEADROOM):
    _nested_classes = (_nested_classes,)


def ensure_stack_headroom() -> None:
    """Raise RecursionError now if 40 nested calls would raise it later.

    It may come at any call, and a change of several steps would be left half done.

    Raises
    ------
    RecursionError
        If the stack has no room for the calls.

    Examples
    --------
    >>> ensure_stack_headroom()
    """
    if sys.version_info < (3, 12):
        # Nested calls of C and of Python count alike; these take a tenth of the time.
        isinstance(None, _nested_classes)
        return
    try:
        sys._getframe(sys.getrecursionlimit() - _MIN_HEADROOM)
    except ValueError:  # the stack is not as deep
        return
    raise RecursionError("maximum recursion depth exceeded, but for the calls of an allocation")


def has_stack_headroom() -> bool:
    """Return whether `ensure_stack_headroom` raises nothing."""
    try:
        ensure_stack_headroom()
    except RecursionError:
        return False
    return True
