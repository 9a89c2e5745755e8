"""`PoolCore`: what a memory pool is inside: a backend's pool, and bins of small blocks above it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.runtime import commands
from nbrt.runtime.commands import Command
from nbrt.runtime.memory.allocation import Allocation, Ending

if TYPE_CHECKING:
    from nbrt._internal.device import Device
    from nbrt.backends.pools import BackendPool, SegmentInfo
    from nbrt.backends.queue import Queue
    from nbrt.runtime.memory.books import DeviceBooks
    from nbrt.runtime.memory.statistics import Statistics
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array

__all__ = ["Arena", "PoolCore", "size_class"]

_MAX_KNOWN = 4096
"""Sizes whose bin is remembered; a program asks for few, over and over."""

_MAX_LOG = 250
_MAX_UNREAD = 128 << 10
"""Events that may wait to be read, and the bytes that they may stand for: what was freed last is
still in the processor's caches, so it is to be handed out first."""

_WORTHWHILE = 16
"""The part of what is held that lies in bins may be one in so many when a pool grows."""


class PoolCore:
    """A pool of one device's memory.

    Attributes
    ----------
    device : Device
        The device.
    backend : BackendPool
        Where its memory comes from.
    id : tuple of (int, int)
        (0, 0) for the default pool of a device, (0, n) for others, as torch numbers them.
    name : str
        What people call it; may be empty.
    limit : int or None
        The most bytes it may hold from the system.
    allocations : set of Allocation
        Those whose block is out of the backend's pool: in use, waiting for streams, or in a bin.
    orphans : list of dict
        Bins of streams that are gone.
    small_bytes : int
        Bytes of small blocks that are in use, waiting, or in bins.
    is_retired : bool
        Nobody holds it any more: what comes back goes to the system.
    """

    def __init__(
        self, books: DeviceBooks, backend: BackendPool, number: int, name: str, limit: int | None
    ) -> None:
        self.books = books
        self.device: Device = books.device
        self.backend = backend
        self.id = (0, number)
        self.name = name
        self.limit = limit
        # Blocks of one size for requests that the backend would round up to it anyway.
        self.granularity: int = getattr(backend, "granularity", 1)
        if hasattr(backend, "before_growth"):
            backend.before_growth = self.release_idle
        self.allocations: set[Allocation] = set()
        self.small_bytes = 0
        self.is_retired = False
        self.statistics: Statistics | None = None
        self.segments_seen: dict[int, SegmentInfo] = {}
        self.reserved_seen: tuple[int, int, int] = (0, 0, 0)
        self._shared = None if backend.stream_ordered else Arena(self)
        # By stream; a stream that dies leaves its bins to be given back.
        self._arenas: weakref.WeakKeyDictionary[Stream, Arena] = weakref.WeakKeyDictionary()
        self.orphans: list[Bins] = []

    @property
    def kind(self) -> str:
        """The kind of its backend's pool."""
        return self.backend.kind

    def arena(self, stream: Stream) -> Arena:
        """Return where small blocks for `stream` are taken from."""
        if self._shared is not None:
            return self._shared
        arena = self._arenas.get(stream)
        if arena is None:
            with self.books.lock:
                arena = self._arenas.get(stream)
                if arena is None:
                    arena = self._arenas[stream] = Arena(self)
                    weakref.finalize(stream, self.orphans.append, arena.lists).atexit = False
        return arena

    def flush(self) -> None:
        """Give the blocks in the bins back to the backend; the caller holds the lock."""
        arenas = [self._shared] if self._shared is not None else list(self._arenas.values())
        for arena in arenas:
            self._empty(arena.lists)
        self.flush_orphans()

    def flush_orphans(self) -> None:
        """Give back the blocks that were kept for streams which are gone."""
        while self.orphans:
            bins = self.orphans.pop()
            self._empty(bins)
            # What arrays still hold of them goes back to the backend, too: nobody takes it here.
            gone = {id(each) for each in bins.values()}
            for allocation in self.allocations:
                if id(allocation.bin) in gone:
                    allocation.bin = None

    def _empty(self, bins: Bins) -> None:
        for each in list(bins.values()):
            while each:
                try:
                    allocation = each.pop()
                except IndexError:  # another thread's fast path took the last one
                    break
                self.give_up(allocation)

    def give_up(self, allocation: Allocation) -> None:
        """Give a block back to the backend; the caller holds the lock."""
        self.allocations.discard(allocation)
        allocation.mould = None  # which knows its allocation
        if allocation.is_small:
            self.small_bytes -= allocation.nbytes
        was_changing, self.books.is_changing = self.books.is_changing, True
        try:
            self.backend.deallocate(allocation.home, allocation.block)
        finally:
            self.books.is_changing = was_changing

    def release_idle(self) -> None:
        """Give up the blocks in the bins if they are much: the backend is about to grow."""
        statistics = self.statistics or self.books.statistics
        if self.small_bytes - statistics.small.bytes > self.backend.reserved() // _WORTHWHILE:
            self.flush()

    def drop_cached(self) -> None:
        """Have the backend give back what no block uses; the caller holds the lock."""
        self.books.is_changing = True
        try:
            self.backend.empty_cache()
        finally:
            self.books.is_changing = False

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"MemoryPool({str(self.device)!r}, {self.kind!r}{name}, id={self.id})"


