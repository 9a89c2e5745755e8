"""Streams and events of the driver over those of nbrt.

The legacy default stream runs its work in the caller's thread. As in CUDA, work on it waits for all
work that was submitted to other streams before.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from typing import TYPE_CHECKING, Any

from nbrt.compat.numba_cuda.driver.handles import CUevent, CUstream
from nbrt.compat.numba_cuda.driver.results import DriverCallError, stream_error_code
from nbrt.errors import EventError, StreamError
from nbrt.runtime.event import Event
from nbrt.runtime.stream import Stream, default_stream

if TYPE_CHECKING:
    from nbrt._internal.device import Device
    from nbrt.compat.numba_cuda.driver.contexts import Contexts

__all__ = ["LEGACY", "PER_THREAD", "Streams"]

LEGACY, PER_THREAD = 1, 2
"""The handles of the default streams, besides 0."""

_FIRST_HANDLE, _HANDLE_STEP = 0x1000, 0x10  # distinct from the handles of default streams
_EVENT_DISABLE_TIMING = 2
_STATUSES = {"ILLEGAL_ADDRESS": 700, "LAUNCH_FAILED": 719, "NOT_PERMITTED": 800}
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.py_object)


class Streams:
    """The streams and events of a process by their handles.

    Parameters
    ----------
    contexts : Contexts
        Supplies the current device.

    Attributes
    ----------
    busy : dict
        By device: the streams with work that the default stream has not waited for.
    """

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self._handles = itertools.count(_FIRST_HANDLE, _HANDLE_STEP)
        self._streams: dict[int, Stream] = {}
        self._adopted: dict[Stream, int] = {}
        self._events: dict[int, Event] = {}
        self._per_thread = threading.local()
        self._latest: dict[Stream, object] = {}
        self.busy: dict[Device, set[Stream]] = {}

    # -- streams -----------------------------------------------------------------------------------

    def create(self, flags: Any = 0) -> CUstream:  # noqa: ARG002  # the driver's signature
        """Create a stream of the current device."""
        handle = next(self._handles)
        self._streams[handle] = Stream(self._contexts.current_device())
        return CUstream(handle)

    def handle_of(self, stream: Stream) -> CUstream:
        """Return the handle of a stream of nbrt, which the program makes."""
        handle = self._adopted.get(stream)
        if handle is None:
            if stream is default_stream(stream.device):
                return CUstream(LEGACY)
            handle = self._adopted[stream] = next(self._handles)
            self._streams[handle] = stream
        return CUstream(handle)

    def destroy(self, handle: Any) -> None:
        """Forget a stream; its work goes on."""
        if self._streams.pop(int(handle), None) is None:
            raise DriverCallError("INVALID_HANDLE")

    def ordered(self, handle: Any) -> Stream:
        """Return the stream of a handle, for work that is submitted next.

        If it is a legacy default stream, wait for all other streams of the device first.
        """
        number = int(handle)
        if number in (0, LEGACY):
            stream = default_stream(self._contexts.current_device())
            busy = self.busy.get(stream.device)
            if busy:
                self._finish(busy)
            return stream
        return self._per_thread_stream() if number == PER_THREAD else self._of(number)

    def submitted(self, stream: Stream) -> None:
        """Note that work was submitted to a stream, for which the default stream has to wait."""
        if stream is not default_stream(stream.device):
            self.note(stream)

    def note(self, stream: Stream) -> None:
        """Do the same for a stream that is not the default stream."""
        self._latest[stream] = object()
        self.busy.setdefault(stream.device, set()).add(stream)

    def _of(self, number: int) -> Stream:
        stream = self._streams.get(number)
        if stream is None:
            raise DriverCallError("INVALID_HANDLE")
        return stream

    def _per_thread_stream(self) -> Stream:
        streams: dict[Any, Stream] = vars(self._per_thread)
        device = self._contexts.current_device()
        if device not in streams:
            streams[device] = Stream(device)
        return streams[device]

    def _finish(self, busy: set[Stream]) -> None:
        for stream in list(busy):
            self._wait(stream, busy)

    def _wait(self, stream: Stream, busy: set[Stream]) -> None:
        """Wait for a stream; it is not busy then, unless another thread has submitted to it."""
        before = self._latest.get(stream)
        failure = None
        try:
            stream.synchronize()
        except StreamError as error:  # not by an interrupt, after which the work still runs
            failure = error
        # After the wait: another thread must not pass by a stream that this one waits for.
        busy.discard(stream)
        if self._latest.get(stream) is not before:
            busy.add(stream)
        if failure is not None:
            raise failure

    def synchronize(self, handle: Any) -> None:
        """Wait for a stream; raise what its work raised."""
        stream = self.ordered(handle)
        self._wait(stream, self.busy.setdefault(stream.device, set()))

    def query(self, handle: Any) -> None:
        """Raise if work of a stream is pending."""
        number = int(handle)
        if number in (0, LEGACY):
            busy = self.busy.get(self._contexts.current_device(), set())
            done = all(stream.query() for stream in list(busy))
        else:
            done = self.ordered(handle).query()
        if not done:
            raise DriverCallError("NOT_READY")

    def synchronize_device(self) -> None:
        """Wait for all streams of the current device."""
        self.ordered(0).synchronize()

    def synchronize_all(self) -> None:
        """Wait for all streams of all devices."""
        for device, busy in list(self.busy.items()):
            self._finish(busy)
            default_stream(device).synchronize()
        default_stream(self._contexts.current_device()).synchronize()

    def events_of_busy(self) -> list[Event]:
        """Return events behind the work that is submitted and may be unfinished."""
        return [each.record_event() for busy in list(self.busy.values()) for each in list(busy)]

    def call(self, handle: Any, callback: Any, data: Any, flags: Any) -> None:  # noqa: ARG002
        """Call a C function of a stream, a status and a Python object behind the work so far."""
        function = _CALLBACK(int(callback))
        argument = ctypes.cast(int(data), ctypes.py_object).value
        number = int(handle)
        stream = self.ordered(number)

        def call(failure: Any) -> bool:
            code = None if failure is None else stream_error_code(failure)
            status = 0 if code is None else _STATUSES[code]
            function(number, status, argument)
            return False  # a synchronisation raises the failure

        (stream.deferral or stream.queue).add_done_callback(call)
        self.submitted(stream)

    # -- events ------------------------------------------------------------------------------------

    def create_event(self, flags: Any = 0) -> CUevent:
        """Create an event."""
        handle = next(self._handles)
        self._events[handle] = Event(
            self._contexts.current_device(), enable_timing=not int(flags) & _EVENT_DISABLE_TIMING
        )
        return CUevent(handle)

    def destroy_event(self, handle: Any) -> None:
        """Forget an event."""
        if self._events.pop(int(handle), None) is None:
            raise DriverCallError("INVALID_HANDLE")

    def event(self, handle: Any) -> Event:
        """Return the event of a handle."""
        event = self._events.get(int(handle))
        if event is None:
            raise DriverCallError("INVALID_HANDLE")
        return event

    def record(self, event: Any, stream: Any) -> None:
        """Record an event behind the work of a stream."""
        queue = self.ordered(stream)
        self.event(event).record(queue)
        self.submitted(queue)

    def wait(self, stream: Any, event: Any, flags: Any = 0) -> None:  # noqa: ARG002
        """Let later work of a stream wait for an event."""
        queue = self.ordered(stream)
        self.event(event).wait(queue)
        self.submitted(queue)

    def query_event(self, event: Any) -> None:
        """Raise if work before an event is pending."""
        if not self.event(event).query():
            raise DriverCallError("NOT_READY")

    def synchronize_event(self, event: Any) -> None:
        """Wait for an event."""
        self.event(event).synchronize()

    def elapsed(self, start: Any, end: Any) -> float:
        """Return the milliseconds between two events."""
        first, last = self.event(start), self.event(end)
        try:
            if not (first.query() and last.query()):
                raise DriverCallError("NOT_READY")
            return first.elapsed_time(last)
        except EventError:
            raise DriverCallError("INVALID_HANDLE") from None
