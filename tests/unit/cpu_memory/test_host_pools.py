"""Every pool of host memory against a model of who has which bytes."""

from __future__ import annotations

import gc
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrt.backends.cpu.memory import (
    CachingPool,
    ExpandablePool,
    HostBlock,
    HostPool,
    PinnedPool,
    PlainPool,
)
from nbrt.backends.cpu.memory.mapping import PAGE, map_segment
from nbrt.errors import DeviceError, OutOfMemoryError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

MIB = 1 << 20


def guarded(mapper: Callable[[int], mmap.mmap] = map_segment) -> PlainPool:
    return PlainPool(mapper, guard=True)


def unlocked(mapper: Callable[[int], mmap.mmap] = map_segment) -> PinnedPool:
    """The pool where locking is refused; locked pages cost time at every mapping."""
    return PinnedPool(mapper, locker=lambda address, nbytes: "the test refuses")


CACHING = [CachingPool, ExpandablePool, unlocked]
EVERY = [*CACHING, PlainPool, guarded]


class Model:
    """The blocks in use, each with a distinct mark in its first and last bytes."""

    def __init__(self, pool: HostPool, is_guarded: bool) -> None:
        self.pool = pool
        self.is_guarded = is_guarded
        self.marks = itertools.count(1)
        self.blocks: list[tuple[HostBlock, Any, int]] = []

    def allocate(self, nbytes: int) -> None:
        before = self.pool.reserved()
        try:
            block = self.pool.allocate(None, nbytes)
        except OutOfMemoryError:
            assert self.pool.reserved() <= before
            return
        assert block.nbytes >= nbytes
        assert block.address % 64 == 0
        assert nbytes <= MIB or self.is_guarded or block.address % PAGE == 0
        data, mark = block.handle(self), next(self.marks)
        assert (data.ctypes.data, data.nbytes) == (block.address, block.nbytes)
        data[:8].view(np.int64)[0] = data[-8:].view(np.int64)[0] = mark
        self.blocks.append((block, data, mark))

    def free(self, choice: int) -> None:
        block, data, mark = self.blocks.pop(choice % len(self.blocks))
        assert data[:8].view(np.int64)[0] == data[-8:].view(np.int64)[0] == mark
        self.pool.deallocate(None, block)

    def check(self) -> None:
        spans = sorted((block.address, block.address + block.nbytes) for block, _, _ in self.blocks)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        segments = sorted((each.address, each.nbytes) for each in self.pool.segments())
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(segments))
        assert self.pool.reserved() == sum(nbytes for _, nbytes in segments)
        for start, end in spans:
            assert any(a <= start and end <= a + n for a, n in segments)


@pytest.mark.parametrize("make", EVERY)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("aaaaffffel"),
            st.one_of(st.integers(1, 4096), st.integers(1, MIB), st.integers(MIB, 20 * MIB)),
        ),
        max_size=40,
    )
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_pool_hands_out_what_nobody_has(
    make: Callable[[], HostPool], steps: list[tuple[str, int]]
) -> None:
    pool = make()
    model = Model(pool, make is guarded)
    for action, number in steps:
        if action == "a":
            model.allocate(number)
        elif action == "f" and model.blocks:
            model.free(number)
        elif action == "e":
            pool.empty_cache()
        elif action == "l":
            pool.set_limit(2 * number + MIB if number % 2 else None)
        model.check()
    while model.blocks:
        model.free(0)
    pool.empty_cache()
    assert (pool.reserved(), pool.segments()) == (0, [])
    made, released = pool.segment_counts()
    assert (made == 0) == (released == 0)


@pytest.mark.parametrize("make", CACHING)
def test_neighbours_that_are_free_become_one(make: Callable[[], HostPool]) -> None:
    pool = make()
    whole = pool.allocate(None, 16 * MIB)
    address = whole.address
    pool.deallocate(None, whole)
    counts = pool.segment_counts()
    parts = [pool.allocate(None, 2 * MIB) for _ in range(8)]
    for place in (1, 3, 2, 7, 0, 5, 6, 4):
        pool.deallocate(None, parts[place])
    again = pool.allocate(None, 16 * MIB)
    assert (again.address, pool.segment_counts()) == (address, counts)


@pytest.mark.parametrize("make", CACHING)
def test_small_blocks_become_one_again(make: Callable[[], HostPool]) -> None:
    pool = make()
    blocks = [pool.allocate(None, 128) for _ in range(100)]
    for block in blocks[::2] + blocks[1::2]:
        pool.deallocate(None, block)
    counts = pool.segment_counts()
    pool.deallocate(None, pool.allocate(None, MIB))
    assert pool.segment_counts() == counts == (1, 0)