Bins = dict[int, list[Allocation]]


class Arena:
    """Bins of free small blocks, one for each size class; taking one needs no lock.

    Attributes
    ----------
    lists : dict of int to list of Allocation
        The bins by size class.
    """

    __slots__ = ("_log", "_note", "_pool", "_sizes", "lists")

    def __init__(self, pool: PoolCore) -> None:
        self._pool = pool
        self._log = pool.books.log
        self._note = pool.books.log.append
        self._sizes: Bins = {}
        self.lists: Bins = {}

    def lend(self, nbytes: int, stream: Stream, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array over a block of at least `nbytes`; raises OutOfMemoryError.

        The end of the array and its views is the end of the allocation. Allocations and ends are
        events in the device's log, which is read later: this path takes no lock.
        """
        unread = len(self._log)
        if unread > _MAX_LOG or unread * nbytes > _MAX_UNREAD:
            self._pool.books.settle()
        try:
            allocation = self._sizes[nbytes].pop()
        except (KeyError, IndexError):
            allocation = None
        if allocation is None:
            return self._pool.books.lend(self._pool, self, nbytes, stream, shape, dtype)
        view = allocation.view
        if view is None:
            allocation.requested, allocation.stream_ref = nbytes, stream.ref
            return self._pool.books.occupy(allocation, shape, dtype, self._note)
        step = 0  # how far it has come, for an interrupt that comes between two steps
        try:
            if allocation.dtype is dtype and allocation.shape == shape:
                # A view of a mould takes a third of the time that an array of a buffer takes.
                mould = allocation.mould
                if mould is None:
                    mould = allocation.mould = allocation.block.mould(shape, dtype)  # type: ignore[attr-defined]
                array: Array = mould.view(np.ndarray)
            else:
                array = np.ndarray(shape, dtype, view)
                allocation.shape, allocation.dtype, allocation.mould = shape, dtype, None
            allocation.requested = nbytes
            allocation.stream_ref = stream.ref
            note = self._note
            step = 1
            note(allocation)
            ending = Ending(array, note)
        except BaseException:
            if step == 0:
                allocation.bin.append(allocation)  # type: ignore[union-attr]  # it came from there
            else:
                ending = allocation.ending = Ending(array, note)
                ending.allocation = allocation
            raise
        ending.allocation = allocation
        allocation.ending = ending
        return array

    def lend_watched(
        self, nbytes: int, stream: Stream, shape: tuple[int, ...], dtype: Any
    ) -> Array:
        """Do the same where taps look on: allocation and end pass them as commands, at once."""
        allocation = self.take_watched(nbytes, stream)
        return self._pool.books.occupy(allocation, shape, dtype, self._pool.books.note)

    def take_watched(self, nbytes: int, stream: Stream) -> Allocation:
        """Take a block past the taps."""

        def allocate(queue: Queue, nbytes: int) -> Allocation:  # noqa: ARG001  # the stream's own
            if self._pool.books.pending.waiting:
                self._pool.books.settle()
            try:
                allocation = self._sizes[nbytes].pop()
            except (KeyError, IndexError):
                allocation = None
            if allocation is None:
                allocation = self._pool.books.take(self._pool, self, nbytes, stream)
            self._pool.books.begin(allocation, nbytes, stream)
            return allocation

        taken: Allocation = stream.submit(Command("allocate", allocate, (nbytes,)))
        return taken

    def lease(self, nbytes: int, stream: Stream) -> Any:
        """Return a bare lease of a block, for arrays that another library makes."""
        books = self._pool.books
        if commands.memory_is_watched:
            return books.lease(self.take_watched(nbytes, stream), books.note)
        allocation = books.take(self._pool, self, nbytes, stream)
        books.begin(allocation, nbytes, stream)
        return books.lease(allocation, books.note_of(allocation))

    def bin_of(self, nbytes: int) -> tuple[int, list[Allocation]]:
        """Return the size class of a small block, and its bin."""
        step = self._pool.granularity
        size = -(-size_class(nbytes) // step) * step
        found = self.lists.get(size)
        if found is None:
            found = self.lists.setdefault(size, [])
        if len(self._sizes) >= _MAX_KNOWN:
            self._sizes.clear()
        self._sizes[nbytes] = found
        return size, found


def size_class(nbytes: int) -> int:
    """Round up to a multiple of 64 bytes, coarser above 512: at most an eighth is wasted."""
    if nbytes <= 512:
        return (nbytes + 63) & -64 or 64
    mask = (1 << ((nbytes - 1).bit_length() - 3)) - 1
    return (nbytes + mask) & ~mask
