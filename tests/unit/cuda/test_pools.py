from __future__ import annotations

import gc
import itertools
import random
import re
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from helpers.clocks import HANG_TIMEOUT
from helpers.processes import output_of
from nbrt.errors import DeviceError, NotSupportedError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from nbrt.backends.cuda.backend import CudaInterface

KINDS = ("caching", "async", "managed", "system", "plain", "expandable", "pinned")
DEVICE_KINDS = ("caching", "plain", "expandable")
"""The kinds whose memory the device has less of from then on."""

MIB = 1 << 20
PAGE = 2 * MIB


def pool_of(interface: CudaInterface, kind: str, index: int = 0) -> Any:
    """Return a pool, or skip the test where the device lacks the kind."""
    try:
        return interface.create_pool(index, kind, {})
    except NotSupportedError as error:
        pytest.skip(str(error))


@pytest.fixture
def taken(interface: CudaInterface) -> Callable[[], int]:
    """Returns the bytes of device 0 that the driver has handed out since the test began."""
    before, _ = interface.mem_get_info(0)
    return lambda: before - interface.mem_get_info(0)[0]


@pytest.fixture
def gate(interface: CudaInterface) -> Iterator[threading.Event]:
    """An event that a host call waits for; set at the end."""
    made = threading.Event()
    yield made
    made.set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_pool_holds_nothing(
    interface: CudaInterface, taken: Callable[[], int], kind: str
) -> None:
    pool = pool_of(interface, kind)
    assert (pool.kind, pool.reserved(), pool.segments()) == (kind, 0, [])
    assert pool.segment_counts() == (0, 0)
    pool.set_limit(4096)
    pool.empty_cache()
    assert taken() == 0
    assert pool.kind in interface.pool_kinds


def test_making_a_pool_creates_no_context() -> None:
    code = f"""
        import nbrt

        interface = nbrt.get_interface_for_device("cuda")
        interface.lazy.ensure()
        pools = [interface.create_pool(1, kind, {{}}) for kind in {DEVICE_KINDS}]
        for pool in pools:
            pool.set_limit(4096)
            pool.empty_cache()
        print([interface._driver.has_context(index) for index in (0, 1)])
    """
    assert output_of(code, simulated_cuda=True) == "[False, False]\n"


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_equal_those_of_the_system(
    interface: CudaInterface, taken: Callable[[], int], kind: str
) -> None:
    """The driver counts on its own what it hands out."""
    pool = pool_of(interface, kind)
    queue = interface.create_queue(0, 0)
    sizes = [1, 700, 4096, MIB, MIB + 1, 5 * MIB, 3]
    blocks = [pool.allocate(queue, size) for size in sizes]
    spans = sorted((block.address, block.address + block.nbytes) for block in blocks)
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    assert all(block.nbytes >= size for block, size in zip(blocks, sizes, strict=True))
    assert all(block.nbytes % pool.granularity == 0 for block in blocks)
    in_segments = sum(each.nbytes for each in pool.segments())
    if kind == "async":  # whose driver takes more
        assert pool.reserved() >= in_segments
    else:
        assert pool.reserved() == in_segments
    if kind in DEVICE_KINDS:
        assert pool.reserved() <= taken()
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
    assert pool.reserved() == 0
    if kind != "pinned":
        assert taken() == 0
    assert (pool.segments(), pool.segment_counts()) == ([], (made, made))
    assert interface.current_device() == 0


