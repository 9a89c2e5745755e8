"""Pools: who allocates from which, how long they live, what they refuse."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.garbage import freeze_objects
from helpers.memory_model import HostAllocator
from nbrt import memory
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    NotSupportedError,
    UnknownDeviceError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def quick() -> None:
    """Garbage is collected in nearly every test."""
    freeze_objects()


@pytest.fixture(autouse=True)
def settled(device: nbrt.Device) -> Iterator[None]:
    """No garbage of earlier tests may be freed in the middle of a measurement."""
    gc.collect()
    nbrt.synchronize(device)
    yield
    memory.set_memory_limit(None, device)
    memory.default_pool(device).limit = None


def held(pool: nbrt.MemoryPool) -> list[int]:
    return sorted(each.requested for each in pool.allocations())


def take(nbytes: int, device: nbrt.Device) -> nbrt.typing.Array:
    return nbrt.empty(nbytes, "uint8", device=device)


# -- use_pool --------------------------------------------------------------------------------------


def test_blocks_nest_and_end_with_exceptions(device: nbrt.Device) -> None:
    first, second = nbrt.MemoryPool(device), nbrt.MemoryPool(device, name="second")
    default = memory.current_pool(device)
    kept = []
    with memory.use_pool(first) as entered:
        assert entered is first is memory.current_pool(device)
        kept.append(take(1, device))
        with contextlib.suppress(LookupError), memory.use_pool(second), memory.use_pool(first):
            kept.append(take(2, device))
            raise LookupError
        assert memory.current_pool(device) is first
        with memory.use_pool(second):
            kept.append(take(3, device))
        kept.append(take(4, device))
    assert memory.current_pool(device).id == default.id == (0, 0)
    kept.append(take(5, device))
    assert (held(first), held(second)) == ([1, 2, 4], [3])
    assert 5 in held(default)
    assert kept[4].size == 5


def test_guards_inside_keep_the_pool(device: nbrt.Device, other_device: nbrt.Device) -> None:
    pool = nbrt.MemoryPool(device)
    stream = nbrt.Stream(device)
    with memory.use_pool(pool):
        before = nbrt.current_device()
        with nbrt.device(other_device):
            here, there = take(1, device), nbrt.empty(2, "uint8")
        with nbrt.stream(stream):
            on_stream = nbrt.empty(3, "uint8")
        assert nbrt.current_device() == before
    with nbrt.device(device):
        after = nbrt.empty(4, "uint8")
    assert held(pool) == [1, 3]
    assert nbrt.device_of(there) == other_device
    assert here.size + on_stream.size + after.size == 8


def test_a_pool_of_another_device_is_not_asked(
    device: nbrt.Device, other_device: nbrt.Device
) -> None:
    pool = nbrt.MemoryPool(other_device)
    with memory.use_pool(pool):
        x, y = take(10, device), take(20, other_device)
    assert held(pool) == [20]
    assert (nbrt.device_of(x), nbrt.device_of(y)) == (device, other_device)


def test_every_thread_has_its_own(device: nbrt.Device) -> None:
    pool, other = nbrt.MemoryPool(device), nbrt.MemoryPool(device)
    made: list[Any] = []
    barrier = threading.Barrier(2)

    def work(chosen: nbrt.MemoryPool | None, nbytes: int) -> None:
        if chosen is None:
            barrier.wait(HANG_TIMEOUT)
            made.append(take(nbytes, device))
            barrier.wait(HANG_TIMEOUT)
        else:
            with memory.use_pool(chosen):
                barrier.wait(HANG_TIMEOUT)
                made.append(take(nbytes, device))
                barrier.wait(HANG_TIMEOUT)

    with memory.use_pool(pool):
        threads = [threading.Thread(target=work, args=each) for each in ((None, 1), (other, 2))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made.append(take(3, device))
    assert (held(pool), held(other), len(made)) == ([3], [2], 3)


def test_every_task_has_its_own(device: nbrt.Device) -> None:
    pools = [nbrt.MemoryPool(device) for _ in range(3)]
    made: list[Any] = []

    async def work(pool: nbrt.MemoryPool, nbytes: int, turn: asyncio.Barrier) -> None:
        with memory.use_pool(pool):
            await turn.wait()
            made.append(take(nbytes, device))
            await turn.wait()
        await turn.wait()
        assert memory.current_pool(device).id == (0, 0)

    async def main() -> None:
        turn = asyncio.Barrier(len(pools))
        await asyncio.gather(*(work(pool, 10 + n, turn) for n, pool in enumerate(pools)))

    asyncio.run(main())
    assert [held(pool) for pool in pools] == [[10], [11], [12]]


def test_a_generator_that_is_closed_late_changes_nobodys_pool(device: nbrt.Device) -> None:
    pool, other = nbrt.MemoryPool(device), nbrt.MemoryPool(device)

    def steps() -> Iterator[None]:
        with memory.use_pool(pool):
            yield

    suspended = steps()
    next(suspended)
    with memory.use_pool(other):
        suspended.close()
        x = take(7, device)
    assert (held(pool), held(other), x.size) == ([], [7], 7)
    assert memory.current_pool(device).id == (0, 0)


# -- the life of pools -----------------------------------------------------------------------------


def close(pools: list[nbrt.MemoryPool]) -> None:
    pools.pop().close()


def drop(pools: list[nbrt.MemoryPool]) -> None:
    pools.clear()


def drop_in_a_cycle(pools: list[nbrt.MemoryPool]) -> None:
    pools.append(pools)  # type: ignore[arg-type]
    cycle: Any = list(pools)
    pools.clear()
    cycle[1] = cycle
    del cycle
    gc.collect()


@pytest.mark.parametrize("size", [100, 3 * MIB])
@pytest.mark.parametrize("end", [close, drop, drop_in_a_cycle])
def test_arrays_outlive_their_pool(
    device: nbrt.Device, end: Callable[[list[nbrt.MemoryPool]], None], size: int
) -> None:
    memory.empty_cache(device)
    start, used = memory.memory_reserved(device), memory.memory_allocated(device)
    pools = [nbrt.MemoryPool(device)]
    with memory.use_pool(pools[0]):
        x, y = nbrt.full(size, 3, "uint8", device=device), take(size, device)
    del y
    end(pools)
    assert memory.memory_reserved(device) - start >= size
    assert memory.memory_allocated(device) - used >= size
    assert size in [each.requested for each in memory.allocations(device)]
    view = x[size // 2 :]
    del x
    assert int(nbrt.to_host(view).min()) == 3
    del view
    assert memory.memory_allocated(device) == used
    assert memory.memory_reserved(device) == start


def test_a_closed_pool_hands_out_nothing(device: nbrt.Device) -> None:
    with nbrt.MemoryPool(device, name="mine") as pool, memory.use_pool(pool):
        kept = take(100, device)
        pool.close()
        pool.close()
        calls: list[object] = []
        with (
            memory.attach_out_of_memory_observer(lambda *about: calls.append(about)),
            pytest.raises(DeviceError, match=r"expected an open pool, got .*'mine'.*closed"),
        ):
            take(100, device)
    with pytest.raises(DeviceError, match="closed"), memory.use_pool(pool):
        pass
    assert calls == []  # nothing that anybody could free would help
    assert held(pool) == [100]
    del kept
    assert (held(pool), pool.memory_reserved()) == ([], 0)


def test_the_default_pool_stays(device: nbrt.Device) -> None:
    pool = memory.default_pool(device)
    with pytest.raises(ArgumentError, match="expected a pool that was made with MemoryPool"):
        pool.close()
    again = memory.default_pool(device)
    assert (pool.id, pool.device, again.kind) == (again.id, device, pool.kind)
    with memory.use_pool(nbrt.MemoryPool(device)), memory.use_pool(pool):
        x = take(11, device)
    assert 11 in held(pool)
    assert x.size == 11


def test_the_default_pools_numbers_go_on_when_other_pools_are_gone(device: nbrt.Device) -> None:
    pool = nbrt.MemoryPool(device)
    del pool
    default = memory.default_pool(device)
    before = default.memory_allocated(), memory.memory_allocated(device)
    small, large = take(100, device), take(2 * MIB, device)
    more = default.memory_allocated() - before[0]
    assert more == memory.memory_allocated(device) - before[1] >= small.size + large.size
    del small, large
    assert default.memory_allocated() == before[0]


def test_ids_are_not_used_again(device: nbrt.Device) -> None:
    ids = [nbrt.MemoryPool(device).id for _ in range(3)]
    assert len({*ids, memory.default_pool(device).id}) == 4


def test_every_kind_of_the_device(device: nbrt.Device) -> None:
    interface = nbrt.get_interface_for_device(device)
    for kind in interface.pool_kinds:
        try:
            nbrt.MemoryPool(device, kind).close()
        except NotSupportedError:
            assert kind in ("async", "managed", "system", "expandable"), "which some GPUs lack"
            continue
        with nbrt.MemoryPool(device, kind) as pool, memory.use_pool(pool):
            assert pool.kind == kind
            arrays = [take(size, device) for size in (0, 1, 5000, 2 * MIB)]
            assert held(pool) == [0, 1, 5000, 2 * MIB]
            assert pool.memory_reserved() >= pool.memory_allocated() >= 2 * MIB
            del arrays
        assert pool.memory_allocated() == 0


# -- limits ----------------------------------------------------------------------------------------


def test_limits_of_a_pool_are_its_own(device: nbrt.Device) -> None:
    pool = nbrt.MemoryPool(device, limit=4 * MIB)
    assert pool.limit == 4 * MIB
    with memory.use_pool(pool), pytest.raises(nbrt.errors.OutOfMemoryError, match=f"{4 * MIB}"):
        take(5 * MIB, device)
    assert pool.stats()["num_ooms"] == 1
    assert take(5 * MIB, device).size == 5 * MIB
    pool.limit = None
    with memory.use_pool(pool):
        assert take(5 * MIB, device).size == 5 * MIB


@pytest.mark.parametrize("size", [65, 70_001, 2 * MIB + 1])
def test_limits_count_what_is_reserved(device: nbrt.Device, size: int) -> None:
    """Pools round up; no device's blocks are multiples of a byte."""
    pool = nbrt.MemoryPool(device, limit=size)
    with memory.use_pool(pool), pytest.raises(nbrt.errors.OutOfMemoryError):
        take(size, device)
    assert (pool.memory_reserved(), pool.memory_allocated()) == (0, 0)


