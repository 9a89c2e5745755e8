"""Streams that die, over a pool whose memory is ordered by streams and cached in bins."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from helpers.sample_backend import SampleInterface
from nbrt import memory
from nbrt.backends.pools import BackendPool, InterfacePool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MIB = 1 << 20


class BinnedPool(InterfacePool):
    """Blocks of one stream, which the runtime may keep in bins."""

    caches = True


class BinnedInterface(SampleInterface):
    def create_pool(self, index: int, kind: str, options: Mapping[str, Any]) -> BackendPool:
        return BinnedPool(self)


class Foreign:
    """A stream of another library."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


@pytest.fixture
def device() -> Iterator[nbrt.Device]:
    nbrt.register_interface_for_device("binned", BinnedInterface("binned"))
    yield nbrt.Device("binned", 0)
    nbrt.unregister_interface_for_device("binned")


def take(stream: nbrt.Stream, nbytes: int = 1000) -> nbrt.typing.Array:
    return nbrt.empty(nbytes, "uint8", stream=stream)


def addresses(device: nbrt.Device) -> set[int]:
    return {each.address for each in memory.default_pool(device).segments()}


def test_bins_belong_to_streams(device: nbrt.Device) -> None:
    first, second = nbrt.Stream(device), nbrt.Stream(device)
    x = take(first, 40_000)
    address = x.ctypes.data
    del x
    memory.memory_stats(device)
    y = take(second, 40_000)
    assert y.ctypes.data != address
    assert take(first, 40_000).ctypes.data == address


def test_bins_of_a_dead_stream_go_back(device: nbrt.Device) -> None:
    borrowed = nbrt.Stream.from_external(Foreign(77), device)
    with memory.use_pool(nbrt.MemoryPool(device)):
        x = take(borrowed)
    y = take(borrowed)
    del x, y
    assert memory.memory_stats(device)["allocated.all.current"] == 0
    assert memory.memory_reserved(device) > 0
    del borrowed
    gc.collect()
    memory.memory_stats(device)
    assert memory.memory_reserved(device) == 0
    assert nbrt.get_interface_for_device(device).used == [0, 0]


@pytest.mark.parametrize("nbytes", [1000, 2 * MIB])
def test_arrays_outlive_their_stream(device: nbrt.Device, nbytes: int) -> None:
    borrowed = nbrt.Stream.from_external(Foreign(77), device)
    x = take(borrowed, nbytes)
    (allocation,) = memory.allocations(device)
    assert allocation.stream is borrowed
    del borrowed
    gc.collect()
    assert allocation.stream is None
    assert memory.memory_allocated(device) >= nbytes
    assert memory.memory_reserved(device) == allocation.nbytes
    view = x[1:]
    del x
    assert memory.memory_allocated(device) >= nbytes
    del view
    assert memory.memory_allocated(device) == 0
    assert memory.memory_reserved(device) == 0


def test_a_recorded_stream_lives_as_long_as_the_record(device: nbrt.Device) -> None:
    borrowed = nbrt.Stream.from_external(Foreign(77), device)
    number = borrowed.id
    x = nbrt.empty(1000, "uint8", device=device)
    memory.record_stream(x, borrowed)
    del borrowed
    gc.collect()
    assert nbrt.Stream.from_id(number).handle == 77
    del x
    assert memory.memory_stats(device)["active.all.current"] == 0
    gc.collect()
    with pytest.raises(nbrt.errors.ArgumentError):
        nbrt.Stream.from_id(number)


def test_arrays_of_one_kind_are_not_taken_for_host_memory(device: nbrt.Device) -> None:
    """The arrays of this kind are ndarrays, too: the cpu backend would take them."""
    nbrt.empty(1, device="cpu:0")
    stream = nbrt.Stream(device)
    x = nbrt.empty(1000, "uint8", device=device)
    memory.record_stream(x[5:], stream)
    (allocation,) = memory.allocations(device)
    assert allocation.recorded == {stream}
