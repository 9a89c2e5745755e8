"""Recovery from a lack of device memory: what is tried, and the error if nothing helps."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Protocol, TypeVar

from nbrt._internal.callsite import CallSite
from nbrt.errors import ArgumentTypeError, NbrtCleanupWarning, OutOfMemoryError
from nbrt.runtime.deferral import wait_for_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nbrt._internal.device import Device
    from nbrt.backends.queue import EventHandle
    from nbrt.runtime.memory.allocation import Allocation

__all__ = [
    "ObserverHandle",
    "OutOfMemoryObserver",
    "attach_out_of_memory_observer",
    "describe_allocations",
    "recovery_steps",
    "retry_allocation",
]

T = TypeVar("T")

_MAX_SITES = 5
"""Limit of the lines that an error names."""


class OutOfMemoryObserver(Protocol):
    """A callable for `attach_out_of_memory_observer`."""

    def __call__(self, device: Device, requested: int, in_use: int, reserved: int, /) -> object:
        """Free memory, if possible; sizes are bytes."""
        ...


class ObserverHandle:
    """The registration of an observer; a context manager that removes it."""

    def __init__(self, observer: OutOfMemoryObserver) -> None:
        self._observer = observer

    def remove(self) -> None:
        """Stop calling the observer; may be called again."""
        with _lock:
            if self in _observers:
                _observers.remove(self)

    def call(self, device: Device, requested: int, in_use: int, reserved: int) -> None:
        """Call the observer; turn an exception into a warning."""
        _thread.is_observed = True
        try:
            self._observer(device, requested, in_use, reserved)
        except Exception as error:  # noqa: BLE001  # the failed allocation is the error to raise
            message = f"an out-of-memory observer failed: {error!r}"
            warnings.warn(message, NbrtCleanupWarning, stacklevel=2)
        finally:
            _thread.is_observed = False

    def __enter__(self) -> ObserverHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


_observers: list[ObserverHandle] = []
_lock = threading.Lock()


class _Thread(threading.local):
    is_observed = False


_thread = _Thread()
"""Whether an observer runs in this thread: its own allocations call no observers."""


def attach_out_of_memory_observer(observer: OutOfMemoryObserver) -> ObserverHandle:
    """Call a function when a device has no room, before the allocation fails.

    Parameters
    ----------
    observer : callable
        Called as ``observer(device, requested, in_use, reserved)``, sizes in bytes, in the thread
        that allocates, after caches were emptied and garbage was collected. Each call is followed
        by another attempt; once that succeeds, later observers are not called. An exception
        becomes a warning.

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


def retry_allocation(attempt: Callable[[], T], steps: Iterable[Callable[[], object]]) -> T:
    """Return the result of the first attempt that succeeds, after each of several steps.

    Raises
    ------
    OutOfMemoryError
        That of the last attempt.
    """
    failure: OutOfMemoryError | None = None
    try:
        for step in steps:
            step()
            try:
                return attempt()
            except OutOfMemoryError as error:
                failure = error
        raise failure or OutOfMemoryError("expected steps that free memory, got none")
    finally:
        # Its traceback refers to this frame: the cycle would keep the arrays of all callers.
        del failure


def recovery_steps(
    device: Device,
    nbytes: int,
    empty_cache: Callable[[], object],
    pending_events: Callable[[], list[EventHandle]],
    usage: Callable[[], tuple[int, int]],
) -> Iterator[Callable[[], object]]:
    """Yield steps that free memory of a device.

    Parameters
    ----------
    device : Device
        The device.
    nbytes : int
        Bytes requested.
    empty_cache : callable
        Returns the free blocks to the system; called after each step, too.
    pending_events : callable
        Returns the events that freed blocks wait for.
    usage : callable
        Returns the bytes in use and reserved, for observers.
    """
    yield empty_cache
    # Deferred commands hold their arrays.
    yield lambda: wait_for_all() and empty_cache()
    events = pending_events()
    if events:
        yield lambda: ([event.host_wait()() for event in events], empty_cache())
    # Arrays in reference cycles, such as those in the frames of an exception.
    yield lambda: (gc.collect(), empty_cache())
    for handle in () if _thread.is_observed else tuple(_observers):

        def observe(handle: ObserverHandle = handle) -> None:
            handle.call(device, nbytes, *usage())
            gc.collect()
            empty_cache()

        yield observe


def describe_allocations(allocations: Iterable[Allocation]) -> str:
    """Return the end of an error text: which lines of the program hold the most memory."""
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for allocation in allocations:
        where = _line(allocation.site)
        sizes[where] += allocation.nbytes
        counts[where] += 1
    lines = [
        f"  {size} bytes in {counts[where]} array(s): {where}"
        for where, size in sizes.most_common(_MAX_SITES)
    ]
    if lines:
        lines.insert(0, "Held by arrays that were allocated here:")
    if getattr(sys, "last_value", None) is not None:
        lines.append(
            "The traceback of an earlier exception keeps the arrays of its frames: "
            "nbrt.memory.release_tracebacks() frees them"
        )
    lines.append(
        "Free arrays (nbrt.memory.live_arrays() lists their holders), request less, or raise the "
        "limit with nbrt.memory.set_memory_limit (cpu devices begin with NBRT_CPU_MEMORY_LIMIT)"
    )
    return "\n".join(lines)


def _line(site: object) -> str:
    frames = site.frames() if isinstance(site, CallSite) else []
    if not frames:
        return "small arrays; nbrt.memory.record_memory_history records their call sites"
    return f"{frames[0]['filename']}:{frames[0]['line']} in {frames[0]['name']}"
