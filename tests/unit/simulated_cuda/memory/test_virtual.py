"""Virtual memory management of the simulated driver."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from cuda.bindings import driver

from helpers.driver_calls import call, status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    Create = Callable[[int], Any]

UNIT = 2 << 20
POSIX = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def properties() -> driver.CUmemAllocationProp:
    result = driver.CUmemAllocationProp()
    result.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    result.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    result.requestedHandleTypes = POSIX
    return result


def access(flags: int = 3, device: int = 0) -> driver.CUmemAccessDesc:
    result = driver.CUmemAccessDesc()
    result.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    result.location.id = device
    result.flags = driver.CUmemAccess_flags(flags)
    return result


@pytest.fixture
def reservation(primary: Any) -> Iterator[int]:
    """Addresses of 8 units."""
    address = int(call(driver.cuMemAddressReserve(8 * UNIT, 0, 0, 0)))
    yield address
    driver.cuCtxSynchronize()
    for start in range(address, address + 8 * UNIT, UNIT):
        for size in range(1, 9):
            driver.cuMemUnmap(start, size * UNIT)
    driver.cuMemAddressFree(address, 8 * UNIT)


@pytest.fixture
def create(primary: Any) -> Iterator[Create]:
    """Create physical memory, which is released after the test."""
    handles = []

    def new(size: int) -> Any:
        handles.append(call(driver.cuMemCreate(size, properties(), 0)))
        return handles[-1]

    yield new
    for handle in handles:
        driver.cuMemRelease(handle)


def test_mapped_memory(reservation: int, create: Create, read: Any) -> None:
    handle = create(2 * UNIT)
    call(driver.cuMemMap(reservation, 2 * UNIT, 0, handle, 0))
    assert status(driver.cuMemsetD8(reservation, 7, 10)) == "INVALID_VALUE"
    call(driver.cuMemSetAccess(reservation, 2 * UNIT, [access()], 1))
    call(driver.cuMemsetD8(reservation, 7, 2 * UNIT))
    call(driver.cuMemMap(reservation + 4 * UNIT, 2 * UNIT, 0, handle, 0))
    call(driver.cuMemSetAccess(reservation + 4 * UNIT, 2 * UNIT, [access()], 1))
    assert (read(reservation + 4 * UNIT, 2 * UNIT) == 7).all()


def test_adjacent_mappings_are_one_range_for_copies(
    reservation: int, create: Create, read: Any
) -> None:
    for start in range(3):
        call(driver.cuMemMap(reservation + start * UNIT, UNIT, 0, create(UNIT), 0))
    call(driver.cuMemSetAccess(reservation, 3 * UNIT, [access()], 1))
    call(driver.cuMemsetD8(reservation + 5, 3, 3 * UNIT - 5))
    assert (read(reservation + 5, 3 * UNIT - 5) == 3).all()
    assert status(driver.cuMemsetD8(reservation, 3, 3 * UNIT + 1)) == "INVALID_VALUE"


def test_refused_mappings(reservation: int, create: Create) -> None:
    handle = create(2 * UNIT)
    call(driver.cuMemMap(reservation, 2 * UNIT, 0, handle, 0))
    refused = [
        driver.cuMemMap(reservation, 2 * UNIT, 0, handle, 0),
        driver.cuMemMap(reservation + UNIT, UNIT, 0, handle, 0),
        driver.cuMemMap(reservation + 2 * UNIT, 3 * UNIT, 0, handle, 0),
        driver.cuMemMap(reservation + 7 * UNIT, 2 * UNIT, 0, handle, 0),
        driver.cuMemMap(reservation + 2 * UNIT + 512, UNIT, 0, handle, 0),
        driver.cuMemMap(reservation + 2 * UNIT, UNIT, UNIT, handle, 0),
        driver.cuMemMap(reservation + 2 * UNIT, UNIT, 0, handle, 1),
        driver.cuMemMap(reservation + 2 * UNIT, UNIT, 0, 12345, 0),
        driver.cuMemUnmap(reservation, UNIT),
        driver.cuMemUnmap(reservation + UNIT, UNIT),
        driver.cuMemUnmap(reservation, 3 * UNIT),
        driver.cuMemSetAccess(reservation, UNIT, [access()], 1),
        driver.cuMemSetAccess(reservation, 3 * UNIT, [access()], 1),
        driver.cuMemAddressFree(reservation, 8 * UNIT),
        driver.cuMemAddressFree(reservation, 4 * UNIT),
    ]
    assert [status(result) for result in refused] == ["INVALID_VALUE"] * len(refused)
    assert (
        status(driver.cuMemSetAccess(reservation, 2 * UNIT, [access(3, 99)], 1)) == "INVALID_DEVICE"
    )


def test_refused_memory(primary: Any, simulation: ModuleType) -> None:
    assert call(driver.cuMemGetAllocationGranularity(properties(), 0)) == UNIT
    assert status(driver.cuMemCreate(UNIT + 1, properties(), 0)) == "INVALID_VALUE"
    assert status(driver.cuMemCreate(0, properties(), 0)) == "INVALID_VALUE"
    assert status(driver.cuMemAddressReserve(100, 0, 0, 0)) == "INVALID_VALUE"
    assert status(driver.cuMemAddressReserve(UNIT, 3, 0, 0)) == "INVALID_VALUE"
    with simulation.limited_memory(UNIT):
        assert status(driver.cuMemCreate(2 * UNIT, properties(), 0)) == "OUT_OF_MEMORY"


def test_memory_lives_while_it_is_mapped(reservation: int) -> None:
    before = call(driver.cuMemGetInfo())[0]
    handle = call(driver.cuMemCreate(UNIT, properties(), 0))
    call(driver.cuMemMap(reservation, UNIT, 0, handle, 0))
    call(driver.cuMemRelease(handle))
    assert status(driver.cuMemRelease(handle)) == "INVALID_VALUE"
    assert before - call(driver.cuMemGetInfo())[0] == UNIT
    again = call(driver.cuMemRetainAllocationHandle(reservation + 100))
    assert int(again) == int(handle)
    found = call(driver.cuMemGetAllocationPropertiesFromHandle(again))
    assert found.location.id == 0
    call(driver.cuMemUnmap(reservation, UNIT))
    assert before - call(driver.cuMemGetInfo())[0] == UNIT
    call(driver.cuMemRelease(again))
    assert call(driver.cuMemGetInfo())[0] == before
    assert status(driver.cuMemRetainAllocationHandle(reservation)) == "INVALID_VALUE"


def test_access(reservation: int, create: Create, second_device: Any) -> None:
    call(driver.cuMemMap(reservation, UNIT, 0, create(UNIT), 0))
    call(driver.cuMemSetAccess(reservation, UNIT, [access(3, 0), access(1, 1)], 2))
    assert call(driver.cuMemGetAccess(access(device=0).location, reservation)) == 3
    assert call(driver.cuMemGetAccess(access(device=1).location, reservation)) == 1
    call(driver.cuMemSetAccess(reservation, UNIT, [access(0, 1)], 1))
    assert call(driver.cuMemGetAccess(access(device=1).location, reservation)) == 0
    assert status(driver.cuMemGetAccess(access().location, reservation + UNIT)) == "INVALID_VALUE"
    call(driver.cuMemUnmap(reservation, UNIT))
    assert status(driver.cuMemsetD8(reservation, 1, 1)) == "INVALID_VALUE"


def test_exported_handles(reservation: int, create: Create, read: Any) -> None:
    handle = create(UNIT)
    call(driver.cuMemMap(reservation, UNIT, 0, handle, 0))
    file = call(driver.cuMemExportToShareableHandle(handle, POSIX, 0))
    imported = call(driver.cuMemImportFromShareableHandle(file, POSIX))
    os.close(file)
    call(driver.cuMemMap(reservation + UNIT, UNIT, 0, imported, 0))
    call(driver.cuMemSetAccess(reservation, 2 * UNIT, [access()], 1))
    call(driver.cuMemsetD8(reservation, 7, UNIT))
    assert (read(reservation + UNIT, UNIT) == 7).all()
    call(driver.cuMemRelease(imported))
    other = os.open("/dev/null", os.O_RDWR)
    assert status(driver.cuMemImportFromShareableHandle(other, POSIX)) == "INVALID_VALUE"
    os.close(other)


def test_freed_addresses_cannot_be_used(primary: Any) -> None:
    address = int(call(driver.cuMemAddressReserve(UNIT, 0, 0, 0)))
    assert address % UNIT == 0
    call(driver.cuMemAddressFree(address, UNIT))
    assert status(driver.cuMemAddressFree(address, UNIT)) == "INVALID_VALUE"
    assert status(driver.cuMemcpy(address, address, 10)) == "INVALID_VALUE"
    aligned = int(call(driver.cuMemAddressReserve(UNIT, 16 * UNIT, 0, 0)))
    assert aligned % (16 * UNIT) == 0
    call(driver.cuMemAddressFree(aligned, UNIT))
