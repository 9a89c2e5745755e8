"""`Stream`: a queue of work on one device, from a pool of streams."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from nbrt._internal import scopes
from nbrt._internal.device import Device
from nbrt.backends import registry
from nbrt.backends.draw import Draw
from nbrt.backends.queue import CancellableQueue
from nbrt.errors import ArgumentError, ArgumentTypeError, NotSupportedError
from nbrt.runtime import commands
from nbrt.runtime.adoption import cuda_stream_handle
from nbrt.runtime.commands import Command
from nbrt.runtime.device import current_device, default_device, interface_of, lookup
from nbrt.runtime.event import Event
from nbrt.runtime.round_robin import RoundRobin

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from nbrt.backends.interface import DeviceInterface
    from nbrt.backends.lazy import LazyInitializer
    from nbrt.backends.queue import Queue
    from nbrt.runtime.capturing import Capture
    from nbrt.runtime.commands import CommandKind
    from nbrt.runtime.deferral import Deferral
    from nbrt.typing import DeviceLike, SupportsCudaStream

__all__ = [
    "STREAMS_PER_PRIORITY",
    "Event",
    "Stream",
    "checked_stream",
    "current_stream",
    "default_stream",
    "record_use",
    "resolve_stream",
    "stream_of",
    "streams_of",
]

STREAMS_PER_PRIORITY = 32
"""Streams per device and priority, as in torch; the 33rd request returns the 1st stream."""

_ids = itertools.count(1)
_by_id: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
_defaults: dict[Device, Stream] = {}
_pools: dict[tuple[Device, int], RoundRobin[Stream]] = {}
_lock = threading.RLock()


class Stream:
    """A queue of work on one device: its work runs in order, concurrently with other streams.

    The constructor returns the next of the 32 streams that the device has per priority.

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
        A number of this process, for `from_id`.
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
        "cache",
        "capture",
        "deferral",
        "device",
        "id",
        "interface",
        "owner",
        "priority",
        "queue",
        "record_use",
        "ref",
    )

    _lazy: LazyInitializer
    cache: Any
    """The `SizeClassCache` of the default pool, set by `runtime.memory` on first use."""
    capture: Capture | None
    """The capture that records the work of the stream, if there is one."""
    deferral: Deferral | None
    """The commands behind a launch whose kernel is being compiled."""
    device: Device
    id: int
    interface: DeviceInterface
    record_use: Callable[[Stream, tuple[Any, ...]], None] | None
    """`record_use`, where queued work does not keep its arrays alive."""
    owner: object
    priority: int
    queue: Queue
    ref: weakref.ref[Stream]
    """A weak reference to the stream."""

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
                queue = partial(interface.create_queue, chosen.index, level)
                pool = RoundRobin(lambda: _make(chosen, interface, queue()), STREAMS_PER_PRIORITY)
                _pools[chosen, level] = pool
            stream, is_new = pool.next()
        if is_new and commands.hooks:
            commands.emit("stream_create", chosen, stream)
        return stream

    @classmethod
    def from_id(cls, stream_id: int) -> Stream:
        """Return the stream with an id.

        Raises
        ------
        ArgumentError
            If no stream of this process has it.
        """
        stream = _by_id.get(stream_id)
        if stream is None:
            raise ArgumentError(
                f"expected the id of a stream of this process, got {stream_id!r}; pass the id of a "
                f"stream that still exists"
            )
        return stream

    @classmethod
    def from_external(cls, stream: SupportsCudaStream, device: DeviceLike = None) -> Stream:
        """Borrow a stream of another library.

        Parameters
        ----------
        stream : object with ``__cuda_stream__``
            A stream of CuPy, torch, RMM, cuda.core, numba-cuda or nbrt. nbrt keeps it alive and
            does not destroy it.
        device : Device, str, int or None
            The device it belongs to; the current one by default.

        Raises
        ------
        ArgumentTypeError
            If the object does not implement the protocol.
        NotSupportedError
            If the device has no raw CUDA streams, or the protocol's version is not 0.
        """
        if isinstance(stream, Stream):
            return stream
        handle = cuda_stream_handle(stream)
        chosen, interface = lookup(device)
        interface.lazy.ensure()
        queue = interface.borrow_queue(chosen.index, handle, stream)
        with _lock:
            borrowed = _make(chosen, interface, queue, owner=stream)
        if commands.hooks:
            commands.emit("stream_create", chosen, borrowed)
        return borrowed

    @property
    def handle(self) -> int:
        """The raw stream: a ``cudaStream_t`` address on cuda, 0 where there is none.

        Other libraries submit work to it, so the property waits for kernels that are being
        compiled for launches on the stream (``NBRT_ASYNC``).
        """
        deferral = self.deferral
        if deferral is not None:
            deferral.wait()
        return self.queue.handle

    def submit(self, command: Command) -> Any:
        """Run a command between its hooks; all work passes through here or `enqueue`."""
        if not self._lazy.is_ready:
            self._lazy.ensure()
        if commands.hooks:
            result = commands.dispatch_with_hooks(self, command)
        else:
            result = command.function(self.queue, *command.args)
        if self.record_use is not None:
            self.record_use(self, command.args)
        return result

    def enqueue(
        self,
        kind: CommandKind,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        label: str = "",
        subject: object = None,
    ) -> Any:
        """Submit ``Command(kind, function, args, label, subject)``, made only if a hook sees it."""
        if (commands.hooks and kind in commands.hooked_kinds) or not self._lazy.is_ready:
            if self.capture is None or kind in ("allocate", "free"):
                return self.submit(Command(kind, function, args, label, subject))
            result = self.capture.record(self, kind, function, args, label)
        else:
            result = function(self.queue, *args)
        if self.record_use is not None:
            self.record_use(self, args)
        return result

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call ``function(*args)`` on the host after the work queued so far.

        On cuda the function must not call CUDA, as for ``cudaLaunchHostFunc``.
        """
        if not callable(function):
            raise ArgumentTypeError(f"expected a function to call, got {function!r}")
        self.enqueue("call", self.interface.call_host, (function, *args), _name(function))

    def query(self) -> bool:
        """Return whether all work submitted so far is done."""
        self._lazy.ensure()
        self._check_runs("a query of", "query the stream after a replay")
        deferral = self.deferral
        is_done = (deferral is None or not deferral.is_pending) and self.queue.query()
        if is_done and commands.hooks:
            commands.emit("stream_query", self.device, self)
        return is_done

    def synchronize(self) -> None:
        """Wait until all work submitted so far is done.

        Raises
        ------
        StreamError
            If work failed; it is chained to the failure and shows the stack of the submitting
            call. Work behind the failure was dropped. The stream can be used again.
        """
        self._lazy.ensure()
        self._check_runs("a wait for", "wait after a replay")
        if commands.hooks:
            commands.emit("stream_sync", self.device, self)
        self.finish()

    def finish(self) -> None:
        """Wait as `synchronize` does, without checks and hooks."""
        deferral = self.deferral
        if deferral is not None:
            deferral.wait()
        self.queue.synchronize()
        if deferral is not None:
            deferral.finish()

    def cancel(self) -> int:
        """Drop the queued work of the stream, and stop the launch that runs.

        The call does not wait; `synchronize` waits for the end of the launch. Events recorded
        before complete. Work submitted later runs as usual.

        Returns
        -------
        int
            Number of queued commands dropped; 0 on a CPU device's default stream.

        Raises
        ------
        NotSupportedError
            If the device cannot drop work, such as a GPU.
        """
        self._lazy.ensure()
        self._check_runs("to cancel", "raise an exception to end the capture")
        if not isinstance(self.queue, CancellableQueue):
            raise NotSupportedError(
                f"expected a stream of a device that can drop work, got {self!r}; wait with "
                f"synchronize()"
            )
        deferral = self.deferral
        return (0 if deferral is None else deferral.cancel()) + self.queue.cancel()

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one by default, behind the work submitted so far."""
        recorded = Event() if event is None else event
        if not isinstance(recorded, Event):
            raise ArgumentTypeError(f"expected an nbrt.Event to record, got {event!r}")
        recorded.record(self)
        return recorded

    def wait_event(self, event: Event) -> None:
        """Make later work wait for an event."""
        if not isinstance(event, Event):
            raise ArgumentTypeError(
                f"expected an nbrt.Event to wait for, got {event!r}; for a stream use wait_stream"
            )
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Make later work wait for the work submitted to `stream` so far."""
        if not isinstance(stream, Stream):
            raise ArgumentTypeError(
                f"expected an nbrt.Stream to wait for, got {stream!r}; for an event use wait_event"
            )
        self.wait_event(stream.record_event())

    def is_capturing(self) -> bool:
        """Return whether a capture records the work of the stream instead of running it."""
        return self.capture is not None

    def _check_runs(self, tried: str, remedy: str) -> None:
        if self.capture is not None:
            self.capture.refuse(f"{tried} {self!r}", remedy)

    def __await__(self) -> Generator[Any, None, None]:
        """Wait without blocking the event loop: ``await stream``."""
        from nbrt.runtime.asyncio_future import queue_future

        self._lazy.ensure()
        self._check_runs("a wait for", "wait after a replay")
        if commands.hooks:
            commands.emit("stream_sync", self.device, self)
        return queue_future(self.deferral or self.queue).__await__()

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


def record_use(stream: Stream, arguments: Iterable[Any]) -> None:
    """Record a stream on those arguments that were allocated for another stream."""
    owner_of = stream.interface.owner_of
    for argument in arguments:
        if isinstance(argument, Draw):
            record_use(stream, argument.arrays)
            continue
        owner: Any = owner_of(argument)
        if owner is not None and owner.stream is not stream:
            owner.record_stream(stream)


class _ProtocolStream(Stream):
    """A stream with a raw CUDA stream, which other libraries can borrow."""

    __slots__ = ()

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return (protocol version, address of the stream)."""
        return 0, self.handle


