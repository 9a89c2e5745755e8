"""Commands: every operation on a device is submitted to a stream as a `Command`.

Tracing, memory history, leak and race checks install hooks here, for every backend at once. Without
hooks the dispatch costs one test of an empty tuple.
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
    from collections.abc import Callable, Collection, Iterable, Iterator

    from nbrt._internal.device import Device

__all__ = [
    "Command",
    "CommandHook",
    "CommandKind",
    "MemoryRecorder",
    "RuntimeEvent",
    "RuntimeEventKind",
    "RuntimeEventListener",
    "dispatch_group",
    "dispatch_with_hooks",
    "emit",
    "event_listeners",
    "hooked_kinds",
    "hooks",
    "install_hook",
    "memory_is_hooked",
    "memory_recorder",
    "on_hooks_changing",
    "set_deferring",
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
    """An operation on a stream.

    Attributes
    ----------
    kind : str
        launch, copy, fill, draw, allocate, free, record, wait, call, or collective. A collective
        consists of further commands, which are submitted while it runs.
    function : callable
        The backend's operation. ``function(queue, *args)`` checks and enqueues in the caller's
        thread.
    args : tuple
        The other arguments of `function`.
    label : str
        The name in a trace: of the kernel, of the distribution.
    subject : object
        The `Event` of a record or wait command; None for other kinds.
    """

    __slots__ = ("args", "function", "kind", "label", "subject")

    def __init__(
        self,
        kind: CommandKind,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        label: str = "",
        subject: object = None,
    ) -> None:
        self.kind = kind
        self.function = function
        self.args = args
        self.label = label
        self.subject = subject

    def __repr__(self) -> str:
        return f"Command({self.kind!r}, label={self.label!r})"


class CommandHook(Protocol):
    """An object that sees commands, in the thread that submits them.

    Hooks must not allocate device memory: they would recurse, and segment events are emitted with
    the allocator's lock held.
    """

    def before(self, stream: Any, command: Command, /) -> None:
        """See a command before the backend; an exception refuses it, unless it is a free."""
        ...

    def after(self, stream: Any, command: Command, result: Any, /) -> None:
        """See an accepted command and its result; an exception becomes a warning."""
        ...


class RuntimeEvent(NamedTuple):
    """Something that happened on a device outside the order of a stream.

    Attributes
    ----------
    kind : str
        ``"free_completed"``: memory can be reused; ``"late_free_completed"``: the same, after other
        streams that used the memory were done. ``"segment_alloc"``, ``"segment_free"``: a pool took
        memory from the system, or returned it. ``"out_of_memory"``: an allocation failed after all
        attempts. The others: an event, stream or device was created, deleted, waited for (emitted
        before the wait), or found done by a query (``"event_query"``, ``"stream_query"``).
    device : Device
        The device.
    stream : Stream or None
        The stream, if there is one.
    subject : object
        The `Allocation`, the `SegmentInfo`, or the `Event`; for a failed allocation the free bytes.
    nbytes : int
        Bytes by which a segment changed, or that could not be allocated.
    pool_id : tuple of (int, int)
        The memory pool.
    pool : PoolState or None
        The same pool, of a segment.
    """

    kind: RuntimeEventKind
    device: Device
    stream: Any = None
    subject: object = None
    nbytes: int = 0
    pool_id: tuple[int, int] = (0, 0)
    pool: Any = None


@runtime_checkable
class RuntimeEventListener(Protocol):
    """A hook that also sees runtime events."""

    def on_event(self, event: RuntimeEvent) -> None:
        """See an event; an exception becomes a warning."""
        ...


class MemoryRecorder:
    """Base of hooks that see allocations after and frees before they happen, and only record them.

    While one is the only hook on memory, its two functions are called, and no command is made. They
    refuse nothing, and never wait for a lock: frees come in finalizers, also while the thread holds
    the lock of an allocator.
    """

    before: Callable[[Any, Command], None]
    after: Callable[[Any, Command, Any], None]

    allocated: Callable[[Any, Any], object]
    """Called as ``allocated(stream, allocation)`` instead of `after`, one frame further out."""

    freed: Callable[[Any], object]
    """Called as ``freed(allocation)`` instead of `before`."""


hooks: tuple[CommandHook, ...] = ()
"""The installed hooks, in the order of installation."""

hooked_kinds: frozenset[str] = frozenset()
"""The kinds of commands that some hook sees."""

memory_is_hooked = False
"""Whether some hook sees allocations or frees."""

memory_recorder: MemoryRecorder | None = None
"""The only hook that sees allocations or frees, if it is a `MemoryRecorder` and nothing listens to
completed frees."""

on_hooks_changing: list[Callable[[], None]] = []
"""Functions to call before a hook is installed or removed."""

_HookFunctions = tuple[tuple["Callable[..., None]", ...], tuple["Callable[..., None]", ...]]
_functions: dict[str, _HookFunctions] = {}
"""Kind of command -> the methods `before` and the methods `after` to call."""

_replay_functions: dict[str, tuple[Callable[..., None], ...]] = {}
"""Kind of command -> further methods `after` to call if a graph contains it."""

event_listeners: dict[str, tuple[Callable[[RuntimeEvent], None], ...]] = {}
"""Kind of runtime event -> the methods `on_event` to call."""

_DEFERRED = frozenset(["launch", "copy", "fill", "draw", "record", "wait", "call", "collective"])
_is_deferring = False

_installed: dict[int, _Installation] = {}
_installations = 0
_lock = threading.Lock()


class _Installation(NamedTuple):
    """A hook, and the kinds that it sees before, after, and as events; None: all.

    It sees the kinds `replayed` after the replay of a graph only.
    """

    hook: Any
    before: frozenset[str] | None
    after: frozenset[str] | None
    events: frozenset[str] | None
    replayed: frozenset[str]


@contextmanager
def install_hook(
    hook: CommandHook,
    kinds: Collection[CommandKind] | None = None,
    *,
    before: Collection[CommandKind] | None = None,
    after: Collection[CommandKind] | None = None,
    events: Collection[RuntimeEventKind] | None = None,
    replayed: Collection[CommandKind] = (),
) -> Iterator[None]:
    """Show the commands of all threads to `hook` for the length of a block.

    Parameters
    ----------
    hook : CommandHook
        Its `before` and `after` are called for each command, its `on_event`, if it has one, for
        each runtime event. Blocks may nest; hooks are called in the order of installation.
    kinds : collection of str, optional
        The kinds of commands to show; all by default.
    before, after : collection of str, optional
        The kinds to show before or after the backend runs them; `kinds` by default.
    events : collection of str, optional
        The kinds of runtime events to show; all by default.
    replayed : collection of str, optional
        Further kinds to show after the replay of a graph that contains them.
    """
    global _installations
    _call_on_hooks_changing()
    with _lock:
        _installations += 1
        number = _installations
        _installed[number] = _Installation(
            hook,
            _frozen(kinds if before is None else before),
            _frozen(kinds if after is None else after),
            _frozen(events) if isinstance(hook, RuntimeEventListener) else frozenset(),
            frozenset(replayed),
        )
        _rebuild()
    try:
        yield
    finally:
        try:
            _call_on_hooks_changing()
        finally:
            with _lock:
                del _installed[number]
                _rebuild()


def set_deferring(is_deferring: bool) -> None:
    """Send commands, except those of memory, through `dispatch_with_hooks`, also without hooks.

    It defers those of a stream with a `deferral`.
    """
    global _is_deferring
    with _lock:
        _is_deferring = is_deferring
        _rebuild()


class _NoHook:
    """In the place of a hook, so that `hooks` is not empty."""

    def before(self, stream: Any, command: Command) -> None:
        pass

    def after(self, stream: Any, command: Command, result: Any) -> None:
        pass


_NO_HOOK = _NoHook()


def _frozen(kinds: Collection[str] | None) -> frozenset[str] | None:
    return None if kinds is None else frozenset(kinds)


def _call_on_hooks_changing() -> None:
    for function in on_hooks_changing:
        function()


def _rebuild() -> None:
    global hooks, hooked_kinds, memory_is_hooked, memory_recorder
    global event_listeners, _functions, _replay_functions
    _replay_functions = {kind: _replayed_functions_of(kind) for kind in get_args(CommandKind)}
    _functions = {kind: _functions_of(kind) for kind in get_args(CommandKind)}
    event_listeners = {kind: _listeners_of(kind) for kind in get_args(RuntimeEventKind)}
    hooks = tuple(entry.hook for entry in _installed.values())
    hooked_kinds = frozenset(kind for kind, sides in _functions.items() if any(sides))
    if _is_deferring:
        hooks, hooked_kinds = (*hooks, _NO_HOOK), hooked_kinds | _DEFERRED
    memory_is_hooked = not hooked_kinds.isdisjoint(("allocate", "free"))
    memory_recorder = _find_memory_recorder()


def _find_memory_recorder() -> MemoryRecorder | None:
    if event_listeners["free_completed"]:
        return None
    sides = [*_functions["allocate"], *_functions["free"]]
    found = [e.hook for e in _installed.values() if isinstance(e.hook, MemoryRecorder)]
    for hook in found:
        if sides == [(), (hook.after,), (hook.before,), ()]:
            return hook
    return None


def _functions_of(kind: str) -> _HookFunctions:
    entries = _installed.values()
    prepared = (e.hook.before for e in entries if e.before is None or kind in e.before)
    afters = (e.hook.after for e in entries if e.after is None or kind in e.after)
    return tuple(prepared), tuple(afters)


def _replayed_functions_of(kind: str) -> tuple[Callable[..., None], ...]:
    return tuple(e.hook.after for e in _installed.values() if kind in e.replayed)


def _listeners_of(kind: str) -> tuple[Callable[[RuntimeEvent], None], ...]:
    entries = _installed.values()
    return tuple(e.hook.on_event for e in entries if e.events is None or kind in e.events)


def emit(
    kind: RuntimeEventKind,
    device: Device,
    stream: Any = None,
    subject: object = None,
    nbytes: int = 0,
    pool_id: tuple[int, int] = (0, 0),
    pool: object = None,
) -> None:
    """Show a runtime event to the hooks. Callers test `hooks` first, to save the call."""
    if not event_listeners[kind]:
        return
    # A third of the time of the constructor, which is a Python function.
    event = tuple.__new__(RuntimeEvent, (kind, device, stream, subject, nbytes, pool_id, pool))
    for on_event in event_listeners[kind]:
        try:
            on_event(event)
        except Exception as error:  # noqa: BLE001  # what happened cannot be undone
            message = f"a hook failed on an event of kind {kind!r}: {error!r}"
            warnings.warn(message, NbrtCleanupWarning, stacklevel=2)


def dispatch_with_hooks(stream: Any, command: Command) -> Any:
    """Call the hooks that see a command, and run it between them; or have it captured."""
    if stream.capture is not None and command.kind not in ("allocate", "free"):
        kind, function, args = command.kind, command.function, command.args
        return stream.capture.record(stream, kind, function, args, command.label)
    prepared, afters = _functions.get(command.kind, ((), ()))
    failures: list[str] | None = None  # texts: an exception would keep this frame's memory alive
    try:
        for before in prepared:
            try:
                before(stream, command)
            except Exception as error:
                # A free cannot be refused: the arrays over the memory no longer exist.
                if command.kind != "free":
                    raise
                failures = [*(failures or ()), repr(error)]
    except BaseException:  # an interrupt does not refuse a free either
        if command.kind == "free":
            command.function(stream.queue, *command.args)
        raise
    deferral = stream.deferral
    if deferral is None or command.kind in ("allocate", "free"):
        result = command.function(stream.queue, *command.args)
    else:
        result = deferral.submit(command)
    for after in afters:
        try:
            after(stream, command, result)
        except Exception as error:  # noqa: BLE001  # an accepted command cannot be undone
            failures = [*(failures or ()), repr(error)]
    if failures is not None:
        for failure in failures:
            message = f"a hook failed on an accepted {command!r}: {failure}"
            warnings.warn(message, NbrtCleanupWarning, stacklevel=2)
    return result


def dispatch_group(stream: Any, group: Iterable[Command], run: Callable[[Any], object]) -> None:
    """Call the hooks that see commands, and run all commands at once between them."""
    deferral = stream.deferral
    if deferral is not None:
        deferral.finish()
    members = list(group)
    for command in members:
        for before in _functions.get(command.kind, ((), ()))[0]:
            before(stream, command)
    run(stream.queue)
    for command in members:
        afters = _functions.get(command.kind, ((), ()))[1]
        for after in (*afters, *_replay_functions.get(command.kind, ())):
            try:
                after(stream, command, None)
            except Exception as error:  # noqa: BLE001  # an accepted command cannot be undone
                message = f"a hook failed on an accepted {command!r}: {error!r}"
                warnings.warn(message, NbrtCleanupWarning, stacklevel=2)


_rebuild()