def test_limits_as_fractions(device: nbrt.Device) -> None:
    total = nbrt.get_interface_for_device(device).mem_get_info(device.index)[1]
    pool = nbrt.MemoryPool(device, limit=0.5)
    assert pool.limit == total // 2
    memory.set_memory_limit(0.25, device)
    assert memory.get_memory_limit(device) == total // 4
    assert memory.mem_get_info(device)[1] == total // 4
    memory.set_per_process_memory_fraction(1, device)
    assert memory.get_memory_limit(device) == total
    assert memory.get_per_process_memory_fraction(device) == 1.0
    memory.set_memory_limit(0, device)
    memory.empty_cache(device)
    with pytest.raises(nbrt.errors.OutOfMemoryError):
        take(3 * MIB, device)
    memory.set_memory_limit(None, device)
    assert memory.get_memory_limit(device) is None


def test_a_limit_below_what_is_held_refuses_growth_only(device: nbrt.Device) -> None:
    kept = take(3 * MIB, device)
    memory.set_memory_limit(MIB, device)
    with pytest.raises(nbrt.errors.OutOfMemoryError):
        take(20 * MIB, device)
    assert nbrt.to_host(kept).size == 3 * MIB
    assert memory.mem_get_info(device)[0] == 0


# -- wrong arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"kind": "no such"}, NotSupportedError),
        ({"kind": 3}, ArgumentTypeError),
        ({"limit": "1 GB"}, ArgumentTypeError),
        ({"limit": True}, ArgumentTypeError),
        ({"limit": -1}, ArgumentError),
        ({"limit": 1.5}, ArgumentError),
        ({"limit": float("nan")}, ArgumentError),
        ({"name": 3}, ArgumentTypeError),
        ({"allocator": 3}, ArgumentTypeError),
        ({"allocator": HostAllocator(), "kind": "caching"}, ArgumentError),
        ({"allocator": HostAllocator(), "guard": True}, ArgumentError),
        ({"no_such_option": 1}, NotSupportedError),
        ({"device": 1.5}, ArgumentTypeError),
        ({"device": "cpu:1000"}, UnknownDeviceError),
    ],
)
def test_pools_that_cannot_be(device: nbrt.Device, wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="expected"):
        nbrt.MemoryPool(**{"device": device, **wrong})
    assert memory.memory_stats(device)