def _make(device: Device, interface: DeviceInterface, queue: Queue, owner: object = None) -> Stream:
    cls = _ProtocolStream if interface.capabilities.cuda_stream_protocol else Stream
    stream = object.__new__(cls)
    stream.device = device
    stream.interface = interface
    stream._lazy = interface.lazy
    stream.ref = weakref.ref(stream)
    stream.cache = None
    stream.capture = stream.deferral = None
    stream.record_use = None if interface.capabilities.retains_arguments else record_use
    stream.queue = queue
    stream.priority = queue.priority
    stream.owner = owner
    stream.id = next(_ids)
    queue.name = repr(stream)
    _by_id[stream.id] = stream
    return stream


def default_stream(device: DeviceLike = None) -> Stream:
    """Return the device's default stream; on cpu it runs work synchronously."""
    chosen = current_device() if device is None else lookup(device)[0]
    stream = _defaults.get(chosen)
    return _make_default(chosen) if stream is None else stream


def _make_default(device: Device) -> Stream:
    interface = interface_of(device)
    with _lock:
        if device not in _defaults:
            _defaults[device] = _make(device, interface, interface.default_queue(device.index))
        return _defaults[device]


def current_stream(device: DeviceLike = None) -> Stream:
    """Return the current stream of a device in this thread or task.

    Examples
    --------
    >>> import nbrt
    >>> nbrt.current_stream("cpu:0") is nbrt.default_stream("cpu:0")
    True
    """
    frame = scopes.current()
    if type(device) is Device and not frame.streams:
        default = _defaults.get(device)
        if default is not None:
            return default
    chosen = (frame.device or default_device()) if device is None else lookup(device)[0]
    if frame.streams and (stream := frame.streams.get(chosen)) is not None:
        return stream  # type: ignore[return-value]  # guards store only streams there
    default = _defaults.get(chosen)
    return _make_default(chosen) if default is None else default


