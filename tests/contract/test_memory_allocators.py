"""Pools over the memory of another allocator, which may fail in any way."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import nbrt
from helpers.memory_model import HostAllocator, address_of
from nbrt import memory
from nbrt.errors import DeviceError, NbrtCleanupWarning, NotSupportedError

MIB = 1 << 20


@pytest.fixture(autouse=True)
def settled(device: nbrt.Device) -> None:
    """No garbage of earlier tests may be freed in the middle of a measurement."""
    gc.collect()
    nbrt.synchronize(device)


def held(pool: nbrt.MemoryPool) -> list[int]:
    return sorted(each.requested for each in pool.allocations())


def take(nbytes: int, device: nbrt.Device) -> nbrt.typing.Array:
    return nbrt.empty(nbytes, "uint8", device=device)


@pytest.fixture
def by_address(device: nbrt.Device) -> nbrt.Device:
    """A kind of device that takes memory by address."""
    if device.kind == "sample":
        pytest.skip("the sample backend takes no memory by address")
    return device


def test_memory_goes_back_to_its_allocator(by_address: nbrt.Device) -> None:
    allocator = HostAllocator()
    pool = nbrt.MemoryPool(by_address, allocator=allocator)
    stream = nbrt.Stream(by_address)
    with memory.use_pool(pool):
        x = nbrt.empty(1000, "float64", stream=stream)
        empty = take(0, by_address)
    assert set(allocator.out) >= {address_of(x)}
    assert pool.memory_reserved() == 8001
    assert pool.kind == "allocator"
    view = x[5:]
    del x, empty
    assert pool.memory_reserved() == 8000
    pool.close()
    assert len(allocator.out) == 1
    del view
    assert allocator.out == {}


def test_an_allocator_that_refuses(by_address: nbrt.Device) -> None:
    class Refusing(HostAllocator):
        def allocate(self, *args: Any) -> int:
            raise MemoryError("planned")

    pool = nbrt.MemoryPool(by_address, allocator=Refusing())
    with (
        memory.use_pool(pool),
        pytest.raises(nbrt.errors.OutOfMemoryError, match="Refusing: planned"),
    ):
        take(10, by_address)
    assert (pool.memory_reserved(), pool.memory_allocated()) == (0, 0)


@pytest.mark.parametrize("size", [10, 2 * MIB])
@pytest.mark.parametrize("answer", [None, "nonsense", 0, -4096, ValueError("no"), TypeError("no")])
def test_an_allocator_that_answers_nonsense(
    by_address: nbrt.Device, answer: Any, size: int
) -> None:
    class Confused(HostAllocator):
        def allocate(self, *args: Any) -> int:
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[no-any-return]

    pool = nbrt.MemoryPool(by_address, allocator=Confused())
    with memory.use_pool(pool), pytest.raises(DeviceError, match="expected Confused") as caught:
        take(size, by_address)
    assert not isinstance(caught.value, MemoryError)
    assert (pool.memory_reserved(), pool.memory_allocated(), pool.segments()) == (0, 0, [])


def test_an_allocator_that_hands_memory_out_twice(by_address: nbrt.Device) -> None:
    class Stuck(HostAllocator):
        def allocate(self, *args: Any) -> int:
            return next(iter(self.out)) if self.out else super().allocate(*args)

    pool = nbrt.MemoryPool(by_address, allocator=Stuck())
    with memory.use_pool(pool):
        x = take(100, by_address)
        with pytest.raises(DeviceError, match="expected Stuck"):
            take(100, by_address)
    assert held(pool) == [100]
    assert pool.memory_reserved() == x.size


@pytest.mark.parametrize("size", [10, 2 * MIB])
def test_an_allocator_that_cannot_take_memory_back(by_address: nbrt.Device, size: int) -> None:
    class Broken(HostAllocator):
        def deallocate(self, *args: Any) -> None:
            raise LookupError("planned")

    allocator = Broken()
    pool = nbrt.MemoryPool(by_address, allocator=allocator)
    with memory.use_pool(pool):
        x = take(size, by_address)
    kept = [x]
    del x
    with pytest.warns(NbrtCleanupWarning, match=r"Broken.*LookupError\('planned'\)"):
        kept.clear()
    assert (pool.memory_reserved(), held(pool)) == (0, [])
    assert take(10, by_address).size == 10


def test_a_device_that_takes_no_addresses(device: nbrt.Device) -> None:
    if device.kind != "sample":
        pytest.skip("the device takes memory by address")
    allocator = HostAllocator()
    pool = nbrt.MemoryPool(device, allocator=allocator)
    with memory.use_pool(pool), pytest.raises(NotSupportedError, match="other allocators' memory"):
        take(10, device)
    assert allocator.out == {}
    assert pool.memory_reserved() == 0
