"""`Stream`: work in order on one device, taken from a pool."""

from __future__ import annotations

import itertools
import os
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from nbrt._internal import scopes
from nbrt.backends import registry
from nbrt.backends.queue import CancellableQueue
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    NbrtCleanupWarning,
    NotSupportedError,
)
from nbrt.runtime import commands
from nbrt.runtime.commands import Command
from nbrt.runtime.device import current_device, default_device, interface_of, lookup
from nbrt.typing import SupportsCudaStream

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from nbrt._internal.device import Device
    from nbrt.backends.interface import DeviceInterface
    from nbrt.backends.lazy import LazyInitializer
    from nbrt.backends.queue import Queue
    from nbrt.runtime.commands import CommandKind
    from nbrt.runtime.event import Event
    from nbrt.typing import DeviceLike

__all__ = ["STREAMS_PER_PRIORITY", "Stream", "current_stream", "default_stream", "synchronize"]

STREAMS_PER_PRIORITY = 32
"""Streams in the pool of each priority of each device, as in torch; the 33rd request is the 1st."""

_ids = itertools.count(1)
_by_id: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
_defaults: dict[Device, Stream] = {}
_pools: dict[tuple[Device, int], _Pool] = {}
_lock = threading.RLock()


class Stream:
    """A queue of work on one device: what is given to it runs in order, alongside other streams.

    Asking for a stream takes the next of the 32 that its device has per priority.

    Parameters
    ----------
    device : Device, str, int or None
        The device; the current one by default.
    priority : int
        Lower is more urgent; clamped to what the device has.

    Attributes
    ----------
    device : Device
        The device that runs the work.
    id : int
        A number by which `from_id` finds the stream again in this process.
    priority : int
        The priority after clamping.

    Examples
    --------
    >>> import nbrt
    >>> stream, seen = nbrt.Stream("cpu:0"), []
    >>> stream.call(seen.append, "done on a stream")
    >>> stream.synchronize()
    >>> seen
    ['done on a stream']
    """

    __slots__ = (
        "__weakref__",
        "_lazy",
        "arena",
        "device",
        "id",
        "interface",
        "note_use",
        "owner",
        "priority",
        "queue",
        "ref",
    )

    _lazy: LazyInitializer
    arena: Any
    """Where memory for the stream comes from, once it was asked for; `runtime.memory` puts it."""
    device: Device
    id: int
    interface: DeviceInterface
    note_use: Callable[[Stream, tuple[Any, ...]], None] | None
    """Records the stream on the arrays of its work, where queued work does not keep them alive."""
    owner: object
    priority: int
    queue: Queue
    ref: weakref.ref[Stream]
    """A reference to the stream that does not keep it alive, made once."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0) -> Stream:  # noqa: D102
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ArgumentTypeError(f"expected an int priority, got {priority!r}")
        chosen = lookup(device)[0]
        interface = interface_of(chosen)
        lowest, highest = interface.capabilities.stream_priorities
        level = max(highest, min(lowest, priority))
        with _lock:
            pool = _pools.get((chosen, level))
            if pool is None:
                pool = _pools[chosen, level] = _Pool(chosen, level, interface)
            stream, is_new = pool.next()
        if is_new and commands.taps:
            commands.emit("stream_create", chosen, stream)
        return stream

    @classmethod
    def from_id(cls, stream_id: int) -> Stream:
        """Return the stream with an id.

        Raises
        ------
        ArgumentError
            If no stream of this process has it, or its borrowed stream is gone.
        """
        stream = _by_id.get(stream_id)
        if stream is None:
            raise ArgumentError(
                f"expected the id of a stream of this process, got {stream_id!r}; ids come from "
                f"Stream.id and end with a borrowed stream"
            )
        return stream

    @classmethod
    def from_external(cls, stream: SupportsCudaStream, device: DeviceLike = None) -> Stream:
        """Borrow a stream of another library.

        Parameters
        ----------
        stream : object with ``__cuda_stream__``
            A stream of CuPy, torch, RMM, cuda.core, numba-cuda or nbrt. It is kept alive, never
            destroyed by nbrt.
        device : Device, str, int or None
            The device it belongs to; the current one by default.

        Raises
        ------
        ArgumentTypeError
            If the object does not have the protocol, or answers in a form it does not define.
        NotSupportedError
            If the device is of a kind without raw CUDA streams, or the protocol is a newer version.
        """
        if isinstance(stream, Stream):
            return stream
        handle = _protocol_handle(stream)
        chosen = lookup(device)[0]
        interface = interface_of(chosen)
        queue = interface.borrow_queue(chosen.index, handle, stream)
        with _lock:
            borrowed = _make(chosen, interface, queue, owner=stream)
        if commands.taps:
            commands.emit("stream_create", chosen, borrowed)
        return borrowed

    @property
    def handle(self) -> int:
        """The raw stream: a ``cudaStream_t`` address on cuda, 0 where there is none."""
        return self.queue.handle

    def submit(self, command: Command) -> Any:
        """Give the stream a command: the one door through which all work passes."""
        if not self._lazy.is_ready:
            self._lazy.ensure()
        if commands.taps:
            result = commands.dispatch_with_hooks(self, command)
        else:
            result = command.function(self.queue, *command.args)
        if self.note_use is not None:
            self.note_use(self, command.args)
        return result

    def enqueue(
        self,
        kind: CommandKind,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        label: str = "",
    ) -> Any:
        """Submit ``Command(kind, function, args, label)``, which is made only if somebody looks."""
        if (commands.taps and kind in commands.seen) or not self._lazy.is_ready:
            return self.submit(Command(kind, function, args, label))
        result = function(self.queue, *args)
        if self.note_use is not None:
            self.note_use(self, args)
        return result

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call ``function(*args)`` on the host when the work queued so far is done.

        On cuda the function must not use CUDA itself, as for ``cudaLaunchHostFunc``.
        """
        if not callable(function):
            raise ArgumentTypeError(f"expected a function to call, got {function!r}")
        self.enqueue("call", self.interface.call_host, (function, *args), _name(function))

    def query(self) -> bool:
        """Return whether all work given so far is done."""
        self._lazy.ensure()
        is_done = self.queue.query()
        if is_done and commands.taps:
            commands.emit("stream_query", self.device, self)
        return is_done

    def synchronize(self) -> None:
        """Wait until all work given so far is done.

        Raises
        ------
        StreamError
            If some of it failed; chained to the failure, with the stack of the submitting call.
            Work queued behind the failure was dropped. The stream can be used again afterwards.
        """
        self._lazy.ensure()
        if commands.taps:
            commands.emit("stream_sync", self.device, self)
        self.queue.synchronize()

    def cancel(self) -> int:
        """Drop the work that waits in the stream, and stop the launch that runs.

        Returns at once: `synchronize` waits until the launch has ended. Events recorded before
        complete. Work given from now on runs as usual.

        Returns
        -------
        int
            Commands dropped, without the one that runs; 0 on a CPU device's default stream.

        Raises
        ------
        NotSupportedError
            If the device cannot drop work, as a GPU.
        """
        self._lazy.ensure()
        if not isinstance(self.queue, CancellableQueue):
            raise NotSupportedError(
                f"expected a stream of a device that can drop work, got {self!r}, whose work runs "
                f"to its end; wait with synchronize()"
            )
        return self.queue.cancel()

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event behind the work given so far; a new one unless `event` is given."""
        from nbrt.runtime.event import Event

        recorded = Event() if event is None else event
        if not isinstance(recorded, Event):
            raise ArgumentTypeError(f"expected an nbrt.Event to record, got {event!r}")
        recorded.record(self)
        return recorded

    def wait_event(self, event: Event) -> None:
        """Make work given from now on wait for an event."""
        from nbrt.runtime.event import Event

        if not isinstance(event, Event):
            raise ArgumentTypeError(
                f"expected an nbrt.Event to wait for, got {event!r}; for a stream use wait_stream"
            )
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Make work given from now on wait for the work that `stream` has so far."""
        if not isinstance(stream, Stream):
            raise ArgumentTypeError(
                f"expected an nbrt.Stream to wait for, got {stream!r}; for an event use wait_event"
            )
        self.wait_event(stream.record_event())

    def __await__(self) -> Generator[Any, None, None]:
        """Wait without blocking the event loop: ``await stream``."""
        import asyncio

        self._lazy.ensure()
        if commands.taps:
            commands.emit("stream_sync", self.device, self)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if future.done():
                if error is not None:
                    warnings.warn(str(error), NbrtCleanupWarning, stacklevel=1)
            elif error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        def done(error: BaseException | None) -> bool:
            # Where nobody waits any more, a failure is left to the next synchronisation point.
            if future.done() or loop.is_closed():
                return False
            try:
                loop.call_soon_threadsafe(settle, error)
            except RuntimeError:  # closed just now
                return False
            return True

        self.queue.notify(done)
        return future.__await__()

    def __copy__(self) -> Stream:
        return self

    def __deepcopy__(self, memo: object) -> Stream:
        return self

    def __reduce__(self) -> Any:
        raise ArgumentTypeError(
            "expected something that can be pickled, got a Stream, which lives in one process; "
            "send stream.device and make a stream there"
        )

    def __repr__(self) -> str:
        return f"Stream(device='{self.device}', priority={self.priority}, id={self.id})"