@pytest.mark.parametrize("wrong", ["1 GB", True, -1, 2.0, [1]])
def test_limits_that_cannot_be(device: nbrt.Device, wrong: Any) -> None:
    pool = nbrt.MemoryPool(device, limit=MIB)
    with pytest.raises((ArgumentError, ArgumentTypeError), match="expected a"):
        memory.set_memory_limit(wrong, device)
    with pytest.raises((ArgumentError, ArgumentTypeError), match="expected a"):
        pool.limit = wrong
    assert (memory.get_memory_limit(device), pool.limit) == (None, MIB)


def test_fractions_that_cannot_be(device: nbrt.Device) -> None:
    for wrong in (2, -0.5, "half", None, True):
        with pytest.raises((ArgumentError, ArgumentTypeError), match="expected a fraction"):
            memory.set_per_process_memory_fraction(wrong, device)  # type: ignore[arg-type]


def test_things_that_are_no_pool(device: nbrt.Device) -> None:
    for wrong in (None, 3, memory.MemoryPool, device):
        with (
            pytest.raises(ArgumentTypeError, match=r"expected an nbrt\.MemoryPool"),
            memory.use_pool(wrong),  # type: ignore[arg-type]
        ):
            pass


def test_functions_about_no_device(device: nbrt.Device) -> None:
    missing = nbrt.Device(device.kind, 1000)
    for function in (
        memory.allocations,
        memory.current_pool,
        memory.default_pool,
        memory.empty_cache,
        memory.get_memory_limit,
        memory.mem_get_info,
        memory.memory_reserved,
        memory.memory_stats,
        memory.memory_stats_as_nested_dict,
        memory.reset_accumulated_memory_stats,
        memory.reset_peak_memory_stats,
    ):
        with pytest.raises(UnknownDeviceError, match="expected one of"):
            function(missing)  # type: ignore[operator]
        with pytest.raises(ArgumentTypeError, match="expected a device"):
            function(1.5)  # type: ignore[operator]


def test_a_pool_does_not_keep_its_device_busy(device: nbrt.Device) -> None:
    """No reference of nbrt keeps an unused pool object alive."""
    pool = nbrt.MemoryPool(device)
    with memory.use_pool(pool):
        x = take(10, device)
    gone = weakref.ref(pool)
    del pool
    assert gone() is None
    assert [each.requested for each in memory.allocations(device)].count(10) >= 1
    del x
