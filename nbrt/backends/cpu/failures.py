"""`Failure`: what went wrong on a CPU queue, kept until somebody synchronises with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.errors import StreamError

if TYPE_CHECKING:
    from nbrt._internal.callsite import CallSite

__all__ = ["Failure"]


class Failure:
    """Work that raised, and what was dropped behind it."""

    __slots__ = ("dropped", "error", "label", "site")

    def __init__(self, error: BaseException, label: str, site: CallSite) -> None:
        self.error = error
        self.label = label
        self.site = site
        self.dropped: list[str] = []

    def as_error(self, where: str) -> StreamError:
        """Return the exception that a synchronisation point raises."""
        lines = [
            f"{self.label} failed on {where} with {type(self.error).__name__}: {self.error}",
            f"It was submitted here:\n{self.site.format()}",
        ]
        if self.dropped:
            shown = ", ".join(self.dropped[:5]) + (", ..." if len(self.dropped) > 5 else "")
            lines.append(
                f"{len(self.dropped)} later command(s) of the stream were dropped: {shown}. Submit "
                f"them again once the cause is mended; the stream itself can be used"
            )
        error = StreamError("\n".join(lines))
        error.__cause__ = self.error
        return error