def _note_use(stream: Stream, arguments: tuple[Any, ...]) -> None:
    from nbrt.runtime.memory.recording import note_use

    note_use(stream, arguments)


class _ProtocolStream(Stream):
    """A stream whose raw handle is a CUDA stream, so that other libraries can borrow it."""

    __slots__ = ()

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return (protocol version, address of the stream)."""
        return 0, self.queue.handle


class _Pool:
    """The streams of one priority of one device, made on first request, handed out in turn."""

    def __init__(self, device: Device, priority: int, interface: DeviceInterface) -> None:
        self._device = device
        self._priority = priority
        self._interface = interface
        self._streams: list[Stream] = []
        self._turn = 0

    def next(self) -> tuple[Stream, bool]:
        """Return the stream whose turn it is, and whether it was made just now."""
        slot = self._turn
        is_new = slot == len(self._streams)
        if is_new:
            queue = self._interface.create_queue(self._device.index, self._priority)
            self._streams.append(_make(self._device, self._interface, queue))
        self._turn = (slot + 1) % STREAMS_PER_PRIORITY
        return self._streams[slot], is_new


def _make(device: Device, interface: DeviceInterface, queue: Queue, owner: object = None) -> Stream:
    cls = _ProtocolStream if interface.capabilities.cuda_stream_protocol else Stream
    stream = object.__new__(cls)
    stream.device = device
    stream.interface = interface
    stream._lazy = interface.lazy
    stream.ref = weakref.ref(stream)
    stream.arena = None
    stream.note_use = None if interface.capabilities.retains_arguments else _note_use
    stream.queue = queue
    stream.priority = queue.priority
    stream.owner = owner
    stream.id = next(_ids)
    queue.name = repr(stream)
    _by_id[stream.id] = stream
    return stream


def default_stream(device: DeviceLike = None) -> Stream:
    """Return the device's default stream; on cpu it runs work at once, in the caller's thread."""
    chosen = current_device() if device is None else lookup(device)[0]
    stream = _defaults.get(chosen)
    return _make_default(chosen) if stream is None else stream


def _make_default(device: Device) -> Stream:
    interface = interface_of(device)
    with _lock:
        if device not in _defaults:
            queue = interface.default_queue(device.index)
            _defaults[device] = _make(device, interface, queue)
        return _defaults[device]


def current_stream(device: DeviceLike = None) -> Stream:
    """Return the current stream of a device, in this thread or task.

    Examples
    --------
    >>> import nbrt
    >>> nbrt.current_stream("cpu:0") is nbrt.default_stream("cpu:0")
    True
    """
    frame = scopes.current()
    chosen = (frame.device or default_device()) if device is None else lookup(device)[0]
    if frame.streams:
        stream = frame.streams.get(chosen)
        if stream is not None:
            return stream  # type: ignore[return-value]  # guards put nothing but streams there
    default = _defaults.get(chosen)
    return _make_default(chosen) if default is None else default


def synchronize(device: DeviceLike = None) -> None:
    """Wait for all work on all streams of a device.

    Raises
    ------
    StreamError
        If work failed on one of its streams; failures of further streams are added as notes.
    """
    chosen = lookup(device)[0]
    interface = interface_of(chosen)
    if commands.taps:
        commands.emit("device_sync", chosen)
    failures: list[Exception] = []
    with _lock:
        streams = [stream for stream in _by_id.values() if stream.device == chosen]
    for stream in streams:
        try:
            stream.queue.synchronize()
        except Exception as error:  # noqa: BLE001  # re-raised below, after the other streams
            failures.append(error)
    interface.synchronize(chosen.index)
    if failures:
        for further in failures[1:]:
            failures[0].add_note(f"another stream of {chosen} failed too: {further}")
        raise failures[0]


def stream_of(queue: Queue) -> Stream:
    """Return the stream that a queue belongs to."""
    with _lock:
        return next(stream for stream in _by_id.values() if stream.queue is queue)


def _forget_arenas() -> None:
    # The backend of a forked child is not that of its parent; the long way says so.
    for stream in list(_by_id.values()):
        stream.arena = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_arenas)


def forget_streams(kind: str) -> None:
    """Drop the streams of a backend that was taken out of the registry."""
    with _lock:
        for device in [device for device in _defaults if device.kind == kind]:
            del _defaults[device]
        for key in [key for key in _pools if key[0].kind == kind]:
            del _pools[key]


registry.on_removed(forget_streams)


def _protocol_handle(stream: object) -> int:
    if not isinstance(stream, SupportsCudaStream):
        raise ArgumentTypeError(
            f"expected an object with __cuda_stream__, got {stream!r} of type "
            f"{type(stream).__name__}; for a bare address use an object of the library that made it"
        )
    answer = stream.__cuda_stream__()
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise ArgumentTypeError(
            f"expected __cuda_stream__ to return (version, address), got {answer!r}"
        )
    version, address = answer
    if version != 0:
        raise NotSupportedError(
            f"expected version 0 of the __cuda_stream__ protocol, got version {version!r}"
        )
    return int(address)


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
