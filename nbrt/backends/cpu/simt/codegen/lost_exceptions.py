"""Exceptions that signal handlers raise while LLVM makes machine code.

LLVM calls llvmlite's Python functions when it has made an object. If a signal's handler raises
there, ctypes prints the exception and drops it: Ctrl-C would have no effect.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from llvmlite.binding import ExecutionEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["lost_exceptions_raised"]

_CALLBACKS = frozenset(
    {
        ExecutionEngine._raw_object_cache_notify.__code__,
        ExecutionEngine._raw_object_cache_getbuffer.__code__,
    }
)


@contextmanager
def lost_exceptions_raised() -> Iterator[None]:
    """Raise, at the end of a block, the first exception that a callback of LLVM has dropped.

    Only in the main thread: Python runs no signal handlers in others.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    lost: list[BaseException] = []
    hook_before = sys.unraisablehook

    def keep(unraisable: sys.UnraisableHookArgs) -> None:
        trace = unraisable.exc_traceback
        if (
            trace is not None
            and unraisable.exc_value is not None
            and trace.tb_frame.f_code in _CALLBACKS
        ):
            lost.append(unraisable.exc_value)
        else:
            hook_before(unraisable)

    sys.unraisablehook = keep
    try:
        yield
    finally:
        sys.unraisablehook = hook_before
    if lost:
        raise lost[0]
