"""Memory history: a record of allocations, frees and other memory events, with their stacks."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack, contextmanager
from time import time_ns
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from nbrt.backends import registry
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.observe.history.annotations import active_annotations, listen
from nbrt.observe.history.hooks import (
    Entry,
    StreamHandles,
    allocation_hook,
    free_hook,
    is_of_others,
)
from nbrt.observe.history.stacks import StackTable
from nbrt.runtime.commands import install_hook
from nbrt.runtime.device import lookup
from nbrt.runtime.memory.pool_state import PoolState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from nbrt._internal.callsite import CallSite
    from nbrt._internal.device import Device
    from nbrt.observe.history.annotations import annotate
    from nbrt.runtime.commands import CommandKind, RuntimeEvent, RuntimeEventKind
    from nbrt.typing import DeviceLike

__all__ = [
    "ACTIONS",
    "MAX_ENTRIES",
    "Action",
    "MemoryEvent",
    "MemoryHistory",
    "current_history",
    "event_of",
    "memory_history",
    "record_memory_history",
]

MAX_ENTRIES = 100_000
"""Default number of events to keep: about 20 MB, and 1 to 4 kB for each distinct stack."""

Action: TypeAlias = Literal[
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "annotate",
]
_ACTIONS_BY_EVENT: dict[RuntimeEventKind, tuple[Action, ...]] = {
    "late_free_completed": ("free_completed",),
    "segment_alloc": ("segment_alloc", "segment_map"),
    "segment_free": ("segment_free", "segment_unmap"),
    "out_of_memory": ("oom",),
}
"""The actions that a kind of runtime event becomes."""

_POOL_FIELD = 7
"""The place of the pool behind the action."""

ACTIONS: frozenset[str] = frozenset(Action.__args__)  # type: ignore[attr-defined]  # of a Literal


class MemoryEvent(NamedTuple):
    """One memory event.

    Attributes
    ----------
    action : str
        Kind of event, named as in torch; ``"annotate"`` is the start or end of an annotation.
    time : int
        Nanoseconds since 1970.
    device : Device or None
        The device; None for an annotation.
    stream : int
        Raw handle of the stream; without handles the stream's id, 0 for the default stream.
    address, nbytes : int
        Address and size of the memory: the bytes requested, or those of the segment. As in torch,
        the address of ``"oom"`` is the number of free bytes of the device.
    site : CallSite or None
        The stack, if recorded.
    annotations : tuple of annotate
        The active annotations.
    pool : tuple of (int, int) or None
        Id of the pool; None if the event has no single pool.
    label : str
        Stage and name of an annotation, such as ``"START epoch 3"``.
    reserved : int
        Bytes of an allocation, rounded up by the pool; 0 for other events.
    """

    action: Action
    time: int
    device: Device | None
    stream: int
    address: int
    nbytes: int
    site: CallSite | None = None
    annotations: tuple[annotate, ...] = ()
    pool: tuple[int, int] | None = None
    label: str = ""
    reserved: int = 0


class MemoryHistory:
    """A recorder that keeps the latest `max_entries` memory events.

    See `record_memory_history` for the parameters. Thread-safe: recording an event is one append to
    a bounded deque. It is a command hook while it records.
    """

    def __init__(
        self,
        enabled: Literal["state", "all"] = "all",
        *,
        context: Literal["state", "alloc", "all"] | None = "all",
        stacks: Literal["python"] = "python",
        max_entries: int = MAX_ENTRIES,
        device: DeviceLike = None,
        skip_actions: Collection[str] | None = (),
    ) -> None:
        _check_choice("enabled", enabled, ("state", "all"))
        _check_choice("context", context, (None, "state", "alloc", "all"))
        _check_choice("stacks", stacks, ("python",))
        if isinstance(max_entries, bool) or not isinstance(max_entries, int):
            raise ArgumentTypeError(f"expected max_entries as an int, got {max_entries!r}")
        if max_entries < 1:
            raise ArgumentError(f"expected max_entries of at least 1, got {max_entries}")
        if isinstance(skip_actions, str):
            raise ArgumentTypeError(
                f"expected skip_actions as a list of names, got the text {skip_actions!r}"
            )
        skipped = tuple(skip_actions or ())
        for action in skipped:
            _check_choice("each of skip_actions", action, tuple(sorted(ACTIONS)))
        wanted = ACTIONS - set(skipped) if enabled == "all" else frozenset()
        self.device = None if device is None else lookup(device)[0]
        self.max_entries = max_entries
        self._wanted: frozenset[str] = wanted
        self._events: deque[Entry] = deque(maxlen=max_entries)
        self._stacks = None if context is None else StackTable()
        self._runtime_events = frozenset(
            kind for kind, actions in _ACTIONS_BY_EVENT.items() if wanted.intersection(actions)
        )
        self._other_stacks = self._stacks if context == "all" else None
        self._handles = StreamHandles()
        # The history is of the devices of now, also while a block puts others in their place.
        self._own = registry.substitutes()
        append = self._events.append
        self.before = free_hook(
            append,
            self._other_stacks,
            self._handles,
            self.device,
            keeps_request="free_requested" in wanted,
            keeps_completion="free_completed" in wanted,
            own=self._own,
        )
        self.after = allocation_hook(
            append if "alloc" in wanted else None,
            self._stacks,
            self._handles,
            self.device,
            keeps_site=context in {"alloc", "all"},
            own=self._own,
        )
        self._running: ExitStack | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def is_recording(self) -> bool:
        """Whether events are being recorded."""
        return self._running is not None

    def start(self) -> None:
        """Start recording; idempotent."""
        before: list[CommandKind] = []
        after: list[CommandKind] = []
        if self._wanted & {"free_requested", "free_completed"}:
            before.append("free")
        if "alloc" in self._wanted or self._stacks is not None:
            after.append("allocate")
        seen = install_hook(self, before=before, after=after, events=self._runtime_events)
        with self._lock:
            if self._running is None:
                with ExitStack() as opened:
                    opened.enter_context(seen)
                    if "annotate" in self._wanted:
                        opened.enter_context(listen(self))
                    self._running = opened.pop_all()
        _add_recording(self)

    def stop(self) -> None:
        """Stop recording and keep the events."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.close()
            _remove_recording(self)

    def clear(self) -> None:
        """Drop the events."""
        self._events.clear()

    def events(self, device: DeviceLike = None) -> list[MemoryEvent]:
        """Return the events, the oldest first; annotations belong to every device.

        Parameters
        ----------
        device : Device, str, int or None
            One device; all by default.
        """
        only = None if device is None else lookup(device)[0]
        events = map(event_of, self._events.copy())
        return [event for event in events if only is None or event.device in {only, None}]

    def has_kind(self, kind: str) -> bool:
        """Return whether the history is of the devices that a kind has now."""
        return not is_of_others(self._own, registry.get_interface_for_device(kind))

    def mark_snapshot(self, device: Device) -> None:
        """Record that a snapshot was taken."""
        if "snapshot" in self._wanted and self.is_recording and self.device in {None, device}:
            self._events.append(("snapshot", time_ns(), device, 0, 0, 0))

    def on_event(self, event: RuntimeEvent) -> None:
        """Record a late free, a change of a segment or a failed allocation."""
        if self.device is not None and self.device is not event.device:
            return
        subject: Any = event.subject
        pool_state = getattr(subject, "pool", event.pool)  # an allocation has its pool
        interface = getattr(pool_state, "interface", None)
        if interface is None:
            interface = registry.get_interface_for_device(event.device)
        if is_of_others(self._own, interface):
            return
        stream = 0 if event.stream is None else self._handles[event.stream.id]
        action, nbytes = str(event.kind), event.nbytes
        pool: tuple[int, int] | None = event.pool_id
        if event.kind == "late_free_completed":
            action, address, nbytes = "free_completed", subject.address, subject.requested
        elif event.kind == "out_of_memory":
            action, address, pool = "oom", int(subject or 0), None
        else:
            address, stream = subject.address, subject.stream
            if subject.is_expandable:
                action = "segment_map" if action == "segment_alloc" else "segment_unmap"
        if action in self._wanted:
            site = None if self._other_stacks is None else self._other_stacks.here()
            place = event.device, stream, address, nbytes
            self._events.append((action, time_ns(), *place, site, active_annotations(), pool))

    def annotated(self, name: str, stage: Literal["START", "END"]) -> None:
        """Record the start or end of an annotation."""
        active, label = active_annotations(), f"{stage} {name}"
        self._events.append(("annotate", time_ns(), None, 0, 0, 0, None, active, None, label))


