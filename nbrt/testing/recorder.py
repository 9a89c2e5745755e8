"""`CommandRecorder`: records commands as plain values."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from nbrt.runtime.commands import install_hook

if TYPE_CHECKING:
    from typing import Self

    from nbrt._internal.device import Device
    from nbrt.runtime.commands import Command, CommandKind
    from nbrt.runtime.stream import Stream

__all__ = ["CommandRecorder", "RecordedCommand"]


class RecordedCommand(NamedTuple):
    """A command without its arguments, so that it keeps no array alive."""

    kind: CommandKind
    """Kind of command: launch, copy, fill, draw, allocate, free, record, wait, call, ..."""
    label: str
    """Name of the kernel, distribution or host function; empty for other kinds."""
    device: Device
    """Device of the stream."""
    stream_id: int
    """Id of the stream; see `Stream.from_id`."""
    thread: int
    """Id of the submitting thread, from `threading.get_ident`."""


class CommandRecorder:
    """A hook that records the commands of all threads during a ``with`` block.

    Attributes
    ----------
    commands : list of RecordedCommand
        The commands that the backends accepted, in order.
    seen : list of RecordedCommand
        The commands submitted, including refused ones.

    Examples
    --------
    >>> import nbrt
    >>> with CommandRecorder() as recorder:
    ...     x = nbrt.zeros(3, device="cpu:0")
    >>> recorder.kinds
    ['allocate', 'fill']
    """

    def __init__(self) -> None:
        self.commands: list[RecordedCommand] = []
        self.seen: list[RecordedCommand] = []
        self._stack = ExitStack()

    @property
    def kinds(self) -> list[CommandKind]:
        """The kinds of the accepted commands."""
        return [command.kind for command in self.commands]

    def before(self, stream: Stream, command: Command) -> None:
        """Record a submitted command."""
        self.seen.append(_recorded(stream, command))

    def after(self, stream: Stream, command: Command, result: object) -> None:  # noqa: ARG002
        """Record an accepted command."""
        self.commands.append(_recorded(stream, command))

    def __enter__(self) -> Self:
        self._stack.enter_context(install_hook(self))
        return self

    def __exit__(self, *_failure: object) -> None:
        self._stack.close()


def _recorded(stream: Stream, command: Command) -> RecordedCommand:
    return RecordedCommand(
        command.kind, command.label, stream.device, stream.id, threading.get_ident()
    )
