"""`Launch`: a dispatcher with a launch configuration; a call launches the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba.cuda.cudadrv.devicearray import DeviceNDArray
from numba.cuda.dispatcher import _LaunchConfiguration

from nbrt.compat.numba_cuda.arguments import PLAIN, prepared, view_of
from nbrt.compat.numba_cuda.driver.handles import CUstream
from nbrt.runtime.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.compat.numba_cuda.dispatcher import Dispatcher
    from nbrt.compat.numba_cuda.driver.streams import Streams
    from nbrt.runtime.configured_kernel import ConfiguredKernel

__all__ = ["CoreStream", "Launch"]


class CoreStream:
    """A stream by its handle, as ``cuda.core.Stream`` is one."""

    __slots__ = ("handle", "owner")

    def __init__(self, handle: Any, owner: object = None) -> None:
        self.handle = handle
        self.owner = owner

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return (protocol version, handle)."""
        return 0, int(self.handle)

    def __int__(self) -> int:
        return int(self.handle)

    @classmethod
    def of(cls, stream: Any, streams: Streams) -> CoreStream:
        """Return the stream of a launch configuration.

        Parameters
        ----------
        stream : object
            0 or None, a stream of numba-cuda or nbrt, or an object with ``__cuda_stream__``.
        streams : Streams
            The streams of the driver.
        """
        if isinstance(stream, cls):
            return stream
        if stream is None or (isinstance(stream, int) and stream == 0):
            return cls(CUstream(0))
        if isinstance(stream, Stream):
            return cls(streams.handle_of(stream), stream)
        if hasattr(stream, "__cuda_stream__"):
            return cls(CUstream(stream.__cuda_stream__()[1]), stream)
        raise TypeError(f"Expected a Stream object or 0, got {type(stream).__name__}")


class Launch(_LaunchConfiguration):  # type: ignore[misc]  # numba-cuda is not annotated
    """A kernel with grid, block, stream and dynamic shared memory.

    Attributes
    ----------
    dispatcher : Dispatcher
        The kernel.
    griddim, blockdim : tuple of int
        As (x, y, z).
    stream : CoreStream
        The stream.
    sharedmem : int
        Bytes of dynamic shared memory.
    pre_launch_callbacks : list of callable
        Called with the compiled kernel and the configuration before each launch.
    """

    dispatcher: Dispatcher
    stream: CoreStream

    def __init__(
        self, dispatcher: Dispatcher, griddim: Any, blockdim: Any, stream: Any, sharedmem: int
    ) -> None:
        super().__init__(dispatcher, griddim, blockdim, stream, sharedmem)
        self._streams = dispatcher.binding.streams
        self._contexts = dispatcher.binding.contexts
        self._handle = int(self.stream.handle)
        self._configured: dict[Stream, ConfiguredKernel] = {}
        self._is_plain = dispatcher.is_plain

    def __call__(self, *args: Any) -> None:
        """Launch; raise what a CUDA launch with these arguments would."""
        __tracebackhide__ = True
        if not self._is_plain or self.pre_launch_callbacks:
            self.dispatcher.call(args, self)
            return
        values = []
        for value in args:
            if type(value) is DeviceNDArray:
                try:
                    values.append(value._nbrt_view)
                except AttributeError:
                    values.append(view_of(value))
            elif type(value) in PLAIN:
                values.append(value)
            else:
                self.dispatcher.call(args, self)
                return
        self._launch(values)

    def _launch(self, values: list[Any]) -> Stream:
        stream = self._streams.ordered(self._handle)
        configured = self._configured.get(stream)
        if configured is None:
            kernel = self.dispatcher.kernel
            configured = kernel[self.griddim, self.blockdim, stream, self.sharedmem]
            self._configured[stream] = configured
        try:
            configured(*values)
        except Exception as error:
            self.dispatcher.raise_as_numba(error)
            raise
        return stream

    def launch(self, args: tuple[Any, ...]) -> None:
        """Launch with arguments of all kinds; wait if host arrays are among them."""
        after: list[Callable[[], object]] = []
        waits: list[bool] = []
        values = [prepared(value, after, waits) for value in args]
        stream = self._launch(values)
        if waits:
            stream.synchronize()
        for function in after:
            function()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        for name in ("_streams", "_contexts", "_configured"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._streams = self.dispatcher.binding.streams
        self._contexts = self.dispatcher.binding.contexts
        self._configured = {}
