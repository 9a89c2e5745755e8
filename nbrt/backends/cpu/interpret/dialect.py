"""The substitute of ``numba.cuda`` for interpreted kernels."""

from __future__ import annotations

import functools
import re
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cpu.interpret.arrays import Array, Atomic, SharedArray
from nbrt.backends.cpu.interpret.collectives import WARP, WarpRequest
from nbrt.backends.cpu.interpret.scalars import HALF, LIBDEVICE, SCALARS
from nbrt.errors import UnsupportedConstructError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.interpret.scheduler import Scheduler
    from nbrt.typing import Dim3

__all__ = ["Cuda"]

_FULL_MASK = 0xFFFFFFFF
_VECTOR = re.compile(r"((?:u?int|float)\d+)x([1-4])")


class _Dim3:
    """Three sizes or indices, which `read` returns for the current thread."""

    def __init__(self, read: Callable[[], Dim3]) -> None:
        self._read = read

    # 64 bits, the type that compiled code computes with.
    x = property(lambda self: np.int64(self._read()[0]))
    y = property(lambda self: np.int64(self._read()[1]))
    z = property(lambda self: np.int64(self._read()[2]))

    def __repr__(self) -> str:
        return str(self._read())


class _Vector:
    """A vector such as ``float32x4``: its values are attributes."""

    def __init__(self, kind: Any, length: int, parts: tuple[Any, ...]) -> None:
        values = [
            value
            for part in parts
            for value in (vars(part).values() if isinstance(part, _Vector) else [part])
        ]
        for axis, value in zip("xyzw"[:length], values, strict=True):
            setattr(self, axis, kind(value))

    def __repr__(self) -> str:
        return f"({', '.join(map(str, vars(self).values()))})"


class _Table:
    """A namespace of functions; others raise `UnsupportedConstructError`."""

    def __init__(self, name: str, functions: dict[str, Callable[..., Any]]) -> None:
        self._name = name
        self._functions = functions

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = self._functions.get(name.lstrip("_"))
        if function is None:
            raise _unsupported(f"{self._name}.{name}")
        return function


def _unsupported(name: str) -> UnsupportedConstructError:
    return UnsupportedConstructError(
        f"cuda.{name} has no meaning in plain Python here; run the kernel compiled, without "
        "NBRT_INTERPRET"
    )


def _local_array(shape: Any, dtype: Any, alignment: Any = None) -> Any:
    return np.zeros(shape, _dtype(dtype)).view(Array)


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
    """The module ``numba.cuda`` as a kernel sees it, for the current thread.

    For names that are no builtins, such as types, `substitute` returns the substitute of the value
    in the real `module`.
    """

    warpsize = WARP
    atomic = Atomic
    local = SimpleNamespace(array=_local_array)
    const = SimpleNamespace(array_like=lambda array: array)
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
        self.shared = SimpleNamespace(array=self._shared_array)
        group = SimpleNamespace(sync=lambda: self._wait(WarpRequest("grid", "this_grid().sync()")))
        self.cg = SimpleNamespace(this_grid=lambda: group)

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
            raise _unsupported(name)
        return self._substitute(value)

    def __repr__(self) -> str:
        return "<numba.cuda, interpreted>"

    def builtin(self, name: str) -> Any:
        """Return the builtin of a dotted name; None for other names, such as types."""
        head, _, member = name.partition(".")
        is_function = head in _OPERATIONS or head in SCALARS
        if not is_function and head not in vars(self) and not hasattr(type(self), head):
            return None
        value = getattr(self, head)
        return getattr(value, member) if member else value

    @property
    def laneid(self) -> Any:
        """The thread's index in its warp."""
        return np.int64(self.scheduler.current.lane)

    def grid(self, ndim: int) -> Any:
        """Return the thread's index in the grid."""
        thread = self.scheduler.current
        extents = zip(thread.block.index, self._sizes[1], thread.index, strict=True)
        return _axes(ndim, (block * size + index for block, size, index in extents))

    def gridsize(self, ndim: int) -> Any:
        """Return the grid's extent in threads."""
        return _axes(ndim, (g * b for g, b in zip(*self._sizes, strict=True)))

    def vector(self, value: object) -> Callable[..., _Vector] | None:
        """Return the constructor of a vector type such as ``cuda.float32x4``, or None."""
        match = _VECTOR.fullmatch(getattr(value, "__name__", ""))
        if match is None:
            return None
        kind, length = getattr(np, match[1]), int(match[2])
        return lambda *parts: _Vector(kind, length, parts)

    def _shared_array(self, shape: Any, dtype: Any, alignment: Any = None) -> Any:
        """Return the block's array of the calling line; for shape 0, its dynamic memory."""
        block = self.scheduler.current.block
        kind = _dtype(dtype)
        if np.prod(shape) == 0:
            count = block.dynamic.size // kind.itemsize
            return block.dynamic[: count * kind.itemsize].view(kind).view(SharedArray)
        frame = sys._getframe(1)
        site = (id(frame.f_code), frame.f_lasti)
        if site not in block.arrays:
            block.arrays[site] = np.zeros(shape, kind).view(SharedArray)
        return block.arrays[site]

    def _wait(self, request: WarpRequest) -> Any:
        return self.scheduler.wait(request)


def _axes(ndim: int, values: Any) -> Any:
    index = tuple(map(np.int64, values))
    return index[0] if ndim == 1 else index[:ndim]


def _block_operation(name: str) -> Callable[..., Any]:
    return lambda cuda, value=None: cuda._wait(WarpRequest("block", name, value=value))


def _warp_operation(name: str) -> Callable[..., Any]:
    def operation(cuda: Cuda, mask: Any = _FULL_MASK, value: Any = None, argument: Any = 0) -> Any:
        lanes = int(mask) & _FULL_MASK
        return cuda._wait(WarpRequest("warp", name, lanes, value, int(argument)))

    return operation


def _load(_: Cuda, array: Any, index: Any) -> Any:
    return array[index]


def _store(_: Cuda, array: Any, index: Any, value: Any) -> None:
    array[index] = value


_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{
        name: _block_operation(name)
        for name in ("syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or")
    },
    **{
        name: _warp_operation(name)
        for name in (
            "syncwarp", "shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync", "all_sync",
            "any_sync", "eq_sync", "ballot_sync", "match_any_sync", "match_all_sync",
        )
    },
    "activemask": lambda cuda: cuda._wait(WarpRequest("warp", "activemask")),
    "lanemask_lt": lambda cuda: np.uint32((1 << int(cuda.laneid)) - 1),
    # Threads run one at a time and see all memory: fences do nothing.
    **dict.fromkeys(("threadfence", "threadfence_block", "threadfence_system"), lambda _: None),
    "nanosleep": lambda cuda, _: cuda._wait(WarpRequest("yield", "nanosleep")),
    **dict.fromkeys(("ldca", "ldcg", "ldcs", "ldlu", "ldcv"), _load),
    **dict.fromkeys(("stcg", "stcs", "stwb", "stwt"), _store),
}  # fmt: skip
"""Builtins that need the current thread; their first argument is a `Cuda`."""
