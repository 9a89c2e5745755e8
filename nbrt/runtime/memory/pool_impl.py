"""`PoolImpl`: the inside of a memory pool: a backend's pool below caches of small blocks."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from nbrt.runtime.memory.segments import diff_segments, free_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from nbrt.backends.pools import BackendPool, SegmentInfo
    from nbrt.runtime.memory.allocation import Allocation, Bins, SizeClassCache
    from nbrt.runtime.memory.pool_state import PoolState
    from nbrt.runtime.memory.segments import SegmentChanges
    from nbrt.runtime.stream import Stream

__all__ = ["PoolImpl"]


class PoolImpl:
    """A pool of a device's memory: the backend's pool, and caches of small blocks above it.

    Attributes
    ----------
    allocations : set of Allocation
        Those whose block is not in the backend's pool: in use, pending, or in a bin.
    orphans : list of dict
        Bins of streams that are gone.
    keeps_segments : bool
        A free returns no memory to the system while the pool is open.
    small_bytes : int
        Bytes of the small blocks in `allocations`.
    segments_seen : dict of int to SegmentInfo
        The segments that statistics and hooks know, by address.
    reserved_seen : tuple of (int, (int, int))
        The reserved bytes and segment counts that they know.
    """

    def __init__(
        self,
        state: PoolState,
        backend: BackendPool,
        limit: int | None,
        make_cache: Callable[[PoolImpl], SizeClassCache],
        lock: AbstractContextManager[object],
    ) -> None:
        self.state = state
        self.backend = backend
        self.limit = limit
        self.keeps_segments: bool = getattr(backend, "keeps_segments", False)
        self.allocations: set[Allocation] = set()
        self.small_bytes = 0
        state.is_reused_directly = backend.caches and not backend.stream_ordered
        state.returns_at_once = not backend.caches
        self.segments_seen: dict[int, SegmentInfo] = {}
        self.reserved_seen: tuple[int, tuple[int, int]] = (0, (0, 0))
        self._make_cache = make_cache
        self._lock = lock
        self._shared = None if backend.stream_ordered else make_cache(self)
        # By stream; the bins of a stream that dies go to `orphans`.
        self._caches: weakref.WeakKeyDictionary[Stream, SizeClassCache] = (
            weakref.WeakKeyDictionary()
        )
        self.orphans: list[Bins] = []

    def cache_for(self, stream: Stream) -> SizeClassCache:
        """Return the cache that allocations for a stream use."""
        if self._shared is not None:
            return self._shared
        cache = self._caches.get(stream)
        if cache is None:
            with self._lock:
                cache = self._caches.get(stream)
                if cache is None:
                    cache = self._caches[stream] = self._make_cache(self)
                    weakref.finalize(stream, self.orphans.append, cache.bins).atexit = False
        return cache

    def take_cached(self) -> Iterator[Allocation]:
        """Take the blocks out of the bins; the caller holds the lock."""
        caches = [self._shared] if self._shared is not None else list(self._caches.values())
        for cache in caches:
            yield from _emptied(cache.bins)
        yield from self.take_orphans()

    def take_orphans(self) -> Iterator[Allocation]:
        """Take the blocks out of the bins of streams that are gone."""
        while self.orphans:
            bins = self.orphans.pop()
            yield from _emptied(bins)
            # No request looks in these bins any more.
            gone = {id(bin_) for bin_ in bins.values()}
            for allocation in self.allocations:
                if id(allocation.bin) in gone:
                    allocation.bin = None

    def free_blocks(self, pending: set[Allocation]) -> Iterator[tuple[SegmentInfo, list[int]]]:
        """Yield the segments with the sizes of their free blocks; blocks of `pending` are used."""
        used = (
            (allocation.address, allocation.nbytes)
            for allocation in list(self.allocations)  # a finalizer may allocate meanwhile
            if allocation.handle is not None or allocation in pending
        )
        return free_blocks(list(self.segments_seen.values()), used)

    def update_segments(self, seen: tuple[int, tuple[int, int]]) -> SegmentChanges:
        """Return how the segments changed; `seen` is the new value of `reserved_seen`."""
        count = seen[1][0] - self.reserved_seen[1][0]
        self.reserved_seen = seen
        before = self.segments_seen
        self.segments_seen = {info.address: info for info in self.backend.segments()}
        used = [allocation.address for allocation in list(self.allocations)]
        return diff_segments(before, self.segments_seen, count, used)

    def __repr__(self) -> str:
        return repr(self.state)


def _emptied(bins: Bins) -> Iterator[Allocation]:
    for bin_ in list(bins.values()):
        while bin_:
            try:
                allocation = bin_.pop()
            except IndexError:  # another thread has allocated the last one
                break
            yield allocation
