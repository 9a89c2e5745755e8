"""Poison over plain memory, and over memory that the host cannot reach."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nbrt
from nbrt._internal.device import Device
from nbrt.observe.races.checker import check_races
from nbrt.observe.races.poison import PATTERN, Poisoner
from nbrt.observe.races.shadow_blocks import ShadowBlock, StreamKey, StreamName
from nbrt.runtime.device import interface_of

MIB = 1 << 20
DEVICE = Device("fake", 0)
UINT8 = np.dtype("uint8")


class Interface:
    """A backend that records its fills."""

    def __init__(self, memory: np.ndarray[Any, Any], *, is_host: bool) -> None:
        self.memory = memory
        self.capabilities = SimpleNamespace(computes=True, host_addressable=is_host)
        self.fills: list[tuple[object, int, int, int]] = []

    def as_array(self, block: Any, shape: Any, dtype: Any, handle: object) -> Any:
        return self.memory[: 2 * shape[0]].view(dtype)

    def fill(self, queue: object, array: np.ndarray[Any, Any], value: int) -> None:
        start = array.ctypes.data - self.memory.ctypes.data
        self.fills.append((queue, start, start + array.nbytes, value))


def allocation_over(memory: np.ndarray[Any, Any], kind: str, *, is_host: bool) -> Any:
    interface = Interface(memory, is_host=is_host)
    return SimpleNamespace(
        address=memory.ctypes.data,
        nbytes=memory.nbytes,
        block=None,
        stream=SimpleNamespace(queue="the stream's queue"),
        device=interface,
        pool=SimpleNamespace(kind=kind),
    )


@pytest.fixture(autouse=True)
def _interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fake interface stand for its device."""
    monkeypatch.setattr(
        "nbrt.observe.races.poison.interface_of",
        lambda device: device if isinstance(device, Interface) else interface_of(device),
    )


def block_of(memory: np.ndarray[Any, Any], spans: Any) -> ShadowBlock:
    stream = StreamName(StreamKey(DEVICE, 0), "stream")
    return ShadowBlock(DEVICE, memory.ctypes.data, memory.nbytes, stream, None, poisoned=spans)


@pytest.mark.parametrize("poison", [True, "all"])
@pytest.mark.parametrize("nbytes", [64, 4096, MIB, MIB + 64, 3 * MIB])
def test_the_host_fills_and_looks_again(poison: Any, nbytes: int) -> None:
    memory = np.zeros(nbytes, np.uint8)
    start = memory.ctypes.data
    poisoner = Poisoner(poison)
    spans = poisoner.fill(allocation_over(memory, "caching", is_host=True))
    half = MIB // 2
    ends = ((start, start + half), (start + nbytes - half, start + nbytes))
    is_whole = poison == "all" or nbytes <= MIB
    assert spans == (((start, start + nbytes),) if is_whole else ends)
    words = memory.view("<u2")
    assert np.count_nonzero(words == PATTERN) == sum(end - begin for begin, end in spans) // 2
    block = block_of(memory, spans)
    assert poisoner.first_change(block, start, start + nbytes) is None
    for place in (nbytes - 1, nbytes - 30, 33, 0):
        memory[place] ^= 1
        assert poisoner.first_change(block, start, start + nbytes) == start + place // 2 * 2
    assert poisoner.first_change(block, start + 2, start + 32) is None
    assert poisoner.first_change(block, start + nbytes, start + 2 * nbytes) is None


def test_a_device_fills_in_the_order_of_the_stream() -> None:
    memory = np.zeros(3 * MIB, np.uint8)
    allocation = allocation_over(memory, "caching", is_host=False)
    assert Poisoner(True).fill(allocation) == ()
    half = MIB // 2
    assert allocation.device.fills == [
        ("the stream's queue", 0, half, PATTERN),
        ("the stream's queue", 3 * MIB - half, 3 * MIB, PATTERN),
    ]


def test_what_is_left_alone() -> None:
    memory = np.zeros(4096, np.uint8)
    pinned = allocation_over(memory, "pinned", is_host=False)
    assert Poisoner(True).fill(pinned) == ()
    assert pinned.device.fills == []
    assert Poisoner(False).fill(allocation_over(memory, "caching", is_host=True)) == ()
    assert not memory.any()


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("nbytes", [1000, 3 * MIB])
def test_an_allocation_that_passed_no_hook_is_not_freed_memory(nbytes: int, is_over: bool) -> None:
    """The allocation of another thread was under way when the checker was installed."""
    pool = nbrt.MemoryPool("cpu:1")
    cache = pool.cache_for(nbrt.default_stream("cpu:1"))
    with check_races("cpu:1") as checker:
        with nbrt.use_pool(pool):
            seen = nbrt.empty(nbytes, "uint8", device="cpu:1")
        address = seen.ctypes.data
        del seen
        pool.memory_allocated()  # reads what has ended, so that the block can be had again
        unseen = []
        for _ in range(200):  # more than are cut at a time
            unseen.append(cache.allocate(nbytes, nbrt.default_stream("cpu:1"), (nbytes,), UINT8))
            if unseen[-1].ctypes.data == address:
                break
        assert unseen[-1].ctypes.data == address
        unseen[-1][:] = 1
        if is_over:
            unseen.clear()
    assert checker.reports == []
