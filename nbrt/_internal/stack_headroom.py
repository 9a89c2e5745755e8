"""Raise RecursionError before a multi-step update, not in the middle of it."""

from __future__ import annotations

__all__ = ["ensure_stack_headroom", "has_stack_headroom"]


def ensure_stack_headroom(count: int = 40) -> None:
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
    >>> ensure_stack_headroom()
    """
    if count:
        ensure_stack_headroom(count - 1)


def has_stack_headroom() -> bool:
    """Return whether `ensure_stack_headroom` raises nothing."""
    try:
        ensure_stack_headroom()
    except RecursionError:
        return False
    return True
