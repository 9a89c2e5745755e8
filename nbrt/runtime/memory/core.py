"""`PoolImpl`: what a memory pool is inside: a backend's pool, and bins of small blocks above it."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.runtime import commands
from nbrt.runtime.commands import Command
from nbrt.runtime.memory.allocation import Allocation, FreeRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt._internal.device import Device
    from nbrt.backends.pools import BackendPool, SegmentInfo
    from nbrt.backends.queue import Queue
    from nbrt.runtime.memory.device_allocator import DeviceAllocator
    from nbrt.runtime.memory.statistics import Statistics
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array

__all__ = ["Arena", "PoolImpl", "size_class"]

_array = np.ndarray

_MAX_KNOWN = 4096
"""Sizes whose bin is remembered; a program asks for few, over and over."""

_MAX_LOG = 250
_MAX_UNREAD = 512 << 10
"""Events that may wait to be read, and the bytes that they may stand for: what was freed last is
still in the processor's caches, so it is to be handed out first."""

_LEAST_DIRECT = 8 << 10
"""Bytes from which on handing out the block that was freed last costs less than reading the log."""

_WORTHWHILE = 16
"""The part of what is held that lies in bins may be one in so many when a pool grows."""


class PoolImpl:
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
        self,
        books: DeviceAllocator,
        backend: BackendPool,
        number: int,
        name: str,
        limit: int | None,
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
        allocation.mould = allocation.told = None  # which know their allocation
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

    __slots__ = ("_asked", "_is_direct", "_log", "_note", "_pool", "_sizes", "_telling", "lists")

    def __init__(self, pool: PoolImpl) -> None:
        self._pool = pool
        self._log = pool.books.log
        self._note = pool.books.log.append
        self._telling = pool.books.telling
        # A program asks for the same again: the command, and where it puts what it takes.
        self._asked: list[tuple[Command, list[Allocation]]] = []
        self._sizes: Bins = {}
        # Whatever was freed last may be handed out next, to any stream.
        self._is_direct = pool.backend.caches and not pool.backend.stream_ordered
        self.lists: Bins = {}

    def lend(self, nbytes: int, stream: Stream, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array over a block of at least `nbytes`; raises OutOfMemoryError.

        The end of the array and its views is the end of the allocation. Allocations and ends are
        events in the device's log, which is read later: this path takes no lock.
        """
        unread = len(self._log)
        if unread * nbytes > _MAX_UNREAD or unread > _MAX_LOG:
            return self._allocate_slow(nbytes, stream, shape, dtype)
        try:
            allocation = self._sizes[nbytes].pop()
        except (KeyError, IndexError):
            allocation = None
        if allocation is None:
            return self._allocate_slow(nbytes, stream, shape, dtype)
        host = allocation.host
        if host is None:
            allocation.requested, allocation.stream_ref = nbytes, stream.ref
            return self._pool.books.occupy(allocation, shape, dtype, self._note)
        step = 0  # how far it has come, for an interrupt that comes between two steps
        try:
            mould = allocation.mould
            if mould is not None and allocation.dtype is dtype and allocation.shape == shape:
                array: Array = mould.view(_array)  # as `Allocation.array` does, without the call
            else:
                array = allocation.array(host, shape, dtype)
            allocation.requested = nbytes
            allocation.stream_ref = stream.ref
            note = self._note
            step = 1
            note(allocation)
            ending = FreeRecord(array, note)
        except BaseException:
            if step == 0:
                allocation.bin.append(allocation)  # type: ignore[union-attr]  # it came from there
            else:
                allocation.end_with(array, note)
            raise
        ending.allocation = allocation
        ending.is_taken = False
        allocation.ending = ending
        return array

    def _allocate_slow(
        self, nbytes: int, stream: Stream, shape: tuple[int, ...], dtype: Any
    ) -> Array:
        """Do the same where much of the log is unread, the bin is empty, or the block is large."""
        if nbytes >= _LEAST_DIRECT and self._is_direct:
            array = self._reuse_last(nbytes, stream, shape, dtype)
            if array is not None:
                return array
        if nbytes in self._sizes:
            self._pool.books.settle()
            if self._sizes.get(nbytes) and not self._log:
                return self.lend(nbytes, stream, shape, dtype)
        return self._pool.books.lend(self._pool, self, nbytes, stream, shape, dtype)

    def _reuse_last(
        self, nbytes: int, stream: Stream, shape: tuple[int, ...], dtype: Any
    ) -> Array | None:
        """Return an array over the block that was freed last, if it was just as large, else None.

        Its end stays unread in the log, marked: who reads it leaves the block alone. Nobody does so
        meanwhile, for want of the lock.
        """
        pool, note = self._pool, self._note
        with pool.books.lock:
            try:
                last = self._log[-1]
            except IndexError:
                return None
            if type(last) is not FreeRecord or last.is_taken or pool.is_retired:
                return None
            allocation = last.allocation
            host = allocation.host
            if (
                host is None
                or allocation.requested != nbytes
                or allocation.pool is not pool
                or allocation.recorded is not None
            ):
                return None
            step = 0
            try:
                last.is_taken = True
                if not self._log or self._log[-1] is not last:
                    # A handler of a signal has read it before it was marked, or there is more.
                    last.is_taken = False
                    return None
                array = allocation.array(host, shape, dtype)
                allocation.site = None
                allocation.begin(nbytes, stream)
                step = 1
                note(allocation)
                ending = FreeRecord(array, note)
            except BaseException:
                if step == 0:
                    if any(each is last for each in list(self._log)):
                        last.is_taken = False
                    else:  # a finalizer or a signal's handler has read it, and left the block alone
                        with pool.books.patience:
                            pool.books.give_back(allocation)
                else:
                    allocation.end_with(array, note)
                raise
            ending.allocation = allocation
            ending.is_taken = False
            allocation.ending = ending
            return array

    def allocate_hooked(
        self, nbytes: int, stream: Stream, shape: tuple[int, ...], dtype: Any
    ) -> Array:
        """Do the same where taps look on: allocation and end pass them as commands, at once."""
        books, log, note = self._pool.books, self._log, self._telling.note
        unread = len(log)
        if unread * nbytes > _MAX_UNREAD or unread > _MAX_LOG or self._telling.is_behind():
            books.settle()
        ref = stream.ref
        try:
            command, taken = asked = self._asked.pop()  # nobody else's meanwhile
        except IndexError:
            command, taken = asked = self._ask(nbytes, ref)
        if command.args != (nbytes, ref):
            command, taken = asked = self._ask(nbytes, ref)
        step = 0
        try:
            allocation: Allocation = commands.dispatch_with_hooks(stream, command)
            host = allocation.host
            if host is None:
                with books.lock, books.patience:
                    made = books.occupy(taken.pop(), shape, dtype, note)
                    self._asked.append(asked)
                    return made
            array = allocation.array(host, shape, dtype)
            step = 1
            log.append(allocation)
            ending = FreeRecord(array, note)
        except BaseException:
            if step == 0:
                self._refuse(taken)
            else:
                allocation.end_with(array, note)
            raise
        ending.allocation = allocation
        ending.is_taken = False
        allocation.ending = ending
        taken.clear()
        self._asked.append(asked)
        return array

    def _ask(self, nbytes: int, ref: Callable[[], Any]) -> tuple[Command, list[Allocation]]:
        """Return the command that the taps see, and where it puts what it takes.

        There whoever gave the command finds it when he gets an exception and no result.
        """
        taken: list[Allocation] = []
        return Command("allocate", partial(Arena._take, self, taken), (nbytes, ref)), taken

    def _refuse(self, taken: list[Allocation]) -> None:
        """Give back what was taken for an array that was not made: the taps see an end."""
        books = self._pool.books
        with books.lock, books.patience:
            while taken:
                books.lease(taken.pop(), self._telling.note)  # dropped at once

    def _take(
        self,
        taken: list[Allocation],
        queue: Queue,  # noqa: ARG002  # a command
        nbytes: int,
        ref: Callable[[], Any],
    ) -> Allocation:
        """Take a block."""
        books = self._pool.books
        if books.pending.waiting:
            books.settle()
        try:
            taken.append(self._sizes[nbytes].pop())
        except (KeyError, IndexError):
            books.take(self._pool, self, nbytes, ref(), taken)
        allocation = taken[0]
        if allocation.is_small:
            allocation.requested = nbytes
            allocation.stream_ref = ref
        else:
            allocation.begin(nbytes, ref())
        return allocation

    def lease(self, nbytes: int, stream: Stream) -> Any:
        """Return a bare lease of a block, for arrays that another library makes."""
        books = self._pool.books
        is_watched = commands.memory_is_hooked
        command, taken = self._ask(nbytes, stream.ref)
        try:
            if is_watched:
                commands.dispatch_with_hooks(stream, command)
            else:
                books.take(self._pool, self, nbytes, stream, taken)
                taken[0].begin(nbytes, stream)
            note = self._telling.note if is_watched else books.note_of(taken[0])
            with books.lock, books.patience:
                return books.lease(taken.pop(), note)
        except BaseException:
            self._refuse(taken)
            raise

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
