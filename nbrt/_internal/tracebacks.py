"""`at_caller`: exceptions that show where they met the caller, not the library's own frames."""

from __future__ import annotations

__all__ = ["at_caller"]


def at_caller(error: KeyboardInterrupt) -> KeyboardInterrupt:
    """Return an interrupt without the frames that it has passed so far.

    A launch that compiles has hundreds of frames of the compiler beneath it, and none of them says
    more than that the launch was interrupted.
    """
    error.__context__ = None
    return error.with_traceback(None)
