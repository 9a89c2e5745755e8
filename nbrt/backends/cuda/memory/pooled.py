"""`CupyPool`: CuPy's caching pools over tracked segments; `PlainPool`: no cache."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.memory.base import CudaPool, round_up
from nbrt.backends.cuda.memory.blocks import CudaBlock
from nbrt.backends.pools import SMALL_LIMIT

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.memory.segment_tracker import DeviceSegment, SegmentTracker
    from nbrt.backends.cuda.queues import CudaQueue
    from nbrt.backends.pools import SegmentInfo

__all__ = ["CupyPool", "PlainPool", "TrackedPool"]

_SMALL_SEGMENT = 2 << 20
"""Bytes taken at once for small blocks, as in torch (kSmallBuffer of CUDACachingAllocator.cpp):
CuPy would call cudaMalloc, which waits for the device, for each of them."""


class TrackedPool(CudaPool):
    """A pool whose segments are in a `SegmentTracker`."""

    def __init__(self, driver: Driver, index: int, kind: str, tracker: SegmentTracker) -> None:
        super().__init__(driver, index, kind)
        self._tracker = tracker

    def reserved(self) -> int:
        """Return the bytes held from the system."""
        return self._tracker.nbytes

    def segments(self) -> list[SegmentInfo]:
        """Return the segments."""
        return self._tracker.segments()

    def segment_counts(self) -> tuple[int, int]:
        """Return how many segments were ever taken, and returned."""
        return self._tracker.counts()

    def set_limit(self, nbytes: int | None) -> None:
        """Limit the bytes held from the system."""
        self._tracker.limit = nbytes


class CupyPool(TrackedPool):
    """Memory cached by two `cupy.cuda.MemoryPool`: one of small blocks, one of large ones.

    They are separate from CuPy's global pool, which the user may limit, replace and empty. Apart
    from each other, a small block cannot keep a large segment from being reused whole or returned.
    """

    def __init__(self, driver: Driver, index: int, kind: str, tracker: SegmentTracker) -> None:
        super().__init__(driver, index, kind, tracker)
        self._may_grow = False
        self._small = driver.cupy.cuda.MemoryPool(self._grow_small)
        self._large = driver.cupy.cuda.MemoryPool(self._grow_large)

    def _take(self, queue: CudaQueue, nbytes: int) -> CudaBlock:
        # CuPy keys its arenas by the stream that is current now.
        pointer = self._small_piece(nbytes) if nbytes <= SMALL_LIMIT else self._large.malloc(nbytes)
        return CudaBlock(int(pointer.ptr), int(pointer.mem.size), self._index, queue, pointer)

    def _drop(self) -> None:
        self._small.free_all_blocks()
        self._large.free_all_blocks()

    def _small_piece(self, nbytes: int) -> Any:
        try:
            return self._small.malloc(nbytes)
        except _PoolExhausted:
            self._may_grow = True
        try:
            with contextlib.suppress(MemoryError):
                # The whole segment returns to the arena at once, to be cut up.
                self._small.malloc(_SMALL_SEGMENT)
            return self._small.malloc(nbytes)
        finally:
            self._may_grow = False

    def _grow_small(self, nbytes: int) -> Any:
        if not self._may_grow:
            raise _PoolExhausted
        return self._pointer_to(self._tracker.take(nbytes, is_small=True))

    def _grow_large(self, nbytes: int) -> Any:
        return self._pointer_to(self._tracker.take(nbytes))

    def _pointer_to(self, segment: DeviceSegment) -> Any:
        cuda = self._driver.cupy.cuda
        memory = cuda.UnownedMemory(segment.ptr, segment.size, segment, self._index)
        return cuda.MemoryPointer(memory, 0)


class PlainPool(TrackedPool):
    """Every block is a segment: cudaMalloc and cudaFree.

    Both wait for the device (CUDA programming guide, "Stream Ordered Memory Allocator"), so nothing
    is freed under running work. Slow, and useful to find a use after free: the address is unmapped.
    """

    caches = False

    def _take(self, queue: CudaQueue, nbytes: int) -> CudaBlock:
        size = round_up(nbytes)
        segment = self._tracker.take(size, is_small=size <= SMALL_LIMIT)
        return CudaBlock(segment.ptr, size, self._index, queue, segment)

    def _give(self, queue: CudaQueue, block: Any) -> None:
        kept = block.kept
        super()._give(queue, block)
        self._driver.captures.keep_until_end(kept)

    def _drop(self) -> None:
        """Do nothing: nothing is cached."""


class _PoolExhausted(Exception):  # noqa: N818  # not an error
    """No free block is left; CuPy does not catch it, since it is not an error of CUDA."""
