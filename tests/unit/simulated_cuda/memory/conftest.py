"""Fixtures: memory and streams of the simulated driver, freed after the test."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cuda.bindings import driver

from helpers.driver_calls import call
from simulated_cuda import control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Reader = Callable[[Any, int], np.ndarray]


@pytest.fixture
def allocate(primary: driver.CUcontext) -> Iterator[Callable[[int], int]]:
    """Allocate device memory, which is freed after the test."""
    addresses = []

    def create(size: int) -> int:
        addresses.append(int(call(driver.cuMemAlloc(size))))
        return addresses[-1]

    yield create
    for address in addresses:
        driver.cuMemFree(address)


@pytest.fixture
def pinned(primary: driver.CUcontext) -> Iterator[Callable[[int], np.ndarray]]:
    """Allocate pinned host memory as an array of bytes, which is freed after the test."""
    addresses = []

    def create(size: int) -> np.ndarray:
        addresses.append(int(call(driver.cuMemHostAlloc(size, 0))))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(addresses[-1]))

    yield create
    for address in addresses:
        driver.cuMemFreeHost(address)


@pytest.fixture
def new_stream(primary: driver.CUcontext) -> Iterator[Callable[[], driver.CUstream]]:
    """Create streams that do not wait for the legacy default stream."""
    streams = []

    def create() -> driver.CUstream:
        streams.append(call(driver.cuStreamCreate(1)))
        return streams[-1]

    yield create
    for stream in streams:
        driver.cuStreamDestroy(stream)


@pytest.fixture
def read(primary: driver.CUcontext) -> Reader:
    """Copy bytes of the device to the host."""

    def copy(address: Any, size: int) -> np.ndarray:
        result = np.zeros(size, np.uint8)
        call(driver.cuMemcpyDtoH(result.ctypes.data, int(address), size))
        return result

    return copy


@pytest.fixture
def late(primary: driver.CUcontext) -> Iterator[None]:
    """Run no work before something waits for it."""
    with control.schedule("late", hold_seconds=60):
        yield


@pytest.fixture
def second_device(primary: driver.CUcontext) -> Iterator[driver.CUcontext]:
    """The primary context of device 1, retained but not current."""
    if call(driver.cuDeviceGetCount()) < 2:
        pytest.skip("needs two simulated devices")
    yield call(driver.cuDevicePrimaryCtxRetain(1))
    call(driver.cuDevicePrimaryCtxRelease(1))


@pytest.fixture
def second_context(second_device: driver.CUcontext) -> Iterator[driver.CUcontext]:
    """A new context on device 1, not current.

    Other tests of this process may have given the primary context access to peers.
    """
    context = call(driver.cuCtxCreate(None, 0, 1))
    call(driver.cuCtxPopCurrent())
    yield context
    call(driver.cuCtxDestroy(context))