@pytest.mark.parametrize("kind", DEVICE_KINDS)
def test_a_full_device_gives_up_its_cache_first(
    interface: CudaInterface, simulation: ModuleType, kind: str
) -> None:
    pool = pool_of(interface, kind)
    queue = interface.create_queue(0, 0)
    free, total = interface.mem_get_info(0)
    with simulation.limited_memory(total - free + 32 * MIB):
        small = [pool.allocate(queue, 1000) for _ in range(3)]
        large = pool.allocate(queue, 20 * MIB)
        with pytest.raises(OutOfMemoryError, match=r"allocating|mapping") as caught:
            pool.allocate(queue, 20 * MIB)
        assert isinstance(caught.value, MemoryError)
        for block in [*small, large]:
            pool.deallocate(queue, block)
        whole = pool.allocate(queue, 32 * MIB)
        assert pool.reserved() == 32 * MIB
        pool.deallocate(queue, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_limit_bounds_growth_from_now_on(interface: CudaInterface, kind: str) -> None:
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
    assert pool.reserved() == 0


# cudaFree of a plain pool waits for the device, and page-locked memory is idle when it is freed.
@pytest.mark.parametrize("kind", ["caching", "managed", "system", "expandable"])
def test_free_on_another_stream_makes_the_first_wait(
    interface: CudaInterface, gate: threading.Event, kind: str
) -> None:
    home, away = interface.create_queue(0, 0), interface.create_queue(0, 0)
    pool = pool_of(interface, kind)
    assert pool.stream_ordered
    block, other = pool.allocate(home, 100), pool.allocate(home, 100)
    home.synchronize()
    seen: list[str] = []
    away.put(gate.wait, HANG_TIMEOUT)
    away.put(seen.append, "away")
    pool.deallocate(home, other)
    home.synchronize()  # which does not wait for the other stream
    assert seen == []
    pool.deallocate(away, block)
    gate.set()
    home.synchronize()
    assert seen == ["away"]


def test_async_pool_frees_on_the_stream_that_says_so(
    interface: CudaInterface, gate: threading.Event
) -> None:
    home, away = interface.create_queue(0, 0), interface.create_queue(0, 0)
    pool = pool_of(interface, "async")
    block = pool.allocate(home, 100)
    away.put(gate.wait, HANG_TIMEOUT)
    pool.deallocate(away, block)
    home.synchronize()  # which does not wait for the other stream
    assert pool.reserved() > 0
    gate.set()
    pool.empty_cache()  # waits for the free, and trims
    assert pool.reserved() == 0
    pool.set_limit(1 << 20)
    late = pool.allocate(home, 100)
    pool.close()
    pool.deallocate(home, late)
    home.synchronize()
    assert pool.reserved() == 0


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


def test_small_blocks_share_a_segment_and_stay_out_of_large_ones(interface: CudaInterface) -> None:
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
    interface: CudaInterface, simulation: ModuleType
) -> None:
    pool = pool_of(interface, "caching")
    queue = interface.create_queue(0, 0)
    free, total = interface.mem_get_info(0)
    with simulation.limited_memory(total - free + MIB):
        block = pool.allocate(queue, 1000)
    assert block.nbytes == pool.reserved() == 1024


def test_closed_pool_lets_go_as_its_blocks_come_back(
    interface: CudaInterface, taken: Callable[[], int]
) -> None:
    for kind in ("async", *DEVICE_KINDS):
        pool = pool_of(interface, kind)
        queue = interface.create_queue(0, 0)
        blocks = [pool.allocate(queue, size) for size in (1000, 1000, 3 * MIB)]
        pool.close()
        with pytest.raises(DeviceError, match=f"expected an open {kind} pool, got a closed one"):
            pool.allocate(queue, 1)
        assert pool.reserved() > 0
        for block in blocks:
            pool.deallocate(queue, block)
        queue.synchronize()
        assert (kind, pool.reserved(), taken()) == (kind, 0, 0)


def test_addresses_go_back_where_no_memory_was_had(
    interface: CudaInterface, simulation: ModuleType
) -> None:
    pool = pool_of(interface, "expandable")
    before = [simulation.call_count(f"cuMemAddress{act}") for act in ("Reserve", "Free")]
    with simulation.failing("cuMemCreate", 2, times=0), pytest.raises(OutOfMemoryError):
        pool.allocate(interface.default_queue(0), 100)
    pool.close()
    after = [simulation.call_count(f"cuMemAddress{act}") for act in ("Reserve", "Free")]
    assert after == [count + 1 for count in before]


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("caching", "cuMemAlloc"),
        ("plain", "cuMemAlloc"),
        ("async", "cuMemAllocFromPoolAsync"),
        ("pinned", "cuMemHostAlloc"),
    ],
)
def test_other_errors_of_cuda_are_translated(
    interface: CudaInterface, simulation: ModuleType, kind: str, function: str
) -> None:
    pool, queue = pool_of(interface, kind), interface.default_queue(0)
    with (
        simulation.failing(function, 700, times=0),
        pytest.raises(Exception, match=r"allocating .*restart it") as caught,
    ):
        pool.allocate(queue, 4096)
    assert not isinstance(caught.value, MemoryError)
    pool.deallocate(queue, pool.allocate(queue, 4096))


@pytest.mark.parametrize(
    ("kind", "attribute", "why"),
    [
        ("async", "attribute", "no memory pools"),
        ("managed", "attribute", "no managed memory"),
        ("system", "attribute", "no access to the host's own memory"),
        ("expandable", "can_map", "no virtual memory management"),
    ],
)
def test_kind_that_the_device_lacks(
    interface: CudaInterface, monkeypatch: pytest.MonkeyPatch, kind: str, attribute: str, why: str
) -> None:
    monkeypatch.setattr(interface._driver, attribute, lambda *_: 0)
    with pytest.raises(NotSupportedError, match=f"{kind}.*{re.escape(why)}"):
        interface.create_pool(0, kind, {})


