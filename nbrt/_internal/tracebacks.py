"""`at_caller`: exceptions without the frames of the library."""

from __future__ import annotations

__all__ = ["at_caller"]


def at_caller(error: KeyboardInterrupt) -> KeyboardInterrupt:
    """Return an interrupt without its traceback, which may hold hundreds of compiler frames."""
    error.__context__ = None
    return error.with_traceback(None)
