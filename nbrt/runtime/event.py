"""`Event`: a point in a stream, to wait for and to time with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from nbrt.backends.queue import EventOptions
from nbrt.errors import ArgumentTypeError, DeviceMismatchError, EventError
from nbrt.runtime import commands
from nbrt.runtime.deferral import DeferredRecord, defer
from nbrt.runtime.device import interface_of, lookup

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt._internal.device import Device
    from nbrt.backends.interface import DeviceInterface
    from nbrt.backends.queue import EventHandle
    from nbrt.runtime.capturing import Capture, CapturedRecord
    from nbrt.runtime.deferral import Deferral
    from nbrt.typing import DeviceLike

__all__ = ["Event"]


class _Stream(Protocol):
    """The part of a `Stream` that events use; the module of streams imports this one."""

    device: Device
    interface: DeviceInterface
    capture: Capture | None
    deferral: Deferral | None

    def enqueue(
        self,
        kind: commands.CommandKind,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        label: str = "",
        subject: object = None,
    ) -> Any: ...


class Event:
    """A point in a stream that other streams and the host can wait for.

    The first `record` creates the backend's event, on the device of the stream. Events cannot be
    copied or pickled.

    Parameters
    ----------
    device : Device, str, int or None
        The device; None: that of the stream it is first recorded on.
    enable_timing : bool
        Whether `elapsed_time` can use it.
    blocking : bool
        Whether `synchronize` sleeps instead of spinning, where the device has the choice.
    interprocess : bool
        Whether it can be shared through `ipc_handle` (cuda); excludes timing.

    Examples
    --------
    >>> import nbrt
    >>> with nbrt.device("cpu:0"):
    ...     start, end = (nbrt.Event(enable_timing=True) for _ in range(2))
    ...     start.record()
    ...     end.record()
    >>> start.elapsed_time(end) >= 0.0
    True
    """

    # `nbrt.runtime.stream` sets both.
    _current_stream: ClassVar[Callable[[DeviceLike], _Stream]]
    _checked_stream: ClassVar[Callable[[Any], _Stream]]

    __slots__ = (
        "__weakref__",
        "_captured",
        "_handle",
        "_interface",
        "_is_in_use",
        "_options",
        "_stream",
        "device",
    )

    def __init__(
        self,
        device: DeviceLike = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        self._handle: EventHandle | None = None  # first: __del__ reads it, also if this raises
        self._captured: CapturedRecord | None = None
        # Deferred work refers to the handle, so the next record needs another one.
        self._is_in_use = False
        self.device: Device | None = None if device is None else lookup(device)[0]
        self._options = EventOptions(bool(enable_timing), bool(blocking), bool(interprocess))
        self._interface: DeviceInterface | None = None
        self._stream: _Stream | None = None
        if interprocess and enable_timing:
            raise EventError("expected at most one of interprocess and enable_timing; drop one")

    @classmethod
    def from_ipc_handle(cls, device: DeviceLike, ipc_handle: bytes) -> Event:
        """Open an event that another process shares through `ipc_handle`.

        Raises
        ------
        NotSupportedError
            If the device has no interprocess events.
        """
        event = cls(device, interprocess=True)
        chosen = lookup(device)[0]
        event.device, event._interface = chosen, interface_of(chosen)
        event._handle = event._interface.open_event(chosen.index, ipc_handle)
        if commands.hooks:
            commands.emit("event_create", chosen, None, event)
        return event

    def record(self, stream: _Stream | None = None) -> None:
        """Record the event behind the work submitted to a stream so far.

        Parameters
        ----------
        stream : Stream, optional
            The current stream of the event's device by default.

        Raises
        ------
        DeviceMismatchError
            If the stream belongs to another device than the event.
        """
        if stream is None:
            chosen = Event._current_stream(self.device)
        else:
            chosen = Event._checked_stream(stream)
        if self.device is not None and chosen.device != self.device:
            raise DeviceMismatchError(
                f"expected a stream of {self.device}, the event's device, got one of "
                f"{chosen.device}; make another event for that device"
            )
        if chosen.capture is not None:
            self._captured = chosen.capture.record_event(chosen, self)
            self.device = chosen.device
            return
        handle = self._handle
        if handle is None or self._is_in_use or chosen.deferral is not None:
            handle = self._new_handle(chosen)
        chosen.enqueue("record", handle.record, (), "", self)
        # Last: a refused record leaves the event unchanged.
        self._handle, self._interface = handle, chosen.interface
        self.device, self._stream = chosen.device, chosen
        self._captured = None

    def _new_handle(self, stream: _Stream) -> EventHandle:
        """Return the handle of the next record: a new one, unless other processes know it."""
        deferral = stream.deferral
        known = self._handle
        if known is not None and self._options.interprocess:
            if deferral is not None:
                deferral.wait()
            return known
        handle = stream.interface.create_event(stream.device.index, self._options)
        if known is None and commands.hooks:
            commands.emit("event_create", stream.device, stream, self)
        self._is_in_use = deferral is not None
        return handle if deferral is None else DeferredRecord(deferral, handle)

    def wait(self, stream: _Stream | None = None) -> None:
        """Make later work of a stream, of any device, wait for the last record, if there is one.

        Parameters
        ----------
        stream : Stream, optional
            The current stream of the current device by default.
        """
        chosen = Event._current_stream(None) if stream is None else Event._checked_stream(stream)
        record = self._captured
        if record is not None:
            record.capture.wait_event(chosen, self, record)
            return
        handle = self._handle
        if handle is None:
            return
        if chosen.capture is not None:
            chosen.capture.wait_event(chosen, self, None)
            return
        if isinstance(handle, DeferredRecord) and not handle.is_submitted:
            defer(chosen, handle.wait_submitted)
        if chosen.deferral is not None:
            self._is_in_use = True
        if chosen.interface is not self._interface:
            # Between two backends the host waits.
            chosen.enqueue("wait", chosen.interface.call_host, (handle.host_wait(),), "", self)
        else:
            chosen.enqueue("wait", handle.wait, (), "", self)

    def query(self) -> bool:
        """Return whether the last record is done; True if the event was never recorded."""
        handle = self._usable_handle()
        is_done = handle is None or handle.query()
        if is_done and commands.hooks and self.device is not None:
            commands.emit("event_query", self.device, self._stream, self)
        return is_done

    def synchronize(self) -> None:
        """Wait on the host for the last record.

        Raises
        ------
        StreamError
            If work before it failed.
        """
        handle = self._usable_handle()
        if handle is not None:
            if commands.hooks and self.device is not None:
                commands.emit("event_sync", self.device, self._stream, self)
            handle.synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this record to that of `end_event`, without waiting.

        Raises
        ------
        EventError
            If an event has no timing, was not recorded, or is not done, or if the events belong
            to different kinds of device.
        """
        if not isinstance(end_event, Event):
            raise ArgumentTypeError(f"expected an Event, got {end_event!r}")
        first, second = self._timed_handle("the first"), end_event._timed_handle("the second")
        if self._interface is not end_event._interface:
            raise EventError(
                f"expected two events of one kind of device, got {self.device} and "
                f"{end_event.device}, whose clocks differ"
            )
        return first.elapsed_time(second)

    def ipc_handle(self) -> bytes:
        """Return a handle that another process opens with `from_ipc_handle`.

        Raises
        ------
        NotSupportedError
            If the device has no interprocess events.
        EventError
            If the event was made without ``interprocess=True``.
        """
        if self._handle is None:
            chosen, interface = lookup(self.device)
            interface.lazy.ensure()
            self._handle = interface.create_event(chosen.index, self._options)
            self._interface, self.device = interface, chosen
            if commands.hooks:
                commands.emit("event_create", chosen, None, self)
        assert self._interface is not None
        can_share = self._interface.capabilities.interprocess_events
        if can_share and not self._options.interprocess:
            raise EventError("expected an event with interprocess=True; pass it to nbrt.Event")
        return self._handle.ipc_handle()

    def __del__(self, commands: Any = commands) -> None:
        # The module as a default value: interpreter exit may clear globals before events.
        if commands.hooks and self._handle is not None:
            commands.emit("event_delete", self.device, self._stream, self)

    def __copy__(self) -> Any:
        raise ArgumentTypeError(
            "expected an Event to be shared, got a copy of it; it is one point in one stream"
        )

    def __deepcopy__(self, memo: object) -> Any:
        return self.__copy__()

    def __reduce__(self) -> Any:
        raise ArgumentTypeError(
            "expected something that can be pickled, got an Event, which lives in one process; on "
            "cuda share it with ipc_handle"
        )

    def __repr__(self) -> str:
        if self._interface is not None and not self._interface.lazy.is_ready:
            state = "of another process"  # so that a forked child can print it
        elif self._captured is not None:
            state = "captured"
        else:
            state = (
                "not recorded" if self._stream is None else "done" if self.query() else "pending"
            )
        return f"Event(device={str(self.device) if self.device else None!r}, {state})"

    def _usable_handle(self) -> EventHandle | None:
        if self._captured is not None:
            raise EventError(
                "expected an event that was recorded outside of a graph, got one whose last record "
                "was captured, which stands for no point in time; record another event after the "
                "replay"
            )
        # In a forked child no thread completes the record: raise instead of blocking forever.
        if self._interface is not None and not self._interface.lazy.is_ready:
            self._interface.lazy.ensure()
        return self._handle

    def _timed_handle(self, which: str) -> EventHandle:
        self._usable_handle()
        if not self._options.enable_timing:
            raise EventError(f"expected events with enable_timing=True; {which} has none")
        if self._handle is None or self._stream is None:
            raise EventError(f"expected recorded events; {which} was not recorded")
        if not self._handle.query():
            raise EventError(
                f"expected events that are done; {which} is pending: synchronize first"
            )
        return self._handle.inner if isinstance(self._handle, DeferredRecord) else self._handle
