"""Variables of frames, read without extending their lifetime."""

from __future__ import annotations

import inspect
import sys
from types import FrameType, GeneratorType
from typing import Any

__all__ = ["is_function", "is_of_search", "locals_of", "place_of", "running_frames"]


def is_function(frame: FrameType) -> bool:
    """Return whether a frame belongs to a function, not to a module or a class body."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a frame by name."""
    f_locals = frame.f_locals
    variables = dict(f_locals)
    # Before Python 3.13, `f_locals` is a copy that the frame keeps alive together with its values
    # until the function ends. Its three references are those of the frame, this function and the
    # call.
    is_copy = type(f_locals) is dict and is_function(frame) and frame.f_trace is None
    if is_copy and sys.getrefcount(f_locals) <= 3:
        f_locals.clear()
    return variables


def running_frames() -> list[FrameType]:
    """Return the frames of all threads, innermost first, without the frames of this search."""
    frames: list[FrameType] = []
    innermost = list(sys._current_frames().values())
    while innermost:  # `pop`: a variable that refers to this frame would form a cycle
        frame: FrameType | None = innermost.pop()
        while frame is not None:
            if not is_of_search(frame):
                frames.append(frame)
            frame = frame.f_back
    return frames


def is_of_search(held: object) -> bool:
    """Return whether an object is a frame or a generator of this search, which must skip itself."""
    frame: Any = held.gi_frame if type(held) is GeneratorType else held
    if type(frame) is not FrameType:
        return False
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.startswith(__package__)


def place_of(frame: FrameType) -> str:
    """Return the function and line of a frame, as ``name() (file:line)``."""
    code = frame.f_code
    return f"{code.co_qualname}() ({code.co_filename}:{frame.f_lineno})"
