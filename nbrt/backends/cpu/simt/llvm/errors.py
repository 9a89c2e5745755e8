"""What keeps a piece of LLVM code from being lowered in a certain way; never seen by users."""

from __future__ import annotations

__all__ = ["CannotLowerError", "NotReducibleError"]


class CannotLowerError(Exception):
    """One lowering cannot do it, and another can; the message says why."""


class NotReducibleError(CannotLowerError):
    """A loop has two ways in."""

    def __init__(self, block: str) -> None:
        super().__init__(f"a loop can be entered in its middle (at {block})")