def event_of(entry: Entry) -> MemoryEvent:
    """Return an entry of a history as an event."""
    action, *fields = entry if len(entry) > 1 else ("free_completed", *entry[0][1:])
    if len(fields) > _POOL_FIELD and isinstance(fields[_POOL_FIELD], PoolState):
        fields[_POOL_FIELD] = fields[_POOL_FIELD].id
    return MemoryEvent(action, *fields)


_recording: tuple[MemoryHistory, ...] = ()
_latest: MemoryHistory | None = None
_global: MemoryHistory | None = None
_lock = threading.Lock()
_recording_lock = threading.Lock()


def current_history() -> MemoryHistory | None:
    """Return the history that a snapshot reads: the last started one, or the last stopped one."""
    return _recording[-1] if _recording else _latest


def record_memory_history(
    enabled: Literal["state", "all"] | None = "all",
    *,
    context: Literal["state", "alloc", "all"] | None = "all",
    stacks: Literal["python"] = "python",
    max_entries: int = MAX_ENTRIES,
    clear_history: bool = False,
    device: DeviceLike = None,
    skip_actions: Collection[str] | None = (),
) -> None:
    """Start to record allocations and frees with their stacks; None stops.

    The parameters are those of ``torch.cuda.memory._record_memory_history``. Unlike in torch,
    stopping keeps the events, and the number of entries has a finite default for all devices
    together.

    Parameters
    ----------
    enabled : "all", "state" or None
        "all": every event. "state": no events, only the stacks of live allocations. None: stop.
    context : "all", "alloc", "state" or None
        The stacks to record: of every event; of allocations; of live allocations; none.
    stacks : "python"
        The kind of stack; there is only one.
    max_entries : int
        Events to keep; new events displace the oldest.
    clear_history : bool
        Drop the events recorded so far.
    device : Device, str, int or None
        The device to record; all devices by default.
    skip_actions : collection of str or None
        Actions to omit, such as ``["free_requested"]``.

    Raises
    ------
    ArgumentError
        If an argument is none of these choices; the recording does not change.

    See Also
    --------
    memory_history : Record during a ``with`` block.

    Examples
    --------
    >>> import nbrt
    >>> nbrt.memory.record_memory_history(max_entries=1000, clear_history=True)
    >>> x = nbrt.empty(1024, "float32", device="cpu:0")
    >>> nbrt.memory.record_memory_history(None)
    >>> trace = nbrt.memory.snapshot("cpu:0")["device_traces"][0]
    >>> [(event["action"], event["size"]) for event in trace if event["action"] == "alloc"]
    [('alloc', 4096)]
    """
    global _global
    fresh: MemoryHistory | None = None
    if enabled is not None:
        fresh = MemoryHistory(
            enabled,
            context=context,
            stacks=stacks,
            max_entries=max_entries,
            device=device,
            skip_actions=skip_actions,
        )
    with _lock:
        before = _global
        if before is not None:
            before.stop()
            if clear_history:
                before.clear()
            elif fresh is not None:
                fresh._events.extend(before._events)
        if fresh is not None:
            _global = fresh
            fresh.start()


