"""`NumbaKernel`: a loaded kernel, and its launches.

The usual launch packs the arguments and passes them to the driver (`packing`). Debug kernels,
argument extensions, named tuples, enums and dates use numba-cuda's ``_Kernel.launch``.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.packing import ArgumentPacker, parameters_of, shapes_of
from nbrt.errors import CaptureError

if TYPE_CHECKING:
    from nbrt.backends.cuda.numba_compiler import NumbaCudaCompiler
    from nbrt.backends.cuda.queues import CudaQueue
    from nbrt.typing import Dim3

__all__ = ["NumbaKernel"]


class NumbaKernel:
    """A compiled kernel on one device, as a `LoadedKernel`."""

    def __init__(self, compiler: NumbaCudaCompiler, kernel: Any, loaded: Any) -> None:
        self._driver = compiler.driver
        self._kernel = kernel
        # The library object keeps the loaded module alive.
        self._loaded = loaded
        self._function = self._driver.function_of(loaded.handle)
        self.max_threads_per_block = int(loaded.attrs.maxthreads)
        self.static_shared = int(loaded.attrs.shared)
        self._allowed = 0
        self._shapes = shapes_of(kernel.argument_types)
        is_plain = not (kernel.debug or kernel.extensions or kernel.launch_config_sensitive)
        self._packer: ArgumentPacker | None = None
        if compiler.is_packed and is_plain and self._shapes is not None:
            self._packer = ArgumentPacker(code for shape in self._shapes for code in shape.codes)
        self._launch = (
            self._driver.launch_cooperative if kernel.cooperative else self._driver.launch
        )

    @property
    def is_packed(self) -> bool:
        """Whether launches pack the arguments and call the driver directly."""
        return self._packer is not None

    def allow_shared(self, nbytes: int) -> None:
        """Opt in to more than 48 KiB of dynamic shared memory."""
        if nbytes > self._allowed:
            self._driver.allow_shared(self._function, nbytes)
            self._allowed = nbytes

    def launch(
        self, queue: CudaQueue, grid: Dim3, block: Dim3, shared: int, args: tuple[Any, ...]
    ) -> None:
        """Enqueue a launch."""
        packer, shapes = self._packer, self._shapes
        if packer is None or shapes is None:
            self._check_capture(queue)
            stream = core_stream(queue)
            # Extensions get the arguments as they are.
            if not self._kernel.extensions:
                args = self._for_numba(args)
            self._kernel.launch(args, grid, block, stream, shared)
            return
        packed = packer.pack(parameters_of(shapes, args))
        try:
            self._launch(self._function, grid, block, shared, queue.handle, packed.address)
        finally:
            packer.release(packed)
        if queue.capture is not None:
            queue.capture.add_layout(queue, shapes)

    def _check_capture(self, queue: CudaQueue) -> None:
        if queue.capture is not None and self._kernel.debug:
            raise CaptureError(
                f"expected a kernel without debug checks in a capture, got one with debug=True, "
                f"whose launches wait for their error code; compile {self._kernel.entry_name} "
                f"without it"
            )

    def _for_numba(self, argument: Any) -> Any:
        if isinstance(argument, self._driver.cupy.ndarray):
            return _argument_type()(argument)
        if isinstance(argument, tuple):
            return tuple(map(self._for_numba, argument))
        return argument


@functools.cache
def _argument_type() -> type:
    from numba.cuda.args import ArgHint

    class ArrayArgument(ArgHint):
        """A CuPy array as an argument of numba-cuda's own launch.

        numba-cuda makes a `cuda.core.utils.StridedMemoryView` of it, which raises OverflowError
        for a negative stride (cuda-core 1.2).
        """

        def to_device(self, retr: object, stream: object = 0) -> Any:
            array = self.value
            layout = SimpleNamespace(strides_in_bytes=array.strides)
            return SimpleNamespace(
                size=array.size,
                dtype=array.dtype,
                ptr=array.data.ptr,
                shape=array.shape,
                _layout=layout,
            )

    return ArrayArgument


def core_stream(queue: CudaQueue) -> Any:
    """Return the cuda-core stream of a queue, the only foreign stream that numba-cuda takes."""
    stream = queue.wrappers.get("cuda-core")
    if stream is None:
        from cuda.core import Stream

        stream = queue.wrappers.setdefault("cuda-core", Stream.from_handle(queue.handle))
    return stream
