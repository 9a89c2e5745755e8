"""Fake segments, blocks and layouts: addresses without memory."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from helpers.processes import run_python
from nbrt.backends.cpu.properties import cpu_properties
from nbrt.backends.fake import memory_segments
from nbrt.backends.fake.memory import POOL_KINDS, DeviceMemory, layout, make_pool
from nbrt.backends.fake.memory_segments import address_of, map_fake
from nbrt.backends.interface import DeviceProperties
from nbrt.backends.pools import AddressableBlock, AllocationHandle
from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import DeviceError, OutOfMemoryError

MIB = 1 << 20
TIB = 1 << 40
QUEUE = SynchronousQueue(0)


def cpu_memory(*, enforce: bool = False, total: int = 0) -> DeviceMemory:
    properties = DeviceProperties("a fake", total, 1) if total else cpu_properties()
    return DeviceMemory("cpu", properties, enforce=enforce)


@pytest.mark.parametrize("kind", POOL_KINDS["cpu"])
def test_ten_terabytes_take_no_memory(kind: str) -> None:
    pool = make_pool(cpu_memory(), kind, {})
    assert pool is not None
    block = pool.allocate(QUEUE, 10 * TIB)
    whole = layout(block, (10, TIB // 8), np.dtype("f8"))
    assert whole.nbytes == 10 * TIB <= block.nbytes
    part = whole[1::3, 5:].T.reshape(-1, 3)[::-1]
    assert whole.ctypes.data == block.address
    assert np.may_share_memory(part, whole)
    assert pool.reserved() >= 10 * TIB
    pool.deallocate(QUEUE, block)
    pool.close()
    assert pool.reserved() == 0


def test_addresses_are_used_again_when_no_array_is_over_them() -> None:
    segment = map_fake(3 * MIB)
    gone = weakref.ref(segment)
    array = np.ndarray((3 * MIB,), np.uint8, segment)  # type: ignore[arg-type]
    view, address = array[MIB:], array.ctypes.data
    del segment, array
    gc.collect()
    assert gone() is not None
    others = [map_fake(3 * MIB) for _ in range(4)]
    starts = [address_of(other) for other in others]
    assert not any(address - 4 * MIB < start < address + 4 * MIB for start in starts)
    del view
    assert gone() is None
    other = map_fake(1)  # first takes back what was dropped
    ranges = [*memory_segments._free.sizes.items(), (address_of(other), other.nbytes)]
    assert any(start <= address < start + nbytes for start, nbytes in ranges)


@pytest.mark.parametrize("access", ["array[0]", "array[...] = 0", "array + 1"])
def test_an_access_ends_the_process(access: str) -> None:
    code = f"""
import numpy as np
from nbrt.backends.fake.memory_segments import map_fake
array = np.ndarray((8,), np.uint8, map_fake(8))
print(array.shape, flush=True)
{access}
print("survived")
"""
    result = run_python(code)
    assert result.stdout.strip() == "(8,)"
    assert result.returncode < 0


def test_blocks_have_handles_and_no_bytes() -> None:
    pool = make_pool(cpu_memory(), "caching", {})
    assert pool is not None
    block = pool.allocate(QUEUE, 100)
    assert not isinstance(block, AddressableBlock)
    handle = block.handle("the owner")
    assert isinstance(handle, AllocationHandle)
    assert handle.owner == "the owner"
    pool.deallocate(QUEUE, block)
    with pytest.raises(DeviceError, match="freed"):
        layout(block, (100,), np.dtype("u1"))


@pytest.mark.parametrize("kind", POOL_KINDS["cpu"])
def test_enforced_memory_ends_at_the_size_of_the_device(kind: str) -> None:
    memory = cpu_memory(enforce=True, total=64 * MIB)
    first, second = make_pool(memory, kind, {}), make_pool(memory, kind, {})
    assert first is not None
    assert second is not None
    block = first.allocate(QUEUE, 40 * MIB)
    second.set_limit(None)
    with pytest.raises(OutOfMemoryError):
        second.allocate(QUEUE, 30 * MIB)
    assert memory.info() == (24 * MIB, 64 * MIB)
    first.deallocate(QUEUE, block)
    first.empty_cache()
    second.set_limit(None)
    assert second.allocate(QUEUE, 30 * MIB).nbytes >= 30 * MIB


def test_unknown_kinds_and_options_have_no_pool() -> None:
    memory = cpu_memory()
    assert make_pool(memory, "async", {}) is None
    assert make_pool(memory, "caching", {"guard": True}) is None
    assert make_pool(memory, "plain", {"guard": True}) is not None
