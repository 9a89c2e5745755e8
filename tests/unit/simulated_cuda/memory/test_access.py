"""Kernel arguments that point to memory which the device may not access."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cuda.bindings import driver

from helpers.driver_calls import Latch, call, status
from helpers.driver_launches import Device
from helpers.ptx_kernels import kernel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

WRITE = kernel("write", "u64 out", "st.global.u32 [%out], %tid;\n")


@pytest.fixture
def device(primary: Any) -> Iterator[Device]:
    """A new context on device 0, which the test may break."""
    context = call(driver.cuCtxCreate(None, 0, 0))
    yield Device()
    call(driver.cuCtxDestroy(context))


def launch(device: Device, address: int) -> str:
    call(device.launch(device.function(WRITE), 1, 32, ctypes.c_uint64(address)))
    return status(driver.cuCtxSynchronize())


def test_memory_of_another_device(
    device: Device, second_device: Any, simulation: ModuleType
) -> None:
    call(driver.cuCtxPushCurrent(second_device))
    address = int(call(driver.cuMemAlloc(1000)))
    call(driver.cuCtxPopCurrent())
    call(driver.cuCtxEnablePeerAccess(second_device, 0))
    assert launch(device, address) == "SUCCESS"
    call(driver.cuCtxDisablePeerAccess(second_device))
    assert launch(device, address) == "ILLEGAL_ADDRESS"
    report = simulation.take_report()
    assert "kernel write on device 0" in report
    assert "of device 1, without peer access" in report
    call(driver.cuCtxPushCurrent(second_device))
    call(driver.cuMemFree(address))
    call(driver.cuCtxPopCurrent())


def test_pageable_memory(device: Device, simulation: ModuleType) -> None:
    array = np.zeros(1000, np.uint8)
    call(driver.cuMemHostRegister(array.ctypes.data, 1000, 0))
    assert launch(device, array.ctypes.data) == "SUCCESS"
    call(driver.cuMemHostUnregister(array.ctypes.data))
    assert launch(device, array.ctypes.data) == "ILLEGAL_ADDRESS"
    assert "of pageable host memory" in simulation.take_report()


def test_memory_that_another_stream_allocates(device: Device, simulation: ModuleType) -> None:
    stream = call(driver.cuStreamCreate(1))
    latch = Latch().hold(stream)
    address = int(call(driver.cuMemAllocAsync(1000, stream)))
    call(device.launch(device.function(WRITE), 1, 32, ctypes.c_uint64(address)))
    assert status(driver.cuStreamSynchronize(0)) == "ILLEGAL_ADDRESS"
    latch.open()
    assert "future pool allocation" in simulation.take_report()


def test_memory_that_was_unmapped(device: Device, simulation: ModuleType) -> None:
    address = int(call(driver.cuMemAddressReserve(2 << 20, 0, 0, 0)))
    assert launch(device, address) == "ILLEGAL_ADDRESS"
    assert "illegal write" in simulation.take_report()
