"""Device memory of the simulated driver."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cuda.bindings import driver

from helpers.driver_calls import Latch, call, status

if TYPE_CHECKING:
    from types import ModuleType


def free_bytes() -> int:
    return int(call(driver.cuMemGetInfo())[0])


def test_allocations_are_counted(primary: Any) -> None:
    before, total = call(driver.cuMemGetInfo())
    assert total == call(driver.cuDeviceTotalMem(0))
    address = call(driver.cuMemAlloc(1000))
    assert int(address) % 256 == 0
    assert before - free_bytes() == 1024
    call(driver.cuMemFree(address))
    assert free_bytes() == before


def test_memory_has_an_end(primary: Any, simulation: ModuleType) -> None:
    free, total = call(driver.cuMemGetInfo())
    with simulation.limited_memory(total - free + (1 << 20)):
        first = call(driver.cuMemAlloc(768 << 10))
        assert status(driver.cuMemAlloc(512 << 10)) == "OUT_OF_MEMORY"
        second = call(driver.cuMemAlloc(256 << 10))
        assert status(driver.cuMemAlloc(1)) == "OUT_OF_MEMORY"
        call(driver.cuMemFree(first))
        call(driver.cuMemFree(second))
    assert status(driver.cuMemAlloc(2**64 - 1)) == "OUT_OF_MEMORY"


def test_new_memory_is_not_zero(allocate: Any, read: Any) -> None:
    assert (read(allocate(1000), 1000) == 0xCB).all()


def test_invalid_calls(primary: Any, allocate: Any) -> None:
    address = allocate(1000)
    assert status(driver.cuMemAlloc(0)) == "INVALID_VALUE"
    assert status(driver.cuMemFree(address + 256)) == "INVALID_VALUE"
    assert status(driver.cuMemFree(12345)) == "INVALID_VALUE"
    call(driver.cuMemFree(address))
    assert status(driver.cuMemFree(address)) == "INVALID_VALUE"
    call(driver.cuMemFree(0))


def test_calls_need_a_context(initialised: Any) -> None:
    call(driver.cuCtxSetCurrent(driver.CUcontext(0)))
    assert status(driver.cuMemAlloc(16)) == "INVALID_CONTEXT"
    assert status(driver.cuMemGetInfo()) == "INVALID_CONTEXT"
    assert status(driver.cuMemHostAlloc(16, 0)) == "INVALID_CONTEXT"


def test_address_range(allocate: Any) -> None:
    address = allocate(1000)
    base, size = call(driver.cuMemGetAddressRange(address + 999))
    assert (int(base), size) == (address, 1000)
    assert status(driver.cuMemGetAddressRange(address + 1024)) == "NOT_FOUND"
    call(driver.cuMemFree(address))
    assert status(driver.cuMemGetAddressRange(address)) == "NOT_FOUND"


@pytest.mark.parametrize("element", [4, 8, 16])
def test_pitch(primary: Any, element: int) -> None:
    address, pitch = call(driver.cuMemAllocPitch(1000, 7, element))
    assert pitch >= 1000
    assert pitch % 512 == 0
    call(driver.cuMemsetD2D8(address, pitch, 1, 1000, 7))
    call(driver.cuMemFree(address))
    assert status(driver.cuMemAllocPitch(1000, 7, 3)) == "INVALID_VALUE"
    assert status(driver.cuMemAllocPitch(0, 7, 4)) == "INVALID_VALUE"


def test_free_waits_for_work(allocate: Any, new_stream: Any) -> None:
    stream, address = new_stream(), allocate(1000)
    host = np.full(1000, 7, np.uint8)
    latch = Latch().hold(stream)
    call(driver.cuMemcpyHtoDAsync(address, host.ctypes.data, 1000, stream))
    latch.open()
    call(driver.cuMemFree(address))
    call(driver.cuStreamQuery(stream))


def test_freed_addresses_are_not_used_again_at_once(allocate: Any) -> None:
    seen = set()
    for _ in range(50):
        address = allocate(1000)
        assert address not in seen
        seen.add(address)
        call(driver.cuMemFree(address))


def test_writes_behind_the_end_are_reported(allocate: Any, simulation: ModuleType) -> None:
    """The bytes after the end up to the guard page are checked when the memory is freed."""
    address = allocate(1000)
    ctypes.memset(address + 1003, 1, 1)
    call(driver.cuMemFree(address))
    report = simulation.take_report()
    assert "1000 bytes" in report
    assert "3 bytes after the end of" in report
    address = allocate(1000)
    ctypes.memset(address - 8, 1, 1)
    call(driver.cuMemFree(address))
    assert "8 bytes before" in simulation.take_report()


@pytest.mark.own_process
def test_reset_frees_all_memory_of_a_context(second_device: Any) -> None:
    call(driver.cuCtxPushCurrent(second_device))
    before = free_bytes()
    addresses = [call(driver.cuMemAlloc(4096)) for _ in range(3)]
    addresses.append(call(driver.cuMemAllocAsync(4096, 0)))
    call(driver.cuCtxSynchronize())
    call(driver.cuDevicePrimaryCtxReset(1))
    call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(1))))
    assert free_bytes() == before
    assert [status(driver.cuMemFree(address)) for address in addresses] == ["INVALID_VALUE"] * 4
    call(driver.cuCtxPopCurrent())
