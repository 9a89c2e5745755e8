"""What frames hold: their variables, read without making them live longer."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["is_function", "locals_of", "place_of", "running_frames"]


def is_function(frame: FrameType) -> bool:
    """Return whether a frame has variables of its own, unlike that of a module or a class body."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a frame by name."""
    seen = frame.f_locals
    found = dict(seen)
    # Before Python 3.13 this is a copy that the frame keeps, and with it what the variables were
    # now, until the function ends. Three references: the frame's, ours and the call's.
    is_copy = type(seen) is dict and is_function(frame) and frame.f_trace is None
    if is_copy and sys.getrefcount(seen) <= 3:
        seen.clear()
    return found


def running_frames() -> list[FrameType]:
    """Return the frames of all threads, innermost first; not those of nbrt's watchers."""
    found: list[FrameType] = []
    for innermost in sys._current_frames().values():
        frame: FrameType | None = innermost
        while frame is not None:
            name = frame.f_globals.get("__name__")
            if type(name) is not str or not name.startswith(__package__):
                found.append(frame)
            frame = frame.f_back
    return found


def place_of(frame: FrameType) -> str:
    """Return the function and line of a frame, as ``name() (file:line)``."""
    code = frame.f_code
    return f"{code.co_qualname}() ({code.co_filename}:{frame.f_lineno})"
