"""`DeviceAllocator`: the memory of one device: its lock, limits and pools."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from nbrt._internal.callsite import CallSite
from nbrt._internal.critical_section import (
    DeferInterrupt,
    ensure_stack_headroom,
    has_stack_headroom,
    re_raise_interrupt,
)
from nbrt.backends.pools import SMALL_LIMIT
from nbrt.errors import DeviceError, OutOfMemoryError
from nbrt.runtime import commands
from nbrt.runtime.memory.allocation import Allocation, FreeRecord, SizeClassCache
from nbrt.runtime.memory.event_log import EventLog
from nbrt.runtime.memory.hooks import FreeNotifier, HookedAllocator, complete_free
from nbrt.runtime.memory.oom import describe_allocations, recovery_steps, retry_allocation
from nbrt.runtime.memory.pending import PendingFrees
from nbrt.runtime.memory.pool_impl import PoolImpl
from nbrt.runtime.memory.pool_state import PoolState
from nbrt.runtime.memory.segments import split_blocks, total_split
from nbrt.runtime.memory.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt._internal.device import Device
    from nbrt.backends.interface import DeviceInterface
    from nbrt.backends.pools import BackendPool
    from nbrt.backends.queue import EventHandle, Queue
    from nbrt.runtime.commands import RuntimeEventKind
    from nbrt.runtime.memory.allocation import HookedFree
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array

__all__ = ["DeviceAllocator"]

T = TypeVar("T")
Blocks: TypeAlias = list[Allocation]

_SEGMENT_EVENTS: tuple[RuntimeEventKind, ...] = ("segment_free", "segment_alloc")

_MIN_IDLE_SHARE = 16
"""Bins are emptied before a pool grows if they hold more than one in so many reserved bytes."""


class DeviceAllocator:
    """The memory of one device, or its page-locked host memory.

    Allocations and frees append events to a log without a lock, which is processed before anything
    depends on them. So statistics are exact, and the end of an array runs no code.

    Attributes
    ----------
    lock : threading.RLock
        Held while the log is processed and while the backend's pools are called.
    log : EventLog
        The events, and the statistics of the device.
    pools : list of PoolImpl
        The default pool first.
    limit : int or None
        Limit of the bytes that all pools hold from the system.
    """

    def __init__(self, interface: DeviceInterface, device: Device, kind: str = "caching") -> None:
        self.interface = interface
        self.device = device
        self.lock = threading.RLock()
        self._defer = DeferInterrupt(self.lock)  # type: ignore[arg-type]  # as Condition uses it
        self.statistics = Statistics()
        self.log = EventLog(self.statistics)
        self.limit = interface.initial_memory_limit(device.index) if kind == "caching" else None
        self.pools: list[PoolImpl] = []
        self._pool_of: dict[PoolState, PoolImpl] = {}
        self.notifier = FreeNotifier(
            self.log.events,
            self.lock._is_owned,  # type: ignore[attr-defined]  # there is no public name for it
            interface.lazy,
            self.try_process,
            self._release,
        )
        self.pending = PendingFrees(self.log.statistics_of)
        lock: Any = self.lock
        self._hooked = HookedAllocator(
            self.notifier, self.pending, self._take_into, self.process_log, lock, self._defer
        )
        self._numbers = itertools.count()
        self.default_pool = self.add_pool(interface.create_pool(device.index, kind, {}))

    # -- pools -------------------------------------------------------------------------------------

    def add_pool(self, backend: BackendPool, name: str = "", limit: int | None = None) -> PoolImpl:
        """Return a new pool of the device."""
        with self.lock, self._defer:
            self.process_log()
            if len(self.pools) == 1:
                # The only pool shares the statistics of the device.
                first = self.pools[0].state
                first.statistics = first.statistics or self.statistics.copied()
            number = next(self._numbers)
            state = PoolState(self.device, number, backend.kind, name, self.interface)
            state.statistics = Statistics() if self.pools else None
            pool = PoolImpl(state, backend, limit, self._make_cache, self.lock)
            if hasattr(backend, "before_growth"):
                backend.before_growth = partial(self._trim, pool)
            self._pool_of[state] = pool
            self.pools.append(pool)
            return pool

    def _make_cache(self, pool: PoolImpl) -> SizeClassCache:
        backend = pool.backend
        return SizeClassCache(
            pool.state,
            self.log.events,
            # Without a cache memory goes back at once; else the end of an array runs no code.
            self.log.events.append if backend.caches else self.append,
            self._allocate_slow,
            self._hooked.allocate,
            self._return_block,
            self.interface.as_array,
            getattr(backend, "granularity", 1),
        )

    def _close_pool(self, state: PoolState) -> None:
        pool = self._pool_of[state]
        state.is_closed = True
        for allocation in pool.take_cached():
            self._return_to_backend(pool, allocation)
        pool.backend.close()
        self._update_segments(pool)
        self._forget_if_idle(pool)

    def _forget_if_idle(self, pool: PoolImpl) -> None:
        if pool.state.is_closed and not pool.allocations and pool in self.pools:
            self.pools.remove(pool)
            del self._pool_of[pool.state]

    # -- allocating --------------------------------------------------------------------------------

    def _allocate_slow(
        self,
        cache: SizeClassCache,
        nbytes: int,
        stream: Stream,
        shape: tuple[int, ...] | None,
        dtype: Any,
    ) -> Array:
        """Return an array over a block that is not in the bins."""
        ensure_stack_headroom()
        if self.notifier.unreported:
            self.notifier.report()
        try:
            return self._allocate_locked(cache, nbytes, stream, shape, dtype)
        except OutOfMemoryError:
            pass
        attempt = partial(self._allocate_locked, cache, nbytes, stream, shape, dtype)
        return self._retry(cache, nbytes, attempt)

    def _allocate_locked(
        self, cache: SizeClassCache, nbytes: int, stream: Stream, shape: Any, dtype: Any
    ) -> Array:
        # Under the lock to the end: an interrupt must not lose the block.
        with self.lock, self._defer:
            allocation = self._take_block(cache, nbytes, stream)
            return cache.allocate_over(allocation, nbytes, stream, shape, dtype)

    def _take_block(self, cache: SizeClassCache, nbytes: int, stream: Stream) -> Allocation:
        """Return a free block; the caller holds the lock."""
        if cache.state.is_closed:
            raise DeviceError(f"expected an open pool, got {cache.state!r}, which was closed")
        pool = self._pool_of[cache.state]
        self._process()
        if nbytes > SMALL_LIMIT or not pool.backend.caches:
            allocation = self._cut(pool, nbytes or 1, stream, None)[0]
            if not allocation.is_small and not commands.memory_is_hooked:
                # A microsecond beside the cost of large memory; out-of-memory errors name it.
                allocation.site = CallSite.here(depth=4)
            return allocation
        size, bin_ = cache.bin_of(nbytes)
        count = cache.refill_count(size)
        if count:
            try:
                # First in the bin, so that blocks that were used lately are reused first.
                bin_[:0] = self._cut(pool, size, stream, bin_, count)
            except OutOfMemoryError:
                if not bin_:
                    raise
        try:
            return bin_.pop()
        except IndexError:  # other threads have allocated them
            return self._cut(pool, size, stream, bin_)[0]

    def _cut(
        self,
        pool: PoolImpl,
        size: int,
        stream: Stream,
        bin_: Blocks | None,
        count: int = 1,
    ) -> Blocks:
        """Allocate blocks from the backend, within the limits; OutOfMemoryError if not even one."""
        log, backend, queue = self.log, pool.backend, stream.queue
        if log.is_paused:
            raise DeviceError(
                f"expected memory of {self.device} to be requested by the program, got a call "
                f"from a finalizer or signal handler that ran in the middle of a change of the "
                f"pool; allocate outside of it"
            )
        backend.set_limit(pool.limit if self.limit is None else self._available_bytes(pool))
        blocks: Blocks = []
        log.is_paused = True
        try:
            for _ in range(count):
                block = backend.allocate(queue, size)
                allocation = Allocation(pool.state, block, queue, bin_)
                pool.allocations.add(allocation)
                if allocation.is_small:
                    pool.small_bytes += allocation.nbytes
                blocks.append(allocation)
        except OutOfMemoryError:
            if not blocks:
                raise
        finally:
            log.is_paused = False
            self._update_segments(pool)
        return blocks

    def _available_bytes(self, pool: PoolImpl) -> int | None:
        """Return the limit of a pool: its own, and the bytes that other pools leave; None: none."""
        if self.limit is None:
            return pool.limit
        others = sum(other.backend.reserved() for other in self.pools if other is not pool)
        available = max(0, self.limit - others)
        return available if pool.limit is None else min(pool.limit, available)

    def _retry(self, cache: SizeClassCache, nbytes: int, attempt: Callable[[], T]) -> T:
        """Return the result of a failed `attempt`, with more memory freed before each time."""
        # Without the lock: observers may allocate and free.
        pool = self._pool_of[cache.state]
        self._count(pool, "retries")
        steps = recovery_steps(
            self.device, nbytes, self.empty_cache, self._pending_events, self.statistics.usage
        )
        try:
            return retry_allocation(attempt, steps)
        except OutOfMemoryError as error:
            raise self._out_of_memory(pool, nbytes, str(error)) from error

    def _out_of_memory(self, pool: PoolImpl, nbytes: int, failure: str) -> OutOfMemoryError:
        self._count(pool, "ooms")
        available = self._available_bytes(pool)
        if available is not None:
            self._count(pool, "oom_rejections")
        free, total = self.interface.mem_get_info(self.device.index)
        if commands.hooks:
            commands.emit("out_of_memory", self.device, None, free, nbytes)
        live = self.live_allocations()
        in_use, reserved = self.statistics.usage()
        with self.lock:
            segments = pool.free_blocks({freed for freed, _ in self.pending.waiting})
            largest = max((size for _, sizes in segments for size in sizes), default=0)
        limited = "" if available is None else f", {available} allowed by the limits"
        return OutOfMemoryError(
            f"expected room for {nbytes} bytes on {self.device}, got {in_use} in use and "
            f"{reserved} reserved of {total}{limited}; {free} bytes are free on the device, after "
            f"caches were emptied, pending frees completed and garbage collected ({failure})\n"
            f"Largest free block of the pool: {largest} bytes\n{describe_allocations(live)}"
        )

    def _pending_events(self) -> list[EventHandle]:
        with self.lock:
            events = self.pending.events()
            self.statistics.syncs += bool(self.pending.waiting)
        return events

    def _count(self, pool: PoolImpl, counter: str) -> None:
        with self.lock:
            for statistics in self.log.statistics_of(pool.state):
                setattr(statistics, counter, getattr(statistics, counter) + 1)

    def _take_into(
        self, cache: SizeClassCache, nbytes: int, stream: Stream, blocks: Blocks
    ) -> None:
        """Append a free block to `blocks`, for hooked allocations."""
        ensure_stack_headroom()
        if self.notifier.unreported:
            self.notifier.report()
        try:
            with self.lock, self._defer:
                blocks.append(self._take_block(cache, nbytes, stream))
                return
        except OutOfMemoryError:
            pass
        self._retry(cache, nbytes, partial(self._take_locked, cache, nbytes, stream, blocks))

    def _take_locked(
        self, cache: SizeClassCache, nbytes: int, stream: Stream, blocks: Blocks
    ) -> None:
        with self.lock, self._defer:
            blocks.append(self._take_block(cache, nbytes, stream))

    # -- freeing -----------------------------------------------------------------------------------

    def append(self, event: FreeRecord | PoolState) -> None:
        """Append an event, and process the log if the lock is free; finalizers call this."""
        self.log.events.append(event)
        try:
            self.try_process()
        except KeyboardInterrupt:
            if not re_raise_interrupt():
                raise

    def try_process(self) -> None:
        """Process the log, unless the lock is held or the stack has no room."""
        if has_stack_headroom is None:  # the interpreter ends, and has emptied this module
            return
        if self.notifier.owns_lock() or not has_stack_headroom():
            return
        with self._defer:  # first: an interrupt right after the lock is taken would leave it held
            while self.log.events and self.lock.acquire(False):
                try:
                    self._process()
                finally:
                    self.lock.release()
        self.notifier.report()

    def process_log(self) -> None:
        """Process the log: make the statistics exact, and return freed blocks."""
        ensure_stack_headroom()
        with self.lock, self._defer:
            self._process()
        if self.notifier.unreported and not self.notifier.owns_lock():
            self.notifier.report()

    def _process(self) -> None:
        """Process the log; the caller holds the lock."""
        if self.log.is_paused:
            return
        self.log.process(self._on_free, self._close_pool)
        if self.pending.waiting:
            self.pending.poll(self._free)
        for pool in self.pools:
            if pool.orphans:
                for allocation in pool.take_orphans():
                    self._return_to_backend(pool, allocation)

    def _on_free(self, event: FreeRecord | HookedFree) -> None:
        # A forked child inherits arrays but not the backend: their memory is the system's.
        if self.interface.lazy.is_ready and not event.is_reused:
            if isinstance(event, FreeRecord) and commands.memory_is_hooked:
                self.notifier.unreported.append(event)
            elif event.allocation.recorded:
                self._free_when_passed(event.allocation)
            else:
                self._free(event.allocation)

    def _release(self, queue: Queue, allocation: Allocation) -> None:  # noqa: ARG002  # a command
        """Free a block whose free hooks have seen now."""
        with self.lock, self._defer:
            record = allocation.free_record
            if record is not None and not record.is_reused:
                record.is_reused = True
                self._free_when_passed(allocation)

    def _free_when_passed(self, allocation: Allocation) -> None:
        """Free a block as soon as the streams that use it have passed."""
        if allocation.recorded:
            self.pending.add(allocation)
            self.pending.poll(self._free)
        else:
            self._free(allocation)

    def _free(self, allocation: Allocation) -> None:
        """Return a block that no other stream uses."""
        if commands.hooks and allocation.free_record is not None:  # else hooks have seen it
            complete_free(allocation.home, allocation)
        allocation.free_record = allocation.site = allocation.recorded = None
        bin_ = allocation.bin
        if bin_ is not None and not allocation.pool.is_closed:
            bin_.append(allocation)
        else:
            self._return(allocation)

    def _return_block(self, allocation: Allocation) -> None:
        with self.lock, self._defer:
            self._return(allocation)

    def _return(self, allocation: Allocation) -> None:
        """Return a block to its bin or to the backend; the caller holds the lock."""
        state = allocation.pool
        if allocation.bin is not None and not state.is_closed:
            allocation.bin.append(allocation)
            return
        pool = self._pool_of[state]
        self._return_to_backend(pool, allocation)
        if state.is_closed:
            self._empty_backend(pool)
            self._forget_if_idle(pool)
        elif pool.keeps_segments:
            return
        self._update_segments(pool)

    def _return_to_backend(self, pool: PoolImpl, allocation: Allocation) -> None:
        pool.allocations.discard(allocation)
        allocation.template = allocation.hooked_free = None  # they refer to the allocation
        if allocation.is_small:
            pool.small_bytes -= allocation.nbytes
        was_paused, self.log.is_paused = self.log.is_paused, True
        try:
            pool.backend.deallocate(allocation.home, allocation.block)
        finally:
            self.log.is_paused = was_paused

    def _trim(self, pool: PoolImpl) -> None:
        """Return the blocks in the bins if they hold much memory; the backend is about to grow."""
        statistics = pool.state.statistics or self.statistics
        idle = pool.small_bytes - statistics.small.bytes
        if idle > pool.backend.reserved() // _MIN_IDLE_SHARE:
            for allocation in pool.take_cached():
                self._return_to_backend(pool, allocation)

    # -- the state of the pools --------------------------------------------------------------------

    def empty_cache(self) -> None:
        """Return the free blocks to the system."""
        self.process_log()
        with self.lock, self._defer:
            self.process_log()
            for pool in list(self.pools):
                self.empty_pool(pool)

    def empty_pool(self, pool: PoolImpl) -> None:
        """Return the free blocks of a pool to the system."""
        with self.lock, self._defer:
            for allocation in pool.take_cached():
                self._return_to_backend(pool, allocation)
            self._empty_backend(pool)
            self._update_segments(pool)

    def _empty_backend(self, pool: PoolImpl) -> None:
        self.log.is_paused = True
        try:
            pool.backend.empty_cache()
        finally:
            self.log.is_paused = False

    def live_allocations(self) -> list[Allocation]:
        """Return the allocations that arrays hold now."""
        with self.lock, self._defer:
            self.process_log()
            known = [each for pool in list(self.pools) for each in list(pool.allocations)]
        return [allocation for allocation in known if allocation.handle is not None]

    def stats(self, pool: PoolImpl | None = None) -> dict[str, int]:
        """Return the statistics of the device, or of one of its pools, with torch's keys."""
        self.process_log()
        with self.lock:
            self.update_split()
            own = None if pool is None else pool.state.statistics
            return (own or self.statistics).as_dict()

    def update_split(self) -> None:
        """Compute the statistics of free blocks in segments that are partly in use."""
        pending = {allocation for allocation, _ in self.pending.waiting}
        splits = {pool: split_blocks(pool.free_blocks(pending)) for pool in self.pools}
        for pool, split in splits.items():
            if pool.state.statistics is not None:
                pool.state.statistics.split_changed(split)
        self.statistics.split_changed(total_split(splits.values()))

    def _update_segments(self, pool: PoolImpl) -> None:
        """Update the statistics of segments after a call of the backend's pool."""
        backend = pool.backend
        seen = backend.reserved(), backend.segment_counts()
        if seen == pool.reserved_seen:
            return
        changes = pool.update_segments(seen)
        for statistics in self.log.statistics_of(pool.state):
            statistics.count_changes(changes)
        if commands.hooks:
            for kind, segments in zip(
                _SEGMENT_EVENTS, (changes.released, changes.reserved), strict=True
            ):
                for info in segments:
                    facts = (info, info.nbytes, pool.state.id, pool.state)
                    commands.emit(kind, self.device, None, *facts)
