"""Pinned and managed memory of the simulated driver."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
from cuda.bindings import driver

from helpers.driver_calls import call, status

Advise = driver.CUmem_advise
RangeAttribute = driver.CUmem_range_attribute


def location(kind: str, number: int = 0) -> driver.CUmemLocation:
    result = driver.CUmemLocation()
    result.type = getattr(driver.CUmemLocationType, f"CU_MEM_LOCATION_TYPE_{kind}")
    result.id = number
    return result


def test_pinned_memory_has_one_address(primary: Any) -> None:
    address = call(driver.cuMemHostAlloc(100, 3))
    assert call(driver.cuMemHostGetFlags(address)) == 3
    assert int(call(driver.cuMemHostGetDevicePointer(address + 5, 0))) == address + 5
    ctypes.memset(address, 7, 100)
    call(driver.cuMemFreeHost(address))
    assert status(driver.cuMemFreeHost(address)) == "INVALID_VALUE"
    assert status(driver.cuMemHostGetFlags(address)) == "INVALID_VALUE"


def test_invalid_calls_of_pinned_memory(primary: Any) -> None:
    assert status(driver.cuMemHostAlloc(0, 0)) == "INVALID_VALUE"
    assert status(driver.cuMemHostAlloc(10, 64)) == "INVALID_VALUE"
    address = call(driver.cuMemAllocHost(10))
    assert status(driver.cuMemHostGetDevicePointer(address, 1)) == "INVALID_VALUE"
    assert status(driver.cuMemFree(address)) == "INVALID_VALUE"
    assert status(driver.cuMemHostUnregister(address)) == "HOST_MEMORY_NOT_REGISTERED"
    call(driver.cuMemFreeHost(address))


def test_registration(primary: Any) -> None:
    array = np.zeros(1000, np.uint8)
    address = array.ctypes.data
    assert status(driver.cuMemHostGetDevicePointer(address, 0)) == "INVALID_VALUE"
    call(driver.cuMemHostRegister(address, 1000, 1))
    assert int(call(driver.cuMemHostGetDevicePointer(address, 0))) == address
    again = driver.cuMemHostRegister(address + 10, 10, 0)
    assert status(again) == "HOST_MEMORY_ALREADY_REGISTERED"
    unregister = driver.cuMemHostUnregister(address + 10)
    assert status(unregister) == "HOST_MEMORY_NOT_REGISTERED"
    call(driver.cuMemHostUnregister(address))
    assert status(driver.cuMemHostUnregister(address)) == "HOST_MEMORY_NOT_REGISTERED"


def test_memory_that_is_not_mapped_is_not_registered(primary: Any) -> None:
    with mmap.mmap(-1, 2 * mmap.PAGESIZE) as pages:
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        call(driver.cuMemHostRegister(address, 2 * mmap.PAGESIZE, 0))
        call(driver.cuMemHostUnregister(address))
    assert status(driver.cuMemHostRegister(address, 2 * mmap.PAGESIZE, 0)) == "INVALID_VALUE"
    assert status(driver.cuMemHostRegister(4096, 4096, 0)) == "INVALID_VALUE"
    assert status(driver.cuMemHostRegister(4096, 2**64 - 1, 0)) == "INVALID_VALUE"


def test_managed_memory_is_shared(primary: Any) -> None:
    address = int(call(driver.cuMemAllocManaged(1000, 1)))
    ctypes.memset(address, 7, 1000)
    call(driver.cuMemsetD8(address, 9, 10))
    assert ctypes.string_at(address, 11) == b"\x09" * 10 + b"\x07"
    call(driver.cuMemFree(address))
    assert status(driver.cuMemAllocManaged(1000, 4)) == "INVALID_VALUE"
    assert status(driver.cuMemAllocManaged(0, 1)) == "INVALID_VALUE"


def advice(address: int, size: int, attribute: str, width: int = 4) -> Any:
    kind = getattr(RangeAttribute, f"CU_MEM_RANGE_ATTRIBUTE_{attribute}")
    return call(driver.cuMemRangeGetAttribute(width, kind, address, size))


def test_advice_is_kept(primary: Any, allocate: Any) -> None:
    address = int(call(driver.cuMemAllocManaged(1000, 1)))
    assert advice(address, 1000, "PREFERRED_LOCATION") == -2
    assert advice(address, 1000, "READ_MOSTLY") == 0
    for what, where in [
        ("SET_READ_MOSTLY", location("DEVICE")),
        ("SET_PREFERRED_LOCATION", location("DEVICE")),
        ("SET_ACCESSED_BY", location("DEVICE")),
        ("SET_ACCESSED_BY", location("HOST")),
    ]:
        call(driver.cuMemAdvise(address, 1000, getattr(Advise, f"CU_MEM_ADVISE_{what}"), where))
    assert advice(address, 1000, "READ_MOSTLY") == 1
    assert advice(address, 1000, "PREFERRED_LOCATION") == 0
    assert list(advice(address, 1000, "ACCESSED_BY", 12)) == [0, -1, -2]
    call(driver.cuMemPrefetchAsync(address, 1000, location("HOST"), 0, 0))
    assert advice(address, 1000, "LAST_PREFETCH_LOCATION") == -1
    unset = Advise.CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION
    call(driver.cuMemAdvise(address, 1000, unset, location("DEVICE")))
    assert advice(address, 1000, "PREFERRED_LOCATION") == -2
    set_preferred = Advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION
    refused = driver.cuMemAdvise(address, 1000, set_preferred, location("DEVICE", 99))
    assert status(refused) == "INVALID_DEVICE"
    call(driver.cuMemFree(address))
    ordinary = allocate(1000)
    refused = driver.cuMemPrefetchAsync(ordinary, 1000, location("HOST"), 0, 0)
    assert status(refused) == "INVALID_VALUE"


def test_batches_of_managed_memory(primary: Any, allocate: Any) -> None:
    addresses = [int(call(driver.cuMemAllocManaged(1000, 1))) for _ in range(3)]
    pointers = [driver.CUdeviceptr(address) for address in addresses]
    places = [location("HOST"), location("DEVICE")]
    call(driver.cuMemPrefetchBatchAsync(pointers, [1000] * 3, 3, places, [0, 2], 2, 0, 0))
    found = [advice(address, 1000, "LAST_PREFETCH_LOCATION") for address in addresses]
    assert found == [-1, -1, 0]
    ctypes.memset(addresses[0], 7, 1000)
    call(driver.cuMemDiscardBatchAsync(pointers[:1], [1000], 1, 0, 0))
    call(driver.cuCtxSynchronize())
    assert ctypes.string_at(addresses[0], 1000) == b"\xcb" * 1000
    ordinary = [driver.CUdeviceptr(allocate(1000))]
    assert status(driver.cuMemDiscardBatchAsync(ordinary, [1000], 1, 0, 0)) == "INVALID_VALUE"
    for address in addresses:
        call(driver.cuMemFree(address))
