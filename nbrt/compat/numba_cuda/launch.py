"""`Launch`: a dispatcher with a launch configuration; a call launches the kernel."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from cuda.core._utils.cuda_utils import CUDAError
from numba.cuda.cudadrv import driver
from numba.cuda.cudadrv.driver import CudaAPIError
from numba.cuda.cudadrv.error import CudaDriverError
from numba.cuda.dispatcher import _LaunchConfiguration

from nbrt.backends.cpu.simt.prepared import PreparedArgument
from nbrt.compat.numba_cuda.arguments import prepared
from nbrt.compat.numba_cuda.debug import debug_error
from nbrt.compat.numba_cuda.driver.handles import CUstream
from nbrt.compat.numba_cuda.driver.results import DriverCallError, api_error, stream_error_code
from nbrt.compat.numba_cuda.driver.streams import LEGACY, PER_THREAD
from nbrt.compat.numba_cuda.fast_launch import COMPILE_HOOK, fast_launch
from nbrt.errors import ArgumentTypeError, ForkedProcessError, LaunchError, StreamError
from nbrt.runtime.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.compat.numba_cuda.dispatcher import Dispatcher
    from nbrt.compat.numba_cuda.driver.streams import Streams
    from nbrt.runtime.configured_kernel import ConfiguredKernel

__all__ = ["CoreStream", "Launch", "LaunchConfigurationError"]


class LaunchConfigurationError(LaunchError, CUDAError, CudaAPIError):  # type: ignore[misc]
    """A kernel cannot run with a launch configuration.

    Attributes
    ----------
    code : CUresult
        ``CUDA_ERROR_INVALID_VALUE``.
    msg : str
        The text.
    """

    def __init__(self, text: str) -> None:
        code = driver.binding.CUresult.CUDA_ERROR_INVALID_VALUE
        CudaAPIError.__init__(self, code, f"CUDA_ERROR_INVALID_VALUE: {text}")


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
        self._bind()

    def _bind(self) -> None:
        binding = self.dispatcher.binding
        self._handle = int(self.stream.handle)
        self._streams, self._contexts = binding.streams, binding.contexts
        self._configured: dict[Stream, ConfiguredKernel] = {}
        self._names = vars(self.dispatcher)

    def __call__(self, *args: Any) -> None:
        """Launch; raise what a CUDA launch with these arguments would."""
        __tracebackhide__ = True
        self.launch_slowly(args)
        if self.dispatcher.is_plain:
            self._become_fast(len(args))

    def launch_slowly(self, args: tuple[Any, ...]) -> None:
        """Launch with arguments of all kinds, and with what the program wants called."""
        dispatcher = self.dispatcher
        if dispatcher.is_selected and not (
            self.pre_launch_callbacks or COMPILE_HOOK in self._names
        ):
            try:
                self.launch(args)
            except ArgumentTypeError:
                pass
            else:
                return
        dispatcher.call(args, self)  # raises the error of numba-cuda, if it has one

    def _become_fast(self, count: int) -> None:
        """Let later launches run less code, if all are on the same stream."""
        if self._contexts.count() != 1 or self._handle == PER_THREAD:
            return
        stream = self._streams.ordered(self._handle)
        self._busy = self._streams.busy.setdefault(stream.device, set())
        self._submit = self._configured.get(stream) or self._configure(stream)
        is_default = self._handle in (0, LEGACY)
        self._order: Callable[[], object] = (
            functools.partial(self._streams.ordered, self._handle)
            if is_default
            else functools.partial(self._streams.note, stream)
        )
        self.__class__ = _fast_class(count, is_default=is_default)

    def _launch(self, values: list[Any]) -> Stream:
        try:
            stream = self._streams.ordered(self._handle)
            configured = self._configured.get(stream)
            if configured is None:
                configured = self._configured[stream] = self._configure(stream)
            configured(*values)
        except Exception as error:
            self.raise_as_numba(error)
            raise
        self._streams.submitted(stream)
        return stream

    def raise_as_numba(self, error: Exception) -> None:
        """Raise numba-cuda's exception for one of a launch; return if it has none."""
        self.dispatcher.raise_as_numba(error)
        if isinstance(error, DriverCallError):
            raise api_error(error.code, "cuLaunchKernel") from error
        if isinstance(error, ForkedProcessError):
            raise CudaDriverError("CUDA initialized before forking") from error
        cause = error.__cause__ if isinstance(error, StreamError) else error
        if self.dispatcher.is_debug and isinstance(cause, Exception):
            other = debug_error(cause)
            if other is not None:
                raise other from cause
        if isinstance(error, StreamError):
            raise api_error(stream_error_code(error), "cuStreamSynchronize", error) from cause
        if isinstance(error, LaunchError) and not isinstance(error, LaunchConfigurationError):
            raise LaunchConfigurationError(str(error)) from error

    def _configure(self, stream: Stream) -> ConfiguredKernel:
        threads, most = math.prod(self.blockdim), self.dispatcher.max_block
        if most is not None and threads > most:
            raise LaunchConfigurationError(
                f"expected at most {most} threads in a block, as launch_bounds of the kernel "
                f"declares, got {threads}"
            )
        try:
            return self.dispatcher.kernel[self.griddim, self.blockdim, stream, self.sharedmem]
        except LaunchError as error:
            raise LaunchConfigurationError(str(error)) from error

    def launch(self, args: tuple[Any, ...], types: Sequence[Any] = ()) -> None:
        """Launch with arguments of all kinds; wait if host arrays are among them.

        Parameters
        ----------
        args : tuple
            The arguments.
        types : sequence of numba types
            The types of their version, for the dispatcher's extensions.
        """
        after: list[Callable[[], object]] = []
        waits: list[Any] = []
        kernel_types = types
        for extension in reversed(self.dispatcher.extensions or ()):
            pairs = [
                extension.prepare_args(typ, value, stream=self.stream, retr=after)
                for typ, value in zip(types, args, strict=True)
            ]
            types, args = [typ for typ, _ in pairs], tuple(value for _, value in pairs)
        # With `debug`, nothing comes back from a kernel that raises.
        copies = self.dispatcher.is_debug
        values = [prepared(value, after, waits, copies=copies) for value in args]
        if self.dispatcher.extensions:
            given = zip(kernel_types, types, values, strict=True)
            values = [
                value if typ == kernel_type else PreparedArgument(kernel_type, typ, value)
                for kernel_type, typ, value in given
            ]
        stream = self._launch(values)
        if waits or after or self.dispatcher.is_debug:
            try:
                stream.synchronize()
            except Exception as error:
                self.raise_as_numba(error)
                raise
        for function in after:
            function()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state: dict[str, Any] = super().__getstate__()
        for name in _STATE_OF_LAUNCHES & state.keys():
            del state[name]
        return _new_launch, (), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._bind()


_STATE_OF_LAUNCHES = {
    "_busy", "_configured", "_contexts", "_handle", "_names", "_order", "_streams", "_submit",
}  # fmt: skip


def _new_launch() -> Launch:
    """Return a launch without its state, for `pickle`."""
    return object.__new__(Launch)


@functools.cache
def _fast_class(count: int, *, is_default: bool) -> type[Launch]:
    """Return the class of launches with a number of arguments; see `fast_launch`."""
    members = {"__module__": __name__, "__call__": fast_launch(count, is_default=is_default)}
    return type("Launch", (Launch,), members)
