"""Stream-ordered memory of the simulated driver."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cuda.bindings import driver

from helpers.driver_calls import Latch, call, status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

MIB = 1 << 20
TESTS = str(Path(__file__).parents[3])
PoolAttribute = driver.CUmemPool_attribute


def get(pool: Any, name: str) -> int:
    attribute = getattr(PoolAttribute, f"CU_MEMPOOL_ATTR_{name}")
    return int(call(driver.cuMemPoolGetAttribute(pool, attribute)))


def assign(pool: Any, name: str, value: int) -> str:
    attribute = getattr(PoolAttribute, f"CU_MEMPOOL_ATTR_{name}")
    of_64_bits = name.endswith(("HIGH", "THRESHOLD"))
    number = driver.cuuint64_t(value) if of_64_bits else value
    return status(driver.cuMemPoolSetAttribute(pool, attribute, number))


def properties(**fields: Any) -> driver.CUmemPoolProps:
    result = driver.CUmemPoolProps()
    result.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    result.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    for name, value in fields.items():
        setattr(result, name, value)
    return result


@pytest.fixture
def new_pool(primary: Any) -> Iterator[Callable[..., Any]]:
    pools = []

    def create(**fields: Any) -> Any:
        pools.append(call(driver.cuMemPoolCreate(properties(**fields))))
        return pools[-1]

    yield create
    driver.cuCtxSynchronize()
    for pool in pools:
        driver.cuMemPoolDestroy(pool)


def test_memory_of_a_pool_is_counted(new_pool: Any, new_stream: Any) -> None:
    pool, stream = new_pool(), new_stream()
    before = call(driver.cuMemGetInfo())[0]
    addresses = [call(driver.cuMemAllocFromPoolAsync(1000, pool, stream)) for _ in range(2)]
    assert get(pool, "USED_MEM_CURRENT") == get(pool, "USED_MEM_HIGH") == 2048
    assert get(pool, "RESERVED_MEM_CURRENT") == before - call(driver.cuMemGetInfo())[0] >= 2048
    for address in addresses:
        call(driver.cuMemFreeAsync(address, stream))
    call(driver.cuStreamSynchronize(stream))
    assert get(pool, "USED_MEM_CURRENT") == get(pool, "RESERVED_MEM_CURRENT") == 0
    assert get(pool, "USED_MEM_HIGH") == 2048
    assert get(pool, "RESERVED_MEM_HIGH") > 0
    assert call(driver.cuMemGetInfo())[0] == before
    assert assign(pool, "USED_MEM_HIGH", 1) == "INVALID_VALUE"
    assert assign(pool, "USED_MEM_HIGH", 0) == assign(pool, "RESERVED_MEM_HIGH", 0) == "SUCCESS"
    assert get(pool, "USED_MEM_HIGH") == get(pool, "RESERVED_MEM_HIGH") == 0


def test_threshold_keeps_memory(new_pool: Any) -> None:
    pool = new_pool()
    assert get(pool, "RELEASE_THRESHOLD") == 0
    assert assign(pool, "RELEASE_THRESHOLD", 2**64 - 1) == "SUCCESS"
    assert get(pool, "RELEASE_THRESHOLD") == 2**64 - 1
    call(driver.cuMemFreeAsync(call(driver.cuMemAllocFromPoolAsync(8 * MIB, pool, 0)), 0))
    call(driver.cuStreamSynchronize(0))
    assert get(pool, "RESERVED_MEM_CURRENT") == 8 * MIB
    call(driver.cuMemPoolTrimTo(pool, 4 * MIB))
    assert get(pool, "RESERVED_MEM_CURRENT") == 4 * MIB
    call(driver.cuMemPoolTrimTo(pool, 0))
    assert get(pool, "RESERVED_MEM_CURRENT") == 0


# The fault breaks the context, so it happens in a child process.
_EARLY_USE = """
from cuda.bindings import driver
from helpers.driver_calls import Latch, call, status
from simulated_cuda import control
call(driver.cuInit(0))
call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(0))))
first, second = call(driver.cuStreamCreate(1)), call(driver.cuStreamCreate(1))
latch = Latch().hold(first)
address = call(driver.cuMemAllocAsync(1000, first))
call(driver.cuMemsetD8Async(address, 0, 1000, second))
print(status(driver.cuStreamSynchronize(second)), control.take_report())
latch.open()
"""


def test_allocation_exists_from_its_place_in_the_stream(run_child: Any) -> None:
    search = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    found = run_child(_EARLY_USE, PYTHONPATH=search)
    assert found.startswith("ILLEGAL_ADDRESS a memset used")
    assert "does not exist yet in stream order" in found


def test_free_takes_effect_at_its_place_in_the_stream(new_stream: Any, read: Any) -> None:
    stream = new_stream()
    address = call(driver.cuMemAllocAsync(1000, stream))
    call(driver.cuStreamSynchronize(stream))
    latch = Latch().hold(stream)
    call(driver.cuMemsetD8Async(address, 7, 1000, stream))
    call(driver.cuMemFreeAsync(address, stream))
    assert status(driver.cuMemsetD8Async(address, 7, 1, stream)) == "INVALID_VALUE"
    assert status(driver.cuMemFreeAsync(address, stream)) == "INVALID_VALUE"
    assert status(driver.cuMemFree(address)) == "INVALID_VALUE"
    latch.open()
    call(driver.cuStreamSynchronize(stream))


def test_reuse_in_the_order_of_a_stream(new_pool: Any, new_stream: Any, read: Any) -> None:
    pool, stream = new_pool(), new_stream()
    latch = Latch().hold(stream)
    first = call(driver.cuMemAllocFromPoolAsync(1000, pool, stream))
    call(driver.cuMemsetD8Async(first, 7, 1000, stream))
    call(driver.cuMemFreeAsync(first, stream))
    second = call(driver.cuMemAllocFromPoolAsync(1000, pool, stream))
    assert int(second) == int(first)
    latch.open()
    call(driver.cuStreamSynchronize(stream))
    assert (read(second, 1000) == 0xCB).all()
    call(driver.cuMemFreeAsync(second, stream))


def test_no_reuse_of_a_queued_free_by_another_stream(new_pool: Any, new_stream: Any) -> None:
    pool, first, second = new_pool(), new_stream(), new_stream()
    address = call(driver.cuMemAllocFromPoolAsync(1000, pool, first))
    latch = Latch().hold(first)
    call(driver.cuMemFreeAsync(address, first))
    other = call(driver.cuMemAllocFromPoolAsync(1000, pool, second))
    assert int(other) != int(address)
    latch.open()
    call(driver.cuStreamSynchronize(first))
    third = call(driver.cuMemAllocFromPoolAsync(1000, pool, second))
    assert int(third) == int(address)
    assert assign(pool, "REUSE_ALLOW_OPPORTUNISTIC", 0) == "SUCCESS"
    assert get(pool, "REUSE_ALLOW_OPPORTUNISTIC") == 0
    call(driver.cuMemFreeAsync(third, second))
    call(driver.cuStreamSynchronize(second))
    fourth = call(driver.cuMemAllocFromPoolAsync(1000, pool, first))
    assert int(fourth) != int(third)
    for address, stream in ((other, second), (fourth, first)):
        call(driver.cuMemFreeAsync(address, stream))


def test_short_memory_adds_dependencies(
    new_pool: Any, new_stream: Any, simulation: ModuleType
) -> None:
    """An allocation waits for the queued free of another stream, if memory is short."""
    pool, first, second = new_pool(maxSize=4 * MIB), new_stream(), new_stream()
    address = call(driver.cuMemAllocFromPoolAsync(3 * MIB, pool, first))
    latch = Latch().hold(first)
    assert status(driver.cuMemAllocFromPoolAsync(2 * MIB, pool, second)) == "OUT_OF_MEMORY"
    call(driver.cuMemFreeAsync(address, first))
    other = call(driver.cuMemAllocFromPoolAsync(2 * MIB, pool, second))
    assert status(driver.cuStreamQuery(second)) == "NOT_READY"
    latch.open()
    call(driver.cuStreamSynchronize(second))
    call(driver.cuMemFreeAsync(other, second))
    assert assign(pool, "REUSE_ALLOW_INTERNAL_DEPENDENCIES", 0) == "SUCCESS"
    latch = Latch().hold(second)
    third = driver.cuMemAllocFromPoolAsync(4 * MIB, pool, first)
    assert status(third) == "OUT_OF_MEMORY"
    latch.open()


def test_free_without_order_is_reported(new_stream: Any, simulation: ModuleType) -> None:
    first, second = new_stream(), new_stream()
    latch = Latch().hold(first)
    address = call(driver.cuMemAllocAsync(1000, first))
    call(driver.cuMemFreeAsync(address, second))
    call(driver.cuStreamSynchronize(second))
    assert "before its allocation in stream order" in simulation.take_report()
    latch.open()
    call(driver.cuStreamSynchronize(first))


def test_plain_free(primary: Any, allocate: Any) -> None:
    address = call(driver.cuMemAllocAsync(1000, 0))
    call(driver.cuCtxSynchronize())
    call(driver.cuMemFree(address))
    assert status(driver.cuMemFreeAsync(address, 0)) == "INVALID_VALUE"
    assert status(driver.cuMemFreeAsync(allocate(1000), 0)) == "INVALID_VALUE"
    assert status(driver.cuMemAllocAsync(0, 0)) == "INVALID_VALUE"


def test_pools_of_a_device(new_pool: Any, new_stream: Any) -> None:
    default = call(driver.cuDeviceGetDefaultMemPool(0))
    assert int(call(driver.cuDeviceGetMemPool(0))) == int(default)
    assert status(driver.cuMemPoolDestroy(default)) == "INVALID_VALUE"
    pool = new_pool()
    call(driver.cuDeviceSetMemPool(0, pool))
    assert int(call(driver.cuDeviceGetMemPool(0))) == int(pool)
    address = call(driver.cuMemAllocAsync(1000, 0))
    assert get(pool, "USED_MEM_CURRENT") == 1024
    call(driver.cuMemPoolDestroy(pool))
    assert int(call(driver.cuDeviceGetMemPool(0))) == int(default)
    refused = driver.cuMemPoolGetAttribute(pool, PoolAttribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    assert status(refused) == "INVALID_VALUE"
    before = call(driver.cuMemGetInfo())[0]
    call(driver.cuMemFreeAsync(address, 0))
    call(driver.cuStreamSynchronize(0))
    assert call(driver.cuMemGetInfo())[0] > before
    assert status(driver.cuDeviceGetDefaultMemPool(99)) == "INVALID_DEVICE"


def test_pools_of_the_host_and_of_managed_memory(new_pool: Any) -> None:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
    pinned = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    default = call(driver.cuMemGetDefaultMemPool(location, pinned))
    assert int(call(driver.cuMemGetMemPool(location, pinned))) == int(default)
    pools = [
        (default, driver.CUmemorytype.CU_MEMORYTYPE_HOST, 0),
        (
            new_pool(allocType=driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED),
            driver.CUmemorytype.CU_MEMORYTYPE_DEVICE,
            1,
        ),
    ]
    attributes = driver.CUpointer_attribute
    for pool, kind, is_managed in pools:
        address = call(driver.cuMemAllocFromPoolAsync(1000, pool, 0))
        found = driver.cuPointerGetAttribute(attributes.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
        assert call(found) == kind
        found = driver.cuPointerGetAttribute(attributes.CU_POINTER_ATTRIBUTE_IS_MANAGED, address)
        assert call(found) == is_managed
        call(driver.cuMemFreeAsync(address, 0))


def test_invalid_pools(primary: Any) -> None:
    refused = properties(allocType=driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_INVALID)
    assert status(driver.cuMemPoolCreate(refused)) == "INVALID_VALUE"
    elsewhere = properties()
    elsewhere.location.id = 99
    assert status(driver.cuMemPoolCreate(elsewhere)) == "INVALID_VALUE"
    assert status(driver.cuMemAllocFromPoolAsync(10, 0, 0)) == "INVALID_VALUE"


def test_access_of_another_device(new_pool: Any, second_device: Any) -> None:
    pool = new_pool()
    address = call(driver.cuMemAllocFromPoolAsync(1000, pool, 0))
    call(driver.cuCtxSynchronize())
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = 1
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    pointer = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_POINTER
    call(driver.cuCtxPushCurrent(second_device))
    assert status(driver.cuPointerGetAttribute(pointer, address)) == "INVALID_VALUE"
    assert int(call(driver.cuMemPoolGetAccess(pool, access.location))) == 0
    call(driver.cuMemPoolSetAccess(pool, [access], 1))
    assert int(call(driver.cuMemPoolGetAccess(pool, access.location))) == 3
    assert int(call(driver.cuPointerGetAttribute(pointer, address))) == int(address)
    access.location.id = 0
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
    assert status(driver.cuMemPoolSetAccess(pool, [access], 1)) == "INVALID_VALUE"
    call(driver.cuCtxPopCurrent())
    call(driver.cuMemFreeAsync(address, 0))
