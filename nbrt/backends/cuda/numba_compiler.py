"""numba-cuda as a `KernelCompiler`; with `cross_compiler` and `numba_kernel` it uses its internals.

Code that is in the code store is loaded by the driver alone.

Arguments have the types of this module, not those of numba-cuda's typing of arrays: 0.30.4 compares
strides in bytes with the item size in *bits* (``_typeof_cuda_array_interface_cached``), so it types
every eighth float32 of an array as a contiguous array and computes with the wrong elements.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import re
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nbrt.backends import in_flight
from nbrt.backends.argument_keys import INT64, UINT64, scalar_key
from nbrt.backends.captures import Captures
from nbrt.backends.cuda.cross_compiler import compiling_for, cross_compile, image_of, link_ptx
from nbrt.backends.cuda.device_functions import activate
from nbrt.backends.cuda.failures import translate_status
from nbrt.backends.cuda.image_loader import StoredKernel, load_function
from nbrt.backends.cuda.kernel_images import code_key, load_image, save_image, target_of
from nbrt.backends.cuda.numba_kernel import NumbaKernel
from nbrt.backends.cuda.numpy_loops import add_numpy_overloads, complete_numpy_loops
from nbrt.backends.cuda.packing import shapes_of
from nbrt.backends.fake_arguments import refuse_fake_array
from nbrt.backends.plain_messages import plain_messages
from nbrt.errors import (
    ArgumentTypeError,
    BackendUnavailableError,
    CompileError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from contextlib import AbstractContextManager
    from types import FunctionType

    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.kernel_images import KernelImage, Target

__all__ = ["NumbaCudaCompiler", "NumbaSource", "host_compiler"]

_PACKED_VERSION = (0, 30)
"""The numba-cuda version (major, minor) whose parameter layout `packing` has."""


class NumbaCudaCompiler:
    """numba-cuda as a `KernelCompiler`.

    Parameters
    ----------
    driver : Driver
        CUDA.
    """

    def __init__(self, driver: Driver) -> None:
        # Importing numba.cuda initialises nothing but is slow.
        from numba import cuda
        from numba.cuda.dispatcher import CUDADispatcher

        version = importlib.metadata.version("numba-cuda").split(".")
        self.driver = driver
        self.is_packed = tuple(map(int, version[:2])) == _PACKED_VERSION
        self.cuda: Any = cuda
        self._dispatcher: Any = CUDADispatcher
        self._adopted: weakref.WeakSet[Any] = weakref.WeakSet()
        self._targets: dict[int, Target] = {}

    def adopt(self, function: Callable[..., object]) -> NumbaSource:
        """Return the source of a plain function or of a ``cuda.jit`` dispatcher."""
        if isinstance(function, self._dispatcher):
            dispatcher: Any = function
            if dispatcher.targetoptions.get("device"):
                raise ArgumentTypeError(
                    f"expected a kernel, got the device function "
                    f"{dispatcher.py_func.__qualname__}; leave out device=True"
                )
            # A new dispatcher: the given one may have compiled other captured values, and explicit
            # signatures convert or refuse arguments.
            captures = Captures(dispatcher.py_func)
            own = self._dispatcher(captures.frozen, targetoptions=dispatcher.targetoptions)
            if dispatcher not in self._adopted:
                # numba-cuda's disk cache ignores captured values: it is valid for the first ones,
                # as without nbrt.
                self._adopted.add(dispatcher)
                own._cache = dispatcher._cache
            return NumbaSource(self, own, captures)
        if not inspect.isfunction(function):
            raise ArgumentTypeError(
                f"expected a Python function or a cuda.jit dispatcher, got {function!r} of type "
                f"{type(function).__name__}"
            )
        captures = Captures(function)
        return NumbaSource(self, self.cuda.jit(captures.frozen), captures)

    def adopt_function(self, function: FunctionType, options: dict[str, Any]) -> NumbaSource:
        """Return the source of a plain function with the compiler options of a dispatcher."""
        captures = Captures(function)
        dispatcher = self._dispatcher(captures.frozen, targetoptions=options)
        return NumbaSource(self, dispatcher, captures)

    def current_target(self) -> Target:
        """Return the target of launches on the current device."""
        index = self.driver.get_device()
        target = self._targets.get(index)
        if target is None:
            properties = self.driver.properties(index)
            capability = int(properties["major"]), int(properties["minor"])
            target = self._targets[index] = target_of(capability)
        return target

    def prepare(self, captures: Captures, target: Target) -> None:
        """Prepare numba-cuda for compiling a kernel; see `activate`."""
        complete_numpy_loops()
        add_numpy_overloads()
        activate(captures, target)

    def key_of(self, argument: object) -> Hashable | None:
        """Return a key of the type of a scalar; None for other arguments."""
        return scalar_key(argument)

    def type_of(self, argument: Any) -> Any:
        """Return numba's type of a kernel argument.

        Raises
        ------
        TypeError
            If kernels cannot take it.
        """
        from numba.cuda import types
        from numba.cuda.np.numpy_support import from_dtype
        from numba.cuda.typing.typeof import Purpose, typeof

        if isinstance(argument, self.driver.cupy.ndarray):
            flags = argument.flags
            layout = "C" if flags.c_contiguous else ("F" if flags.f_contiguous else "A")
            return types.Array(from_dtype(argument.dtype), argument.ndim, layout)
        if isinstance(argument, tuple):
            # A named tuple has a type with attributes.
            members = tuple(map(self.type_of, argument))
            return types.BaseTuple.from_types(members, type(argument))
        if type(argument) is int and argument not in INT64 and argument not in UINT64:
            message = f"{argument} has more than 64 bits"
            raise TypeError(message)
        try:
            kind = typeof(argument, Purpose.argument)
        except (ValueError, NotImplementedError) as error:
            raise TypeError(str(error)) from error
        # The types that _Kernel._prepare_args passes, without those in host memory.
        dates = (types.NPDatetime, types.NPTimedelta)
        if not isinstance(kind, (types.Number, types.Boolean, types.EnumMember, *dates)):
            message = f"kernels cannot take a {type(argument).__name__}"
            raise TypeError(message)
        return kind


def _plain_messages() -> AbstractContextManager[None]:
    """Let numba-cuda write its errors without terminal colours."""
    from numba.core import errors
    from numba.cuda.core import errors as cuda_errors

    return plain_messages(errors, cuda_errors)


class NumbaSource:
    """A numba-cuda dispatcher as a `KernelSource`."""

    def __init__(self, compiler: NumbaCudaCompiler, dispatcher: Any, captures: Captures) -> None:
        self.captures = captures
        self._compiler = compiler
        self._dispatcher = dispatcher
        self._function = dispatcher.py_func
        self._target: Target | None = None
        self.name = str(self._function.__qualname__)
        self.parameter_names = tuple(inspect.signature(self._function).parameters)
        self.defaults: tuple[Any, ...] = self._function.__defaults__ or ()

    def compile(self, args: tuple[Any, ...]) -> NumbaKernel:
        """Compile for the types of `args`, and load on the current device.

        Code in the code store is loaded without the compiler.
        """
        types, target = self.types_of(args), self._compiler.current_target()
        key = self.key(types, target)
        with in_flight.joined(key):
            kernel = None if key is None else self._load(key, types)
            if kernel is None:
                kernel = self._compile(types, target, key)
        if not self.captures.holds():
            # The compiler, or the key, may have read new values of device functions and modules.
            self.captures.expire()
        return kernel

    def signature(self, args: tuple[Any, ...]) -> str:
        """Return the kernel's name, its parameters and the types of `args`.

        Raises
        ------
        ArgumentTypeError
            If kernels cannot take an argument of such a type.
        """
        return self._described(self.types_of(args))

    def compile_ptx(self, args: tuple[Any, ...], capability: tuple[int, int]) -> str:
        """Return the PTX for the types of `args`."""
        types, target = self.types_of(args), (*capability, "")
        key = self.key(types, target)
        image = None if key is None else load_image(key)
        if image is None or image.ptx is None:
            image = self._cross_compile(types, target, key, is_linked=False)
        assert image.ptx is not None
        return image.ptx

    def compile_code(self, types: tuple[Any, ...], target: Target) -> str | None:
        """Compile into the code store, for launches on devices of a target; needs no device.

        Returns
        -------
        str or None
            The key; None if the store cannot hold the code.
        """
        key = self.key(types, target)
        if key is not None and load_image(key) is None:
            self._cross_compile(types, target, key, is_linked=True)
        return key

    def key(self, types: tuple[Any, ...], target: Target) -> str | None:
        """Return the key of the code for launches, or None if the store cannot hold it."""
        if not self._is_storable(types):
            return None
        return code_key(self.captures, self._dispatcher, types, target)

    def on_host(self) -> NumbaSource:
        """Return the kernel for NumPy arrays in the place of device arrays."""
        return NumbaSource(host_compiler(), self._dispatcher, self.captures)

    @property
    def options(self) -> dict[str, Any]:
        """The compiler options."""
        options: dict[str, Any] = self._dispatcher.targetoptions
        return options

    def _is_storable(self, types: tuple[Any, ...]) -> bool:
        """Return whether launches need no more of numba-cuda than the code."""
        return self._compiler.is_packed and shapes_of(types) is not None

    def _load(self, key: str, types: tuple[Any, ...]) -> NumbaKernel | None:
        """Return the stored kernel, loaded on the current device; None if there is none."""
        image = load_image(key)
        if image is None or (image.cubin is None and not image.is_whole):
            return None
        driver = self._compiler.driver
        try:
            if image.cubin is None:
                image = replace(image, cubin=link_ptx(image))
                save_image(key, self.name, types, image)
            loaded = load_function(driver, image)
        except Exception:  # noqa: BLE001  # the driver refuses the code: compile
            return None
        kernel = StoredKernel(image.entry_name, types, image.is_cooperative)
        return NumbaKernel(self._compiler, kernel, loaded)

    def _compile(self, types: tuple[Any, ...], target: Target, key: str | None) -> NumbaKernel:
        """Compile for the current device, and load; store the code under the key."""
        from numba.cuda.core.compiler_lock import global_compiler_lock

        dispatcher, image = self._dispatcher, None
        try:
            # numba-cuda locks its compilation but not its loading: two threads that bind one
            # library would race in its tables.
            with global_compiler_lock, _plain_messages():
                self._compiler.prepare(self.captures, target)
                if self._target not in (None, target):
                    # numba-cuda would link the code that it compiled for another capability.
                    dispatcher.overloads.clear()
                self._target = target
                is_new = key is not None and types not in dispatcher.overloads
                with _without_cache(dispatcher) if is_new else nullcontext():
                    kernel = dispatcher.compile(types)
                # numba-cuda binds a kernel only to the device of its first compilation.
                kernel.bind()
                loaded = kernel.library.get_cufunc()
                if is_new:
                    image = image_of(kernel, target, dispatcher.targetoptions.get("max_registers"))
        except Exception as error:
            raise self._as_compile_error(error, types) from error
        if image is not None and image.cubin is not None:
            self._save(key, types, replace(image, ptx=None))
        return NumbaKernel(self._compiler, kernel, loaded)

    def _cross_compile(
        self, types: tuple[Any, ...], target: Target, key: str | None, *, is_linked: bool
    ) -> KernelImage:
        """Compile for a target without a device; store the code under the key."""
        from numba.cuda.core.compiler_lock import global_compiler_lock

        try:
            with global_compiler_lock, _plain_messages(), compiling_for(target):
                self._compiler.prepare(self.captures, target)
                image = cross_compile(self._dispatcher, types, target, is_linked=is_linked)
        except Exception as error:
            raise self._as_compile_error(error, types) from error
        self._save(key, types, image if image.cubin is None else replace(image, ptx=None))
        return image

    def _save(self, key: str | None, types: tuple[Any, ...], image: KernelImage) -> None:
        """Store code, unless the compiler may have read other values than the key has."""
        if key is not None and key == self.key(types, image.target) and self.captures.holds():
            save_image(key, self.name, types, image)

    def types_of(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the types of arguments.

        Raises
        ------
        ArgumentTypeError
            If kernels cannot take an argument of such a type.
        """
        types = []
        for position, argument in enumerate(args):
            try:
                types.append(self._compiler.type_of(argument))
            except TypeError as error:
                name = f"{self.parameter_names[position]!r} of {self.name}"
                refuse_fake_array(argument, name, "cuda")
                raise ArgumentTypeError(
                    f"expected argument {position} ({self.parameter_names[position]}) of "
                    f"{self.name} to be an array, a number or a tuple of them, got "
                    f"{argument!r} of type {type(argument).__name__}: {error}"
                ) from error
        return tuple(types)

    def _as_compile_error(self, error: Exception, types: tuple[Any, ...]) -> Exception:
        from cuda.pathfinder import DynamicLibNotFoundError
        from numba.cuda.core.errors import NumbaError
        from numba.cuda.cudadrv.driver import CudaAPIError
        from numba.cuda.cudadrv.error import CCSupportError, CudaSupportError, NvvmSupportError

        if isinstance(error, (DynamicLibNotFoundError, NvvmSupportError, CudaSupportError)):
            return BackendUnavailableError(
                f"expected CUDA's compiler libraries (NVVM, NVRTC), got {error}; install them with "
                f'pip install "nbrt[cuda12]" or "nbrt[cuda13]"'
            )
        if isinstance(error, CCSupportError):
            return BackendUnavailableError(
                f"expected a compute capability that the installed CUDA compiles for, got {error}; "
                f"7.0 needs CUDA 12, and new ones a newer CUDA than this"
            )
        if isinstance(error, CudaAPIError):
            return translate_status(int(error.code), str(error), f"loading {self.name}")
        # numba-cuda raises plain Python errors for some mistakes in a kernel: all other errors are
        # the kernel's.
        code = self._function.__code__
        line = _line_in(str(error), code.co_filename) or code.co_firstlineno
        detail = str(error).strip() if isinstance(error, NumbaError) else repr(error)
        return CompileError(
            f"expected {self._described(types)} to compile for CUDA, got an error at "
            f"{code.co_filename}:{line}\n{detail}"
        )

    def _described(self, types: tuple[Any, ...]) -> str:
        named = (f"{name}: {kind}" for name, kind in zip(self.parameter_names, types, strict=False))
        return f"{self.name}({', '.join(named)})"


@functools.cache
def host_compiler() -> NumbaCudaCompiler:
    """Return a compiler for which NumPy arrays stand for device arrays; it cannot load kernels."""
    # Before it loads a kernel, the compiler needs only the array class of a driver.
    return NumbaCudaCompiler(cast("Driver", SimpleNamespace(cupy=np)))


@contextmanager
def _without_cache(dispatcher: Any) -> Iterator[None]:
    """Compile without numba-cuda's disk cache, in whose key dependencies are missing."""
    from numba.cuda.core.caching import NullCache

    before, dispatcher._cache = dispatcher._cache, NullCache()
    try:
        yield
    finally:
        dispatcher._cache = before


def _line_in(text: str, filename: str) -> int | None:
    """Return the last line of the kernel's file in an error text of numba."""
    ending = re.escape(filename.rsplit("/", 1)[-1])
    lines = re.findall(rf'{ending}"?(?:, line |\s\()(\d+)', text)
    return int(lines[-1]) if lines else None