def test_unknown_kinds_and_options_are_refused(
    interface: CudaInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotSupportedError, match=r"caching, async.*got 'arena'"):
        interface.create_pool(0, "arena", {})
    with pytest.raises(NotSupportedError, match="unit"):
        interface.create_pool(0, "caching", {"unit": 3})
    monkeypatch.delattr(interface._driver.cupy.cuda.memory, "SystemMemory")
    with pytest.raises(NotSupportedError, match="since version 14"):
        interface.create_pool(0, "system", {})


def test_system_memory_goes_back_when_the_device_is_done(
    interface: CudaInterface, gate: threading.Event
) -> None:
    pool = pool_of(interface, "system")
    queue = interface.create_queue(0, 0)
    block = pool.allocate(queue, 2 * MIB)
    done: list[int] = []
    queue.put(gate.wait, HANG_TIMEOUT)
    queue.put(done.append, 1)
    pool.deallocate(queue, block)
    assert done == []
    gate.set()
    pool.empty_cache()
    assert (done, pool.reserved()) == ([1], 0)


def test_expandable_range_grows_and_shrinks_in_place(interface: CudaInterface) -> None:
    pool = pool_of(interface, "expandable", 1)
    queue = interface.create_queue(1, 0)
    first = pool.allocate(queue, 3 * PAGE)
    second = pool.allocate(queue, PAGE // 2 + 512)
    base = first.address
    assert second.address == base + 3 * PAGE
    [segment] = pool.segments()
    assert (segment.address, segment.nbytes, segment.is_expandable) == (base, 4 * PAGE, True)
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
def test_random_use(interface: CudaInterface, simulation: ModuleType, kind: str, seed: int) -> None:
    """Live blocks never overlap, and all of their bytes have memory of the system behind them."""
    draw = random.Random(seed)
    pool = pool_of(interface, kind)
    queues = [interface.create_queue(0, 0) for _ in range(2)]
    live: list[Any] = []
    free, total = interface.mem_get_info(0)
    with simulation.limited_memory(total - free + 12 * MIB):
        use_at_random(pool, queues, draw, live)
    for block in live:
        pool.deallocate(block.queue, block)
    pool.close()
    assert (pool.reserved(), pool.segments(), interface.mem_get_info(0)[0]) == (0, [], free)


def use_at_random(pool: Any, queues: list[Any], draw: random.Random, live: list[Any]) -> None:
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
        assert sum(size for _, size in segments) == pool.reserved()
        assert all(sum(one) <= other[0] for one, other in itertools.pairwise(spans))
        assert all(sum(one) <= other[0] for one, other in itertools.pairwise(segments))
        for span in spans:
            [home] = [each for each in segments if each[0] <= span[0] < sum(each)]
            assert sum(span) <= sum(home)
    assert failed


@pytest.mark.parametrize("function", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_failed_mapping_leaves_nothing_half_done(
    interface: CudaInterface, simulation: ModuleType, taken: Callable[[], int], function: str
) -> None:
    pool = pool_of(interface, "expandable")
    queue = interface.create_queue(0, 0)
    with simulation.failing(function, 999), pytest.raises(Exception, match="mapping"):
        pool.allocate(queue, 3 * PAGE)
    assert (pool.reserved(), taken()) == (0, 0)
    free, total = interface.mem_get_info(0)
    # The second of two mappings fails.
    with simulation.limited_memory(total - free + 34 * MIB), pytest.raises(OutOfMemoryError):
        pool.allocate(queue, 48 * MIB)
    assert pool.reserved() == taken() == 32 * MIB
    assert pool.allocate(queue, 48 * MIB).nbytes == pool.reserved() == 48 * MIB


def test_pinned_arrays_are_numpy_and_keep_their_handle(interface: CudaInterface) -> None:
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
    assert interface._driver.is_page_locked(block.address)
    assert not interface._driver.is_page_locked(np.zeros(8).ctypes.data)
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
    interface: CudaInterface, simulation: ModuleType
) -> None:
    pool = pool_of(interface, "caching")
    queue = interface.default_queue(0)
    block = pool.allocate(queue, 64)
    array = interface.as_array(block, (16,), np.dtype("int32"), block.handle(None))
    interface.copy(queue, array, np.arange(16, dtype=np.int32))
    queue.synchronize()
    queue.query()
    before = simulation.call_count("cuMemFreeHost")
    pool.empty_cache()
    assert simulation.call_count("cuMemFreeHost") == before + 1
