"""The block that was freed last is handed out again at once, and its end counts all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import nbrt
from nbrt import memory
from nbrt.runtime.memory.allocation import Allocation
from nbrt.testing.latch import Latch

if TYPE_CHECKING:
    from collections.abc import Iterator

KIB, MIB = 1 << 10, 1 << 20
SIZES = [16 * KIB, 64 * KIB, MIB, 3 * MIB]
DEVICE = "cpu:1"


@pytest.fixture(params=["caching", "expandable"])
def pool(request: pytest.FixtureRequest) -> Iterator[nbrt.MemoryPool]:
    with nbrt.MemoryPool(DEVICE, request.param) as pool, nbrt.use_pool(pool):
        yield pool


def make(nbytes: int) -> np.ndarray:
    return nbrt.empty(nbytes, "uint8", device=DEVICE)


def address(nbytes: int) -> int:
    """Return where an array lies that is gone at once."""
    return int(make(nbytes).ctypes.data)


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_loop_uses_few_blocks_and_counts_all(pool: nbrt.MemoryPool, nbytes: int) -> None:
    rounds = 600
    places = {address(nbytes) for _ in range(rounds)}
    # So many as the log may leave unread; then always the same.
    assert len(places) <= max(1, 256 * KIB // nbytes)
    stats = pool.stats()
    assert stats["allocated.all.allocated"] == stats["allocated.all.freed"] == rounds
    assert stats["allocated.all.peak"] == 1
    assert stats["requested_bytes.all.allocated"] == rounds * nbytes
    assert stats["requested_bytes.all.peak"] == nbytes
    assert stats["allocated.all.current"] == stats["requested_bytes.all.current"] == 0
    assert pool.allocations() == []


@pytest.mark.parametrize("nbytes", SIZES)
def test_peaks_are_those_of_a_count_by_hand(pool: nbrt.MemoryPool, nbytes: int) -> None:
    chances = np.random.default_rng(7)
    kept: list[np.ndarray] = []
    most = most_bytes = made = 0
    for _ in range(400):
        if kept and chances.random() < 0.55:
            del kept[int(chances.integers(len(kept)))]
        else:
            kept.append(make(nbytes + 64 * int(chances.integers(2))))
            made += 1
        most = max(most, len(kept))
        most_bytes = max(most_bytes, sum(each.nbytes for each in kept))
    for place, each in enumerate(kept):
        each[:] = place % 251
    assert [int(each[0]) for each in kept] == [int(each[-1]) for each in kept]
    assert [int(each[0]) for each in kept] == [place % 251 for place in range(len(kept))]
    stats = pool.stats()
    assert stats["allocated.all.allocated"] == made
    assert stats["allocated.all.current"] == len(kept) == len(pool.allocations())
    assert stats["allocated.all.peak"] == most
    assert stats["requested_bytes.all.peak"] == most_bytes
    kept.clear()
    assert pool.stats()["requested_bytes.all.current"] == 0


@pytest.mark.parametrize("nbytes", SIZES)
def test_what_another_stream_uses_is_not_handed_out(pool: nbrt.MemoryPool, nbytes: int) -> None:
    side = nbrt.Stream(DEVICE)
    for _ in range(40):  # until the block that was freed last comes again
        before = address(nbytes)
    x = make(nbytes)
    assert x.ctypes.data == before
    with Latch() as latch:
        latch.hold(side)
        memory.record_stream(x, side)
        del x
        assert address(nbytes) != before
        assert pool.stats()["active.all.current"] == 1
    side.synchronize()
    stats = pool.stats()
    assert stats["active.all.current"] == stats["allocated.all.current"] == 0
    assert stats["allocated.all.allocated"] == stats["allocated.all.freed"] == 42


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_shape_that_is_refused_loses_nothing(pool: nbrt.MemoryPool, nbytes: int) -> None:
    for _ in range(40):
        before = address(nbytes)
    with pytest.raises(nbrt.errors.ArgumentError, match="expected a shape that an array can have"):
        nbrt.empty((1,) * 70 + (nbytes,), "uint8", device=DEVICE)
    assert address(nbytes) == before
    assert pool.stats()["allocated.all.freed"] == 41


def test_a_block_whose_end_was_read_meanwhile_is_not_lost(
    pool: nbrt.MemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Allocation, *args: object) -> None:
        pool.stats()  # as a collector's callback may, in the middle
        raise ZeroDivisionError

    make(2 * MIB)
    with monkeypatch.context() as patch:
        patch.setattr(Allocation, "host_array", refuse)
        with pytest.raises(ZeroDivisionError):
            make(2 * MIB)
    pool.empty_cache()
    assert pool.stats()["allocated.all.current"] == pool.memory_reserved() == 0


def test_a_recording_sees_no_block_twice(pool: nbrt.MemoryPool) -> None:
    for _ in range(40):
        make(64 * KIB)
    with memory.memory_history() as history:
        make(64 * KIB)
        make(64 * KIB)
    actions = [each.action for each in history.events(DEVICE)]
    assert actions.count("alloc") == actions.count("free_completed") == 2


def test_numpy_sizes_do_not_overflow() -> None:
    small = np.int8(100)
    assert nbrt.empty((small, small, small), "int8", device=DEVICE).shape == (100, 100, 100)
    assert nbrt.empty((2, np.uint8(200)), device=DEVICE).shape == (2, 200)
    with pytest.raises(nbrt.errors.ArgumentError, match="negative"):
        nbrt.empty((3, np.int8(-100)), device=DEVICE)
