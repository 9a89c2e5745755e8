"""Memory and launches of kernels by the driver API, with arguments of Python."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver

from helpers.driver_calls import call
from helpers.ptx_kernels import module

__all__ = ["Device", "DeviceArray"]


class Device:
    """The current context: memory, modules and launches."""

    def load(self, *parts: str) -> driver.CUmodule:
        """Load a module of the given kernels."""
        return call(driver.cuModuleLoadData(module(*parts)))

    def function(self, text: str) -> driver.CUfunction:
        """Load a module with one kernel and return that."""
        loaded = self.load(text)
        return call(driver.cuModuleEnumerateFunctions(1, loaded))[0]

    def array(self, values: Any, dtype: Any = np.int32) -> DeviceArray:
        """Copy an array to new device memory."""
        return DeviceArray(np.ascontiguousarray(values, dtype))

    def launch(self, function: Any, grid: Any, block: Any, *arguments: Any, **options: Any) -> Any:
        """Launch on the default stream; return the result of the call.

        An argument is a `DeviceArray`, a value of ctypes, or an integer of 32 bits.
        """
        shared, stream = options.pop("shared", 0), options.pop("stream", 0)
        cooperative = options.pop("cooperative", False)
        assert not options
        values = [_argument(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
        sizes = [*_three(grid), *_three(block)]
        address = ctypes.addressof(pointers) if values else 0
        if cooperative:
            return driver.cuLaunchCooperativeKernel(function, *sizes, shared, stream, address)
        return driver.cuLaunchKernel(function, *sizes, shared, stream, address, 0)

    def run(self, function: Any, grid: Any, block: Any, *arguments: Any, **options: Any) -> None:
        """Launch and wait."""
        call(self.launch(function, grid, block, *arguments, **options))
        call(driver.cuCtxSynchronize())


class DeviceArray:
    """Device memory with the shape and type of a NumPy array."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self._shape, self._dtype, self._size = values.shape, values.dtype, values.nbytes
        self.address = int(call(driver.cuMemAlloc(max(self._size, 1))))
        call(driver.cuMemcpyHtoD(self.address, values.ctypes.data, self._size))
        # Such a copy may end after its call, and streams that do not block do not wait for it.
        call(driver.cuStreamSynchronize(driver.CUstream(0)))

    def get(self) -> np.ndarray[Any, Any]:
        """Copy the values to the host."""
        values = np.empty(self._shape, self._dtype)
        call(driver.cuMemcpyDtoH(values.ctypes.data, self.address, self._size))
        return values


def _argument(value: Any) -> Any:
    if isinstance(value, DeviceArray):
        return ctypes.c_uint64(value.address)
    return ctypes.c_int32(value) if isinstance(value, int) else value


def _three(value: Any) -> tuple[int, int, int]:
    x, y, z = (*((value,) if isinstance(value, int) else value), 1, 1)[:3]
    return x, y, z
