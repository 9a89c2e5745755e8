"""Memory statistics and caches of devices, by torch's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.runtime.device import interface_of, lookup
from nbrt.runtime.memory.registry import allocator_for, host_allocator_for
from nbrt.runtime.memory.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.runtime.memory.allocation import Allocation
    from nbrt.runtime.memory.statistics import Counters
    from nbrt.typing import DeviceLike

__all__ = [
    "allocations",
    "empty_cache",
    "empty_host_cache",
    "host_memory_stats",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
]


def allocations(device: DeviceLike = None) -> list[Allocation]:
    """Return the allocations of the arrays of a device, of all its pools.

    Examples
    --------
    >>> import nbrt
    >>> x = nbrt.empty(1000, "float64", device="cpu:2")
    >>> [allocation.requested for allocation in nbrt.memory.allocations("cpu:2")]
    [8000]
    """
    return allocator_for(device).live_allocations()


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """Return the memory statistics of a device, of all its pools, with torch's keys.

    Returns
    -------
    stats : dict of str to int
        Keys are ``"{what}.{pool}.{how}"``. What: ``allocated``, ``active`` (with pending frees),
        ``segment`` and ``inactive_split`` count blocks; ``allocated_bytes``, ``active_bytes``,
        ``reserved_bytes``, ``inactive_split_bytes`` and ``requested_bytes`` (before rounding) are
        bytes. Pool: ``all``, ``small_pool`` (blocks of at most 1 MiB), ``large_pool``. How:
        ``current``, ``peak``, and the sums of increases (``allocated``) and decreases (``freed``).
        ``inactive_split`` is computed when it is requested; its peak is the highest value computed.
        ``num_alloc_retries``, ``num_ooms``, ``num_oom_rejections`` (by a limit),
        ``num_sync_all_streams``, ``num_device_alloc`` and ``num_device_free`` count events.

    Examples
    --------
    >>> import nbrt
    >>> x = nbrt.empty(1000, "uint8", device="cpu:1")
    >>> stats = nbrt.memory_stats("cpu:1")
    >>> stats["requested_bytes.all.current"], stats["allocated_bytes.small_pool.current"]
    (1000, 1024)
    """
    return allocator_for(device).stats()


def host_memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """Return the statistics of the page-locked host memory for a device, with the same keys."""
    return host_allocator_for(device).stats()


def empty_host_cache(device: DeviceLike = None) -> None:
    """Return the unused page-locked host memory for a device to the system."""
    host_allocator_for(device).empty_cache()


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """Return `memory_stats` as dicts in dicts: ``stats["allocated_bytes"]["all"]["peak"]``."""
    nested: dict[str, Any] = {}
    for key, value in memory_stats(device).items():
        *path, last = key.split(".")
        inner = nested
        for name in path:
            inner = inner.setdefault(name, {})
        inner[last] = value
    return nested


def memory_allocated(device: DeviceLike = None) -> int:
    """Return the bytes that arrays hold on a device, rounded up as the pool does.

    Examples
    --------
    >>> import nbrt
    >>> before = nbrt.memory_allocated("cpu:0")
    >>> x = nbrt.empty(1024, "float32", device="cpu:0")
    >>> nbrt.memory_allocated("cpu:0") - before
    4096
    """
    return _counters(device).bytes


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Return the peak of `memory_allocated` since it was last reset."""
    counters = _counters(device)
    return max(counters.peak_bytes, counters.bytes)


def _counters(device: DeviceLike) -> Counters:
    allocator = allocator_for(device)
    allocator.process_log()
    return allocator.statistics.all


def memory_reserved(device: DeviceLike = None) -> int:
    """Return the bytes that the pools hold from the system, in use and cached."""
    allocator = allocator_for(device)
    with allocator.lock:
        return sum(pool.backend.reserved() for pool in allocator.pools)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Return the peak of `memory_reserved` since it was last reset."""
    return allocator_for(device).statistics.peak_reserved


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Set the peaks to the current values."""
    _reset(device, Statistics.reset_peaks)


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Set the accumulated sums of increases and decreases, and the counters, to 0."""
    _reset(device, Statistics.reset_accumulated)


def _reset(device: DeviceLike, reset: Callable[[Statistics], object]) -> None:
    allocator = allocator_for(device)
    allocator.process_log()
    with allocator.lock:
        reset(allocator.statistics)
        for pool in allocator.pools:
            if pool.state.statistics is not None:
                reset(pool.state.statistics)


def empty_cache(device: DeviceLike = None) -> None:
    """Return the unused memory of a device's pools to the system."""
    allocator_for(device).empty_cache()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Return (free, total) bytes of a device, within its limit if it has one."""
    chosen = lookup(device)[0]
    free, total = interface_of(chosen).mem_get_info(chosen.index)
    limit = allocator_for(chosen).limit
    if limit is None:
        return free, total
    return max(0, min(free, limit - memory_reserved(chosen))), min(total, limit)
