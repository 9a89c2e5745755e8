"""The `DeviceAllocator` of each device, made at its first use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from nbrt.backends import registry
from nbrt.errors import DeviceError
from nbrt.runtime import commands
from nbrt.runtime.device import interface_of, lookup
from nbrt.runtime.memory.device_allocator import DeviceAllocator

if TYPE_CHECKING:
    from nbrt._internal.device import Device
    from nbrt.runtime.memory.allocation import Allocation, SizeClassCache
    from nbrt.runtime.stream import Stream
    from nbrt.typing import DeviceLike

__all__ = [
    "all_allocators",
    "allocator_for",
    "allocator_of",
    "allocators_of",
    "default_cache",
    "host_allocator_for",
]

_allocators: dict[tuple[Device, str], DeviceAllocator] = {}
_lock = threading.Lock()


def allocator_for(device: DeviceLike = None, kind: str = "caching") -> DeviceAllocator:
    """Return the allocator of a device's memory; `kind` is that of its default pool."""
    key = lookup(device)[0], kind
    interface = interface_of(key[0])
    allocator = _allocators.get(key)
    if allocator is None or allocator.interface is not interface:
        with _lock:
            allocator = _allocators.get(key)
            if allocator is None or allocator.interface is not interface:
                allocator = _allocators[key] = DeviceAllocator(interface, key[0], kind)
    return allocator


def host_allocator_for(device: DeviceLike = None) -> DeviceAllocator:
    """Return the allocator of the page-locked host memory for a device."""
    return allocator_for(device, "pinned")


def allocator_of(allocation: Allocation) -> DeviceAllocator | None:
    """Return the allocator that an allocation comes from; None if its pool is gone."""
    for allocator in list(_allocators.values()):
        if any(pool.state is allocation.pool for pool in list(allocator.pools)):
            return allocator
    return None


def default_cache(stream: Stream) -> SizeClassCache:
    """Return the cache for arrays of a stream outside `use_pool`, and store it in the stream."""
    allocator = allocator_for(stream.device)
    if stream.interface is not allocator.interface:
        raise DeviceError(
            f"expected a stream of the present {stream.device}, got {stream!r} of a device that "
            f"nbrt.fake or a registration has replaced; make a new stream"
        )
    cache = stream.cache = allocator.default_pool.cache_for(stream)
    return cache


def all_allocators() -> list[DeviceAllocator]:
    """Return the allocators of all devices whose memory was used."""
    return [allocator for (_, kind), allocator in _allocators.items() if kind == "caching"]


def allocators_of(kind: str) -> list[DeviceAllocator]:
    """Return the allocators of the devices of a kind and of their page-locked memory."""
    return [each for (device, _), each in list(_allocators.items()) if device.kind == kind]


registry.on_substituted(registry.set_aside(_allocators, lambda key: key[0].kind))


def _process_logs() -> None:
    for allocator in list(_allocators.values()):
        # In a forked child a thread that does not exist may hold the lock.
        if allocator.interface.lazy.is_ready:
            allocator.process_log()


# So that hooks see exactly the frees of their lifetime.
commands.on_hooks_changing.append(_process_logs)
