"""`need_frames`: a change of several steps begins where the stack has room for all of them."""

from __future__ import annotations

__all__ = ["has_frames", "need_frames"]


def need_frames(count: int = 40) -> None:
    """Raise RecursionError now if so many calls within each other would raise it later.

    It comes at any call, and a change of several steps would be left half done. To try is the one
    way to know; it takes a microsecond or two.

    Parameters
    ----------
    count : int
        Calls within each other.

    Raises
    ------
    RecursionError
        If the stack has no room for them.

    Examples
    --------
    >>> need_frames()
    """
    if count:
        need_frames(count - 1)


def has_frames() -> bool:
    """Return whether `need_frames` raises nothing."""
    try:
        need_frames()
    except RecursionError:
        return False
    return True
