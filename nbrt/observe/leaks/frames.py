"""What frames hold: their variables, read without making them live longer."""

from __future__ import annotations

import inspect
import sys
from types import FrameType, GeneratorType
from typing import Any

__all__ = ["is_function", "is_of_watchers", "locals_of", "place_of", "running_frames"]


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
    innermost = list(sys._current_frames().values())
    while innermost:  # no variable may be left that refers to this frame, and so to itself
        frame: FrameType | None = innermost.pop()
        while frame is not None:
            if not is_of_watchers(frame):
                found.append(frame)
            frame = frame.f_back
    return found


def is_of_watchers(held: object) -> bool:
    """Return whether an object is a frame or a generator of those who look for holders.

    They must not find themselves: what they hold would be held in a circle.
    """
    frame: Any = held.gi_frame if type(held) is GeneratorType else held
    if type(frame) is not FrameType:
        return False
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.startswith(__package__)


def place_of(frame: FrameType) -> str:
    """Return the function and line of a frame, as ``name() (file:line)``."""
    code = frame.f_code
    return f"{code.co_qualname}() ({code.co_filename}:{frame.f_lineno})"
