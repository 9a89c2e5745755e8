"""The one road: everything that happens on a device is a `Command` given to a stream.

Capture, tracing, memory history and sanitizers look at commands here, for every backend at once.
With nobody looking, the road costs one test of an empty tuple.
"""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    get_args,
    runtime_checkable,
)

from nbrt.errors import NbrtCleanupWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from nbrt._internal.device import Device
    from nbrt.runtime.stream import Stream

__all__ = [
    "Command",
    "CommandHook",
    "CommandKind",
    "RuntimeEvent",
    "RuntimeEventKind",
    "RuntimeEventListener",
    "dispatch_with_hooks",
    "emit",
    "event_listeners",
    "install_hook",
    "memory_is_watched",
    "on_hooks_changing",
    "seen",
    "taps",
]

CommandKind: TypeAlias = Literal[
    "launch", "copy", "fill", "draw", "allocate", "free", "record", "wait", "call", "collective"
]
RuntimeEventKind: TypeAlias = Literal[
    "free_completed",
    "late_free_completed",
    "segment_alloc",
    "segment_free",
    "out_of_memory",
    "event_create",
    "event_delete",
    "event_sync",
    "event_query",
    "stream_create",
    "stream_sync",
    "stream_query",
    "device_sync",
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


class CommandHook(Protocol):
    """Something that looks at commands; both calls happen in the submitting thread.

    A tap must not allocate device memory itself: it would be told of that, too, and it is told of
    segments while the device's books are locked.
    """

    def before(self, stream: Stream, command: Command, /) -> None:
        """See a command before the backend does; raising here refuses it, unless it is a free."""
        ...

    def after(self, stream: Stream, command: Command, result: Any, /) -> None:
        """See a command that the backend accepted, and what it returned; raising only warns."""
        ...


class RuntimeEvent(NamedTuple):
    """Something that happened to a device and is no work of a stream.

    Attributes
    ----------
    kind : str
        ``"free_completed"``: memory can be used again; ``"late_free_completed"``, told besides:
        after a wait for other streams that had used it. ``"segment_alloc"``, ``"segment_free"``: a
        pool took memory from the system, or gave it back. ``"out_of_memory"``: an allocation
        failed for good. The others: events, streams and devices were made, dropped, waited for
        (told before the wait), or found done when the host asked (``"event_query"``,
        ``"stream_query"``).
    device : Device
        Where.
    stream : Stream or None
        The stream it is about.
    subject : object
        The `Allocation`; of segments their `SegmentInfo`; the `Event`; of a failure the free bytes.
    nbytes : int
        Bytes that a segment changed by, or that could not be had.
    pool_id : tuple of (int, int)
        The memory pool that it is about.
    """

    kind: RuntimeEventKind
    device: Device
    stream: Stream | None = None
    subject: object = None
    nbytes: int = 0
    pool_id: tuple[int, int] = (0, 0)


@runtime_checkable
class RuntimeEventListener(Protocol):
    """A tap that gets notices as well."""

    def note(self, notice: RuntimeEvent) -> None:
        """See what has happened; raising only warns."""
        ...


taps: tuple[CommandHook, ...] = ()
seen: frozenset[str] = frozenset()
"""The kinds of commands that some tap looks at."""

memory_is_watched = False
"""Whether some tap looks at allocations or frees."""

on_hooks_changing: list[Callable[[], None]] = []
"""Called before a tap is added or taken off; the runtime's memory puts something there."""

_Hooks = tuple[tuple["Callable[..., None]", ...], tuple["Callable[..., None]", ...]]
_hooks: dict[str, _Hooks] = {}
"""By kind of command, the `before` and the `after` of the taps that look at it."""

event_listeners: dict[str, tuple[Callable[[RuntimeEvent], None], ...]] = {}
"""By kind of notice, who gets it."""

_chosen: dict[int, _Choice] = {}
_entries = 0
_lock = threading.Lock()


class _Choice(NamedTuple):
    """A tap, and the kinds it wants to see before, after, and as notices; None: all."""

    tap: Any
    before: frozenset[str] | None
    after: frozenset[str] | None
    notices: frozenset[str] | None


@contextmanager
def install_hook(
    tap: CommandHook,
    kinds: Collection[CommandKind] | None = None,
    *,
    before: Collection[CommandKind] | None = None,
    after: Collection[CommandKind] | None = None,
    notices: Collection[RuntimeEventKind] | None = None,
) -> Iterator[None]:
    """Show every command of every thread to `tap` for the length of a block.

    Parameters
    ----------
    tap : CommandHook
        Gets `before` and `after` of each command, and, if it has a method `note`, every notice.
        Blocks may nest; taps are called in the order in which they were added.
    kinds : collection of str, optional
        The kinds of commands that it sees; all of them by default.
    before, after : collection of str, optional
        The kinds of which it sees this side; `kinds` by default. A call that is not made costs
        nothing.
    notices : collection of str, optional
        The kinds of notices that it sees; all of them by default.
    """
    global _entries
    _call_before_change()
    with _lock:
        _entries += 1
        entry = _entries
        _chosen[entry] = _Choice(
            tap,
            _frozen(kinds if before is None else before),
            _frozen(kinds if after is None else after),
            _frozen(notices) if isinstance(tap, RuntimeEventListener) else frozenset(),
        )
        _rebuild()
    try:
        yield
    finally:
        try:
            _call_before_change()
        finally:
            with _lock:
                del _chosen[entry]
                _rebuild()


def _frozen(kinds: Collection[str] | None) -> frozenset[str] | None:
    return None if kinds is None else frozenset(kinds)


def _call_before_change() -> None:
    for function in on_hooks_changing:
        function()


def _rebuild() -> None:
    global taps, seen, memory_is_watched, event_listeners, _hooks
    _hooks = {kind: _hooks_of(kind) for kind in get_args(CommandKind)}
    event_listeners = {kind: _noters_of(kind) for kind in get_args(RuntimeEventKind)}
    taps = tuple(each.tap for each in _chosen.values())
    seen = frozenset(kind for kind, sides in _hooks.items() if any(sides))
    memory_is_watched = not seen.isdisjoint(("allocate", "free"))


def _hooks_of(kind: str) -> _Hooks:
    chosen = _chosen.values()
    prepared = (each.tap.before for each in chosen if each.before is None or kind in each.before)
    afters = (each.tap.after for each in chosen if each.after is None or kind in each.after)
    return tuple(prepared), tuple(afters)


def _noters_of(kind: str) -> tuple[Callable[[RuntimeEvent], None], ...]:
    chosen = _chosen.values()
    return tuple(each.tap.note for each in chosen if each.notices is None or kind in each.notices)


def emit(
    kind: RuntimeEventKind,
    device: Device,
    stream: Stream | None = None,
    subject: object = None,
    nbytes: int = 0,
    pool_id: tuple[int, int] = (0, 0),
) -> None:
    """Tell the taps what has happened. Callers test `taps` first, so that it costs nothing."""
    if not event_listeners[kind]:
        return
    # In a third of the time that the constructor takes, which is a Python function.
    notice = tuple.__new__(RuntimeEvent, (kind, device, stream, subject, nbytes, pool_id))
    for note in event_listeners[kind]:
        try:
            note(notice)
        except Exception as error:  # noqa: BLE001  # what happened cannot be undone
            message = f"a tap failed on a notice of {kind!r}: {error!r}"
            warnings.warn(message, NbrtCleanupWarning, stacklevel=2)


def dispatch_with_hooks(stream: Stream, command: Command) -> Any:
    """Run a command past every tap that looks at its kind."""
    prepared, afters = _hooks.get(command.kind, ((), ()))
    complaints: list[str] | None = None  # texts: an exception would hold this frame, and its memory
    try:
        for before in prepared:
            try:
                before(stream, command)
            except Exception as error:
                # The arrays over the memory are gone: a free cannot be refused any more.
                if command.kind != "free":
                    raise
                complaints = [*(complaints or ()), repr(error)]
    except BaseException:  # nor by an interrupt
        if command.kind == "free":
            command.function(stream.queue, *command.args)
        raise
    result = command.function(stream.queue, *command.args)
    for after in afters:
        try:
            after(stream, command, result)
        except Exception as error:  # noqa: BLE001  # the work is accepted: nothing to undo it
            complaints = [*(complaints or ()), repr(error)]
    if complaints is not None:
        for complaint in complaints:
            message = f"a tap failed on an accepted {command!r}: {complaint}"
            warnings.warn(message, NbrtCleanupWarning, stacklevel=2)
    return result


_rebuild()
