"""Sorting for CuPy: the functions of `cupy.cuda.thrust`, whose kernels are machine code.

NumPy sorts on the host, in the order of the current stream, and without waiting for it. Its stable
sorts give what Thrust's stable sorts give, with NaN last.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

__all__ = ["replace_thrust"]

_SUPPORTED = "?bBhHiIlLqQefdFD"
"""The dtypes for which CuPy has compiled Thrust."""


def replace_thrust(module: ModuleType) -> None:
    """Replace the functions of CuPy's module of Thrust."""
    for function in (sort, argsort, lexsort):
        if not hasattr(module, function.__name__):
            raise ImportError(f"{module.__name__}: expected a function {function.__name__}")
        setattr(module, function.__name__, function)


def sort(dtype: Any, data_start: int, keys_start: int, shape: Sequence[int]) -> None:
    """Sort rows in place."""
    _check(dtype, NotImplementedError, "Sorting arrays")
    _on_host(
        (data_start, shape, dtype),
        (data_start, shape, dtype),
        lambda data: np.sort(data, axis=-1, kind="stable"),
    )


def argsort(
    dtype: Any, idx_start: int, data_start: int, keys_start: int, shape: Sequence[int]
) -> None:
    """Write the order of each row."""
    _check(dtype, NotImplementedError, "Sorting arrays")
    _on_host(
        (data_start, shape, dtype),
        (idx_start, shape, np.intp),
        lambda data: np.argsort(data, axis=-1, kind="stable"),
    )


def lexsort(dtype: Any, idx_start: int, keys_start: int, k: int, n: int) -> None:
    """Write the order of ``n`` columns by ``k`` keys, of which the last is the primary one."""
    _check(dtype, TypeError, "Sorting keys")
    _on_host((keys_start, (k, n), dtype), (idx_start, (n,), np.intp), np.lexsort)


def _check(dtype: Any, error: type[Exception], what: str) -> None:
    if np.dtype(dtype).char not in _SUPPORTED:
        raise error(f"{what} with dtype '{dtype}' is not supported")


_Place = tuple[int, "Sequence[int]", Any]
"""Address, shape and dtype of an array in device memory."""


def _on_host(source: _Place, target: _Place, function: Callable[[Any], Any]) -> None:
    """Enqueue a function of an array in device memory, on the current stream."""
    from cupy.cuda import get_current_stream, runtime

    given, result = _pinned(*source[1:]), _pinned(*target[1:])

    def compute(_: Any) -> None:
        result[...] = function(given)

    def release(_: Any, arrays: Any = (given, result)) -> None:
        """Keep the arrays until the copies are done."""

    stream = get_current_stream().ptr
    copy = runtime.memcpyAsync
    copy(given.ctypes.data, source[0], given.nbytes, runtime.memcpyDeviceToHost, stream)
    runtime.launchHostFunc(stream, compute, 0)
    copy(target[0], result.ctypes.data, result.nbytes, runtime.memcpyHostToDevice, stream)
    runtime.launchHostFunc(stream, release, 0)


def _pinned(shape: Sequence[int], dtype: Any) -> Any:
    from cupy.cuda import alloc_pinned_memory

    count = math.prod(shape)
    memory = alloc_pinned_memory(count * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype, count).reshape(shape)
