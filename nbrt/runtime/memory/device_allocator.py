"""`DeviceAllocator`: allocation bookkeeping for one device across its pools."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from nbrt._internal.interrupts import DeferInterrupt, re_raise_interrupt
from nbrt._internal.stack_headroom import ensure_stack_headroom, has_stack_headroom
from nbrt.backends.pools import SMALL_LIMIT
from nbrt.errors import DeviceError, OutOfMemoryError
from nbrt.runtime import commands
from nbrt.runtime.device import interface_of, lookup
from nbrt.runtime.memory.allocation import Allocation, FreeRecord, HookedFree
from nbrt.runtime.memory.core import PoolImpl
from nbrt.runtime.memory.event_log import add, remove, replay_small
from nbrt.runtime.memory.fragmentation import split_blocks, total_split
from nbrt.runtime.memory.free_hooks import FreeNotifier
from nbrt.runtime.memory.oom import relieve
from nbrt.runtime.memory.pending import PendingFrees
from nbrt.runtime.memory.segments import changes
from nbrt.runtime.memory.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt._internal.device import Device
    from nbrt.backends.interface import DeviceInterface
    from nbrt.backends.pools import BackendPool, SegmentInfo
    from nbrt.backends.queue import Queue
    from nbrt.runtime.commands import RuntimeEventKind
    from nbrt.runtime.memory.core import Arena
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array, DeviceLike

__all__ = [
    "DeviceAllocator",
    "all_allocators",
    "allocator_for",
    "default_arena",
    "host_allocator_for",
]

T = TypeVar("T")


class DeviceAllocator:
    """Allocation bookkeeping for one device, or for its page-locked host memory.

    Allocations and frees append events to a log without a lock. `settle` processes the log before
    anything depends on it: statistics are exact, and the end of an array runs no code.

    Attributes
    ----------
    lock : threading.RLock
        Held while the log is read and while the backend's pools are called.
    log : collections.deque
        Allocations, their ends (`FreeRecord` or `HookedFree`), and pools that no array uses, in
        the order of events.
    pools : list of PoolImpl
        The default pool first.
    statistics : Statistics
        Of the whole device.
    limit : int or None
        The most bytes that the pools together may hold from the system.
    """

    def __init__(self, interface: DeviceInterface, device: Device, kind: str = "caching") -> None:
        self.interface = interface
        self.device = device
        self.lock = threading.RLock()
        self.patience = DeferInterrupt(self.lock)  # type: ignore[arg-type]  # has it, as Condition knows
        self.log: deque[Allocation | FreeRecord | HookedFree | PoolImpl] = deque()
        self.statistics = Statistics()
        self.limit = interface.initial_memory_limit(device.index) if kind == "caching" else None
        self.pools: list[PoolImpl] = []
        self.telling = FreeNotifier(self)
        self.pending = PendingFrees(self)
        # A finalizer or a signal's handler may run in the middle of a change: it must not make one.
        self.is_changing = False
        self._numbers = itertools.count()
        self.default_pool = self.add_pool(interface.create_pool(device.index, kind, {}))

    # -- pools -------------------------------------------------------------------------------------

    def add_pool(self, backend: BackendPool, name: str = "", limit: int | None = None) -> PoolImpl:
        """Keep the books of another pool from now on."""
        with self.lock, self.patience:
            self.settle()
            if len(self.pools) == 1:
                # Alone, the default pool has the device's numbers.
                first = self.pools[0]
                first.statistics = first.statistics or self.statistics.copied()
            core = PoolImpl(self, backend, next(self._numbers), name, limit)
            core.statistics = Statistics() if self.pools else None
            self.pools.append(core)
            return core

    def retire(self, core: PoolImpl) -> None:
        """Give a pool's memory back as soon as nothing uses it; called by finalizers."""
        self.note(core)

    def _retire(self, core: PoolImpl) -> None:
        core.is_retired = True
        core.flush()
        core.backend.close()
        self.note_segments(core)
        self._drop_if_idle(core)

    def _drop_if_idle(self, core: PoolImpl) -> None:
        if core.is_retired and not core.allocations and core in self.pools:
            self.pools.remove(core)

    # -- allocating --------------------------------------------------------------------------------

    def lend(
        self,
        pool: PoolImpl,
        arena: Arena,
        nbytes: int,
        stream: Stream,
        shape: tuple[int, ...],
        dtype: Any,
    ) -> Array:
        """Return an array, by the long way: its bin is empty, or the block is large."""

        def attempt() -> Array:
            # Under the lock to the end: what an interrupt left between would be lost.
            with self.lock, self.patience:
                allocation = self._find(pool, arena, nbytes, stream)
                allocation.begin(nbytes, stream)
                return self.occupy(allocation, shape, dtype, self.note_of(allocation))

        return self._try(pool, nbytes, attempt)

    def take(
        self, pool: PoolImpl, arena: Arena, nbytes: int, stream: Stream, taken: list[Allocation]
    ) -> None:
        """Put an allocation that nobody uses into `taken`; raises OutOfMemoryError."""

        def attempt() -> None:
            with self.lock, self.patience:
                taken.append(self._find(pool, arena, nbytes, stream))

        self._try(pool, nbytes, attempt)

    def _try(self, pool: PoolImpl, nbytes: int, attempt: Callable[[], T]) -> T:
        ensure_stack_headroom()
        self.telling.tell()
        try:
            return attempt()
        except OutOfMemoryError:
            pass
        # Without the lock: what is waited for and called back there may allocate and free.
        return relieve(self, pool, nbytes, attempt)

    def _find(self, pool: PoolImpl, arena: Arena, nbytes: int, stream: Stream) -> Allocation:
        if pool.is_retired:
            raise DeviceError(f"expected an open pool, got {pool!r}, which was closed")
        self._read()
        size, bin_ = nbytes or 1, None
        if nbytes <= SMALL_LIMIT and pool.backend.caches:
            size, bin_ = arena.bin_of(nbytes)
            if not bin_:
                # Some tiny ones at once, so that no bin is empty whenever the log is unread.
                count = max(1, min(_STOCK, _STOCK_BYTES // size))
                bin_ += self._cut(pool, size, stream, bin_, count)
            try:
                return bin_.pop()
            except IndexError:  # other threads' fast paths took them all
                pass
        return self._cut(pool, size, stream, bin_)[0]

    def occupy(
        self, allocation: Allocation, shape: tuple[int, ...], dtype: Any, note: Any
    ) -> Array:
        """Return an array over an allocation that was just taken."""
        if allocation.host is not None:
            return self.lease(allocation, note, shape, dtype)  # an array is a lease itself
        lease = self.lease(allocation, note)
        return self.interface.as_array(allocation.block, shape, dtype, lease)

    def note_of(self, allocation: Allocation) -> Any:
        """Return what is called with the end: where nothing is cached, memory goes back at once.

        Elsewhere that waits for the next call, so that the end of an array runs no code of ours.
        """
        return self.log.append if allocation.pool.backend.caches else self.note

    def lease(
        self,
        allocation: Allocation,
        note: Any,
        shape: tuple[int, ...] | None = None,
        dtype: Any = None,
    ) -> Any:
        """Return a lease of an allocation that was just taken; `note` is called with its end.

        With a shape, of host memory: an array right over the bytes.
        """
        host = allocation.host
        try:
            if shape is None or host is None:
                lease: Any = allocation.block.lease(allocation)
            else:
                lease = allocation.array(host, shape, dtype)
            ending = FreeRecord(lease, note)
        except BaseException:
            with self.lock, self.patience:
                self.put_back(allocation)
            raise
        ending.allocation, ending.is_taken = allocation, False
        allocation.ending = ending
        self.log.append(allocation)
        return lease

    def _cut(
        self,
        pool: PoolImpl,
        size: int,
        stream: Stream,
        bin_: list[Allocation] | None,
        count: int = 1,
    ) -> list[Allocation]:
        """Have the backend cut blocks, within the limits; OutOfMemoryError if there is not one."""
        if self.is_changing:
            raise DeviceError(
                f"expected memory of {self.device} to be asked for by the program, got a call "
                f"from a finalizer or signal handler that ran while the pool was at work; "
                f"allocate outside of it"
            )
        pool.backend.set_limit(self.available_bytes(pool))
        made: list[Allocation] = []
        self.is_changing = True
        try:
            for _ in range(count):
                block = pool.backend.allocate(stream.queue, size)
                allocation = Allocation(pool, block, stream.queue, bin_)
                pool.allocations.add(allocation)
                if allocation.is_small:
                    pool.small_bytes += allocation.nbytes
                made.append(allocation)
        except OutOfMemoryError:
            if not made:
                raise
        finally:
            self.is_changing = False
            self.note_segments(pool)
        return made

    def available_bytes(self, pool: PoolImpl) -> int | None:
        """Return the most bytes that a pool may hold: its own limit, and what others leave it."""
        rooms = [] if pool.limit is None else [pool.limit]
        if self.limit is not None:
            others = sum(each.backend.reserved() for each in self.pools if each is not pool)
            rooms.append(max(0, self.limit - others))
        return min(rooms) if rooms else None

    # -- ends --------------------------------------------------------------------------------------

    def note(self, event: FreeRecord | PoolImpl) -> None:
        """Take note of an event, and read the log unless somebody is at the books.

        Finalizers call this, also in the middle of a change of this thread's own.
        """
        self.log.append(event)
        try:
            self.catch_up()
        except KeyboardInterrupt:
            if not re_raise_interrupt():
                raise

    def catch_up(self) -> None:
        """Read the log, unless somebody is at the books or the stack has no room for that."""
        if self.telling.is_mine() or not has_stack_headroom():
            return
        with self.patience:  # first: an interrupt right after the lock is had would leave it held
            while self.log and self.lock.acquire(False):
                try:
                    self._read()
                finally:
                    self.lock.release()
        self.telling.tell()

    def settle(self) -> None:
        """Read the log: bring the numbers up to date, and take back what has ended."""
        ensure_stack_headroom()
        with self.lock, self.patience:
            self._read()
        if self.telling.untold and not self.telling.is_mine():
            self.telling.tell()

    def _read(self) -> None:
        """Read the log; the caller holds the lock."""
        if self.is_changing:
            return
        log = self.log
        # A handler of a signal may come here and read on, so nothing is looked at before it is had.
        while log:
            try:
                event = log.popleft()
            except IndexError:
                break
            if isinstance(event, PoolImpl):
                self._retire(event)
                continue
            is_watched = commands.memory_is_hooked
            ended: type[FreeRecord | HookedFree] = HookedFree if is_watched else FreeRecord
            if isinstance(event, Allocation):
                allocation = event
            else:
                allocation, ended = event.allocation, type(event)
            if self._is_plain(allocation) and not (is_watched and ended is FreeRecord):
                log.appendleft(event)
                self.is_changing = True
                try:
                    replay_small(log, allocation.pool, self._books_with(allocation.pool), ended)
                finally:
                    self.is_changing = False
            elif isinstance(event, Allocation):
                add(self._books_with(allocation.pool), allocation)
            else:
                self._end(event)
        if self.pending.waiting:
            self.pending.poll()
        for pool in self.pools:
            if pool.orphans:
                pool.flush_orphans()

    def _is_plain(self, allocation: Allocation) -> bool:
        return (
            allocation.bin is not None
            and allocation.recorded is None
            and not allocation.pool.is_retired
        )

    def _books_with(self, pool: PoolImpl) -> tuple[Statistics, ...]:
        own = pool.statistics
        return (self.statistics,) if own is None else (self.statistics, own)

    def _end(self, end: FreeRecord | HookedFree) -> None:
        allocation = end.allocation
        remove(self._books_with(allocation.pool), allocation)
        # A child forked from us inherits arrays but not the backend: their memory is the system's.
        if self.interface.lazy.is_ready and not end.is_taken:
            if isinstance(end, FreeRecord) and commands.memory_is_hooked:
                self.telling.untold.append(end)
            else:
                self._let_go(allocation)

    def release(self, queue: Queue, allocation: Allocation) -> None:  # noqa: ARG002  # a command
        """Let a block be used again as soon as the streams that use it have passed."""
        with self.lock, self.patience:
            end = allocation.ending
            if end is not None and not end.is_taken:
                end.is_taken = True
                self._let_go(allocation)

    def _let_go(self, allocation: Allocation) -> None:
        if allocation.recorded:
            self.pending.add(allocation)
        else:
            self.give_back(allocation)

    def give_back(self, allocation: Allocation) -> None:
        """Let a block be used again: nothing uses it any more but work of its own stream."""
        if commands.hooks and allocation.ending is not None:  # else they have been told
            self.telling.complete(allocation.home, allocation)
        allocation.ending = allocation.site = allocation.recorded = None
        self.put_back(allocation)

    def put_back(self, allocation: Allocation) -> None:
        """Put a block where it is taken from next; the caller holds the lock."""
        pool = allocation.pool
        if allocation.bin is not None and not pool.is_retired:
            allocation.bin.append(allocation)
            return
        pool.give_up(allocation)
        if pool.is_retired:
            pool.drop_cached()
            self._drop_if_idle(pool)
        self.note_segments(pool)

    # -- the rest ----------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        """Give back to the system what no array uses."""
        self.settle()
        with self.lock, self.patience:
            self.settle()
            for pool in list(self.pools):
                self.empty_pool(pool)

    def empty_pool(self, pool: PoolImpl) -> None:
        """Do the same for one pool."""
        with self.lock, self.patience:
            pool.flush()
            pool.drop_cached()
            self.note_segments(pool)

    def live_allocations(self) -> list[Allocation]:
        """Return what arrays hold now."""
        with self.lock, self.patience:
            self.settle()
            found = [each for pool in list(self.pools) for each in list(pool.allocations)]
        return [each for each in found if each.lease is not None]

    def all_statistics(self) -> list[Statistics]:
        """Return the numbers of the device and of its pools."""
        return [self.statistics, *(own for pool in self.pools if (own := pool.statistics))]

    def note_split(self) -> None:
        """Work out the free memory in segments that are partly in use."""
        found = {pool: split_blocks(pool) for pool in self.pools}
        for pool, blocks in found.items():
            if pool.statistics is not None:
                pool.statistics.split_changed(blocks)
        self.statistics.split_changed(total_split(found.values()))

    def note_segments(self, pool: PoolImpl) -> None:
        """Bring the numbers of segments up to date after the backend's pool was called."""
        backend = pool.backend
        seen = (backend.reserved(), *backend.segment_counts())
        if seen == pool.reserved_seen:
            return
        made = seen[1] - pool.reserved_seen[1]
        pool.reserved_seen = seen
        before = pool.segments_seen
        now = pool.segments_seen = {info.address: info for info in backend.segments()}
        out = [each.address for each in list(pool.allocations)]
        found = changes(before, now, made, out)
        for statistics in self._books_with(pool):
            for info in found.given:
                statistics.move_reserved(-info.nbytes, is_small=info.is_small)
            for info in found.taken:
                statistics.move_reserved(info.nbytes, is_small=info.is_small)
            for info in found.dropped:
                statistics.count_segment(-1, is_small=info.is_small)
            for info in found.made:
                statistics.count_segment(1, is_small=info.is_small)
        if commands.hooks:
            self._emit("segment_free", found.given, pool)
            self._emit("segment_alloc", found.taken, pool)

    def _emit(self, kind: RuntimeEventKind, segments: list[SegmentInfo], pool: PoolImpl) -> None:
        for info in segments:
            commands.emit(kind, self.device, None, info, info.nbytes, pool.id)


_STOCK, _STOCK_BYTES = 128, 128 << 10
_books: dict[Device, DeviceAllocator] = {}
_host_books: dict[Device, DeviceAllocator] = {}
_books_lock = threading.Lock()


def allocator_for(device: DeviceLike = None) -> DeviceAllocator:
    """Return the books of a device's memory."""
    return _find(_books, device, "caching")


def host_allocator_for(device: DeviceLike = None) -> DeviceAllocator:
    """Return the books of the page-locked host memory for a device."""
    return _find(_host_books, device, "pinned")


def _find(known: dict[Device, DeviceAllocator], device: DeviceLike, kind: str) -> DeviceAllocator:
    chosen = lookup(device)[0]
    books = known.get(chosen)
    interface = interface_of(chosen)
    if books is None or books.interface is not interface:
        with _books_lock:
            books = known.get(chosen)
            if books is None or books.interface is not interface:
                books = known[chosen] = DeviceAllocator(interface, chosen, kind)
    return books


def default_arena(stream: Stream) -> Arena:
    """Return where arrays for a stream come from, unless told otherwise; it remembers it."""
    arena = stream.arena = allocator_for(stream.device).default_pool.arena(stream)
    return arena


def all_allocators() -> list[DeviceAllocator]:
    """Return the books of every device whose memory was used."""
    return list(_books.values())


def _settle_all() -> None:
    for books in (*_books.values(), *_host_books.values()):
        # In a forked child a thread that is not there may hold the lock; its books are closed.
        if books.interface.lazy.is_ready:
            books.settle()


# What ended before somebody looks is not shown to them, and what ended while they looked is.
commands.on_hooks_changing.append(_settle_all)
