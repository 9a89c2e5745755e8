"""Device memory as people see it: allocations that know their device, and how much there is."""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

from nbrt.runtime.device import interface_of, lookup

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt._internal.device import Device
    from nbrt.backends.interface import Block, DeviceInterface
    from nbrt.runtime.stream import Stream
    from nbrt.typing import DeviceLike

__all__ = [
    "Allocation",
    "allocate",
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "reset_peak_memory_stats",
]


class Allocation:
    """Device memory that lives as long as the arrays over it.

    Attributes
    ----------
    index : int
        The device's index.
    nbytes : int
        Bytes asked for.
    stream : Stream
        The stream it was allocated for.
    """

    __slots__ = ("__weakref__", "_block", "_memory", "index", "nbytes", "stream")

    def __init__(self, memory: DeviceMemory, stream: Stream, block: Block, nbytes: int) -> None:
        self._memory = memory
        self._block = block
        self.stream = stream
        self.index = stream.device.index
        self.nbytes = nbytes

    @property
    def block(self) -> Block:
        """What the backend handed out."""
        return self._block

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At interpreter exit modules are already gone, and the memory is the system's anyway.
        if not is_finalizing():
            self._memory.free(self.stream, self._block)


class DeviceMemory:
    """The books of one device: what is allocated now, and the most that ever was.

    A finalizer may run in any thread at any moment, also in the middle of an allocation of the same
    thread. So a free that finds the lock held leaves its block on a list, which whoever holds the
    lock empties.
    """

    def __init__(self, interface: DeviceInterface, device: Device) -> None:
        self.interface = interface
        self.device = device
        self._allocate = interface.allocate
        self._deallocate = interface.deallocate
        self.allocated = 0
        self.max_allocated = 0
        self.max_reserved = 0
        self._lock = threading.Lock()
        self._freed: deque[tuple[Stream, Block]] = deque()

    def allocate(self, stream: Stream, nbytes: int) -> Allocation:
        """Reserve `nbytes` for use on `stream`."""
        with self._lock:
            if self._freed:
                self._drain()
            block: Block = stream.enqueue("allocate", self._allocate, (nbytes,))
            self.allocated = allocated = self.allocated + block.nbytes
            if allocated > self.max_allocated:
                self.max_allocated = allocated
                self.note_reserved()
        if self._freed:
            self._collect()
        return Allocation(self, stream, block, nbytes)

    def free(self, stream: Stream, block: Block) -> None:
        """Give a block back; called by finalizers."""
        if not self._lock.acquire(False):
            self._freed.append((stream, block))
        else:
            try:
                self._release(stream, block)
            finally:
                self._lock.release()
        if self._freed:
            self._collect()

    def empty_cache(self) -> None:
        """Give cached memory back to the system."""
        with self._lock:
            self._drain()
            self.note_reserved()
            self.interface.empty_cache(self.device.index)
        self._collect()

    def reset_peaks(self) -> None:
        """Start the peaks again from what is in use now."""
        with self._lock:
            self._drain()
            self.max_allocated = self.allocated
            self.max_reserved = 0
            self.note_reserved()
        self._collect()

    def _collect(self) -> None:
        # Loops because the thread that held the lock may have emptied the list just before ours.
        while self._freed and self._lock.acquire(False):
            try:
                self._drain()
            finally:
                self._lock.release()

    def _drain(self) -> None:
        while self._freed:
            self._release(*self._freed.popleft())

    def _release(self, stream: Stream, block: Block) -> None:
        self.allocated -= block.nbytes
        # A child forked from us inherits arrays but not the backend: their memory is the OS's.
        if self.interface.lazy.is_ready:
            stream.enqueue("free", self._deallocate, (block,))

    def note_reserved(self) -> None:
        """Bring the peak of reserved bytes up to date: a pool can grow while little is in use."""
        reserved = self.interface.memory_reserved(self.device.index)
        if reserved > self.max_reserved:
            self.max_reserved = reserved


_books: dict[Device, DeviceMemory] = {}
_books_lock = threading.Lock()


def books_of(device: DeviceLike) -> DeviceMemory:
    """Return the books of a device."""
    chosen = lookup(device)[0]
    books = _books.get(chosen)
    interface = interface_of(chosen)
    if books is None or books.interface is not interface:
        with _books_lock:
            books = _books.get(chosen)
            if books is None or books.interface is not interface:
                books = _books[chosen] = DeviceMemory(interface, chosen)
    return books


def allocate(stream: Stream, nbytes: int) -> Allocation:
    """Reserve device memory for use on `stream`; raises OutOfMemoryError."""
    books = _books.get(stream.device)
    if books is None or books.interface is not stream.interface:
        books = books_of(stream.device)
    return books.allocate(stream, nbytes)


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
    return books_of(device).allocated


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Return the most bytes that arrays held at once, since the peaks were last reset."""
    return books_of(device).max_allocated


def memory_reserved(device: DeviceLike = None) -> int:
    """Return the bytes that the pool holds from the system, in use and cached."""
    chosen = lookup(device)[0]
    return interface_of(chosen).memory_reserved(chosen.index)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Return the most bytes that the pool held, since the peaks were last reset."""
    books = books_of(device)
    books.note_reserved()
    return books.max_reserved


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Start the peaks again from what is in use now."""
    books_of(device).reset_peaks()


def empty_cache(device: DeviceLike = None) -> None:
    """Give the pool's unused memory back to the system."""
    books_of(device).empty_cache()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Return (free, total) bytes of a device."""
    chosen = lookup(device)[0]
    return interface_of(chosen).mem_get_info(chosen.index)