@pytest.mark.parametrize("make", EVERY)
def test_the_limit_is_kept_and_caches_go_first(make: Callable[[], HostPool]) -> None:
    pool = make()
    pool.set_limit(32 * MIB)
    kept = pool.allocate(None, 8 * MIB)
    data = kept.handle(None)
    data[:] = 5
    pool.deallocate(None, pool.allocate(None, 16 * MIB))
    block = pool.allocate(None, 20 * MIB)
    assert pool.reserved() <= 32 * MIB
    pool.deallocate(None, block)
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match=f"a limit of {32 * MIB} bytes"):
            pool.allocate(None, 30 * MIB)
        assert pool.reserved() <= 32 * MIB
    assert (data == 5).all()
    pool.set_limit(None)
    pool.allocate(None, 30 * MIB)


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("size", [1 << 50, 1 << 62])
def test_what_no_system_has(make: Callable[[], HostPool], size: int) -> None:
    pool = make()
    with pytest.raises(OutOfMemoryError, match=f"expected room for {size} bytes"):
        pool.allocate(None, size)
    assert pool.reserved() == 0


@pytest.mark.parametrize("make", EVERY)
def test_a_mapping_that_fails_loses_nothing(make: Callable[..., HostPool]) -> None:
    fails: set[int] = set()
    calls = itertools.count()

    def mapper(nbytes: int) -> mmap.mmap:
        if next(calls) in fails:
            raise OSError(12, "the test has no memory")
        return map_segment(nbytes)

    pool = make(mapper)
    block = pool.allocate(None, 1000)
    block.handle(None)[:] = 1
    reserved = pool.reserved()
    fails.update(range(1, 4))
    # In one segment with the first, where the pool has segments of 2 MiB.
    fitting = [pool.allocate(None, MIB)] if pool.caches else []
    with pytest.raises(OutOfMemoryError, match="the test has no memory"):
        pool.allocate(None, MIB)
    assert pool.reserved() == reserved
    fails.clear()
    assert pool.allocate(None, MIB).nbytes == MIB
    assert [each.nbytes for each in fitting] in ([], [MIB])
    assert (block.handle(None)[:1000] == 1).all()


def test_a_roomy_mapping_that_is_refused_is_asked_for_again_without_the_room() -> None:
    asked = []

    def mapper(nbytes: int) -> mmap.mmap:
        asked.append(nbytes)
        if nbytes > 3 * MIB:
            raise MemoryError
        return map_segment(nbytes)

    assert CachingPool(mapper).allocate(None, 2 * MIB).nbytes == 2 * MIB
    assert asked == [16 * MIB, 2 * MIB]


def test_idle_mappings_are_bounded_by_what_was_in_use() -> None:
    pool = CachingPool()
    for size in range(10, 100, 2):
        pool.deallocate(None, pool.allocate(None, size * MIB))
        assert pool.reserved() <= 2 * size * MIB


def test_a_larger_cached_block_is_not_wasted_on_a_small_request() -> None:
    pool = CachingPool()
    large = pool.allocate(None, 16 * MIB)
    address = large.address
    pool.deallocate(None, large)
    part = pool.allocate(None, 3 * MIB)
    rest = pool.allocate(None, 13 * MIB)
    assert {part.address, rest.address} == {address, address + 3 * MIB}
    assert pool.segment_counts() == (1, 0)


@pytest.mark.parametrize("make", EVERY)
def test_arrays_outlive_the_pool(make: Callable[[], HostPool]) -> None:
    pool = make()
    blocks = [pool.allocate(None, size) for size in (100, 2 * MIB)]
    arrays = [np.ndarray((25,), np.float32, block.handle(None)) for block in blocks]
    for array in arrays:
        array[:] = 7
    pool.close()
    with pytest.raises(DeviceError, match="expected an open"):
        pool.allocate(None, 64)
    for block in blocks:
        pool.deallocate(None, block)
    assert pool.reserved() == 0
    del pool, block, blocks
    gc.collect()
    views = [array[3:] for array in arrays]
    del array, arrays
    assert all((view == 7).all() or not view.any() for view in views)
    for view in views:
        view[:] = 9
    assert all((view == 9).all() for view in views)


@pytest.mark.parametrize("make", CACHING)
def test_reused_memory_is_not_cleared(make: Callable[[], HostPool]) -> None:
    pool = make()
    block = pool.allocate(None, 2 * MIB)
    data = block.handle(None)
    assert not data.any()
    data[:] = 7
    pool.deallocate(None, block)
    assert pool.allocate(None, 2 * MIB).handle(None).min() == 7
