"""`observe`: functions that are called at what happens to memory, events, streams and devices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.runtime.commands import install_hook

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from nbrt._internal.device import Device
    from nbrt.runtime.commands import Command, CommandKind, RuntimeEvent, RuntimeEventKind
    from nbrt.runtime.stream import Stream

__all__ = ["Callbacks", "Observation", "ObservedKind", "Observer", "observe"]

ObservedKind: TypeAlias = Literal[
    "event_creation",
    "event_deletion",
    "event_record",
    "event_wait",
    "memory_allocation",
    "memory_deallocation",
    "stream_creation",
    "device_synchronization",
    "stream_synchronization",
    "event_synchronization",
]

_BY_COMMAND: Mapping[CommandKind, ObservedKind] = {
    "record": "event_record",
    "wait": "event_wait",
    "allocate": "memory_allocation",
    "free": "memory_deallocation",
}
_BY_NOTICE: Mapping[RuntimeEventKind, ObservedKind] = {
    "event_create": "event_creation",
    "event_delete": "event_deletion",
    "event_sync": "event_synchronization",
    "stream_create": "stream_creation",
    "stream_sync": "stream_synchronization",
    "device_sync": "device_synchronization",
}


class Observation(NamedTuple):
    """One thing that happened.

    It holds no array and no event, so a callback may keep it.
    """

    kind: ObservedKind
    """What: one of the ten kinds of ``torch.cuda._gpu_trace``."""
    device: Device
    """Where."""
    stream: Stream | None = None
    """The stream that records, waits, allocates or is waited for; of an event, where it was
    recorded last. None where there is none."""
    event: int = 0
    """Of events: a number that no other living event has (its ``id``)."""
    address: int = 0
    """Of memory: its first byte on the device."""
    nbytes: int = 0
    """Of memory: the bytes asked for."""


Callback: TypeAlias = Callable[[Observation], object]


class Observer:
    """A subscription: it ends with `remove`, or with the ``with`` block that it opens."""

    def __init__(self, callbacks: Mapping[ObservedKind, Callback]) -> None:
        self._stack = ExitStack()
        tap = _Tap(callbacks)
        kinds = {command for command, kind in _BY_COMMAND.items() if kind in callbacks}
        notices = {notice for notice, kind in _BY_NOTICE.items() if kind in callbacks}
        # Of a free before: afterwards another thread may hold the memory already.
        before, after = kinds & {"free"}, kinds - {"free"}
        seen = install_hook(tap, before=before, after=after, notices=notices)
        self._stack.enter_context(seen)
        _running.add(self)

    def remove(self) -> None:
        """End the subscription; again, do nothing."""
        _running.discard(self)
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()


_running: set[Observer] = set()
"""Keeps subscriptions whose handle nobody holds."""


class Callbacks(TypedDict, total=False):
    """The functions that `observe` takes by name; each is called with an `Observation`."""

    on_event_creation: Callback | None
    on_event_deletion: Callback | None
    on_event_record: Callback | None
    on_event_wait: Callback | None
    on_memory_allocation: Callback | None
    on_memory_deallocation: Callback | None
    on_stream_creation: Callback | None
    on_device_synchronization: Callback | None
    on_stream_synchronization: Callback | None
    on_event_synchronization: Callback | None


def observe(callback: Callback | None = None, /, **functions: Unpack[Callbacks]) -> Observer:
    """Call functions at what happens to memory, events, streams and devices, in every thread.

    The kinds are the ten of ``torch.cuda._gpu_trace``, on every kind of device. A function is
    called in the thread that does the thing: after an allocation, a record, a wait or the making of
    an event or stream, and before memory or an event goes or a wait of the host begins. An event is
    made when it is first recorded, and a stream of the pool when it is first handed out. What a
    callback does itself is not observed, and it must not allocate memory of a device.

    Parameters
    ----------
    callback : callable, optional
        Called as ``callback(observation)`` at every kind that has no function of its own.
    **functions : callable
        Called in the same way at one kind: ``on_event_creation``, ``on_event_deletion``,
        ``on_event_record``, ``on_event_wait``, ``on_memory_allocation``,
        ``on_memory_deallocation`` (the last array is gone), ``on_stream_creation`` (or borrowing),
        ``on_device_synchronization``, ``on_stream_synchronization``, ``on_event_synchronization``.

    Returns
    -------
    observer : Observer
        Its ``remove()`` ends the calls; as a context manager it does at the end of the block.

    Raises
    ------
    ArgumentError
        If no function is given, or one for a kind that there is not.
    ArgumentTypeError
        If one cannot be called.

    Warns
    -----
    NbrtCleanupWarning
        If a function raises; what it was called at goes on.

    Examples
    --------
    >>> import nbrt
    >>> with observe(on_memory_allocation=lambda seen: print(seen.kind, seen.nbytes)):
    ...     x = nbrt.empty(1000, "float32", device="cpu:0")
    memory_allocation 4000
    """
    return Observer(_chosen(callback, dict(functions)))


def _chosen(callback: Any, functions: dict[str, Any]) -> dict[ObservedKind, Callback]:
    chosen: dict[ObservedKind, Callback] = {}
    for kind in (*_BY_COMMAND.values(), *_BY_NOTICE.values()):
        own = functions.pop(f"on_{kind}", None)
        function = callback if own is None else own
        if function is not None and not callable(function):
            raise ArgumentTypeError(f"expected a function to call at {kind}, got {function!r}")
        if function is not None:
            chosen[kind] = function
    if functions or not chosen:
        raise ArgumentError(
            f"expected functions by the names {', '.join(Callbacks.__annotations__)}, or one for "
            f"all, got {', '.join(functions) or 'none'}"
        )
    return chosen


class _Tap:
    """Turns commands and notices into observations."""

    def __init__(self, callbacks: Mapping[ObservedKind, Callback]) -> None:
        self._callbacks = callbacks
        self._thread = threading.local()

    def before(self, stream: Stream, command: Command) -> None:
        self._see_memory(stream, "memory_deallocation", command.args[0])

    def after(self, stream: Stream, command: Command, result: object) -> None:
        if command.kind == "allocate":
            self._see_memory(stream, "memory_allocation", result)
        else:
            event = id(command.args[0])
            self._call(Observation(_BY_COMMAND[command.kind], stream.device, stream, event))

    def note(self, notice: RuntimeEvent) -> None:
        event = 0 if notice.subject is None else id(notice.subject)
        kind = _BY_NOTICE[notice.kind]
        self._call(Observation(kind, notice.device, notice.stream, event))

    def _see_memory(self, stream: Stream, kind: ObservedKind, allocation: Any) -> None:
        self._call(
            Observation(
                kind,
                stream.device,
                stream,
                address=allocation.address,
                nbytes=allocation.requested,
            )
        )

    def _call(self, observation: Observation) -> None:
        if getattr(self._thread, "is_inside", False):
            return
        self._thread.is_inside = True
        try:
            self._callbacks[observation.kind](observation)
        finally:
            self._thread.is_inside = False
