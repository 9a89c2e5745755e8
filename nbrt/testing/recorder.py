"""`CommandRecorder`: writes down the commands that pass, as plain values."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from nbrt.runtime.commands import install_hook

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from nbrt._internal.device import Device
    from nbrt.runtime.commands import Command, CommandKind
    from nbrt.runtime.stream import Stream

__all__ = ["CommandRecorder", "RecordedCommand"]


class RecordedCommand(NamedTuple):
    """One command, without its arguments, so that no array is kept alive."""

    kind: CommandKind
    """What sort of thing: launch, copy, fill, draw, allocate, free, record, wait, call, ..."""
    label: str
    """The kernel's name, the distribution, the host function; empty for the other kinds."""
    device: Device
    """Where."""
    stream_id: int
    """Which stream it was given to; see `Stream.from_id`."""
    thread: int
    """Identifier of the submitting thread, as of `threading.get_ident`."""


class CommandRecorder:
    """A tap that records every command of every thread for the length of a ``with`` block.

    Attributes
    ----------
    commands : list of RecordedCommand
        Those that the backends accepted, in the order in which they were.
    seen : list of RecordedCommand
        Those that were submitted, accepted or not.

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
        """Note that a command was submitted."""
        self.seen.append(_recorded(stream, command))

    def after(self, stream: Stream, command: Command, result: object) -> None:  # noqa: ARG002
        """Note that it was accepted."""
        self.commands.append(_recorded(stream, command))

    def __enter__(self) -> Self:
        self._stack.enter_context(install_hook(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()


def _recorded(stream: Stream, command: Command) -> RecordedCommand:
    return RecordedCommand(
        command.kind, command.label, stream.device, stream.id, threading.get_ident()
    )
