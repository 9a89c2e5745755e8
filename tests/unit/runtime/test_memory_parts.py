"""Each part of the memory runtime alone, with what it needs as arguments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nbrt
from nbrt.backends.cpu.memory import CachingPool
from nbrt.backends.lazy import LazyInitializer
from nbrt.errors import OutOfMemoryError
from nbrt.runtime.memory.allocation import Allocation, SizeClassCache
from nbrt.runtime.memory.device_allocator import DeviceAllocator
from nbrt.runtime.memory.event_log import EventLog
from nbrt.runtime.memory.hooks import FreeNotifier
from nbrt.runtime.memory.oom import recovery_steps, retry_allocation
from nbrt.runtime.memory.pending import PendingFrees
from nbrt.runtime.memory.pool_impl import PoolImpl
from nbrt.runtime.memory.pool_state import PoolState
from nbrt.runtime.memory.statistics import Statistics

DEVICE = nbrt.Device("cpu", 0)
UINT8 = np.dtype("uint8")
STREAM: Any = SimpleNamespace(ref=lambda: None)


def state() -> PoolState:
    return PoolState(DEVICE, 0, "caching")


def block(pool: PoolState, nbytes: int = 64, bin_: list[Allocation] | None = None) -> Allocation:
    memory: Any = CachingPool().allocate(None, nbytes)  # type: ignore[arg-type]
    return Allocation(pool, memory, None, bin_)  # type: ignore[arg-type]


def cache_of(log: EventLog, pool: PoolState, **functions: Any) -> SizeClassCache:
    def refuse(*args: object) -> Any:
        raise OutOfMemoryError("no device")

    slow = functions.get("allocate_slow", refuse)
    returned = functions.get("returned", [])
    return SizeClassCache(
        pool, log.events, log.events.append, slow, refuse, returned.append, refuse
    )


def test_an_event_log_counts_without_a_pool() -> None:
    log, pool = EventLog(Statistics()), state()
    bin_: list[Allocation] = []
    allocation = block(pool, 128, bin_)
    allocation.requested = 100
    cache = cache_of(log, pool)
    array = cache.allocate_over(allocation, 100, STREAM, (100,), UINT8)
    frees: list[Any] = []
    log.process(frees.append, frees.append)
    assert (log.statistics.all.count, log.statistics.small.bytes) == (1, 128)
    del array
    log.process(frees.append, frees.append)
    assert (log.statistics.all.count, log.statistics.all.peak_requested) == (0, 100)
    assert (bin_, frees, len(log.events)) == ([allocation], [], 0)


def test_an_event_log_hands_on_what_has_no_bin() -> None:
    log, pool = EventLog(Statistics()), state()
    allocation = block(pool)
    cache_of(log, pool).allocate_over(allocation, 10, STREAM, (10,), UINT8)
    log.events.append(pool)
    frees: list[Any] = []
    closed: list[PoolState] = []
    log.process(frees.append, closed.append)
    assert [record.allocation for record in frees] == [allocation]
    assert closed == [pool]
    log.is_paused = True
    log.events.append(pool)
    log.process(frees.append, closed.append)
    assert len(log.events) == len(closed) == 1


def test_a_size_class_cache_needs_no_device() -> None:
    log, pool = EventLog(Statistics()), state()
    requests: list[int] = []

    def slow(
        cache: SizeClassCache, nbytes: int, stream: Any, shape: Any, dtype: Any
    ) -> np.ndarray[Any, Any]:
        requests.append(nbytes)
        log.process(requests.append, requests.append)
        size, bin_ = cache.bin_of(nbytes)
        bin_ += [block(pool, size, bin_) for _ in range(cache.refill_count(size))]
        return cache.allocate_over(bin_.pop(), nbytes, stream, shape, dtype)

    cache = cache_of(log, pool, allocate_slow=slow)
    for _ in range(300):
        cache.allocate(100, STREAM, (100,), UINT8)
    assert requests[0] == 100
    assert len(requests) < 12
    assert list(cache.bins) == [128]


def test_a_cache_returns_a_block_that_no_array_can_be_made_over() -> None:
    log, pool = EventLog(Statistics()), state()
    returned: list[Allocation] = []
    cache, allocation = cache_of(log, pool, returned=returned), block(pool)
    with pytest.raises(ValueError, match="dimension"):
        cache.allocate_over(allocation, 10, STREAM, (1,) * 70, UINT8)
    assert (returned, len(log.events)) == ([allocation], 0)


def test_a_notifier_needs_no_allocator() -> None:
    log, pool = EventLog(Statistics()), state()
    processed: list[bool] = []
    lazy = LazyInitializer("cpu", lambda: None)
    notifier = FreeNotifier(
        log.events, lambda: False, lazy, lambda: processed.append(True), lambda *args: None
    )
    cache = cache_of(log, pool)
    array = cache.allocate_over(block(pool), 10, STREAM, (10,), UINT8, notifier.on_free)
    assert not notifier.is_behind()
    del array
    assert (processed, notifier.is_behind()) == ([True], True)


def test_pending_frees_wait_for_events() -> None:
    statistics, freed = Statistics(), []
    pending = PendingFrees(lambda pool: (statistics,))
    allocation = block(state())
    pending.add(allocation)
    assert (statistics.all.pending, pending.events()) == (1, [])
    pending.poll(freed.append)
    assert (freed, statistics.all.pending) == ([allocation], 0)


def test_recovery_stops_at_the_first_step_that_helps() -> None:
    done: list[str] = []

    def attempt() -> str:
        if len(done) < 2:
            raise OutOfMemoryError("full")
        return "memory"

    steps = recovery_steps(DEVICE, 10, lambda: done.append("empty"), list, lambda: (0, 0))
    assert retry_allocation(attempt, steps) == "memory"
    assert done == ["empty", "empty"]


def test_recovery_raises_the_last_failure() -> None:
    failures = iter(range(9))

    def attempt() -> str:
        raise OutOfMemoryError(f"failure {next(failures)}")

    with pytest.raises(OutOfMemoryError, match="failure 2"):
        retry_allocation(attempt, [lambda: None] * 3)


def test_no_part_refers_to_the_object_that_holds_it() -> None:
    """From an allocation and the log no reference leads to a pool or to the allocator."""
    pool = nbrt.MemoryPool("cpu:0")
    with nbrt.use_pool(pool):
        array = nbrt.empty(1000, device="cpu:0")
    (allocation,) = pool.allocations()
    holders = (DeviceAllocator, PoolImpl, SizeClassCache, EventLog)
    for part in (allocation, allocation.pool, pool._allocator.log, pool._allocator.pending):
        names = getattr(type(part), "__slots__", None) or vars(part)
        values = [getattr(part, name) for name in names if name != "__weakref__"]
        assert not any(isinstance(value, holders) for value in values)
    assert array.size == 1000
