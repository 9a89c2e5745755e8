"""How much memory there is and who has it, by torch's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.runtime.device import interface_of, lookup
from nbrt.runtime.memory.device_allocator import allocator_for, host_allocator_for

if TYPE_CHECKING:
    from nbrt.runtime.memory.allocation import Allocation
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
    """Return the allocations that arrays of a device hold now, of all its pools.

    Examples
    --------
    >>> import nbrt
    >>> x = nbrt.empty(1000, "float64", device="cpu:2")
    >>> [each.requested for each in nbrt.memory.allocations("cpu:2")]
    [8000]
    """
    return allocator_for(device).live_allocations()


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """Return the numbers of a device's memory, of all its pools, with torch's keys.

    Returns
    -------
    stats : dict of str to int
        ``"{what}.{pool}.{how}"``. What: ``allocated``, ``active`` (with what waits for streams),
        ``segment`` and ``inactive_split`` count blocks; ``allocated_bytes``, ``active_bytes``,
        ``reserved_bytes``, ``inactive_split_bytes`` and ``requested_bytes`` (before rounding) are
        bytes. Pool: ``all``, ``small_pool`` (blocks of at most 1 MiB), ``large_pool``. How:
        ``current``, ``peak``, and how much it rose (``allocated``) and fell (``freed``) in all.
        ``inactive_split`` is worked out when it is asked for, and its peak is the highest that was
        seen. ``num_alloc_retries``, ``num_ooms``, ``num_oom_rejections`` (by a limit),
        ``num_sync_all_streams``, ``num_device_alloc`` and ``num_device_free`` count events.

    Examples
    --------
    >>> import nbrt
    >>> x = nbrt.empty(1000, "uint8", device="cpu:1")
    >>> stats = nbrt.memory_stats("cpu:1")
    >>> stats["requested_bytes.all.current"], stats["allocated_bytes.small_pool.current"]
    (1000, 1024)
    """
    books = allocator_for(device)
    books.settle()
    with books.lock:
        books.note_split()
        return books.statistics.as_dict()


def host_memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """Return the numbers of the page-locked host memory for a device, with the same keys."""
    books = host_allocator_for(device)
    books.settle()
    with books.lock:
        books.note_split()
        return books.statistics.as_dict()


def empty_host_cache(device: DeviceLike = None) -> None:
    """Give the unused page-locked host memory for a device back to the system."""
    host_allocator_for(device).empty_cache()


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """Return `memory_stats` as dicts in dicts: ``stats["allocated_bytes"]["all"]["peak"]``."""
    nested: dict[str, Any] = {}
    for key, value in memory_stats(device).items():
        *path, last = key.split(".")
        place = nested
        for name in path:
            place = place.setdefault(name, {})
        place[last] = value
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
    books = allocator_for(device)
    books.settle()
    with books.lock:
        return books.statistics.all.bytes


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Return the most bytes that arrays held at once, since the peaks were last reset."""
    books = allocator_for(device)
    books.settle()
    with books.lock:
        tally = books.statistics.all
        return max(tally.peak_bytes, tally.bytes)


def memory_reserved(device: DeviceLike = None) -> int:
    """Return the bytes that the pools hold from the system, in use and cached."""
    books = allocator_for(device)
    with books.lock:
        return sum(pool.backend.reserved() for pool in books.pools)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Return the most bytes that the pools held, since the peaks were last reset."""
    return allocator_for(device).statistics.peak_reserved


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Start the peaks again from what is in use now."""
    books = allocator_for(device)
    books.settle()
    with books.lock:
        for statistics in books.all_statistics():
            statistics.reset_peaks()


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Start the sums of rises and falls, and the counters, again from 0."""
    books = allocator_for(device)
    books.settle()
    with books.lock:
        for statistics in books.all_statistics():
            statistics.reset_accumulated()


def empty_cache(device: DeviceLike = None) -> None:
    """Give the unused memory of a device's pools back to the system."""
    allocator_for(device).empty_cache()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Return (free, total) bytes of a device, within its limit if it has one."""
    chosen = lookup(device)[0]
    free, total = interface_of(chosen).mem_get_info(chosen.index)
    limit = allocator_for(chosen).limit
    if limit is None:
        return free, total
    return max(0, min(free, limit - memory_reserved(chosen))), min(total, limit)