@contextmanager
def memory_history(
    enabled: Literal["state", "all"] = "all",
    *,
    context: Literal["state", "alloc", "all"] | None = "all",
    stacks: Literal["python"] = "python",
    max_entries: int = MAX_ENTRIES,
    device: DeviceLike = None,
    skip_actions: Collection[str] | None = (),
) -> Iterator[MemoryHistory]:
    """Record allocations and frees during a ``with`` block in a separate history.

    Blocks nest and do not affect `record_memory_history`, which describes the parameters. A
    snapshot reads the innermost history.

    Examples
    --------
    >>> import nbrt
    >>> with nbrt.memory.memory_history(device="cpu:0") as history:
    ...     x = nbrt.empty(1024, "float32", device="cpu:0")
    >>> [frame["line"] for frame in history.events()[-1].site.frames()][0]
    2
    """
    history = MemoryHistory(
        enabled,
        context=context,
        stacks=stacks,
        max_entries=max_entries,
        device=device,
        skip_actions=skip_actions,
    )
    history.start()
    try:
        yield history
    finally:
        history.stop()


def _add_recording(history: MemoryHistory) -> None:
    global _recording
    with _recording_lock:
        if history not in _recording:
            _recording = (*_recording, history)


def _remove_recording(history: MemoryHistory) -> None:
    global _recording, _latest
    with _recording_lock:
        _recording = tuple(other for other in _recording if other is not history)
        _latest = history


def _check_choice(name: str, got: object, choices: tuple[object, ...]) -> None:
    if got not in choices:
        known = ", ".join(map(repr, choices))
        raise ArgumentError(f"expected {name} to be one of {known}, got {got!r}")
