"""The cache of host memory behind CPU devices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbrt
from nbrt.backends.cpu.memory import ALIGNMENT, HostBlock, HostPool
from nbrt.errors import OutOfMemoryError

MIB = 1 << 20


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3 * MIB)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_blocks_in_use_never_overlap(steps: list[tuple[bool, int]]) -> None:
    pool = HostPool()
    used: list[HostBlock] = []
    for is_free, size in steps:
        if is_free and used:
            pool.deallocate(used.pop(size % len(used)))
        elif size % 17 == 0:
            pool.empty_cache()
        else:
            block = pool.allocate(size)
            assert block.nbytes >= size
            assert block.address % ALIGNMENT == 0
            used.append(block)
        spans = sorted((block.address, block.address + block.nbytes) for block in used)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert pool.reserved >= sum(block.nbytes for block in used)
    for block in used:
        pool.deallocate(block)
    pool.empty_cache()
    assert pool.reserved == 0


@pytest.mark.parametrize("size", [1, 64, 65, 512, 513, 1000, 5000, 70_000, MIB, MIB + 1, 9 * MIB])
def test_little_is_wasted(size: int) -> None:
    block = HostPool().allocate(size)
    assert size <= block.nbytes <= max(ALIGNMENT, size + max(ALIGNMENT, size // 8), size + 65_536)


def test_a_larger_cached_block_is_not_wasted_on_a_small_request() -> None:
    pool = HostPool()
    large = pool.allocate(16 * MIB)
    pool.deallocate(large)
    assert pool.allocate(3 * MIB).address != large.address
    again = pool.allocate(14 * MIB)
    assert again.address == large.address


def test_fresh_memory_is_readable_and_reused_memory_is_not_cleared() -> None:
    pool = HostPool()
    block = pool.allocate(2 * MIB)
    data = np.frombuffer(block.buffer, np.uint8, 2 * MIB, block.offset)
    assert not data.any()
    data[:] = 7
    del data
    pool.deallocate(block)
    again = pool.allocate(2 * MIB)
    assert np.frombuffer(again.buffer, np.uint8, 2 * MIB, again.offset).min() == 7


def test_the_limit_counts_mappings() -> None:
    pool = HostPool(limit=8 * MIB)
    kept = pool.allocate(2 * MIB)
    cached = pool.allocate(5 * MIB)
    pool.deallocate(cached)
    block = pool.allocate(6 * MIB - (6 * MIB) % 65_536)  # drops what is cached
    reserved = pool.reserved
    with pytest.raises(OutOfMemoryError, match="NBRT_CPU_MEMORY_LIMIT"):
        pool.allocate(MIB + 1)
    assert pool.reserved == reserved
    for each in (block, kept):
        pool.deallocate(each)
    pool.empty_cache()
    assert pool.reserved == 0


@pytest.mark.parametrize("size", [1 << 50, 1 << 62, 1 << 70])
def test_what_the_system_refuses(size: int) -> None:
    pool = HostPool()
    with pytest.raises(OutOfMemoryError, match="expected the system to map"):
        pool.allocate(size)
    assert pool.reserved == 0


def test_views_of_an_arrays_base_belong_to_its_device() -> None:
    array = nbrt.zeros(16, device="cpu:1")
    view = array.base[4:]
    assert nbrt.device_of(view) == nbrt.Device("cpu:1")
    address, before = array.ctypes.data, nbrt.memory_allocated("cpu:1")
    del array
    assert nbrt.memory_allocated("cpu:1") == before
    del view
    assert nbrt.memory_allocated("cpu:1") < before
    assert nbrt.zeros(16, device="cpu:1").ctypes.data == address
