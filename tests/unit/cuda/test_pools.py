from __future__ import annotations

import gc
import itertools
import random
import re
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nbrt.errors import DeviceError, NotSupportedError, OutOfMemoryError
from unit.cuda.fake_memory import PAGE

if TYPE_CHECKING:
    from nbrt.backends.cuda.backend import CudaInterface
    from unit.cuda.fake_cuda import Simulation

KINDS = ("caching", "async", "managed", "system", "plain", "expandable", "pinned")
MIB = 1 << 20


def pool_of(interface: CudaInterface, kind: str, index: int = 0) -> Any:
    return interface.create_pool(index, kind, {})


def waits(simulation: Simulation) -> list[int]:
    return [entry[1] for entry in simulation.log if entry[0] == "wait"]


@pytest.mark.parametrize("kind", KINDS)
def test_making_a_pool_touches_no_device(
    interface: CudaInterface, simulation: Simulation, kind: str
) -> None:
    pool = pool_of(interface, kind, 1)
    assert (pool.kind, pool.reserved(), pool.segments()) == (kind, 0, [])
    assert pool.segment_counts() == (0, 0)
    pool.set_limit(4096)
    pool.empty_cache()
    assert simulation.contexts == set()
    assert pool.kind in interface.pool_kinds


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_equal_those_of_the_system(
    interface: CudaInterface, simulation: Simulation, kind: str
) -> None:
    """The simulation counts on its own what CUDA handed out."""
    simulation.setDevice(0)
    pool = pool_of(interface, kind, 1)
    queue = interface.create_queue(1, 0)
    sizes = [1, 700, 4096, MIB, MIB + 1, 5 * MIB, 3]
    blocks = [pool.allocate(queue, size) for size in sizes]
    spans = sorted((block.address, block.address + block.nbytes) for block in blocks)
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    assert all(block.nbytes >= size for block, size in zip(blocks, sizes, strict=True))
    assert all(block.nbytes % pool.granularity == 0 for block in blocks)
    assert pool.reserved() == simulation.taken == sum(each.nbytes for each in pool.segments())
    for block in blocks:
        assert any(
            each.address <= block.address
            and block.address + block.nbytes <= each.address + each.nbytes
            for each in pool.segments()
        )
    made, released = pool.segment_counts()
    assert made - released >= len(pool.segments()) > 0
    for block in blocks:
        pool.deallocate(queue, block)
        pool.deallocate(queue, block)
    pool.empty_cache()
    assert pool.reserved() == simulation.taken == 0
    assert (pool.segments(), pool.segment_counts()) == ([], (made, made))
    assert simulation.get_device() == 0
    assert simulation.current_streams[1] is simulation.null


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_device_gives_up_its_cache_first(
    interface: CudaInterface, simulation: Simulation, kind: str
) -> None:
    simulation.capacity = 8 * MIB
    pool = pool_of(interface, kind)
    queue = interface.create_queue(0, 0)
    small = [pool.allocate(queue, 1000) for _ in range(3)]
    large = pool.allocate(queue, 4 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"allocating|mapping") as caught:
        pool.allocate(queue, 4 * MIB + 512)
    assert isinstance(caught.value, MemoryError)
    for block in [*small, large]:
        pool.deallocate(queue, block)
    whole = pool.allocate(queue, 8 * MIB)
    assert pool.reserved() == simulation.taken == 8 * MIB
    pool.deallocate(queue, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_limit_bounds_growth_from_now_on(
    interface: CudaInterface, simulation: Simulation, kind: str
) -> None:
    pool = pool_of(interface, kind)
    queue = interface.create_queue(0, 0)
    pool.set_limit(4 * MIB)
    first = pool.allocate(queue, 2 * MIB)
    with pytest.raises(OutOfMemoryError, match=f"limit of {4 * MIB}"):
        pool.allocate(queue, 3 * MIB)
    second = pool.allocate(queue, 1024)
    assert pool.reserved() <= 4 * MIB
    pool.deallocate(queue, first)
    third = pool.allocate(queue, 3 * MIB // 2)
    assert pool.reserved() <= 4 * MIB
    pool.set_limit(None)
    fourth = pool.allocate(queue, 16 * MIB)
    for block in (second, third, fourth):
        pool.deallocate(queue, block)
    pool.empty_cache()
    assert simulation.taken == 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("async", "pinned")])