def checked_stream(stream: Stream) -> Stream:
    """Return `stream`; raise ArgumentTypeError if it is no `Stream`."""
    if not isinstance(stream, Stream):
        raise ArgumentTypeError(
            f"expected an nbrt.Stream, got {stream!r} of type {type(stream).__name__}; wrap "
            f"another library's stream with nbrt.Stream.from_external"
        )
    return stream


def resolve_stream(device: DeviceLike, stream: Stream | None) -> Stream:
    """Return `stream` if it belongs to the device; the device's current stream if it is None."""
    if stream is None:
        return current_stream(device)
    checked_stream(stream)
    if device is not None and lookup(device)[0] != stream.device:
        raise ArgumentError(
            f"expected a stream of {lookup(device)[0]}, got one of {stream.device}; pass one only"
        )
    return stream


Event._current_stream = staticmethod(current_stream)
Event._checked_stream = staticmethod(checked_stream)


def streams_of(device: Device) -> list[Stream]:
    """Return the streams of a device."""
    with _lock:
        return [each for each in _by_id.values() if each.device == device]


def stream_of(queue: Queue) -> Stream:
    """Return the stream that a queue belongs to."""
    with _lock:
        return next(stream for stream in _by_id.values() if stream.queue is queue)


def _forget_caches() -> None:
    # A forked child must not use its parent's backend; the slow path raises the error.
    for stream in list(_by_id.values()):
        stream.cache = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_caches)


def forget_streams(kind: str) -> None:
    """Drop the streams of a backend that left the registry."""
    with _lock:
        for device in [device for device in _defaults if device.kind == kind]:
            del _defaults[device]
        for key in [key for key in _pools if key[0].kind == kind]:
            del _pools[key]


registry.on_removed(forget_streams)
registry.on_substituted(registry.set_aside(_defaults, lambda device: device.kind))
registry.on_substituted(registry.set_aside(_pools, lambda key: key[0].kind))


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
