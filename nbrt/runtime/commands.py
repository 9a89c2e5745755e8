"""The one road: everything that happens on a device is a `Command` given to a stream.

Capture, tracing, memory history and sanitizers look at commands here, for every backend at once.
With nobody looking, the road costs one test of an empty tuple.
"""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from nbrt.errors import NbrtCleanupWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt.runtime.stream import Stream

__all__ = ["Command", "CommandKind", "CommandTap", "run_tapped", "tap_commands", "taps"]

CommandKind: TypeAlias = Literal[
    "launch", "copy", "fill", "draw", "allocate", "free", "record", "wait", "call", "collective"
]


class Command:
    """One thing to do on a stream.

    Attributes
    ----------
    kind : str
        What sort of thing: launch, copy, fill, draw, allocate, free, record, wait, call, or
        collective: what ranks do together, made of further commands that pass in between.
    function : callable
        The backend's operation; called as ``function(queue, *args)`` in the caller's thread, where
        it checks and enqueues.
    args : tuple
        The rest of its arguments.
    label : str
        What to call it in a trace: the kernel's name, the distribution.
    """

    __slots__ = ("args", "function", "kind", "label")

    def __init__(
        self,
        kind: CommandKind,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        label: str = "",
    ) -> None:
        self.kind = kind
        self.function = function
        self.args = args
        self.label = label

    def __repr__(self) -> str:
        return f"Command({self.kind!r}, label={self.label!r})"


class CommandTap(Protocol):
    """Something that looks at commands; both calls happen in the submitting thread.

    A tap must not allocate device memory itself: allocations pass it while the device's books are
    locked.
    """

    def before(self, stream: Stream, command: Command) -> None:
        """See a command before the backend does; raising here refuses it, unless it is a free."""
        ...

    def after(self, stream: Stream, command: Command, result: object) -> None:
        """See a command that the backend accepted, and what it returned; raising only warns."""
        ...


taps: tuple[CommandTap, ...] = ()
_lock = threading.Lock()


@contextmanager
def tap_commands(tap: CommandTap) -> Iterator[None]:
    """Show every command of every thread to `tap` for the length of a block.

    Parameters
    ----------
    tap : CommandTap
        Gets `before` and `after` of each command. Blocks may nest; taps are called in the order in
        which they were added.
    """
    global taps
    with _lock:
        taps = (*taps, tap)
    try:
        yield
    finally:
        with _lock:
            remaining = list(taps)
            remaining.remove(tap)
            taps = tuple(remaining)


def run_tapped(stream: Stream, command: Command) -> Any:
    """Run a command past every tap."""
    seen = taps
    complaints: list[str] = []  # texts: an exception would hold this frame, and so its memory
    for tap in seen:
        try:
            tap.before(stream, command)
        except Exception as error:
            # The arrays over the memory are gone: a free cannot be refused any more.
            if command.kind != "free":
                raise
            complaints.append(repr(error))
    result = command.function(stream.queue, *command.args)
    for tap in seen:
        try:
            tap.after(stream, command, result)
        except Exception as error:  # noqa: BLE001  # the work is accepted: nothing to undo it
            complaints.append(repr(error))
    for complaint in complaints:
        message = f"a tap failed on an accepted {command!r}: {complaint}"
        warnings.warn(message, NbrtCleanupWarning, stacklevel=2)
    return result
