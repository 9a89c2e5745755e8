"""What is tried when a device has no room, and what is said when nothing helped."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Protocol, TypeVar

from nbrt._internal.callsite import CallSite
from nbrt.errors import ArgumentTypeError, NbrtCleanupWarning, OutOfMemoryError
from nbrt.runtime import commands
from nbrt.runtime.memory.fragmentation import gaps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt._internal.device import Device
    from nbrt.runtime.memory.core import PoolImpl
    from nbrt.runtime.memory.device_allocator import DeviceAllocator

__all__ = ["ObserverHandle", "OutOfMemoryObserver", "attach_out_of_memory_observer", "relieve"]

T = TypeVar("T")

_HOLDERS = 5


class OutOfMemoryObserver(Protocol):
    """Something that is called when a device has no room, before the allocation fails."""

    def __call__(self, device: Device, requested: int, in_use: int, reserved: int, /) -> object:
        """See the device, and the bytes that are asked for, in use and reserved.

        Memory that it frees is tried once more.
        """
        ...


class ObserverHandle:
    """Takes an observer off again; also as a context manager."""

    def __init__(self, observer: OutOfMemoryObserver) -> None:
        self._observer = observer

    def remove(self) -> None:
        """Stop calling the observer; nothing if that was done."""
        with _lock:
            if self in _observers:
                _observers.remove(self)

    def call(self, device: Device, requested: int, in_use: int, reserved: int) -> None:
        """Call the observer; what it raises only warns."""
        _here.is_observed = True
        try:
            self._observer(device, requested, in_use, reserved)
        except Exception as error:  # noqa: BLE001  # the allocation's own failure is the news
            message = f"an out-of-memory observer failed: {error!r}"
            warnings.warn(message, NbrtCleanupWarning, stacklevel=2)
        finally:
            _here.is_observed = False

    def __enter__(self) -> ObserverHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


_observers: list[ObserverHandle] = []
_lock = threading.Lock()


class _Here(threading.local):
    is_observed = False


_here = _Here()
"""Whether an observer runs in this thread: what it allocates itself calls none."""


def attach_out_of_memory_observer(observer: OutOfMemoryObserver) -> ObserverHandle:
    """Call something when a device has no room, before the allocation fails.

    Parameters
    ----------
    observer : callable
        Called as ``observer(device, requested, in_use, reserved)``, sizes in bytes, in the thread
        that allocates. If it frees memory, the allocation is tried again. If it raises, that is a
        warning.

    Returns
    -------
    handle : ObserverHandle
        With a method `remove`; also a context manager.

    Examples
    --------
    >>> import nbrt
    >>> from nbrt import memory
    >>> cache = [nbrt.empty(1 << 20, "uint8", device="cpu:0")]
    >>> with memory.attach_out_of_memory_observer(lambda *about: cache.clear()):
    ...     pass  # a full device would drop the cache here instead of failing
    """
    if not callable(observer):
        raise ArgumentTypeError(f"expected an observer to call, got {observer!r}")
    handle = ObserverHandle(observer)
    with _lock:
        _observers.append(handle)
    return handle


def relieve(books: DeviceAllocator, pool: PoolImpl, nbytes: int, cut: Callable[[], T]) -> T:
    """Try an allocation again and again, each time with more memory given back before.

    Parameters
    ----------
    books : DeviceAllocator
        The device without room.
    pool : PoolImpl
        The pool that was asked.
    nbytes : int
        How much is wanted.
    cut : callable
        Makes the allocation, or raises OutOfMemoryError.

    Raises
    ------
    OutOfMemoryError
        With what is in use, by whom, and what to do.
    """
    _count(books, pool, "retries")
    failure: OutOfMemoryError | None = None
    try:
        for give_back in _ladder(books, nbytes):
            give_back()
            try:
                return cut()
            except OutOfMemoryError as error:
                failure = error
        assert failure is not None
        _count(books, pool, "ooms")
        if books.available_bytes(pool) is not None:
            _count(books, pool, "oom_rejections")
        if commands.hooks:
            free = books.interface.mem_get_info(books.device.index)[0]
            commands.emit("out_of_memory", books.device, None, free, nbytes)
        raise OutOfMemoryError(_report(books, pool, nbytes, failure)) from failure
    finally:
        # Its traceback has this frame: the cycle would keep the arrays of all callers.
        del failure


def _ladder(books: DeviceAllocator, nbytes: int) -> Iterator[Callable[[], object]]:
    yield books.empty_cache
    if books.pending.waiting:
        yield lambda: _wait_for_pending(books)
    # Arrays in reference cycles, such as those that an exception's frames hold.
    yield lambda: _collect(books)
    for handle in () if _here.is_observed else tuple(_observers):
        yield functools.partial(_observe, handle, books, nbytes)


def _wait_for_pending(books: DeviceAllocator) -> None:
    with books.lock:
        events = books.pending.events()
        books.statistics.syncs += 1
    for event in events:
        event.host_wait()()
    books.empty_cache()


def _collect(books: DeviceAllocator) -> None:
    gc.collect()
    books.empty_cache()


def _observe(handle: ObserverHandle, books: DeviceAllocator, nbytes: int) -> None:
    statistics = books.statistics
    handle.call(books.device, nbytes, statistics.all.bytes, statistics.reserved)
    gc.collect()
    books.empty_cache()


def _count(books: DeviceAllocator, pool: PoolImpl, counter: str) -> None:
    with books.lock:
        for statistics in (books.statistics, pool.statistics):
            if statistics is not None:
                setattr(statistics, counter, getattr(statistics, counter) + 1)


def _report(books: DeviceAllocator, pool: PoolImpl, nbytes: int, failure: OutOfMemoryError) -> str:
    books.settle()
    with books.lock:
        in_use, reserved = books.statistics.all.bytes, books.statistics.reserved
        room = books.available_bytes(pool)
    free, total = books.interface.mem_get_info(books.device.index)
    limited = "" if room is None else f", {room} allowed by the limits"
    lines = [
        f"expected room for {nbytes} bytes on {books.device}, got {in_use} in use and {reserved} "
        f"reserved of {total}{limited}; {free} bytes are free on the device, after caches were "
        f"dropped, pending frees waited for and garbage was collected ({failure})"
    ]
    with books.lock:
        largest = max((size for _, sizes in gaps(pool) for size in sizes), default=0)
    lines.append(f"Largest free block of the pool: {largest} bytes")
    holders = _holders(books)
    if holders:
        lines.append("Held by arrays that were allocated here:")
        lines.extend(holders)
    if getattr(sys, "last_value", None) is not None:
        lines.append(
            "The traceback of an earlier exception is kept, and what its frames hold: "
            "nbrt.memory.release_tracebacks() lets it go"
        )
    lines.append(
        "Free arrays (nbrt.memory.live_arrays() says who holds them), ask for less, or raise the "
        "limit with nbrt.memory.set_memory_limit (cpu devices begin with NBRT_CPU_MEMORY_LIMIT)"
    )
    return "\n".join(lines)


def _holders(books: DeviceAllocator) -> list[str]:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for allocation in books.live_allocations():
        where = _place(allocation.site)
        sizes[where] += allocation.nbytes
        counts[where] += 1
    return [
        f"  {size} bytes in {counts[where]} array(s): {where}"
        for where, size in sizes.most_common(_HOLDERS)
    ]


def _place(site: object) -> str:
    frames = site.frames() if isinstance(site, CallSite) else []
    if not frames:
        return "small arrays; nbrt.memory.record_memory_history says where they are made"
    return f"{frames[0]['filename']}:{frames[0]['line']} in {frames[0]['name']}"
