"""What stands for ``numba.cuda`` while a kernel runs in plain Python."""

from __future__ import annotations

import functools
import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cpu.interpret.arrays import Array, SharedArray
from nbrt.backends.cpu.interpret.atomics import Atomic
from nbrt.backends.cpu.interpret.collectives import WARP, Request
from nbrt.backends.cpu.interpret.scalars import HALF, LIBDEVICE, SCALARS
from nbrt.errors import UnsupportedConstructError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from nbrt.backends.cpu.interpret.scheduler import Scheduler
    from nbrt.typing import Dim3

__all__ = ["Cuda"]

_FULL_MASK = 0xFFFFFFFF
_VECTOR = re.compile(r"((?:u?int|float)\d+)x([1-4])")
_AXES = ("x", "y", "z", "w")


class _Dim3:
    """Three sizes or indices; `read` gives them for the thread that asks."""

    def __init__(self, read: Callable[[], Dim3]) -> None:
        self._read = read

    # 64 bits, the type that compiled code computes with.
    x = property(lambda self: np.int64(self._read()[0]))
    y = property(lambda self: np.int64(self._read()[1]))
    z = property(lambda self: np.int64(self._read()[2]))

    def __repr__(self) -> str:
        return str(self._read())


class _Vector:
    """A vector type such as ``float32x4``: its values by name."""

    def __init__(self, kind: Any, length: int, parts: tuple[Any, ...]) -> None:
        values = [
            value
            for part in parts
            for value in (part._values() if isinstance(part, _Vector) else [part])
        ]
        for axis, value in zip(_AXES[:length], values, strict=True):
            setattr(self, axis, kind(value))

    def _values(self) -> list[Any]:
        return [getattr(self, axis) for axis in _AXES if hasattr(self, axis)]

    def __repr__(self) -> str:
        return f"({', '.join(map(str, self._values()))})"


class _Table:
    """A namespace of functions, with an error of ours for what is not in it."""

    def __init__(self, name: str, functions: dict[str, Callable[..., Any]]) -> None:
        self._name = name
        self._functions = functions

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found = self._functions.get(name.lstrip("_"))
        if found is None:
            raise UnsupportedConstructError(
                f"cuda.{self._name}.{name} has no meaning in plain Python here; run the kernel "
                f"compiled, without NBRT_INTERPRET"
            )
        return found


class _Shared:
    def __init__(self, scheduler: Callable[[], Scheduler]) -> None:
        self._scheduler = scheduler

    def array(self, shape: Any, dtype: Any, alignment: Any = None) -> Any:
        """Return the block's array for this place in the code; shape 0: its dynamic memory."""
        block = self._scheduler().current.block
        kind = _dtype(dtype)
        if np.prod(shape) == 0:
            count = block.dynamic.size // kind.itemsize
            return block.dynamic[: count * kind.itemsize].view(kind).view(SharedArray)
        frame: FrameType = sys._getframe(1)
        place = (id(frame.f_code), frame.f_lasti)
        if place not in block.arrays:
            block.arrays[place] = np.zeros(shape, kind).view(SharedArray)
        return block.arrays[place]


class _Local:
    @staticmethod
    def array(shape: Any, dtype: Any, alignment: Any = None) -> Any:  # noqa: ARG004
        """Return an array of the thread's own."""
        return np.zeros(shape, _dtype(dtype)).view(Array)


class _Const:
    @staticmethod
    def array_like(array: Any) -> Any:
        """Return the array: it is not written to."""
        return array


class _Grid:
    def __init__(self, wait: Callable[[Request], Any]) -> None:
        self._wait = wait

    def sync(self) -> None:
        """Wait for all threads of the grid."""
        self._wait(Request("grid", "this_grid().sync()"))


class _Cooperative:
    def __init__(self, wait: Callable[[Request], Any]) -> None:
        self._wait = wait

    def this_grid(self) -> _Grid:
        """Return the group of all threads."""
        return _Grid(self._wait)


def _dtype(kind: Any) -> np.dtype[Any]:
    """Return the NumPy dtype of a NumPy dtype or of a type of Numba's."""
    if isinstance(kind, (str, type, np.dtype)):
        return np.dtype(kind)
    record = getattr(kind, "dtype", None)
    return np.dtype(record if isinstance(record, np.dtype) else _as_dtype(kind))


def _as_dtype(kind: Any) -> Any:
    from numba.np.numpy_support import as_dtype

    try:
        return as_dtype(kind)
    except NotImplementedError:
        return str(kind)  # a type of numba-cuda's own


