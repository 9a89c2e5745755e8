"""CuPy's functions of memory, pools, copies and pointers on the simulated driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS = 1, 2, 3, 4


@pytest.fixture
def allocate(runtime: Any) -> Iterator[Callable[[int], int]]:
    """Allocate device memory, which is freed after the test."""
    addresses = []

    def allocate(size: int) -> int:
        addresses.append(runtime.malloc(size))
        return addresses[-1]

    yield allocate
    for address in addresses:
        runtime.free(address)


def test_empty_allocations_and_null_pointers(runtime: Any) -> None:
    assert runtime.malloc(0) == 0
    assert runtime.hostAlloc(0, 0) == 0
    runtime.free(0)
    runtime.freeHost(0)


def test_too_much_memory(runtime: Any, fails: Callable[..., None]) -> None:
    fails("cudaErrorMemoryAllocation", runtime.malloc, 1 << 60)
    free, _ = runtime.memGetInfo()
    runtime.free(runtime.malloc(free // 2))  # the error does not stay


def test_free_of_what_is_not_allocated(runtime: Any, fails: Callable[..., None]) -> None:
    address = runtime.malloc(64)
    fails("cudaErrorInvalidValue", runtime.free, address + 4)
    runtime.free(address)
    fails("cudaErrorInvalidValue", runtime.free, address)


@pytest.mark.parametrize("kinds", [(HOST_TO_DEVICE, DEVICE_TO_DEVICE, DEVICE_TO_HOST), (4, 4, 4)])
@pytest.mark.parametrize("is_async", [False, True])
def test_copies(
    runtime: Any, allocate: Callable[[int], int], kinds: tuple[int, ...], is_async: bool
) -> None:
    source, target = np.arange(100, dtype=np.uint8), np.zeros(100, np.uint8)
    first, second = allocate(100), allocate(100)
    chain = [source.ctypes.data, first, second, target.ctypes.data]
    for to, origin, kind in zip(chain[1:], chain[:-1], kinds, strict=True):
        if is_async:
            runtime.memcpyAsync(to, origin, 100, kind, 0)
        else:
            runtime.memcpy(to, origin, 100, kind)
    runtime.deviceSynchronize()
    assert (target == source).all()


def test_direction_of_a_copy(runtime: Any, fails: Callable[..., None]) -> None:
    runtime.memcpy(0, 0, 0, HOST_TO_DEVICE)  # nothing to copy
    fails("cudaErrorInvalidMemcpyDirection", runtime.memcpy, 0, 0, 0, 9)
    fails("cudaErrorInvalidMemcpyDirection", runtime.memcpyAsync, 0, 0, 0, -1, 0)


def test_copies_of_rows(
    runtime: Any, allocate: Callable[[int], int], fails: Callable[..., None]
) -> None:
    source, target = np.arange(48, dtype=np.uint8).reshape(6, 8), np.zeros((6, 5), np.uint8)
    address = allocate(6 * 16)
    runtime.memcpy2D(address, 16, source.ctypes.data, 8, 5, 6, HOST_TO_DEVICE)
    runtime.memcpy2DAsync(target.ctypes.data, 5, address, 16, 5, 6, DEVICE_TO_HOST, 0)
    runtime.deviceSynchronize()
    assert (target == source[:, :5]).all()
    narrow = (address, 4, source.ctypes.data, 8, 5, 6, HOST_TO_DEVICE)
    fails("cudaErrorInvalidPitchValue", runtime.memcpy2D, *narrow)


def test_copies_of_boxes(runtime: Any, allocate: Callable[[int], int]) -> None:
    """The parameters are a cudaMemcpy3DParms."""
    source = np.arange(4 * 3 * 8, dtype=np.uint8).reshape(4, 3, 8)
    address = allocate(source.size)
    words = np.zeros(20, np.uint64)
    words[4:8] = source.ctypes.data, 8, 8, 3
    words[12:16] = address, 8, 8, 3
    words[16:19] = 8, 3, 4
    words[19] = HOST_TO_DEVICE
    runtime.memcpy3DAsync(words.ctypes.data, 0)
    target = np.zeros_like(source)
    runtime.memcpy(target.ctypes.data, address, source.size, DEVICE_TO_HOST)
    assert (target == source).all()
    words[0] = 1
    with pytest.raises(runtime.CUDARuntimeError, match="NotSupported"):
        runtime.memcpy3D(words.ctypes.data)


def test_copies_between_devices(runtime: Any, allocate: Callable[[int], int]) -> None:
    if runtime.getDeviceCount() < 2:
        pytest.skip("one device")
    source, target = np.arange(16, dtype=np.uint8), np.zeros(16, np.uint8)
    here = allocate(16)
    runtime.setDevice(1)
    there = runtime.malloc(16)
    runtime.memcpy(here, source.ctypes.data, 16, HOST_TO_DEVICE)
    runtime.memcpyPeer(there, 1, here, 0, 16)
    runtime.memset(here, 0, 16)
    runtime.memcpyPeerAsync(here, 0, there, 1, 16, 0)
    runtime.memcpy(target.ctypes.data, here, 16, DEVICE_TO_HOST)
    runtime.free(there)
    assert (target == source).all()


def test_memset_takes_the_lowest_byte(runtime: Any, allocate: Callable[[int], int]) -> None:
    address, target = allocate(8), np.zeros(8, np.uint8)
    runtime.memset(address, 0x107, 8)
    runtime.memsetAsync(address, -1, 4, 0)
    runtime.memsetAsync(0, 0, 0, 0)
    runtime.memcpy(target.ctypes.data, address, 8, DEVICE_TO_HOST)
    assert target.tolist() == [255] * 4 + [7] * 4


def test_pointers(runtime: Any, allocate: Callable[[int], int]) -> None:
    device, host, plain = allocate(64), runtime.hostAlloc(64, 0), np.zeros(8)
    managed = runtime.mallocManaged(64)
    described = {}
    for name, address in (
        ("device", device + 8),
        ("host", host),
        ("managed", managed),
        ("plain", plain.ctypes.data),
    ):
        found = runtime.pointerGetAttributes(address)
        assert runtime.pointerGetMemoryType(address) == found.type
        described[name] = found.type, found.device, found.devicePointer, found.hostPointer
    runtime.freeHost(host)
    runtime.free(managed)
    assert described == {
        "device": (runtime.memoryTypeDevice, 0, device + 8, 0),
        "host": (runtime.memoryTypeHost, 0, host, host),
        "managed": (runtime.memoryTypeManaged, 0, managed, managed),
        "plain": (runtime.memoryTypeUnregistered, -2, 0, plain.ctypes.data),
    }


def test_registered_memory(runtime: Any) -> None:
    array = np.zeros(1 << 14, np.uint8)
    runtime.hostRegister(array.ctypes.data, array.nbytes, 0)
    assert runtime.pointerGetMemoryType(array.ctypes.data) == runtime.memoryTypeHost
    runtime.hostUnregister(array.ctypes.data)
    assert runtime.pointerGetMemoryType(array.ctypes.data) == runtime.memoryTypeUnregistered


def test_managed_memory(runtime: Any, fails: Callable[..., None]) -> None:
    address = runtime.mallocManaged(1 << 16)
    runtime.memPrefetchAsync(address, 1 << 16, 0, 0)
    runtime.memAdvise(address, 1 << 16, runtime.cudaMemAdviseSetReadMostly, 0)
    # CuPy for CUDA 13 passes -1 as an ordinal, though the host has a type of location.
    fails("cudaErrorInvalid", runtime.memPrefetchAsync, address, 1 << 16, -1, 0)
    runtime.deviceSynchronize()
    runtime.free(address)


def test_pools(runtime: Any) -> None:
    default = runtime.deviceGetDefaultMemPool(0)
    properties = runtime.MemPoolProps(
        runtime.cudaMemAllocationTypePinned, 0, runtime.cudaMemLocationTypeDevice, 0
    )
    pool = runtime.memPoolCreate(properties)
    runtime.deviceSetMemPool(0, pool)
    assert runtime.deviceGetMemPool(0) == pool
    runtime.deviceSetMemPool(0, default)
    for attribute, value in (
        (runtime.cudaMemPoolAttrReleaseThreshold, 1 << 40),
        (runtime.cudaMemPoolReuseAllowOpportunistic, 0),
    ):
        runtime.memPoolSetAttribute(pool, attribute, value)
        assert runtime.memPoolGetAttribute(pool, attribute) == value
    first, second = runtime.mallocFromPoolAsync(64, pool, 0), runtime.mallocAsync(64, 0)
    assert runtime.memPoolGetAttribute(pool, runtime.cudaMemPoolAttrUsedMemCurrent) >= 64
    for address in (first, second):
        runtime.freeAsync(address, 0)
    runtime.deviceSynchronize()
    runtime.memPoolTrimTo(pool, 0)
    runtime.memPoolDestroy(pool)
    with pytest.raises(TypeError):
        runtime.memPoolCreate(3)


def test_handles_for_other_processes(runtime: Any, allocate: Callable[[int], int]) -> None:
    assert len(runtime.ipcGetMemHandle(allocate(1 << 12))) == 64
    with pytest.raises(ValueError, match="64 bytes"):
        runtime.ipcOpenMemHandle(b"short")