def test_free_on_another_stream_makes_the_first_wait(
    interface: CudaInterface, simulation: Simulation, kind: str
) -> None:
    simulation.is_eager = False
    home, away = interface.create_queue(0, 0), interface.create_queue(0, 0)
    pool = pool_of(interface, kind)
    assert pool.stream_ordered
    block = pool.allocate(home, 100)
    away.put(lambda: None)
    pool.deallocate(away, block)
    assert waits(simulation) == [home.handle]
    other = pool.allocate(home, 100)
    simulation.log.clear()
    pool.deallocate(home, other)
    assert waits(simulation) == []


def test_async_pool_frees_on_the_stream_that_says_so(
    interface: CudaInterface, simulation: Simulation
) -> None:
    simulation.is_eager = False
    home, away = interface.create_queue(0, 0), interface.create_queue(0, 0)
    pool = pool_of(interface, "async")
    block = pool.allocate(home, 100)
    assert [each.readers for each in simulation.pools.values()] == [[1]]
    pool.deallocate(away, block)
    assert simulation.log[-1] == ("free in order", away.handle)
    assert waits(simulation) == []
    pool.empty_cache()  # waits for the free, and trims
    assert pool.reserved() == simulation.taken == 0
    pool.set_limit(1 << 20)
    assert [each.threshold for each in simulation.pools.values()] == [1 << 20]
    late = pool.allocate(home, 100)
    pool.close()
    assert (simulation.pools, pool.reserved()) == ({}, 512)
    pool.deallocate(home, late)
    home.synchronize()
    assert pool.reserved() == simulation.taken == 0


@pytest.mark.parametrize("kind", ["caching", "managed", "system", "expandable"])
def test_memory_of_one_stream_is_not_reused_on_another(interface: CudaInterface, kind: str) -> None:
    pool = pool_of(interface, kind)
    first, second = interface.create_queue(0, 0), interface.create_queue(0, 0)
    block = pool.allocate(first, 3 * MIB)
    address = block.address
    pool.deallocate(first, block)
    assert pool.allocate(second, 3 * MIB).address != address
    assert pool.allocate(first, 3 * MIB).address == address
    assert {each.stream for each in pool.segments()} == {first.handle, second.handle}


def test_small_blocks_share_a_segment_and_stay_out_of_large_ones(
    interface: CudaInterface, simulation: Simulation
) -> None:
    pool = pool_of(interface, "caching")
    queue = interface.create_queue(0, 0)
    large = pool.allocate(queue, 3 * MIB)
    pool.deallocate(queue, large)
    small = [pool.allocate(queue, 512) for _ in range(1000)]
    assert [(each.nbytes, each.is_small) for each in pool.segments()] == [
        (3 * MIB, False),
        (2 * MIB, True),
    ]
    again = pool.allocate(queue, 3 * MIB)
    assert pool.segment_counts() == (2, 0)
    assert len({block.address for block in [*small, again]}) == 1001


def test_small_blocks_are_had_where_a_whole_segment_is_not(
    interface: CudaInterface, simulation: Simulation
) -> None:
    simulation.capacity = MIB
    pool = pool_of(interface, "caching")
    queue = interface.create_queue(0, 0)
    assert pool.allocate(queue, 1000).nbytes == 1024
    assert pool.reserved() == 1024


def test_closed_pool_lets_go_as_its_blocks_come_back(
    interface: CudaInterface, simulation: Simulation
) -> None:
    for kind in KINDS:
        pool = pool_of(interface, kind)
        queue = interface.create_queue(0, 0)
        blocks = [pool.allocate(queue, size) for size in (1000, 1000, 3 * MIB)]
        pool.close()
        with pytest.raises(DeviceError, match=f"expected an open {kind} pool, got a closed one"):
            pool.allocate(queue, 1)
        assert simulation.taken > 0
        for block in blocks:
            pool.deallocate(queue, block)
        assert (kind, simulation.taken, simulation.reservations) == (kind, 0, {})


