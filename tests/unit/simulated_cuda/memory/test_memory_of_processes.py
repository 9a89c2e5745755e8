"""Memory of the simulated driver that several processes share."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cuda.bindings import driver

from helpers.driver_calls import call, status

if TYPE_CHECKING:
    from collections.abc import Callable

POSIX = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
TESTS = str(Path(__file__).parents[3])

_BEGINNING = """
import ctypes, os
import numpy as np
from cuda.bindings import driver
from helpers.driver_calls import call, status
call(driver.cuInit(0))
call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(0))))
POSIX = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
host = np.zeros(1000, np.uint8)
given = bytes.fromhex(os.environ["GIVEN"])
"""
_END = """
call(driver.cuMemcpyDtoH(host.ctypes.data, address, 1000))
print(set(host.tolist()))
call(driver.cuMemsetD8(address, 9, 1000))
call(driver.cuCtxSynchronize())
"""
_MEMORY = """
handle = driver.CUipcMemHandle()
ctypes.memmove(handle.getPtr(), given, 64)
address = call(driver.cuIpcOpenMemHandle(handle, 1))
assert int(call(driver.cuIpcOpenMemHandle(handle, 1))) == int(address)
"""
_CLOSE = """
print(status(driver.cuMemFree(address)))
call(driver.cuIpcCloseMemHandle(address))
call(driver.cuMemsetD8(address, 9, 1000))
call(driver.cuIpcCloseMemHandle(address))
print(status(driver.cuIpcCloseMemHandle(address)))
"""
_POOL = """
file = os.open(os.environ["FILE"], os.O_RDWR)
pool = call(driver.cuMemPoolImportFromShareableHandle(file, POSIX, 0))
os.close(file)
data = driver.CUmemPoolPtrExportData()
ctypes.memmove(data.getPtr(), given, 64)
address = call(driver.cuMemPoolImportPointer(pool, data))
"""
_FREE = """
print(status(driver.cuMemAllocFromPoolAsync(10, pool, 0)))
call(driver.cuMemFreeAsync(address, 0))
call(driver.cuCtxSynchronize())
print(status(driver.cuMemsetD8(address, 9, 1000)))
call(driver.cuMemPoolDestroy(pool))
"""


@pytest.fixture
def child(run_child: Callable[..., str]) -> Callable[..., list[str]]:
    """Run a program in a child process with bytes from this one, and return its lines."""

    def run(program: str, given: bytes, **settings: str) -> list[str]:
        search = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
        found = run_child(_BEGINNING + program, GIVEN=given.hex(), PYTHONPATH=search, **settings)
        return found.split("\n")

    return run


def test_handle_of_memory(allocate: Any, read: Any, child: Any) -> None:
    address = allocate(1000)
    call(driver.cuMemsetD8(address, 7, 1000))
    call(driver.cuCtxSynchronize())
    handle = call(driver.cuIpcGetMemHandle(address))
    lines = child(_MEMORY + _END + _CLOSE, ctypes.string_at(handle.getPtr(), 64))
    assert lines == ["{7}", "INVALID_VALUE", "INVALID_VALUE"]
    assert (read(address, 1000) == 9).all()


def test_refused_handles(allocate: Any, primary: Any) -> None:
    handle = call(driver.cuIpcGetMemHandle(allocate(1000)))
    assert status(driver.cuIpcOpenMemHandle(handle, 1)) == "INVALID_CONTEXT"
    assert status(driver.cuIpcOpenMemHandle(handle, 0)) == "INVALID_VALUE"
    ctypes.memset(handle.getPtr(), 0, 64)
    assert status(driver.cuIpcOpenMemHandle(handle, 1)) == "INVALID_HANDLE"
    assert status(driver.cuIpcGetMemHandle(12345)) == "INVALID_VALUE"
    assert status(driver.cuIpcCloseMemHandle(12345)) == "INVALID_VALUE"


def test_exported_pool(primary: Any, read: Any, child: Any) -> None:
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = POSIX
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    pool = call(driver.cuMemPoolCreate(properties))
    address = call(driver.cuMemAllocFromPoolAsync(1000, pool, 0))
    call(driver.cuMemsetD8(address, 7, 1000))
    call(driver.cuCtxSynchronize())
    file = call(driver.cuMemPoolExportToShareableHandle(pool, POSIX, 0))
    data = call(driver.cuMemPoolExportPointer(address))
    path = f"/proc/{os.getpid()}/fd/{file}"
    lines = child(_POOL + _END + _FREE, ctypes.string_at(data.getPtr(), 64), FILE=path)
    assert lines == ["{7}", "INVALID_VALUE", "INVALID_VALUE"]
    assert (read(address, 1000) == 9).all()
    os.close(file)
    call(driver.cuMemFreeAsync(address, 0))
    default = call(driver.cuDeviceGetDefaultMemPool(0))
    assert status(driver.cuMemPoolExportToShareableHandle(default, POSIX, 0)) == "INVALID_VALUE"
    call(driver.cuMemPoolDestroy(pool))
