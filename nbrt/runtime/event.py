"""`Event`: a point in a stream, to wait for and to time with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.queue import EventOptions
from nbrt.errors import ArgumentTypeError, DeviceMismatchError, EventError
from nbrt.runtime import commands
from nbrt.runtime.commands import Command
from nbrt.runtime.device import interface_of, lookup
from nbrt.runtime.stream import Stream, current_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt._internal.device import Device
    from nbrt.backends.interface import DeviceInterface
    from nbrt.backends.queue import EventHandle, Queue
    from nbrt.runtime.commands import CommandKind
    from nbrt.typing import DeviceLike

__all__ = ["Event"]


class Event:
    """A point in a stream that other streams, and the host, can wait for.

    The backend's event is made at the first `record`, on the device of the stream recorded, so an
    unused event costs nothing. Events cannot be copied or pickled.

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

    __slots__ = ("__weakref__", "_handle", "_interface", "_options", "_stream", "device")

    def __init__(
        self,
        device: DeviceLike = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        self._handle: EventHandle | None = None  # first: __del__ asks for it, come what may
        self.device: Device | None = None if device is None else lookup(device)[0]
        self._options = EventOptions(bool(enable_timing), bool(blocking), bool(interprocess))
        self._interface: DeviceInterface | None = None
        self._stream: Stream | None = None
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
        if commands.taps:
            commands.emit("event_create", chosen, None, event)
        return event

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of the work that a stream has so far; recording again moves the mark.

        Parameters
        ----------
        stream : Stream, optional
            The current stream of the event's device by default.

        Raises
        ------
        DeviceMismatchError
            If the stream belongs to another device than the event.
        """
        chosen = current_stream(self.device) if stream is None else _checked(stream)
        if self.device is not None and chosen.device != self.device:
            raise DeviceMismatchError(
                f"expected a stream of {self.device}, where this event lives, got one of "
                f"{chosen.device}; make another event for that device"
            )
        handle = self._handle
        if handle is None:
            handle = chosen.interface.create_event(chosen.device.index, self._options)
            if commands.taps:
                commands.emit("event_create", chosen.device, chosen, self)
        if commands.taps:
            chosen.submit(self._command("record", handle.record))
        else:
            chosen.enqueue("record", handle.record)
        # Only now: a record that was refused leaves the event as it was.
        self._handle, self._interface = handle, chosen.interface
        self.device, self._stream = chosen.device, chosen

    def wait(self, stream: Stream | None = None) -> None:
        """Make later work of a stream, of any device, wait for the last record; none: no wait.

        Parameters
        ----------
        stream : Stream, optional
            The current stream of the current device by default.
        """
        chosen = current_stream() if stream is None else _checked(stream)
        handle = self._handle
        if handle is None:
            return
        if chosen.interface is not self._interface:
            # Two backends know nothing of each other: the host carries the wait between them.
            carry = chosen.interface.call_host
            chosen.submit(self._command("wait", carry, (handle.host_wait(),)))
        elif commands.taps:
            chosen.submit(self._command("wait", handle.wait))
        else:
            chosen.enqueue("wait", handle.wait)

    def query(self) -> bool:
        """Return whether the last record is done; True if the event was never recorded."""
        handle = self._usable_handle()
        is_done = handle is None or handle.query()
        if is_done and commands.taps and self.device is not None:
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
            if commands.taps and self.device is not None:
                commands.emit("event_sync", self.device, self._stream, self)
            handle.synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this record to that of `end_event`, waiting for neither.

        Raises
        ------
        EventError
            If an event was made without timing, was not recorded, or is not done yet; or the two
            belong to different kinds of device.
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
            if commands.taps:
                commands.emit("event_create", chosen, None, self)
        assert self._interface is not None
        can_share = self._interface.capabilities.interprocess_events
        if can_share and not self._options.interprocess:
            raise EventError("expected an event made with interprocess=True; make it so")
        return self._handle.ipc_handle()

    def __del__(self, commands: Any = commands) -> None:
        # The module as a default value: at interpreter exit globals may be gone before events are.
        if commands.taps and self._handle is not None:
            commands.emit("event_delete", self.device, self._stream, self)

    def __copy__(self) -> Any:
        raise ArgumentTypeError(
            "expected no copy of an Event: it is one point in one stream; share it"
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
            state = "of another process"  # a forked child must still be able to print it
        else:
            state = (
                "not recorded" if self._stream is None else "done" if self.query() else "pending"
            )
        return f"Event(device={str(self.device) if self.device else None!r}, {state})"

    def _command(
        self, kind: CommandKind, function: Callable[..., Any], args: tuple[Any, ...] = ()
    ) -> Command:
        """Return a command whose first argument tells taps which event it is about."""
        return Command(kind, _call, (self, function, *args))

    def _usable_handle(self) -> EventHandle | None:
        # In a forked child nobody would ever reach the mark: that is an error, not a hang.
        if self._interface is not None and not self._interface.lazy.is_ready:
            self._interface.lazy.ensure()
        return self._handle

    def _timed_handle(self, which: str) -> EventHandle:
        if not self._options.enable_timing:
            raise EventError(f"expected events with enable_timing=True; {which} has none")
        if self._handle is None or self._stream is None:
            raise EventError(f"expected recorded events; {which} was not recorded")
        if not self._handle.query():
            raise EventError(
                f"expected events that are done; {which} is pending: synchronize first"
            )
        return self._handle


def _call(queue: Queue, _event: Event, function: Callable[..., Any], *args: Any) -> None:
    function(queue, *args)


def _checked(stream: Stream) -> Stream:
    if not isinstance(stream, Stream):
        raise ArgumentTypeError(f"expected an nbrt.Stream, got {stream!r}")
    return stream
