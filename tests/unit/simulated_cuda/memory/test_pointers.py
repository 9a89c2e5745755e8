"""Queries about pointers of the simulated driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from helpers.driver_calls import call, status


def attribute(name: str) -> driver.CUpointer_attribute:
    return getattr(driver.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")


def get(address: int, name: str) -> int:
    return int(call(driver.cuPointerGetAttribute(attribute(name), address)))


def query(address: int, name: str) -> str:
    return status(driver.cuPointerGetAttribute(attribute(name), address))


def test_device_memory(allocate: Any, primary: Any) -> None:
    address = allocate(1000)
    expected = {
        "CONTEXT": int(primary), "MEMORY_TYPE": 2, "DEVICE_POINTER": address + 5, "IS_MANAGED": 0,
        "DEVICE_ORDINAL": 0, "IS_LEGACY_CUDA_IPC_CAPABLE": 1, "RANGE_START_ADDR": address,
        "RANGE_SIZE": 1000, "MAPPED": 1, "MEMPOOL_HANDLE": 0, "SYNC_MEMOPS": 0,
    }  # fmt: skip
    assert {name: get(address + 5, name) for name in expected} == expected
    assert query(address, "HOST_POINTER") == "INVALID_VALUE"
    other = allocate(1000)
    assert get(address, "BUFFER_ID") != get(other, "BUFFER_ID")
    call(driver.cuMemFree(address))
    assert query(address, "MEMORY_TYPE") == "INVALID_VALUE"


@pytest.mark.parametrize(("is_managed", "kind"), [(True, 2), (False, 1)])
def test_memory_of_the_host(primary: Any, is_managed: bool, kind: int) -> None:
    create = driver.cuMemAllocManaged if is_managed else driver.cuMemHostAlloc
    address = int(call(create(1000, 1)))
    expected = {
        "MEMORY_TYPE": kind, "DEVICE_POINTER": address, "HOST_POINTER": address,
        "IS_MANAGED": int(is_managed), "DEVICE_ORDINAL": 0, "IS_LEGACY_CUDA_IPC_CAPABLE": 0,
    }  # fmt: skip
    assert {name: get(address, name) for name in expected} == expected
    call(driver.cuMemFree(address) if is_managed else driver.cuMemFreeHost(address))


def test_memory_of_a_pool(primary: Any) -> None:
    address = int(call(driver.cuMemAllocAsync(1000, 0)))
    assert get(address, "MEMPOOL_HANDLE") == int(call(driver.cuDeviceGetMemPool(0)))
    assert get(address, "CONTEXT") == 0
    assert get(address, "DEVICE_ORDINAL") == 0
    assert get(address, "IS_LEGACY_CUDA_IPC_CAPABLE") == 0
    call(driver.cuMemFreeAsync(address, 0))
    assert query(address, "MEMORY_TYPE") == "INVALID_VALUE"


def test_unknown_memory(primary: Any) -> None:
    array = np.zeros(10, np.uint8)
    address = array.ctypes.data
    for name in ("MEMORY_TYPE", "DEVICE_POINTER", "CONTEXT"):
        assert query(address, name) == "INVALID_VALUE"
    names = ["MEMORY_TYPE", "DEVICE_ORDINAL", "IS_MANAGED", "HOST_POINTER"]
    found = call(driver.cuPointerGetAttributes(4, [attribute(name) for name in names], address))
    assert [int(value) for value in found] == [0, -2, 0, 0]


def test_several_attributes(allocate: Any) -> None:
    address = allocate(1000)
    names = ["MEMORY_TYPE", "DEVICE_ORDINAL", "RANGE_SIZE", "HOST_POINTER"]
    found = call(driver.cuPointerGetAttributes(4, [attribute(name) for name in names], address))
    assert [int(value) for value in found] == [2, 0, 1000, 0]


def test_set_attribute(allocate: Any) -> None:
    address = allocate(1000)
    call(driver.cuPointerSetAttribute(1, attribute("SYNC_MEMOPS"), address))
    assert get(address, "SYNC_MEMOPS") == 1
    refused = driver.cuPointerSetAttribute(1, attribute("IS_MANAGED"), address)
    assert status(refused) == "INVALID_VALUE"


def test_memory_of_another_device(allocate: Any, second_context: Any) -> None:
    address = allocate(1000)
    call(driver.cuCtxPushCurrent(second_context))
    assert get(address, "DEVICE_ORDINAL") == 0
    assert query(address, "DEVICE_POINTER") == "INVALID_VALUE"
    first = call(driver.cuDevicePrimaryCtxRetain(0))
    call(driver.cuCtxEnablePeerAccess(first, 0))
    assert get(address, "DEVICE_POINTER") == address
    call(driver.cuCtxDisablePeerAccess(first))
    call(driver.cuDevicePrimaryCtxRelease(0))
    call(driver.cuCtxPopCurrent())


def test_reserved_addresses(primary: Any) -> None:
    address = int(call(driver.cuMemAddressReserve(2 << 20, 0, 0, 0)))
    assert get(address, "MAPPED") == 0
    assert query(address, "MEMORY_TYPE") == "INVALID_VALUE"
    call(driver.cuMemAddressFree(address, 2 << 20))
