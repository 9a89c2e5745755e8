"""Copies of the simulated driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from helpers.driver_calls import Latch, call, status

HOST = driver.CUmemorytype.CU_MEMORYTYPE_HOST
DEVICE = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
UNIFIED = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED


def numbers(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.uint8)


def test_round_trip(allocate: Any, read: Any) -> None:
    host, first, second = numbers(200), allocate(200), allocate(200)
    call(driver.cuMemcpyHtoD(first, host.ctypes.data, 200))
    call(driver.cuMemcpyDtoD(second, first + 10, 100))
    assert (read(second, 100) == host[10:110]).all()
    back = np.zeros(200, np.uint8)
    call(driver.cuMemcpy(back.ctypes.data, first, 200))
    assert (back == host).all()
    call(driver.cuMemcpy(first, second, 50))
    assert (read(first, 50) == host[10:60]).all()


def test_copies_stay_within_allocations(allocate: Any) -> None:
    host, device = numbers(2000), allocate(1000)
    address = host.ctypes.data
    assert status(driver.cuMemcpyHtoD(device, address, 1001)) == "INVALID_VALUE"
    assert status(driver.cuMemcpyDtoH(address, device + 1, 1000)) == "INVALID_VALUE"
    assert status(driver.cuMemcpyDtoD(device, address, 10)) == "INVALID_VALUE"
    assert status(driver.cuMemcpyHtoD(address, device, 10)) == "INVALID_VALUE"
    assert status(driver.cuMemcpyHtoD(0, address, 10)) == "INVALID_VALUE"
    call(driver.cuMemcpyHtoD(device, address, 0))
    call(driver.cuMemFree(device))
    assert status(driver.cuMemcpyHtoD(device, address, 10)) == "INVALID_VALUE"
    assert status(driver.cuMemcpyAsync(device, address, 10, 0)) == "INVALID_VALUE"


def test_pageable_source_is_copied_before_the_call_returns(
    allocate: Any, read: Any, new_stream: Any
) -> None:
    host, device, stream = numbers(100), allocate(100), new_stream()
    latch = Latch().hold(stream)
    call(driver.cuMemcpyHtoDAsync(device, host.ctypes.data, 100, stream))
    host[:] = 0
    latch.open()
    call(driver.cuStreamSynchronize(stream))
    assert (read(device, 100) == numbers(100)).all()


def test_pinned_source_is_read_when_the_copy_runs(
    allocate: Any, pinned: Any, read: Any, new_stream: Any
) -> None:
    host, device, stream = pinned(100), allocate(100), new_stream()
    host[:] = 1
    latch = Latch().hold(stream)
    call(driver.cuMemcpyHtoDAsync(device, host.ctypes.data, 100, stream))
    host[:] = 2
    latch.open()
    call(driver.cuStreamSynchronize(stream))
    assert (read(device, 100) == 2).all()


def test_pageable_target_makes_the_call_wait(allocate: Any, new_stream: Any) -> None:
    host, device, stream = np.zeros(100, np.uint8), allocate(100), new_stream()
    call(driver.cuMemsetD8Async(device, 3, 100, stream))
    call(driver.cuMemcpyDtoHAsync(host.ctypes.data, device, 100, stream))
    assert (host == 3).all()


def test_pinned_target_does_not_wait(allocate: Any, pinned: Any, new_stream: Any) -> None:
    host, device, stream = pinned(100), allocate(100), new_stream()
    host[:] = 9
    latch = Latch().hold(stream)
    call(driver.cuMemsetD8Async(device, 3, 100, stream))
    call(driver.cuMemcpyDtoHAsync(host.ctypes.data, device, 100, stream))
    latch.wait_until_reached()
    assert (host == 9).all()
    latch.open()
    call(driver.cuStreamSynchronize(stream))
    assert (host == 3).all()


def test_copies_within_a_device_do_not_wait(allocate: Any, late: None) -> None:
    """As documented, although the function has no Async in its name."""
    first, second = allocate(100), allocate(100)
    call(driver.cuMemcpyDtoD(first, second, 100))
    assert status(driver.cuStreamQuery(0)) == "NOT_READY"
    call(driver.cuStreamSynchronize(0))


def test_attribute_makes_copies_within_a_device_wait(allocate: Any, late: None) -> None:
    first, second = allocate(100), allocate(100)
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
    call(driver.cuPointerSetAttribute(1, attribute, first))
    call(driver.cuMemcpyDtoD(first, second, 100))
    call(driver.cuStreamQuery(0))


def plane(**fields: Any) -> driver.CUDA_MEMCPY2D:
    copy = driver.CUDA_MEMCPY2D()
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


@pytest.mark.parametrize("name", ["cuMemcpy2D", "cuMemcpy2DUnaligned", "cuMemcpy2DAsync"])
def test_plane(allocate: Any, read: Any, name: str) -> None:
    host = numbers(240).reshape(12, 20)
    device = allocate(32 * 8)
    copy = plane(
        srcMemoryType=HOST, srcHost=host.ctypes.data, srcPitch=20, srcXInBytes=3, srcY=2,
        dstMemoryType=DEVICE, dstDevice=device, dstPitch=32, dstXInBytes=4, dstY=1,
        WidthInBytes=10, Height=5,
    )  # fmt: skip
    call(getattr(driver, name)(copy, *([0] if name.endswith("Async") else [])))
    expected = np.full((8, 32), 0xCB, np.uint8)
    expected[1:6, 4:14] = host[2:7, 3:13]
    assert (read(device, 256).reshape(8, 32) == expected).all()


def test_invalid_planes(allocate: Any) -> None:
    host, device = numbers(100), allocate(100)
    fields = {
        "srcMemoryType": HOST, "srcHost": host.ctypes.data, "srcPitch": 10,
        "dstMemoryType": DEVICE, "dstDevice": device, "dstPitch": 10,
        "WidthInBytes": 10, "Height": 10,
    }  # fmt: skip
    call(driver.cuMemcpy2D(plane(**fields)))
    for change in ({"srcPitch": 9}, {"dstPitch": 11}, {"dstY": 1}, {"srcHost": 0}):
        assert status(driver.cuMemcpy2D(plane(**fields | change))) == "INVALID_VALUE"
    call(driver.cuMemcpy2D(plane(**fields | {"Height": 0})))


def test_volume(allocate: Any, read: Any) -> None:
    host = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6)
    device = allocate(4 * 7 * 8)
    copy = driver.CUDA_MEMCPY3D()
    copy.srcMemoryType, copy.srcHost = HOST, host.ctypes.data
    copy.srcPitch, copy.srcHeight = 6, 5
    copy.dstMemoryType, copy.dstDevice = UNIFIED, device
    copy.dstPitch, copy.dstHeight, copy.dstZ = 8, 7, 1
    copy.WidthInBytes, copy.Height, copy.Depth = 6, 5, 3
    call(driver.cuMemcpy3D(copy))
    result = read(device, 4 * 7 * 8).reshape(4, 7, 8)
    assert (result[1:4, :5, :6] == host[:3]).all()
    assert (result[:1] == 0xCB).all()
    copy.Depth = 4
    assert status(driver.cuMemcpy3D(copy)) == "INVALID_VALUE"
    copy.Depth, copy.dstLOD = 3, 1
    assert status(driver.cuMemcpy3DAsync(copy, 0)) == "INVALID_VALUE"


def test_peers(allocate: Any, read: Any, primary: Any, second_device: Any) -> None:
    host, here = numbers(100), allocate(100)
    call(driver.cuMemcpyHtoD(here, host.ctypes.data, 100))
    call(driver.cuCtxPushCurrent(second_device))
    there = call(driver.cuMemAlloc(100))
    call(driver.cuMemcpyPeer(there, second_device, here, primary, 100))
    assert (read(there, 100) == host).all()
    call(driver.cuMemsetD8(there, 5, 100))
    call(driver.cuCtxPopCurrent())
    call(driver.cuMemcpyPeerAsync(here, primary, there, second_device, 100, 0))
    assert status(driver.cuMemcpyPeer(here, 0, there, second_device, 1)) == "INVALID_CONTEXT"
    call(driver.cuCtxSynchronize())
    call(driver.cuMemFree(there))


def test_batches(allocate: Any, read: Any, new_stream: Any) -> None:
    stream, first, second = new_stream(), allocate(100), allocate(100)
    host = numbers(100)
    attributes = driver.CUmemcpyAttributes()
    attributes.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    targets = [driver.CUdeviceptr(address) for address in (first, second)]
    sources = [driver.CUdeviceptr(host.ctypes.data + start) for start in (0, 50)]
    arguments = targets, sources, [50, 50], 2
    call(driver.cuMemcpyBatchAsync(*arguments, [attributes], [0], 1, stream))
    call(driver.cuStreamSynchronize(stream))
    assert (read(first, 50) == host[:50]).all()
    assert (read(second, 50) == host[50:]).all()
    refused = driver.cuMemcpyBatchAsync(*arguments, [attributes], [0], 1, 0)
    assert status(refused) == "INVALID_VALUE"


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_memset(allocate: Any, read: Any, bits: int) -> None:
    address, unit, value = allocate(400), bits // 8, 0x12345678 % 2**bits
    dtype = np.dtype(f"u{unit}")
    call(getattr(driver, f"cuMemsetD{bits}")(address + unit, value, 10))
    result = read(address, 12 * unit).view(dtype)
    assert (result[1:11] == value).all()
    assert result[11] == result[0] == 0xCBCBCBCB % 2**bits
    call(getattr(driver, f"cuMemsetD2D{bits}")(address, 16 * unit, 3, 5, 4))
    rows = read(address, 64 * unit).view(dtype).reshape(4, 16)
    assert (rows[:, :5] == 3).all()
    assert (rows[1:, 5:] != 3).all()
    call(getattr(driver, f"cuMemsetD{bits}Async")(address, 4, 2, 0))
    call(getattr(driver, f"cuMemsetD2D{bits}Async")(address, 16 * unit, 4, 2, 2, 0))
    call(driver.cuStreamSynchronize(0))


def test_invalid_memsets(allocate: Any) -> None:
    address, host = allocate(400), numbers(400)
    assert status(driver.cuMemsetD8(address, 0, 401)) == "INVALID_VALUE"
    assert status(driver.cuMemsetD16(address + 1, 0, 1)) == "INVALID_VALUE"
    assert status(driver.cuMemsetD32(address + 2, 0, 1)) == "INVALID_VALUE"
    assert status(driver.cuMemsetD8(host.ctypes.data, 0, 1)) == "INVALID_VALUE"
    assert status(driver.cuMemsetD2D32(address, 6, 0, 1, 2)) == "INVALID_VALUE"
    assert status(driver.cuMemsetD2D8(address, 4, 0, 5, 2)) == "INVALID_VALUE"
    call(driver.cuMemsetD8(address, 0, 0))


def test_memset_waits_for_host_memory_only(allocate: Any, pinned: Any, late: None) -> None:
    host = pinned(100)
    call(driver.cuMemsetD8(host.ctypes.data, 6, 100))
    assert (host == 6).all()
    call(driver.cuMemsetD8(allocate(100), 6, 100))
    assert status(driver.cuStreamQuery(0)) == "NOT_READY"
    call(driver.cuStreamSynchronize(0))
