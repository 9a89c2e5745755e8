"""The pools of fake devices.

Those of a fake CPU are those of the CPU backend, over addresses without memory. So what they
allocate and reserve equals a run on a real CPU device to the byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.memory import CachingPool, ExpandablePool, PinnedPool, PlainPool
from nbrt.backends.fake.memory_cuda import (
    FakeCudaPool,
    FakeCupyPool,
    FakeExpandablePool,
    FakePinnedPool,
    FakePlainPool,
    FakeStreamOrderedPool,
)
from nbrt.backends.fake.memory_device import Assumption, DeviceMemory, DriverNumbers
from nbrt.backends.fake.memory_segments import FakeBlock, layout, map_fake
from nbrt.backends.pools import PoolBase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "POOL_KINDS",
    "Assumption",
    "DeviceMemory",
    "DriverNumbers",
    "FakeBlock",
    "layout",
    "make_pool",
]

_CUDA_POOLS: dict[str, Callable[[DeviceMemory, str], FakeCudaPool]] = {
    "caching": FakeCupyPool,
    "plain": FakePlainPool,
    "pinned": FakePinnedPool,
    "managed": FakeCupyPool,
    "system": FakeCupyPool,
    "async": FakeStreamOrderedPool,
    "expandable": FakeExpandablePool,
}

POOL_KINDS = {"cpu": ("caching", "plain", "pinned", "expandable"), "cuda": tuple(_CUDA_POOLS)}
"""The kinds of pools by the kind of device, as the real backends have them."""

_UNLIMITED = 1 << 48
"""Bytes of a device whose size is not enforced; address ranges are multiples of it."""


class _FakePool(PoolBase):
    """A pool that the other pools of its device leave room to."""

    memory: DeviceMemory

    def set_limit(self, nbytes: int | None) -> None:
        """Limit the bytes held; the runtime calls this before each allocation."""
        memory = self.memory
        self._limit = memory.limit_of(self, nbytes) if memory.enforce else nbytes


class _FakeCachingPool(_FakePool, CachingPool):
    """The caching pool of CPU devices without memory."""


class _FakePlainPool(_FakePool, PlainPool):
    """The plain pool of CPU devices without memory."""


class _FakePinnedPool(_FakePool, PinnedPool):
    """The pinned pool of CPU devices without memory."""


class _FakeExpandablePool(_FakePool, ExpandablePool):
    """The expandable pool of CPU devices without memory."""


def make_pool(memory: DeviceMemory, kind: str, options: Mapping[str, Any]) -> PoolBase | None:
    """Return a new pool of a fake device; None if the kind or an option is unknown.

    Its blocks are `FakeBlock`; `layout` makes arrays over them.
    """
    if memory.kind == "cpu":
        return _cpu_pool(memory, kind, options)
    if options or kind not in _CUDA_POOLS:
        return None
    pool = _CUDA_POOLS[kind](memory, kind)
    if pool.is_on_device:
        memory.add(pool)
    return pool


def _cpu_pool(memory: DeviceMemory, kind: str, options: Mapping[str, Any]) -> PoolBase | None:
    pool = _new_cpu_pool(memory, kind, options)
    if pool is not None:
        pool.memory = memory
        memory.add(pool)
        pool.set_limit(None)
    return pool


def _new_cpu_pool(memory: DeviceMemory, kind: str, options: Mapping[str, Any]) -> _FakePool | None:
    if options.keys() - ({"guard"} if kind == "plain" else set()):
        return None
    if kind == "caching":
        return _FakeCachingPool(map_fake, FakeBlock)
    if kind == "plain":
        return _FakePlainPool(map_fake, FakeBlock, _do_nothing, **options)
    if kind == "pinned":
        return _FakePinnedPool(map_fake, _do_nothing, FakeBlock)
    if kind == "expandable":
        capacity = memory.usable if memory.enforce else _UNLIMITED
        return _FakeExpandablePool(map_fake, map_fake, FakeBlock, capacity)
    return None


def _do_nothing(address: int, nbytes: int) -> None:
    """Protect or lock no pages."""
