"""`Capture`: what streams, events and generators tell a capture in progress.

`nbrt.graphs` implements it; the runtime knows the protocol only.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.runtime.commands import CommandKind

__all__ = ["Capture", "CapturedRecord", "DrawState", "captures_here", "open_captures"]

open_captures: dict[int, list[Capture]] = {}
"""The captures in progress, by the id of the thread that captures; inner ones come last."""


def captures_here() -> list[Capture]:
    """Return the captures in progress of the running thread."""
    return open_captures.get(threading.get_ident(), [])


class CapturedRecord(NamedTuple):
    """The record of an event in a capture.

    Attributes
    ----------
    capture : Capture
        The capture.
    nodes : tuple of int
        The nodes that the event waits for.
    handles : tuple of int
        The same as nodes of the driver.
    """

    capture: Capture
    nodes: tuple[int, ...]
    handles: tuple[int, ...] = ()


class DrawState(NamedTuple):
    """The state of a captured draw.

    Attributes
    ----------
    array : array
        uint64[2] in memory of the device: seed and offset at the begin of a replay.
    offset : int
        The words that the graph draws before, which are added to the offset.
    """

    array: Any
    offset: int


class Capture(Protocol):
    """A capture in progress. A stream that is captured has it as its `capture`."""

    def record(
        self,
        stream: Any,
        kind: CommandKind,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        label: str,
    ) -> Any:
        """Record a command, given by what a `Command` has, instead of running it."""
        ...

    def record_event(self, stream: Any, event: Any) -> CapturedRecord:
        """Return the point that an event on a captured stream stands for."""
        ...

    def wait_event(self, stream: Any, event: Any, record: CapturedRecord | None) -> None:
        """Make a stream wait for an event; capture it as well if it is not.

        `record` is None for an event that was recorded outside of any capture.
        """
        ...

    def reserve(self, stream: Any, position: Any, words: int) -> DrawState:
        """Return the state of a draw of `words` words from a position of a generator."""
        ...

    def unreserve(self, position: Any, words: int) -> None:
        """Undo `reserve`: the draw was refused."""
        ...

    def mark(self, position: Any) -> int:
        """Return the words that were reserved from a position so far, for `rewind`."""
        ...

    def rewind(self, position: Any, mark: int) -> None:
        """Let later draws take the words that were reserved since `mark` again."""
        ...

    def split_off(self, stream: Any, position: Any, skipped: int, words: int) -> Any:
        """Reserve words, and return a position whose draws begin `skipped` words behind them.

        It belongs to the capture, and has no state.
        """
        ...

    def redirect(self, position: Any, source: Any) -> Any:
        """Let later draws from a position be draws from `source`; return the previous source.

        None: the position itself.
        """
        ...

    def draws_from(self, position: Any) -> bool:
        """Return whether the graph has draws from a position of a generator."""
        ...

    def note_new(self, position: Any) -> None:
        """Note that a position was made by the captured code."""
        ...

    def add_graph(self, stream: Any, graph: Any, values: Any) -> None:
        """Record the replay of a graph, with the arrays and numbers of `values`."""
        ...

    def refuse(self, tried: str, remedy: str) -> NoReturn:
        """Raise `CaptureError`: a call has no meaning while nothing runs."""
        ...