def test_addresses_go_back_where_no_memory_was_had(
    interface: CudaInterface, simulation: Simulation
) -> None:
    simulation.capacity = 0
    pool = pool_of(interface, "expandable")
    with pytest.raises(OutOfMemoryError):
        pool.allocate(interface.default_queue(0), 100)
    pool.close()
    assert simulation.reservations == {}


def test_other_errors_of_cuda_are_translated(
    interface: CudaInterface, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unit.cuda.fake_cuda import CudaError

    def fail(nbytes: int) -> None:
        raise CudaError(700)

    monkeypatch.setattr(simulation, "take", fail)
    for kind in ("caching", "plain", "async", "pinned"):
        with pytest.raises(Exception, match=r"allocating .*restart it") as caught:
            pool_of(interface, kind).allocate(interface.default_queue(0), 4096)
        assert not isinstance(caught.value, MemoryError)


@pytest.mark.parametrize(
    ("kind", "attribute", "why"),
    [
        ("async", 115, "no memory pools"),
        ("managed", 83, "no managed memory"),
        ("system", 88, "no access to the host's own memory"),
        ("expandable", 102, "no virtual memory management"),
    ],
)
def test_kind_that_the_device_lacks(
    interface: CudaInterface, simulation: Simulation, kind: str, attribute: int, why: str
) -> None:
    simulation.attributes[attribute] = 0
    with pytest.raises(NotSupportedError, match=f"{kind}.*{re.escape(why)}"):
        pool_of(interface, kind)


def test_unknown_kinds_and_options_are_refused(
    interface: CudaInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotSupportedError, match=r"caching, async.*got 'arena'"):
        pool_of(interface, "arena")
    with pytest.raises(NotSupportedError, match="unit"):
        interface.create_pool(0, "caching", {"unit": 3})
    monkeypatch.delattr(interface._driver.cupy.cuda.memory, "SystemMemory")
    with pytest.raises(NotSupportedError, match="since version 14"):
        pool_of(interface, "system")


def test_system_memory_goes_back_when_the_device_is_done(
    interface: CudaInterface, simulation: Simulation
) -> None:
    simulation.is_eager = False
    pool = pool_of(interface, "system")
    queue = interface.create_queue(0, 0)
    block = pool.allocate(queue, 2 * MIB)
    done: list[int] = []
    queue.put(done.append, 1)
    pool.deallocate(queue, block)
    assert done == []
    pool.empty_cache()
    assert (done, simulation.taken) == ([1], 0)


def test_expandable_range_grows_and_shrinks_in_place(
    interface: CudaInterface, simulation: Simulation
) -> None:
    pool = pool_of(interface, "expandable", 1)
    queue = interface.create_queue(1, 0)
    first = pool.allocate(queue, 3 * PAGE)
    second = pool.allocate(queue, PAGE // 2 + 512)
    base = first.address
    assert second.address == base + 3 * PAGE
    [segment] = pool.segments()
    assert (segment.address, segment.nbytes, segment.is_expandable) == (base, 4 * PAGE, True)
    assert {tuple(each.access) for each in simulation.mappings.values()} == {(1, 0)}
    assert {each.index for each in simulation.handles.values()} == {1}
    pool.deallocate(queue, first)
    pool.empty_cache()
    [segment] = pool.segments()
    assert (segment.address, segment.nbytes) == (base + 3 * PAGE, PAGE)
    pool.deallocate(queue, second)
    whole = pool.allocate(queue, 5 * PAGE)
    assert (whole.address, pool.reserved(), len(pool.segments())) == (base, 5 * PAGE, 1)
    mapped = pool.segment_counts()[0]
    pool.deallocate(queue, whole)
    pool.allocate(queue, 5 * PAGE)
    assert pool.segment_counts()[0] == mapped
    pool.allocate(queue, 512)
    assert [each.is_small for each in pool.segments()] == [False, True]


@pytest.mark.parametrize("kind", ["caching", "expandable"])
@pytest.mark.parametrize("seed", range(5))
def test_random_use(interface: CudaInterface, simulation: Simulation, kind: str, seed: int) -> None:
    """Live blocks never overlap, and all of their bytes have memory of the system behind them."""
    draw = random.Random(seed)
    pool = pool_of(interface, kind)
    queues = [interface.create_queue(0, 0) for _ in range(2)]
    simulation.capacity = 12 * MIB
    live: list[Any] = []
    failed = 0
    for _ in range(200):
        act = draw.random()
        if act < 0.55:
            size = int(2 ** draw.uniform(0, 23.5))
            try:
                live.append(pool.allocate(draw.choice(queues), size))
            except OutOfMemoryError:
                failed += 1
        elif act < 0.95 and live:
            block = live.pop(draw.randrange(len(live)))
            pool.deallocate(block.queue, block)
        else:
            pool.empty_cache()
        spans = sorted((each.address, each.nbytes) for each in live)
        segments = sorted((each.address, each.nbytes) for each in pool.segments())
        assert sum(size for _, size in segments) == pool.reserved() == simulation.taken
        assert all(sum(one) <= other[0] for one, other in itertools.pairwise(spans))
        assert all(sum(one) <= other[0] for one, other in itertools.pairwise(segments))
        for span in spans:
            [home] = [each for each in segments if each[0] <= span[0] < sum(each)]
            assert sum(span) <= sum(home)
    assert failed
    for block in live:
        pool.deallocate(block.queue, block)
    pool.close()
    assert (simulation.taken, simulation.reservations, simulation.mappings) == (0, {}, {})


def test_failed_mapping_leaves_nothing_half_done(
    interface: CudaInterface, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of(interface, "expandable")
    queue = interface.create_queue(0, 0)
    for name in ("cuMemMap", "cuMemSetAccess"):
        with monkeypatch.context() as patch:
            patch.setattr(simulation, name, lambda *args: (999,))
            with pytest.raises(Exception, match="mapping"):
                pool.allocate(queue, 3 * PAGE)
        assert (pool.reserved(), simulation.taken, simulation.mappings) == (0, 0, {})
    big = 48 << 20
    simulation.capacity = 34 << 20  # the second of two mappings fails
    with pytest.raises(OutOfMemoryError):
        pool.allocate(queue, big)
    assert pool.reserved() == simulation.taken == 32 << 20
    simulation.capacity = big
    assert pool.allocate(queue, big).nbytes == pool.reserved() == big


def test_pinned_arrays_are_numpy_and_keep_their_lease(
    interface: CudaInterface, simulation: Simulation
) -> None:
    pool = pool_of(interface, "pinned")
    assert not pool.stream_ordered
    block = pool.allocate(interface.default_queue(0), 96)
    handle = block.handle("owner")
    alive = weakref.ref(handle)
    array: Any = interface.as_array(block, (3, 4), np.dtype("int64"), handle)
    array[...] = 7
    view = array[1:].T
    assert type(array) is np.ndarray
    assert array.ctypes.data == block.address
    assert block.address in simulation.page_locked
    assert interface.owner_of(view) == "owner"
    assert interface.owner_of(view.base) == "owner"
    del handle, array
    gc.collect()
    assert alive() is not None
    del view
    assert alive() is None
    again = block.handle("next")
    other: Any = interface.as_array(block, (96,), np.dtype("int8"), again)
    assert interface.owner_of(other) == "next"


def test_emptying_any_pool_gives_staging_memory_back(
    interface: CudaInterface, simulation: Simulation
) -> None:
    pool = pool_of(interface, "caching")
    queue = interface.default_queue(0)
    block = pool.allocate(queue, 64)
    array = interface.as_array(block, (16,), np.dtype("int32"), block.handle(None))
    interface.copy(queue, array, np.arange(16, dtype=np.int32))
    queue.synchronize()
    queue.query()
    held = simulation.taken
    pool.empty_cache()
    assert simulation.taken == held - 512
