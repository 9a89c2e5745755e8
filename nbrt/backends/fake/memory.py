"""The memory of fake devices: `make_pool`, and `DeviceMemory` for what the pools of a device hold.

The pools of a fake CPU are those of the CPU backend, over addresses without memory. So what they
allocate and reserve equals a run on a real CPU device to the byte.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.memory import CachingPool, ExpandablePool, PinnedPool, PlainPool
from nbrt.backends.fake.memory_segments import FakeBlock, layout, map_fake
from nbrt.backends.pools import PoolBase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.backends.interface import DeviceProperties

__all__ = ["POOL_KINDS", "DeviceMemory", "FakeBlock", "layout", "make_pool"]

POOL_KINDS = {"cpu": ("caching", "plain", "pinned", "expandable")}
"""The kinds of pools by the kind of device, as the real backends have them."""

_UNLIMITED = 1 << 48
"""Bytes of a device whose size is not enforced; address ranges are multiples of it."""


class DeviceMemory:
    """The memory of one fake device, which its pools share.

    Parameters
    ----------
    kind : str
        The kind of device, a key of `POOL_KINDS`.
    properties : DeviceProperties
        Its properties.
    enforce : bool, optional
        Pools raise OutOfMemoryError where the device has no more memory; False: they never do.

    Attributes
    ----------
    kind, properties, enforce
        The parameters.
    """

    def __init__(self, kind: str, properties: DeviceProperties, *, enforce: bool = False) -> None:
        self.kind = kind
        self.properties = properties
        self.enforce = enforce
        self._pools: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def usable(self) -> int:
        """Bytes that pools can have in all."""
        return self.properties.total_memory

    def held(self) -> int:
        """Return the bytes that the pools hold."""
        return sum(pool.reserved() for pool in self._pools)

    def info(self) -> tuple[int, int]:
        """Return (free, total) bytes; free is 0 where pools hold more than there is."""
        return max(0, self.usable - self.held()), self.properties.total_memory

    def add(self, pool: PoolBase) -> None:
        """Count the memory of a pool as long as the pool lives."""
        self._pools.add(pool)

    def limit_of(self, pool: PoolBase, nbytes: int | None) -> int | None:
        """Return the limit of a pool that a user has limited to `nbytes`."""
        if not self.enforce:
            return nbytes
        room = max(0, self.usable - self.held() + pool.reserved())
        return room if nbytes is None else min(nbytes, room)


class _FakePool(PoolBase):
    """A pool that the other pools of its device leave room to."""

    memory: DeviceMemory

    def set_limit(self, nbytes: int | None) -> None:
        """Limit the bytes held; the runtime calls this before each allocation."""
        super().set_limit(self.memory.limit_of(self, nbytes))


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
    pool = _cpu_pool(memory, kind, options)
    if pool is not None:
        pool.memory = memory
        memory.add(pool)
        pool.set_limit(None)
    return pool


def _cpu_pool(memory: DeviceMemory, kind: str, options: Mapping[str, Any]) -> _FakePool | None:
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
