"""Ranks of NCCL in threads of a test, each with memory and a stream of a simulated device."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import driver

from helpers.driver_calls import call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["TYPES", "Rank", "dtype_of", "on_threads"]

TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6,
    "float32": 7, "float64": 8, "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11,
}  # fmt: skip
"""Numbers of NCCL's data types, by the names of NumPy and ml_dtypes."""


def dtype_of(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


class Rank:
    """A rank in a thread of a test: a communicator, a stream, and memory of its device."""

    def __init__(self, nccl: Any, number: int, device: int) -> None:
        self.nccl, self.number, self.device = nccl, number, device
        call(driver.cuInit(0))
        self.context = call(driver.cuDevicePrimaryCtxRetain(call(driver.cuDeviceGet(device))))
        self.enter()
        self.stream = self.new_stream()
        self._memory: list[Any] = []
        self.comm: Any = None

    def enter(self) -> None:
        """Make the rank's device current in this thread."""
        call(driver.cuCtxSetCurrent(self.context))

    def new_stream(self) -> int:
        return int(call(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))

    def allocate(self, size: int) -> int:
        self.enter()
        self._memory.append(call(driver.cuMemAlloc(max(size, 1))))
        return int(self._memory[-1])

    def put(self, values: Any) -> int:
        """Return the address of a copy on the device."""
        host = np.ascontiguousarray(values).view(np.uint8)
        address = self.allocate(host.nbytes)
        if host.nbytes == 0:
            return address
        call(driver.cuMemcpyHtoD(address, host.ctypes.data, host.nbytes))
        # The copy from pageable memory may go on behind the call, and the rank's stream, which does
        # not wait for the default stream, might overtake it.
        call(driver.cuStreamSynchronize(driver.CUstream(0)))
        return address

    def get(self, address: int, shape: Any, dtype: Any) -> Any:
        """Return an array of the device, when the stream has finished."""
        self.enter()
        self.synchronize()
        host = np.empty(shape, dtype)
        if host.nbytes:
            call(driver.cuMemcpyDtoH(host.ctypes.data, address, host.nbytes))
        return host

    def synchronize(self) -> None:
        call(driver.cuStreamSynchronize(driver.CUstream(self.stream)))

    def error(self) -> str:
        """Return the communicator's asynchronous error, when the stream has finished."""
        self.synchronize()
        with pytest.raises(self.nccl.NcclError) as caught:
            self.comm.check_async_error()
        return str(caught.value).partition(":")[0].removeprefix("NCCL_ERROR_")

    def close(self) -> None:
        self.enter()
        call(driver.cuCtxSynchronize())
        if self.comm is not None:
            self.comm.destroy()
        for address in self._memory:
            call(driver.cuMemFree(address))
        call(driver.cuStreamDestroy(driver.CUstream(self.stream)))
        call(driver.cuDevicePrimaryCtxRelease(self.device))
        call(driver.cuCtxSetCurrent(driver.CUcontext(0)))


def on_threads(ranks: Sequence[Rank], work: Callable[[Rank], Any]) -> list[Any]:
    """Return what `work` returns for each rank, each in another thread, or raise what it raises."""
    results: list[Any] = [None] * len(ranks)
    errors: list[BaseException] = []

    def run(position: int) -> None:
        ranks[position].enter()
        try:
            results[position] = work(ranks[position])
        except BaseException as error:  # noqa: BLE001  # raised in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(position,)) for position in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
