"""A stand-in for CuPy: NumPy's functions, on arrays in host memory that say where they are.

Only for runs of public programs, whose hosts call CuPy. An array is an `ndarray` of this module, so
that programs tell it from NumPy's arrays as they do with CuPy, and has
``__cuda_array_interface__``, through which numba-cuda and nbrt take it.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "asarray",
    "asnumpy",
    "cuda",
    "get_array_module",
    "is_available",
    "module_attribute",
    "ndarray",
]

__version__ = "13.0.0"
_MEMORY = 8 * 2**30


class ndarray(np.ndarray[Any, Any]):  # noqa: N801 (CuPy's name)
    """An array in host memory with CuPy's methods."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = dict(self.__array_interface__)
        interface["version"] = 3
        interface["stream"] = None
        return interface

    @property
    def device(self) -> Any:
        """The only device."""
        return cuda.Device(0)

    @property
    def data(self) -> Any:
        """The address of the first element, as attribute ``ptr``."""
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self, *arguments: Any, **options: Any) -> np.ndarray[Any, Any]:
        """Return a copy as NumPy's array."""
        del arguments, options
        return np.array(self.view(np.ndarray))

    def set(self, values: Any) -> None:
        """Copy NumPy's array into this one."""
        self[...] = values


def asnumpy(values: Any, *arguments: Any, **options: Any) -> Any:
    """Return a copy as NumPy's array."""
    del arguments, options
    return np.array(np.asarray(values).view(np.ndarray))


def asarray(values: Any, *arguments: Any, **options: Any) -> Any:
    """Return an array of this module with the values, in the same memory if it is one."""
    if isinstance(values, ndarray):
        return _array(np.asarray(values, *arguments, **options))
    return _array(np.array(values, *arguments, **options))


def get_array_module(*arrays: Any) -> Any:
    """Return this module if one of the arrays belongs to it, else NumPy."""
    return sys.modules[__name__] if any(isinstance(a, ndarray) for a in arrays) else np


def is_available() -> bool:
    """Return True: the stand-in is there."""
    return True


def _array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.view(ndarray)
    if isinstance(value, (tuple, list)) and any(isinstance(v, np.ndarray) for v in value):
        return (
            type(value)(*map(_array, value))
            if hasattr(value, "_fields")
            else type(value)(map(_array, value))
        )
    return value


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return _array(function(*arguments, **options))

    return call


def module_attribute(module: Any, name: str) -> Any:
    """Return what a module has under a name; a function: with results of this module."""
    if name.startswith("__"):
        raise AttributeError(name)
    found = getattr(module, name)
    plain = isinstance(found, (type, ModuleType)) or not callable(found)
    return found if plain else _wrapped(found)


def __getattr__(name: str) -> Any:
    return module_attribute(np, name)


def _submodule(name: str, module: Any) -> ModuleType:
    made = ModuleType(f"{__name__}.{name}")
    made.__dict__["__getattr__"] = functools.partial(module_attribute, module)
    sys.modules[made.__name__] = made
    return made


class Device:
    """The only device."""

    def __init__(self, number: int = 0) -> None:
        self.id = number

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *failure: object) -> None:
        pass

    def synchronize(self) -> None:
        """Do nothing: functions of this module return when they are done."""

    def use(self) -> None:
        """Do nothing: there is no other device."""


class Stream:
    """A stream of another library, or the default stream."""

    null: Stream

    def __init__(self, ptr: int = 0, **options: Any) -> None:
        del options
        self.ptr = ptr

    @classmethod
    def from_external(cls, stream: Any) -> Stream:
        """Return the stream with the handle of another library's."""
        return cls(int(stream.__cuda_stream__()[1]))

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *failure: object) -> None:
        pass

    def synchronize(self) -> None:
        """Do nothing: functions of this module return when they are done."""


class MemoryAsyncPool:
    """A pool whose blocks are arrays in host memory, kept for kernels that still run."""

    def __init__(self) -> None:
        self._blocks: list[Any] = []

    def malloc(self, size: int) -> SimpleNamespace:
        """Return a block with attribute ``ptr``."""
        block = np.empty(max(size, 1), np.uint8)
        self._blocks.append(block)
        return SimpleNamespace(ptr=block.ctypes.data, block=block)

    def free_all_blocks(self, stream: Any = None) -> None:
        """Do nothing: the pool keeps no blocks."""


class PinnedMemoryPointer:
    """The type of addresses of pinned memory, of which the stand-in makes none."""


def _cuda() -> ModuleType:
    made = ModuleType(f"{__name__}.cuda")
    Stream.null = Stream()
    made.__dict__.update(
        Device=Device,
        MemoryAsyncPool=MemoryAsyncPool,
        PinnedMemoryPointer=PinnedMemoryPointer,
        Stream=Stream,
        ExternalStream=Stream,
        get_current_stream=lambda: Stream.null,
        is_available=is_available,
        runtime=SimpleNamespace(
            getDeviceCount=lambda: 1, memGetInfo=lambda: (_MEMORY // 2, _MEMORY)
        ),
    )
    sys.modules[made.__name__] = made
    return made


cuda: Any = _cuda()
fft = _submodule("fft", np.fft)
linalg = _submodule("linalg", np.linalg)
random = _submodule("random", np.random)
testing = _submodule("testing", np.testing)