class Cuda:
    """The module ``numba.cuda`` as a kernel sees it, for whichever thread runs at the time.

    Parameters
    ----------
    module : module
        The real one, for the names that are no builtins, such as types.
    grid, block : tuple of int
        The launch.
    substitute : callable
        Gives what stands for a value of the real module.
    """

    warpsize = WARP
    atomic = Atomic
    local = _Local
    const = _Const
    fp16 = _Table("fp16", HALF)
    libdevice = _Table("libdevice", LIBDEVICE)

    def __init__(
        self, module: Any, grid: Dim3, block: Dim3, substitute: Callable[[Any], Any]
    ) -> None:
        self._module = module
        self._substitute = substitute
        self._sizes = (grid, block)
        self.scheduler: Scheduler
        self.threadIdx = _Dim3(lambda: self.scheduler.current.index)
        self.blockIdx = _Dim3(lambda: self.scheduler.current.block.index)
        self.blockDim = _Dim3(lambda: block)
        self.gridDim = _Dim3(lambda: grid)
        self.shared = _Shared(lambda: self.scheduler)
        self.cg = _Cooperative(self._wait)

    def __getattr__(self, name: str) -> Any:
        if name in SCALARS:
            return SCALARS[name]
        operation = _OPERATIONS.get(name)
        if operation is not None:
            return functools.partial(operation, self)
        value = getattr(self._module, name)
        vector = self.vector(value)
        if vector is not None:
            return vector
        if isinstance(value, type) and value.__module__.endswith("cuda.stubs"):
            raise UnsupportedConstructError(
                f"cuda.{name} has no meaning in plain Python here; run the kernel compiled, "
                f"without NBRT_INTERPRET"
            )
        return self._substitute(value)

    def __repr__(self) -> str:
        return "<numba.cuda, interpreted>"

    def builtin(self, name: str) -> Any:
        """Return the builtin of a dotted name; None for other names, such as types."""
        head, _, member = name.partition(".")
        is_function = head in _OPERATIONS or head in SCALARS
        if not is_function and head not in vars(self) and not hasattr(type(self), head):
            return None
        found = getattr(self, head)
        return getattr(found, member) if member else found

    @property
    def laneid(self) -> Any:
        """The thread's place in its warp."""
        return np.int64(self.scheduler.current.lane)

    def grid(self, ndim: int) -> Any:
        """Return the thread's place in the grid."""
        thread = self.scheduler.current
        return _axes(
            ndim,
            (
                b * size + t
                for b, size, t in zip(thread.block.index, self._sizes[1], thread.index, strict=True)
            ),
        )

    def gridsize(self, ndim: int) -> Any:
        """Return the grid's extent in threads."""
        return _axes(ndim, (g * b for g, b in zip(*self._sizes, strict=True)))

    def vector(self, value: object) -> Callable[..., _Vector] | None:
        """Return what makes vectors, for a type such as ``cuda.float32x4``; None for the rest."""
        match = _VECTOR.fullmatch(getattr(value, "__name__", ""))
        if match is None:
            return None
        kind, length = getattr(np, match[1]), int(match[2])
        return lambda *parts: _Vector(kind, length, parts)

    def _wait(self, request: Request) -> Any:
        return self.scheduler.wait(request)

    def _block(self, operation: str, value: Any = None) -> Any:
        return self._wait(Request("block", operation, value=value))

    def _warp(self, operation: str, mask: Any, value: Any = None, argument: Any = 0) -> Any:
        lanes = int(mask) & _FULL_MASK
        return self._wait(Request("warp", operation, lanes, value, int(argument)))

    def _nothing(self) -> None:
        """Fence: threads run one at a time and see all memory."""


def _axes(ndim: int, values: Any) -> Any:
    found = tuple(map(np.int64, values))
    return found[0] if ndim == 1 else found[:ndim]


def _warp_operation(name: str) -> Callable[..., Any]:
    def operation(cuda: Cuda, mask: Any, value: Any = None, argument: Any = 0) -> Any:
        return cuda._warp(name, mask, value, argument)

    return operation


def _load(_: Cuda, array: Any, index: Any) -> Any:
    return array[index]


def _store(_: Cuda, array: Any, index: Any, value: Any) -> None:
    array[index] = value


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "syncthreads": lambda cuda: cuda._block("syncthreads"),
    **{
        name: functools.partial(lambda cuda, test, name: cuda._block(name, test), name=name)
        for name in ("syncthreads_count", "syncthreads_and", "syncthreads_or")
    },
    "syncwarp": lambda cuda, mask=_FULL_MASK: cuda._warp("syncwarp", mask),
    **{
        name: _warp_operation(name)
        for name in (
            "shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync", "all_sync", "any_sync",
            "eq_sync", "ballot_sync", "match_any_sync", "match_all_sync",
        )
    },
    "activemask": lambda cuda: cuda._wait(Request("warp", "activemask")),
    "lanemask_lt": lambda cuda: np.uint32((1 << int(cuda.laneid)) - 1),
    **dict.fromkeys(("threadfence", "threadfence_block", "threadfence_system"), Cuda._nothing),
    "nanosleep": lambda cuda, _: cuda._wait(Request("yield", "nanosleep")),
    **dict.fromkeys(("ldca", "ldcg", "ldcs", "ldlu", "ldcv"), _load),
    **dict.fromkeys(("stcg", "stcs", "stwb", "stwt"), _store),
}  # fmt: skip
"""Builtins that need the thread that calls them; the stand-in is their first argument."""
