"""`observe`: callbacks for events of memory, streams, events and devices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.runtime.commands import install_hook

if TYPE_CHECKING:
    from collections.abc import Mapping
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
_BY_RUNTIME_EVENT: Mapping[RuntimeEventKind, ObservedKind] = {
    "event_create": "event_creation",
    "event_delete": "event_deletion",
    "event_sync": "event_synchronization",
    "stream_create": "stream_creation",
    "stream_sync": "stream_synchronization",
    "device_sync": "device_synchronization",
}


class Observation(NamedTuple):
    """One operation that was observed.

    It holds no array and no event, so a callback may keep it.
    """

    kind: ObservedKind
    """One of the ten kinds of ``torch.cuda._gpu_trace``."""
    device: Device
    """Device of the operation."""
    stream: Stream | None = None
    """Stream that records, waits, allocates or is waited for; of an event, the stream of its last
    record; None if there is no stream."""
    event: int = 0
    """``id`` of the event; 0 for other operations."""
    address: int = 0
    """First address of the memory; 0 for other operations."""
    nbytes: int = 0
    """Bytes requested; 0 for other operations."""


Callback: TypeAlias = Callable[[Observation], object]


class Observer:
    """A subscription that ends with `remove`, or at the end of its ``with`` block."""

    def __init__(self, callbacks: Mapping[ObservedKind, Callback]) -> None:
        self._stack = ExitStack()
        hook = _ObserverHook(callbacks)
        kinds = {command for command, kind in _BY_COMMAND.items() if kind in callbacks}
        events = {event for event, kind in _BY_RUNTIME_EVENT.items() if kind in callbacks}
        # Frees are observed before: afterwards another thread may own the memory.
        before, after = kinds & {"free"}, kinds - {"free"}
        self._stack.enter_context(install_hook(hook, before=before, after=after, events=events))
        _active.add(self)

    def remove(self) -> None:
        """End the subscription; idempotent."""
        _active.discard(self)
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.remove()


_active: set[Observer] = set()
"""Keeps subscriptions alive after the caller drops the `Observer`."""


class Callbacks(TypedDict, total=False):
    """The keyword arguments of `observe`; each function is called with an `Observation`."""

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
    """Call functions on operations of memory, events, streams and devices, in every thread.

    The kinds are the ten of ``torch.cuda._gpu_trace``, on every kind of device. A function runs in
    the thread of the operation: after an allocation, a record, a wait or the creation of an event
    or stream; before a deallocation, the deletion of an event or a wait of the host. An event is
    created by its first record, and a pooled stream when it is first handed out. Operations of the
    callback itself are not observed. A callback must not allocate device memory.

    Parameters
    ----------
    callback : callable, optional
        Called as ``callback(observation)`` for every kind without a specific function.
    **functions : callable
        Called in the same way for one kind: ``on_event_creation``, ``on_event_deletion``,
        ``on_event_record``, ``on_event_wait``, ``on_memory_allocation``,
        ``on_memory_deallocation`` (of the last array), ``on_stream_creation`` (or borrowing),
        ``on_device_synchronization``, ``on_stream_synchronization``, ``on_event_synchronization``.

    Returns
    -------
    observer : Observer
        ``remove()`` ends the calls; so does the end of a ``with`` block.

    Raises
    ------
    ArgumentError
        If no function is given, or one for an unknown kind.
    ArgumentTypeError
        If a function is not callable.

    Warns
    -----
    NbrtCleanupWarning
        If a function raises; the operation continues.

    Examples
    --------
    >>> import nbrt
    >>> with observe(on_memory_allocation=lambda op: print(op.kind, op.nbytes)):
    ...     x = nbrt.empty(1000, "float32", device="cpu:0")
    memory_allocation 4000
    """
    return Observer(_callbacks_by_kind(callback, dict(functions)))


def _callbacks_by_kind(callback: Any, functions: dict[str, Any]) -> dict[ObservedKind, Callback]:
    callbacks: dict[ObservedKind, Callback] = {}
    for kind in (*_BY_COMMAND.values(), *_BY_RUNTIME_EVENT.values()):
        specific = functions.pop(f"on_{kind}", None)
        function = callback if specific is None else specific
        if function is not None and not callable(function):
            raise ArgumentTypeError(f"expected a function to call at {kind}, got {function!r}")
        if function is not None:
            callbacks[kind] = function
    if functions or not callbacks:
        raise ArgumentError(
            f"expected functions by the names {', '.join(Callbacks.__annotations__)}, or one for "
            f"all, got {', '.join(functions) or 'none'}"
        )
    return callbacks


class _ObserverHook:
    """Turns commands and runtime events into observations."""

    def __init__(self, callbacks: Mapping[ObservedKind, Callback]) -> None:
        self._callbacks = callbacks
        self._thread = threading.local()

    def before(self, stream: Stream, command: Command) -> None:
        self._call_for_memory(stream, "memory_deallocation", command.args[0])

    def after(self, stream: Stream, command: Command, result: object) -> None:
        if command.kind == "allocate":
            self._call_for_memory(stream, "memory_allocation", result)
        else:
            event = id(command.subject)
            self._call(Observation(_BY_COMMAND[command.kind], stream.device, stream, event))

    def on_event(self, event: RuntimeEvent) -> None:
        number = 0 if event.subject is None else id(event.subject)
        kind = _BY_RUNTIME_EVENT[event.kind]
        self._call(Observation(kind, event.device, event.stream, number))

    def _call_for_memory(self, stream: Stream, kind: ObservedKind, allocation: Any) -> None:
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
