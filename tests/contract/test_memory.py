"""Device memory: statistics, alignment, reuse, lifetime, limits."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.backends.fake.array import FakeArray
from nbrt.errors import OutOfMemoryError, UnknownDeviceError
from nbrt.testing import Latch

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20


def address_of(array: nbrt.typing.Array) -> int:
    if isinstance(array, FakeArray):
        return array.address
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


@pytest.fixture(autouse=True)
def settled(device: nbrt.Device) -> Iterator[None]:
    """No garbage of earlier tests may be freed in the middle of a measurement."""
    gc.collect()
    nbrt.synchronize(device)
    gc.disable()
    yield
    gc.enable()


def test_statistics_follow_allocations(device: nbrt.Device) -> None:
    start = nbrt.memory_allocated(device)
    nbrt.reset_peak_memory_stats(device)
    assert nbrt.max_memory_allocated(device) == start
    x = nbrt.empty(MIB, "uint8", device=device)
    middle = nbrt.memory_allocated(device)
    assert MIB <= middle - start < 1.25 * MIB
    y = nbrt.empty((2, MIB), "uint8", device=device)
    top = nbrt.memory_allocated(device)
    assert 2 * MIB <= top - middle < 2.5 * MIB
    del y
    assert nbrt.memory_allocated(device) == middle
    assert nbrt.max_memory_allocated(device) == top
    nbrt.reset_peak_memory_stats(device)
    assert nbrt.max_memory_allocated(device) == middle
    del x
    assert nbrt.memory_allocated(device) == start
    assert nbrt.max_memory_allocated(device) == middle


def test_reserved_covers_allocated(device: nbrt.Device) -> None:
    x = nbrt.empty(3 * MIB, "uint8", device=device)
    assert nbrt.memory_reserved(device) >= nbrt.memory_allocated(device) >= x.nbytes
    assert nbrt.max_memory_reserved(device) >= nbrt.memory_reserved(device)
    assert nbrt.max_memory_allocated(device) >= nbrt.memory_allocated(device)


def test_the_peak_of_reserved_sees_growth_without_use(device: nbrt.Device) -> None:
    """A pool that cannot reuse a cached block grows, although little is in use."""
    nbrt.empty_cache(device)
    nbrt.reset_peak_memory_stats(device)
    x = nbrt.empty(8 * MIB, "uint8", device=device)
    del x
    y = nbrt.empty(3 * MIB, "uint8", device=device)
    reserved = nbrt.memory_reserved(device)
    assert nbrt.max_memory_reserved(device) >= reserved >= y.nbytes
    nbrt.empty_cache(device)
    assert nbrt.max_memory_reserved(device) >= reserved


def test_devices_have_separate_statistics(device: nbrt.Device, other_device: nbrt.Device) -> None:
    here, there = nbrt.memory_allocated(device), nbrt.memory_allocated(other_device)
    x = nbrt.empty(1000, device=other_device)
    assert nbrt.memory_allocated(device) == here
    assert nbrt.memory_allocated(other_device) >= there + x.nbytes
    with nbrt.device(other_device):
        assert nbrt.memory_allocated() >= there + x.nbytes


def test_statistics_of_no_device(device: nbrt.Device) -> None:
    with pytest.raises(UnknownDeviceError):
        nbrt.memory_allocated(nbrt.Device(device.kind, 1000))


@pytest.mark.parametrize("size", [1, 3, 64, 65, 1000, 4097, MIB, MIB + 1, 5 * MIB + 3])
def test_alignment(device: nbrt.Device, size: int) -> None:
    arrays = [nbrt.empty(size, "uint8", device=device) for _ in range(3)]
    assert [address_of(array) % 64 for array in arrays] == [0, 0, 0]
    assert len({address_of(array) for array in arrays}) == 3


@pytest.mark.parametrize("size", [100, 100_000, 3 * MIB])
def test_a_freed_block_is_used_again(device: nbrt.Device, size: int) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no cache")
    x = nbrt.empty(size, "uint8", device=device)
    address = address_of(x)
    del x
    nbrt.memory_allocated(device)  # reads what has ended, which small blocks wait for otherwise
    reserved = nbrt.memory_reserved(device)
    y = nbrt.empty(size, "uint8", device=device)
    # Of large blocks that fit equally well CuPy's pool takes any.
    assert address_of(y) == address or (device.kind == "cuda" and size > MIB)
    assert nbrt.memory_reserved(device) == reserved


def test_blocks_in_use_do_not_overlap(device: nbrt.Device) -> None:
    sizes = [1, 64, 100, 512, 513, 4000, 70_000, MIB - 1, MIB, MIB + 1, 2 * MIB]
    arrays = [nbrt.empty(size, "uint8", device=device) for size in sizes]
    spans = sorted(
        (address_of(array), address_of(array) + size)
        for array, size in zip(arrays, sizes, strict=True)
    )
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_views_keep_the_memory_and_free_it_once(device: nbrt.Device) -> None:
    start = nbrt.memory_allocated(device)
    x = nbrt.full((64, 64), 3.0, device=device)
    used = nbrt.memory_allocated(device)
    views = [x[1:], x.T[3], x.reshape(-1)[::2], x.view("uint32"), x[0, :5][None]]
    del x
    assert nbrt.memory_allocated(device) == used
    while views:
        view = views.pop()
        assert nbrt.device_of(view) == device
        assert nbrt.memory_allocated(device) == used
        assert nbrt.to_host(view).size
        del view
    assert nbrt.memory_allocated(device) == start


def test_queued_work_keeps_the_memory(side_stream: nbrt.Stream) -> None:
    start = nbrt.memory_allocated(side_stream.device)
    out = np.zeros(1000, np.float32)
    with Latch() as latch:
        x = nbrt.full(1000, 5.0, stream=side_stream)
        latch.hold(side_stream)
        nbrt.copy(out, x, stream=side_stream)
        address = address_of(x)
        del x
        y = nbrt.empty(1000, stream=side_stream)
        if side_stream.interface.capabilities.host_addressable:
            assert address_of(y) != address
    side_stream.synchronize()
    assert np.all(out == 5.0)
    del y
    side_stream.synchronize()
    assert nbrt.memory_allocated(side_stream.device) == start


def test_empty_cache_returns_what_is_unused(device: nbrt.Device) -> None:
    nbrt.empty_cache(device)
    start = nbrt.memory_reserved(device)
    kept = nbrt.empty(2 * MIB, "uint8", device=device)
    # More than a segment that small blocks and larger ones share; the sample device has 16 MiB.
    dropped = nbrt.empty((9 if device.kind == "sample" else 20) * MIB, "uint8", device=device)
    small = [nbrt.empty(1000, device=device) for _ in range(100)]
    before = nbrt.memory_reserved(device)
    del dropped, small
    nbrt.empty_cache(device)
    after = nbrt.memory_reserved(device)
    assert start + kept.nbytes <= after <= before
    if device.kind != "sample":
        assert before - after >= 20 * MIB
    nbrt.copy(kept, np.uint8(7))
    assert np.all(nbrt.to_host(kept) == 7)


def test_mem_get_info(device: nbrt.Device) -> None:
    free, total = nbrt.mem_get_info(device)
    assert 0 < free <= total
    assert total <= nbrt.get_device_properties(device).total_memory


def test_out_of_memory_changes_nothing(device: nbrt.Device) -> None:
    before = nbrt.memory_allocated(device)
    peak = nbrt.max_memory_allocated(device)
    with pytest.raises(OutOfMemoryError, match="expected") as caught:
        nbrt.empty(1 << 60, "uint8", device=device)
    assert isinstance(caught.value, MemoryError)
    assert nbrt.memory_allocated(device) == before
    assert nbrt.max_memory_allocated(device) == peak
    assert nbrt.empty(10, device=device).shape == (10,)


def test_zero_size_arrays(device: nbrt.Device) -> None:
    start = nbrt.memory_allocated(device)
    for shape in (0, (0,), (3, 0, 2)):
        x = nbrt.zeros(shape, "int32", device=device)
        assert x.size == 0
        assert nbrt.device_of(x) == device
        nbrt.copy(x, x)
        assert nbrt.to_host(x).shape == x.shape
        del x
    assert nbrt.memory_allocated(device) == start


def test_frees_from_other_threads(device: nbrt.Device) -> None:
    start = nbrt.memory_allocated(device)
    arrays = [nbrt.empty(1000 + number, device=device) for number in range(200)]

    def drop() -> None:
        while True:
            try:
                arrays.pop()
            except IndexError:
                return

    threads = [threading.Thread(target=drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert nbrt.memory_allocated(device) == start


def test_frees_in_the_middle_of_an_allocation(device: nbrt.Device) -> None:
    """The collector may run a finalizer while the same thread holds the allocator's lock."""
    start = nbrt.memory_allocated(device)
    threshold = gc.get_threshold()
    gc.enable()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(50):
            cycle = [nbrt.empty(100, device=device)]
            cycle.append(cycle)
    finally:
        gc.set_threshold(*threshold)
    del cycle
    gc.collect()
    assert nbrt.memory_allocated(device) == start


