"""Sixteen threads at one device's memory: no byte is lost, and all numbers add up."""

from __future__ import annotations

import gc
import random
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.memory_model import Span, address_of, assert_apart
from nbrt import memory

if TYPE_CHECKING:
    from collections.abc import Iterator

THREADS = 16
STEPS = 150
SIZES = (0, 1, 100, 100, 700, 5_000, 70_000, 300_000, (1 << 20) + 1)
NAMES = ("allocated", "allocated_bytes", "active", "active_bytes", "requested_bytes")


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """Threads change places as often as can be."""
    gc.collect()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


class Worker:
    """One thread; keeps count on its own of what it asks for."""

    def __init__(self, seed: int, device: nbrt.Device, shared: list[Any]) -> None:
        self.random = random.Random(seed)
        self.device = device
        self.shared = shared
        self.streams = [nbrt.Stream(device) for _ in range(2)]
        self.mark = seed + 1
        self.count = self.nbytes = self.requested = 0

    def run(self, pools: list[nbrt.MemoryPool]) -> None:
        kept: list[Any] = []
        for step in range(STEPS):
            pool = self.random.choice(pools)
            with memory.use_pool(pool):
                self.allocate(kept)
            if step % 10 == 0:
                memory.record_stream(kept[-1], self.random.choice(self.streams))
            if step % 50 == 0:
                memory.memory_stats(self.device)
            if step % 100 == 0:
                memory.empty_cache(self.device)
            while len(kept) > 8:
                array = kept.pop(self.random.randrange(len(kept)))
                self.check(array)
                if step % 3 == 0:
                    self.shared.append(array[1:])  # ends in another thread
                    if len(self.shared) > 20:
                        self.shared.pop(0)
        self.shared.extend(kept)

    def allocate(self, kept: list[Any]) -> None:
        size = self.random.choice(SIZES[: -2 if self.device.kind == "sample" else None])
        array = nbrt.empty(size, "uint8", device=self.device)
        owner: Any = nbrt.get_interface_for_device(self.device).owner_of(array)
        self.count += 1
        self.nbytes += owner.nbytes
        self.requested += size
        if isinstance(array, np.ndarray):
            array[:] = self.mark
        kept.append(array)

    def check(self, array: Any) -> None:
        if isinstance(array, np.ndarray):
            assert np.all(array == self.mark)


@pytest.mark.parametrize("pool_count", [1, 3])
def test_sixteen_threads(device: nbrt.Device, pool_count: int) -> None:
    pools = [memory.default_pool(device)]
    pools += [nbrt.MemoryPool(device) for _ in range(pool_count - 1)]
    memory.empty_cache(device)
    memory.reset_accumulated_memory_stats(device)
    memory.reset_peak_memory_stats(device)
    start = memory.memory_stats(device)
    shared: list[Any] = []
    workers = [Worker(seed, device, shared) for seed in range(THREADS)]
    failures: list[BaseException] = []
    barrier = threading.Barrier(THREADS)

    def work(worker: Worker) -> None:
        try:
            barrier.wait(HANG_TIMEOUT)
            worker.run(pools)
        except BaseException as error:  # noqa: BLE001  # shown by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_TIMEOUT)
    assert failures == []
    nbrt.synchronize(device)
    live = memory.allocations(device)
    assert_apart([Span(each.address, each.nbytes, 0, 0, None) for each in live])
    assert {address_of(array) for array in shared if array.size} <= {
        address for each in live for address in (each.address, each.address + 1)
    }
    del live
    shared.clear()
    nbrt.synchronize(device)
    memory.memory_stats(device)
    nbrt.synchronize(device)
    stats = memory.memory_stats(device)
    for name in NAMES:
        assert stats[f"{name}.all.current"] == start[f"{name}.all.current"]
        assert stats[f"{name}.all.allocated"] == stats[f"{name}.all.freed"]
        for key in ("current", "allocated", "freed"):
            parts = [stats[f"{name}.{pool}.{key}"] for pool in ("small_pool", "large_pool")]
            assert sum(parts) == stats[f"{name}.all.{key}"]
        assert stats[f"{name}.all.peak"] >= stats[f"{name}.all.current"]
    assert stats["allocated.all.allocated"] == sum(worker.count for worker in workers)
    assert stats["allocated_bytes.all.allocated"] == sum(worker.nbytes for worker in workers)
    assert stats["requested_bytes.all.allocated"] == sum(worker.requested for worker in workers)
    if pool_count > 1:
        own = [pool.stats() for pool in pools]
        for name in NAMES:
            total = sum(each[f"{name}.all.allocated"] for each in own)
            assert total == stats[f"{name}.all.allocated"]
    memory.empty_cache(device)
    assert [pool.memory_reserved() for pool in pools[1:]] == [0] * (pool_count - 1)
    if start["allocated.all.current"] == 0:
        assert memory.memory_reserved(device) == 0
