"""Kernels on CUDA devices: checks of configurations and arguments, and launches."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cuda.compiler import with_defaults
from nbrt.backends.cuda.queues import CudaQueue
from nbrt.errors import ArgumentTypeError, DeviceMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nbrt.backends.captures import Captures
    from nbrt.backends.cuda.compiler import KernelCompiler, KernelSource, LoadedKernel
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.interface import DeviceProperties
    from nbrt.backends.queue import Queue
    from nbrt.typing import Dim3

__all__ = ["CudaPlan", "CudaProgram"]

_STATIC_SHARED = 48 * 1024
"""Bytes of dynamic shared memory that a kernel may use without an opt-in."""


class CudaProgram:
    """A kernel for CUDA devices.

    Parameters
    ----------
    driver : Driver
        CUDA.
    compiler : KernelCompiler
        Its compiler.
    function : callable
        The kernel, or a dispatcher of it.
    properties : callable
        Returns the properties of a device.
    adopt : callable
        Returns a CuPy array over another library's device array.
    """

    def __init__(
        self,
        driver: Driver,
        compiler: KernelCompiler,
        function: Callable[..., object],
        properties: Callable[[int], DeviceProperties],
        adopt: Callable[[object], Any],
    ) -> None:
        self.driver = driver
        self.compiler = compiler
        self.function = function
        self.source: KernelSource = compiler.adopt(function)
        self.adopt = adopt
        self._properties = properties
        self._loaded: dict[tuple[int, Hashable], LoadedKernel] = {}

    @property
    def captures(self) -> Captures:
        """The captured values that the kernel is compiled with."""
        return self.source.captures

    def plan(self, index: int, grid: Dim3, block: Dim3, shared: int) -> CudaPlan:
        """Fix a configuration."""
        return CudaPlan(self, index, grid, block, shared, self._properties(index))

    def is_loaded(self, index: int, key: Hashable) -> bool:
        """Return whether the kernel for arguments of a key is loaded."""
        return (index, key) in self._loaded

    def loaded(self, index: int, key: Hashable, args: tuple[Any, ...]) -> LoadedKernel:
        """Return the kernel compiled for arguments of a key; call it with the device current."""
        kernel = self._loaded.get((index, key))
        if kernel is None:
            kernel = self._loaded.setdefault((index, key), self.source.compile(args))
        return kernel


class CudaPlan:
    """A kernel with its configuration on one device."""

    __slots__ = ("_index", "_kernels", "_program", "_properties", "block", "grid", "shared")

    def __init__(
        self,
        program: CudaProgram,
        index: int,
        grid: Dim3,
        block: Dim3,
        shared: int,
        properties: DeviceProperties,
    ) -> None:
        self._program = program
        self._index = index
        self.grid = grid
        self.block = block
        self.shared = shared
        self._properties = properties
        # Kernels for which this configuration is valid, by the key of their argument types.
        self._kernels: dict[Hashable, LoadedKernel] = {}

    @property
    def function(self) -> Callable[..., object]:
        """The kernel, or a dispatcher of it."""
        return self._program.function

    @property
    def captures(self) -> Captures:
        """The captured values that the kernel is compiled with."""
        return self._program.captures

    def launch(self, queue: Queue, *args: Any) -> None:
        """Check the arguments, compile for their types if necessary, and enqueue the launch."""
        if not isinstance(queue, CudaQueue) or queue.index != self._index:
            raise DeviceMismatchError(
                f"expected a stream of cuda:{self._index}, for which the launch was planned, got "
                f"{queue!r}; plan it for the stream's device"
            )
        key, args = self._checked(queue, args)
        driver = self._program.driver
        kernel = self._kernels.get(key)
        if kernel is not None and driver.is_current(self._index):
            kernel.launch(queue, self.grid, self.block, self.shared, args)
            return
        with driver.on_device(self._index):
            if kernel is None:
                # Loading may allocate memory, which a capture excludes.
                with driver.relaxed():
                    kernel = self._prepare(key, args)
            kernel.launch(queue, self.grid, self.block, self.shared, args)

    def prepare(self, args: tuple[Any, ...]) -> None:
        """Load the code for the types of host values, or compile it."""
        driver = self._program.driver
        key, args = self._checked(None, tuple(map(self._stand_in, args)))
        if key not in self._kernels:
            with driver.on_device(self._index), driver.relaxed():
                self._prepare(key, args)

    def is_prepared(self, queue: Any, args: tuple[Any, ...]) -> bool:
        """Return whether a launch with the arguments compiles and loads nothing."""
        key, _ = self._checked(queue, args)
        return key in self._kernels or self._program.is_loaded(self._index, key)

    def _stand_in(self, example: Any) -> Any:
        """Return an array of the device, without memory, for a host array."""
        if isinstance(example, tuple):
            members = map(self._stand_in, example)
            return type(example)(*members) if hasattr(example, "_fields") else tuple(members)
        if not isinstance(example, np.ndarray):
            return example
        cupy = self._program.driver.cupy
        memory = cupy.cuda.UnownedMemory(0, example.nbytes, None, self._index)
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        try:
            return cupy.ndarray(example.shape, example.dtype, pointer, example.strides)
        except (TypeError, ValueError) as error:
            raise ArgumentTypeError(
                f"expected arrays of numbers for {self._program.source.name}, got one of "
                f"{example.dtype}, of which CuPy has no arrays"
            ) from error

    def _checked(
        self, queue: CudaQueue | None, args: tuple[Any, ...]
    ) -> tuple[Hashable, tuple[Any, ...]]:
        """Return the key of the arguments' types, and the arguments with foreign arrays adopted."""
        program = self._program
        if len(args) != len(program.source.parameter_names):
            args = with_defaults(program.source, args)
        array_type = program.driver.cupy.ndarray
        keys: list[Hashable] = []
        adopted: list[Any] | None = None
        for position, given in enumerate(args):
            argument = given
            key: Hashable | None = None
            if not isinstance(argument, array_type):
                key = program.compiler.key_of(argument)
                if key is None:
                    argument = self._foreign(queue, position, argument)
                    if argument is not given:
                        adopted = list(args) if adopted is None else adopted
                        adopted[position] = argument
            if isinstance(argument, array_type):
                key = self._array_key(position, argument)
            elif key is None:
                key = self._nested_key(position, argument)
            keys.append(key)
        return tuple(keys), args if adopted is None else tuple(adopted)

    def _array_key(self, position: int, array: Any) -> Hashable:
        if array.data.device_id != self._index:
            raise DeviceMismatchError(
                f"expected argument {position} ({self._names(position)}) on cuda:{self._index}, "
                f"where the kernel runs, got an array of cuda:{array.data.device_id}; copy it with "
                f"nbrt.to(array, 'cuda:{self._index}')"
            )
        # `flags` creates an object, 0.5 us per array and launch; it reads these attributes.
        return array.dtype.char, array.ndim, array._c_contiguous, array._f_contiguous

    def _nested_key(self, position: int, argument: Any) -> Hashable:
        if not isinstance(argument, tuple):
            kind: Hashable = argument.__class__
            return kind
        keys: list[Hashable] = [argument.__class__]
        for item in argument:
            if isinstance(item, self._program.driver.cupy.ndarray):
                keys.append(self._array_key(position, item))
            elif isinstance(item, np.ndarray):
                raise self._host_array(position)
            else:
                key = self._program.compiler.key_of(item)
                keys.append(self._nested_key(position, item) if key is None else key)
        return tuple(keys)

    def _foreign(self, queue: CudaQueue | None, position: int, argument: Any) -> Any:
        """Return a CuPy array over another library's array; other arguments unchanged."""
        if isinstance(argument, np.ndarray):
            raise self._host_array(position)
        if hasattr(argument, "__dlpack_device__") or hasattr(argument, "__cuda_array_interface__"):
            with contextlib.nullcontext() if queue is None else queue.entered():
                return self._program.adopt(argument)
        return argument

    def _host_array(self, position: int) -> DeviceMismatchError:
        return DeviceMismatchError(
            f"expected argument {position} ({self._names(position)}) on cuda:{self._index}, where "
            f"the kernel runs, got a NumPy array; copy it with nbrt.to(array, 'cuda:{self._index}')"
        )

    def _names(self, position: int) -> str:
        return self._program.source.parameter_names[position]

    def _prepare(self, key: Hashable, args: tuple[Any, ...]) -> LoadedKernel:
        """Compile, and check the configuration against the needs of the kernel."""
        program = self._program
        kernel = program.loaded(self._index, key, args)
        limit, static = kernel.max_threads_per_block, kernel.static_shared
        self._properties.check_kernel(program.source.name, self.block, self.shared, limit, static)
        if self.shared + kernel.static_shared > _STATIC_SHARED:
            kernel.allow_shared(self.shared)
        self._kernels[key] = kernel
        return kernel
