"""Memory history: what was allocated and freed, when, by which call."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack, contextmanager
from time import time_ns
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.observe.history.annotations import entered, listen
from nbrt.observe.history.hooks import Entry, StreamHandles, allocation_hook, free_hook
from nbrt.observe.history.stacks import StackTable
from nbrt.runtime.commands import install_hook
from nbrt.runtime.device import lookup

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
    "memory_history",
    "record_memory_history",
]

MAX_ENTRIES = 100_000
"""Events that are kept unless told otherwise: some 20 MB, and each different stack 1 to 4 kB."""

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
_NOTICES: dict[RuntimeEventKind, tuple[Action, ...]] = {
    "late_free_completed": ("free_completed",),
    "segment_alloc": ("segment_alloc", "segment_map"),
    "segment_free": ("segment_free", "segment_unmap"),
    "out_of_memory": ("oom",),
}
"""Which actions each kind of notice becomes."""

ACTIONS: frozenset[str] = frozenset(Action.__args__)  # type: ignore[attr-defined]  # of a Literal


class MemoryEvent(NamedTuple):
    """One thing that happened to memory.

    Attributes
    ----------
    action : str
        What, in torch's words; ``"annotate"`` is the beginning or end of an annotation.
    time : int
        Nanoseconds since 1970.
    device : Device or None
        Where; None for an annotation.
    stream : int
        Raw handle of the stream; of a device without handles the stream's id, 0 for its default
        stream.
    address, nbytes : int
        Where it is, and its size: the bytes asked for, or those of the segment. The address of
        ``"oom"`` is the free bytes of the device, as in torch.
    site : CallSite or None
        The stack, if it was taken.
    annotations : tuple of annotate
        The annotations in force.
    pool : tuple of (int, int) or None
        Id of the pool; None of what concerns no single one.
    label : str
        Name and stage of an annotation, such as ``"START epoch 3"``.
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


class MemoryHistory:
    """A recorder of memory events, the latest `max_entries` of them.

    Parameters and meanings are those of `record_memory_history`. Safe under threads: an event is
    one append to a bounded deque. While it records it is a tap on the command road.
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
        _check("enabled", enabled, ("state", "all"))
        _check("context", context, (None, "state", "alloc", "all"))
        _check("stacks", stacks, ("python",))
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
            _check("each of skip_actions", action, tuple(sorted(ACTIONS)))
        wanted = ACTIONS - set(skipped) if enabled == "all" else frozenset()
        self.device = None if device is None else lookup(device)[0]
        self.max_entries = max_entries
        self._wanted: frozenset[str] = wanted
        self._events: deque[Entry] = deque(maxlen=max_entries)
        self._stacks = None if context is None else StackTable()
        self._noticed = frozenset(
            kind for kind, actions in _NOTICES.items() if wanted.intersection(actions)
        )
        self._other_stacks = self._stacks if context == "all" else None
        self._handles = StreamHandles()
        append = self._events.append
        self.before = free_hook(
            append,
            self._other_stacks,
            self._handles,
            self.device,
            keeps_request="free_requested" in wanted,
            keeps_completion="free_completed" in wanted,
        )
        self.after = allocation_hook(
            append if "alloc" in wanted else None,
            self._stacks,
            self._handles,
            self.device,
            keeps_site=context in {"alloc", "all"},
        )
        self._running: ExitStack | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def is_recording(self) -> bool:
        """Whether events are being taken down."""
        return self._running is not None

    def start(self) -> None:
        """Record from now on; do nothing if it does already."""
        before: list[CommandKind] = []
        after: list[CommandKind] = []
        if self._wanted & {"free_requested", "free_completed"}:
            before.append("free")
        if "alloc" in self._wanted or self._stacks is not None:
            after.append("allocate")
        seen = install_hook(self, before=before, after=after, notices=self._noticed)
        with self._lock:
            if self._running is None:
                with ExitStack() as opened:
                    opened.enter_context(seen)
                    if "annotate" in self._wanted:
                        opened.enter_context(listen(self))
                    self._running = opened.pop_all()
        _note_started(self)

    def stop(self) -> None:
        """Record no more; what was recorded stays."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.close()
            _note_stopped(self)

    def clear(self) -> None:
        """Forget the events."""
        self._events.clear()

    def events(self, device: DeviceLike = None) -> list[MemoryEvent]:
        """Return what was recorded, the oldest first; annotations are of every device.

        Parameters
        ----------
        device : Device, str, int or None
            One device; all by default.
        """
        only = None if device is None else lookup(device)[0]
        found = [_event(entry) for entry in self._events.copy()]
        return [
            each for each in found if only is None or each.device is only or each.device is None
        ]

    def mark_snapshot(self, device: Device) -> None:
        """Write down that a snapshot was taken."""
        if "snapshot" in self._wanted and self.is_recording and self.device in {None, device}:
            self._events.append(("snapshot", time_ns(), device, 0, 0, 0))

    def note(self, notice: RuntimeEvent) -> None:
        """Write down what else happened to memory."""
        if self.device is not None and self.device is not notice.device:
            return
        subject: Any = notice.subject
        stream = 0 if notice.stream is None else self._handles[notice.stream.id]
        if notice.kind == "late_free_completed":
            self._append(
                "free_completed", notice, stream, subject.address, subject.requested, notice.pool_id
            )
        elif notice.kind == "out_of_memory":
            self._append("oom", notice, stream, int(subject or 0), notice.nbytes)
        else:
            kind: str = notice.kind
            if subject.is_expandable:
                kind = "segment_map" if kind == "segment_alloc" else "segment_unmap"
            if kind in self._wanted:
                self._append(
                    kind, notice, subject.stream, subject.address, notice.nbytes, notice.pool_id
                )

    def _append(
        self,
        action: str,
        notice: RuntimeEvent,
        stream: int,
        address: int,
        nbytes: int,
        pool: tuple[int, int] | None = None,
    ) -> None:
        stacks = self._other_stacks
        site = None if stacks is None else stacks.here()
        self._events.append(
            (action, time_ns(), notice.device, stream, address, nbytes, site, entered(), pool)
        )

    def annotated(self, name: str, stage: Literal["START", "END"]) -> None:
        """Write down that an annotation begins or has ended."""
        inside = entered()
        self._events.append(
            ("annotate", time_ns(), None, 0, 0, 0, None, inside, None, f"{stage} {name}")
        )


