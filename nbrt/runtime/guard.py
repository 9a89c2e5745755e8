"""Guards: blocks of code with another current device or stream.

A guard object holds only its arguments; the ambient state holds the previous device and streams.
So one object nests, and several threads and tasks can use it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt._internal import scopes
from nbrt.runtime.device import lookup
from nbrt.runtime.stream import Stream, checked_stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from nbrt._internal.device import Device
    from nbrt.backends.interface import DeviceInterface
    from nbrt.typing import DeviceLike

__all__ = [
    "DeviceGuard",
    "MultiStreamGuard",
    "OptionalDeviceGuard",
    "OptionalStreamGuard",
    "StreamGuard",
    "device",
    "set_stream",
    "stream",
]


class DeviceGuard:
    """Make a device current for a block; ``nbrt.device`` is this class.

    Parameters
    ----------
    device : Device, str, int or None
        The device; with None or -1 the guard does nothing, as in ``torch.cuda.device``.

    Attributes
    ----------
    device : Device or None
        The device; None for a guard that does nothing.

    Examples
    --------
    >>> import nbrt
    >>> with nbrt.device("cpu:0") as guard:
    ...     nbrt.current_device() == guard.device
    True
    """

    __slots__ = ("_driver", "device")

    def __init__(self, device: DeviceLike) -> None:
        self.device: Device | None = None
        self._driver: DeviceInterface | None = None
        if device is not None and device != -1:
            self.device, interface = lookup(device)
            if interface.capabilities.driver_state:
                self._driver = interface

    def __enter__(self) -> Self:
        if self.device is not None:
            undo = None
            if self._driver is not None:
                undo = _exchange(self._driver, self.device.index)
            scopes.push(self, self.device, None, undo)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.device is not None:
            undo = scopes.pop_device(self).undo
            if undo is not None:
                undo()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.device) if self.device else None!r})"


device = DeviceGuard
"""torch's name."""


class OptionalDeviceGuard(DeviceGuard):
    """A device guard whose device may be set inside the block.

    Examples
    --------
    >>> import nbrt
    >>> with OptionalDeviceGuard() as guard:
    ...     guard.set_device("cpu:0")
    ...     nbrt.current_device()
    Device('cpu:0')
    """

    __slots__ = ()

    def __init__(self, device: DeviceLike = None) -> None:
        super().__init__(device)

    def __enter__(self) -> Self:
        if self.device is None:
            scopes.push(self, scopes.current().device, None)
            return self
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        undo = scopes.pop_device(self).undo
        if undo is not None:
            undo()

    def set_device(self, device: DeviceLike) -> None:
        """Make `device` current until the block ends."""
        chosen, interface = lookup(device)
        if interface.capabilities.driver_state:
            undo = _exchange(interface, chosen.index)
            frame = scopes.current()
            frame.undo = frame.undo or undo
        scopes.replace(chosen, None)


class StreamGuard:
    """Make a stream, and its device, current for a block; both are restored.

    Parameters
    ----------
    stream : Stream
        The stream to enter.

    Raises
    ------
    ArgumentTypeError
        If `stream` is not a `Stream`.
    """

    __slots__ = ("stream",)

    def __init__(self, stream: Stream) -> None:
        self.stream: Stream | None = checked_stream(stream)

    def __enter__(self) -> Self:
        stream = self.stream
        if stream is not None:
            streams = {**scopes.current().streams, stream.device: stream}
            scopes.push(self, stream.device, streams, _enter_queue(stream))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.stream is not None:
            undo = scopes.pop_frame(self).undo
            if undo is not None:
                undo()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stream!r})"


class OptionalStreamGuard(StreamGuard):
    """A stream guard that does nothing for None; ``nbrt.stream`` is this class.

    Examples
    --------
    >>> import nbrt
    >>> side = nbrt.Stream("cpu:0")
    >>> with nbrt.stream(side):
    ...     nbrt.current_stream() is side
    True
    """

    __slots__ = ()

    def __init__(self, stream: Stream | None = None) -> None:
        self.stream = None if stream is None else checked_stream(stream)


stream = OptionalStreamGuard
"""torch's name."""


class MultiStreamGuard:
    """Make one stream current on each of several devices; the current device stays.

    Parameters
    ----------
    *streams : Stream
        At most one per device; a later one for the same device wins.
    """

    __slots__ = ("streams",)

    def __init__(self, *streams: Stream) -> None:
        self.streams = tuple(map(checked_stream, streams))

    def __enter__(self) -> Self:
        top = scopes.current()
        undo: list[Callable[[], None]] = []
        try:
            for stream in self.streams:
                left = _enter_queue(stream)
                if left is not None:
                    undo.append(left)
                    # Entering a stream changed the driver's device; restore that.
                    kind = stream.interface
                    kind.exchange_device(scopes.current_index(kind.name))
        except BaseException:
            _run_all(undo)
            raise
        ambient = {**top.streams, **{stream.device: stream for stream in self.streams}}
        scopes.push(self, top.device, ambient, (lambda: _run_all(undo)) if undo else None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        undo = scopes.pop_frame(self).undo
        if undo is not None:
            undo()


def set_stream(stream: Stream) -> None:
    """Make `stream` and its device current, until the enclosing guard ends.

    Prefer the guard ``with nbrt.stream(...)``.
    """
    chosen = checked_stream(stream)
    if chosen.interface.capabilities.driver_state:
        chosen.interface.enter_queue(chosen.queue)
    top = scopes.current()
    scopes.replace(chosen.device, {**top.streams, chosen.device: chosen})


def _exchange(interface: DeviceInterface, index: int) -> Callable[[], None] | None:
    # Before initialisation the driver has no state, and a change would create a context.
    if not interface.lazy.is_ready:
        return None
    before = interface.exchange_device(index)

    def undo() -> None:
        interface.maybe_exchange_device(before)

    return undo


def _enter_queue(stream: Stream) -> Callable[[], None] | None:
    if not stream.interface.capabilities.driver_state:
        return None
    return stream.interface.enter_queue(stream.queue)


def _run_all(undo: list[Callable[[], None]]) -> None:
    for function in reversed(undo):
        function()