def test_statistics_are_exact_under_threads(device: nbrt.Device) -> None:
    start = nbrt.memory_allocated(device)
    nbrt.reset_peak_memory_stats(device)
    failures: list[BaseException] = []
    barrier = threading.Barrier(8)

    def churn(seed: int) -> None:
        random = np.random.default_rng(seed)
        kept: list[nbrt.typing.Array] = []
        try:
            barrier.wait(HANG_TIMEOUT)
            for size in random.integers(1, 30_000, 150):
                kept.append(nbrt.full(int(size), seed, "uint8", device=device))
                if len(kept) > 10:
                    x = kept.pop(int(random.integers(len(kept))))
                    host = nbrt.to_host(x)
                    assert host[0] == host[-1] == seed
        except BaseException as error:  # noqa: BLE001  # shown by the main thread
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_TIMEOUT)
    assert failures == []
    gc.collect()
    assert nbrt.memory_allocated(device) == start
    assert nbrt.max_memory_allocated(device) > start


def test_an_array_dies_with_its_last_reference(device: nbrt.Device) -> None:
    x = nbrt.zeros(10, device=device)
    alive = weakref.ref(x)
    nbrt.synchronize(device)
    del x
    assert alive() is None


@pytest.mark.parametrize("nbytes", [100, 8 << 10, MIB, 3 * MIB])
def test_pinned_memory_is_reused(device: nbrt.Device, nbytes: int) -> None:
    """Every array lies in a block of the pool, also where blocks change shape and dtype."""
    interface = nbrt.get_interface_for_device(device)
    if "pinned" not in interface.pool_kinds:
        pytest.skip(f"{device} has no pinned memory")
    for use, kind in enumerate(("uint8", "uint8", "uint8", "int16", "int16", "uint8")):
        itemsize = np.dtype(kind).itemsize
        array = nbrt.empty_pinned(nbytes // itemsize, kind, device=device)
        array[...] = use
        owner = interface.owner_of(array[1:])
        assert isinstance(owner, nbrt.memory.Allocation)
        assert owner.address <= address_of(array)
        assert address_of(array) + array.nbytes <= owner.address + owner.nbytes
        assert (array == use).all()
        del array, owner
