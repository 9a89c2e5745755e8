"""`StreamFailure`: failed work of a stream, kept until a synchronisation point raises it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.errors import StreamError

if TYPE_CHECKING:
    from nbrt._internal.callsite import CallSite

__all__ = ["StreamFailure"]

_MAX_SHOWN = 5


class StreamFailure:
    """Work that raised, and the commands that were dropped behind it.

    Parameters
    ----------
    error : BaseException
        The exception.
    label : str
        The name of the work.
    site : CallSite
        Where the work was submitted.
    """

    __slots__ = ("dropped", "error", "label", "site")

    def __init__(self, error: BaseException, label: str, site: CallSite) -> None:
        self.error = error
        self.label = label
        self.site = site
        self.dropped: list[str] = []

    def as_error(self, stream: str, note: str = "") -> StreamError:
        """Return the exception for a synchronisation point; `note` is the last line of its text."""
        lines = [
            f"{self.label} failed on {stream} with {type(self.error).__name__}: {self.error}",
            f"It was submitted here:\n{self.site.format()}",
        ]
        if self.dropped:
            more = ", ..." if len(self.dropped) > _MAX_SHOWN else ""
            lines.append(
                f"{len(self.dropped)} later command(s) of the stream were dropped: "
                f"{', '.join(self.dropped[:_MAX_SHOWN])}{more}. Fix the cause and submit them "
                f"again; the stream itself can be used"
            )
        error = StreamError("\n".join([*lines, note] if note else lines))
        error.__cause__ = self.error
        return error