def _event(entry: Entry) -> MemoryEvent:
    if len(entry) == 1:
        return MemoryEvent("free_completed", *entry[0][1:])
    return MemoryEvent(*entry)


_recording: tuple[MemoryHistory, ...] = ()
_latest: MemoryHistory | None = None
_global: MemoryHistory | None = None
_lock = threading.Lock()
_lock_of_recording = threading.Lock()


def current_history() -> MemoryHistory | None:
    """Return the recorder that a snapshot reads: the last to start, or, if none runs, to stop."""
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
    """Record allocations and frees with their stacks from now on, on all devices; None stops.

    The parameters of ``torch.cuda.memory._record_memory_history``. Unlike there, what was recorded
    stays after stopping, the number of entries has a finite default and is one for all devices
    together.

    Parameters
    ----------
    enabled : "all", "state" or None
        "all": every event. "state": no events, only the stacks of what is alive. None: stop.
    context : "all", "alloc", "state" or None
        Whose stacks: of every event; of allocations; of what is alive; none.
    stacks : "python"
        What a stack is made of; there is no other choice.
    max_entries : int
        Events to keep; older ones make room.
    clear_history : bool
        Forget the events so far.
    device : Device, str, int or None
        Record one device only.
    skip_actions : collection of str or None
        Actions to leave out, such as ``["free_requested"]``.

    Raises
    ------
    ArgumentError
        If a choice is none of those above; nothing has changed then.

    See Also
    --------
    memory_history : The same for the length of a block.

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
    """Record allocations and frees for the length of a block, in a history of its own.

    Blocks nest, and do not disturb what `record_memory_history` records; a snapshot reads the
    innermost. See there for the parameters.

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


def _note_started(history: MemoryHistory) -> None:
    global _recording
    with _lock_of_recording:
        if history not in _recording:
            _recording = (*_recording, history)


def _note_stopped(history: MemoryHistory) -> None:
    global _recording, _latest
    with _lock_of_recording:
        _recording = tuple(each for each in _recording if each is not history)
        _latest = history


def _check(name: str, got: object, choices: tuple[object, ...]) -> None:
    if got not in choices:
        known = ", ".join(repr(each) for each in choices)
        raise ArgumentError(f"expected {name} to be one of {known}, got {got!r}")
