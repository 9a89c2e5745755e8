"""`ExpandablePool`: reserved address ranges that grow and shrink in place."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from nbrt.backends.cuda.memory.base import UNIT, CudaPool
from nbrt.backends.cuda.memory.blocks import CudaBlock
from nbrt.backends.pools import SMALL_LIMIT, SegmentInfo
from nbrt.backends.ranges import FreeRanges
from nbrt.errors import OutOfMemoryError

if TYPE_CHECKING:
    from typing import Any

    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.queues import CudaQueue

__all__ = ["ExpandablePool"]

_MOST_MAPPED = 32 << 20
"""Bytes of one mapping at most: what is free is given back mapping by mapping, as a whole."""


class ExpandablePool(CudaPool):
    """Memory in address ranges larger than the device, where pages are put as they are needed.

    There is one range for each stream and size of block. Freed neighbours always merge, so a
    program whose sizes grow does not leave holes that no later block fits in.

    Parameters
    ----------
    driver : Driver
        CUDA.
    index : int
        The device.
    nbytes : int
        The device's memory, in bytes.

    Notes
    -----
    cuda.core's ``VirtualMemoryResource`` is no help: where it cannot extend a range it moves it to
    another address, and it cannot shrink one (cuda-core 1.2).
    """

    def __init__(self, driver: Driver, index: int, nbytes: int) -> None:
        super().__init__(driver, index, "expandable")
        self._page = driver.granularity(index)
        # Twice, so that a large block still finds a place when small holes are left everywhere.
        self._range_bytes = -(-2 * nbytes // self._page) * self._page
        self._ranges: dict[tuple[int, bool], _Range] = {}
        self._limit: int | None = None
        self._counts = [0, 0]

    def reserved(self) -> int:
        """Return the bytes with memory behind them."""
        return sum(each.committed for each in self._ranges.values())

    def segments(self) -> list[SegmentInfo]:
        """Return what has memory behind it, one entry for what lies together."""
        return [
            SegmentInfo(each.address + start, nbytes, stream, is_small, is_expandable=True)
            for (stream, is_small), each in self._ranges.items()
            for start, nbytes in each.runs()
        ]

    def segment_counts(self) -> tuple[int, int]:
        """Return how many pieces were ever mapped, and unmapped."""
        return self._counts[0], self._counts[1]

    def set_limit(self, nbytes: int | None) -> None:
        """Bound the memory behind the ranges."""
        self._limit = nbytes

    def _take(self, queue: CudaQueue, nbytes: int) -> CudaBlock:
        size = -(-nbytes // UNIT) * UNIT
        key = (queue.handle, size <= SMALL_LIMIT)
        area = self._ranges.get(key)
        if area is None:
            area = _Range(self._driver, self._index, self._range_bytes, self._page)
            self._ranges[key] = area
        start = area.free.take(size)
        if start is None:
            raise OutOfMemoryError(
                f"expected room for {size} bytes among {self._range_bytes} addresses for "
                f"cuda:{self._index}, got no free part as large; free arrays or ask for less"
            )
        try:
            self._commit(area, start, size)
        except BaseException:
            area.free.add(start, size)
            raise
        return CudaBlock(area.address + start, size, self._index, queue, (area, start))

    def _commit(self, area: _Range, start: int, nbytes: int) -> None:
        missing = area.missing(start, nbytes)
        more = sum(size for _, size in missing)
        if self._limit is not None and more and self.reserved() + more > self._limit:
            raise OutOfMemoryError(
                f"expected room for {more} bytes within a limit of {self._limit}, got "
                f"{self.reserved()} bytes held; free arrays or raise the limit"
            )
        for offset, size in missing:
            area.map(offset, size)
            self._counts[0] += 1

    def _give(self, queue: CudaQueue, block: Any) -> None:
        area, start = block.kept
        super()._give(queue, block)
        area.free.add(start, block.nbytes)

    def _drop(self) -> None:
        # Unlike cudaFree, unmapping does not wait for work that uses the memory (torch waits, too:
        # ExpandableSegment::unmapHandles of CUDACachingAllocator.cpp).
        self._driver.synchronize_device(self._index)
        for key, area in list(self._ranges.items()):
            self._counts[1] += area.unmap_free()
            if self._is_closed and not area.committed:
                del self._ranges[key]
                self._driver.release_range(area.address, self._range_bytes)


class _Range:
    """Reserved addresses, which of them are free, and which have memory behind them."""

    def __init__(self, driver: Driver, index: int, nbytes: int, page: int) -> None:
        self._driver = driver
        self._index = index
        self._page = page
        self.address = driver.reserve_range(nbytes)
        self.free = FreeRanges()
        self.free.add(0, nbytes)
        self.committed = 0
        self._mapped: dict[int, int] = {}

    def missing(self, start: int, nbytes: int) -> list[tuple[int, int]]:
        """Return the (offset, bytes) to map so that a part can be used."""
        found: list[tuple[int, int]] = []
        end = -(-(start + nbytes) // self._page) * self._page
        at = start // self._page * self._page
        starts = sorted(self._mapped)
        while at < end:
            place = bisect_right(starts, at)
            behind = starts[place - 1] + self._mapped[starts[place - 1]] if place else 0
            if behind > at:
                at = behind
                continue
            until = min(end, starts[place] if place < len(starts) else end, at + _MOST_MAPPED)
            found.append((at, until - at))
            at = until
        return found

    def map(self, offset: int, nbytes: int) -> None:
        """Put memory behind a part."""
        self._driver.map_range(self._index, self.address + offset, nbytes)
        self._mapped[offset] = nbytes
        self.committed += nbytes

    def unmap_free(self) -> int:
        """Take away the memory that no block uses; return how many pieces that were."""
        free = sorted(self.free.sizes.items())
        starts = [start for start, _ in free]
        count = 0
        for offset, nbytes in sorted(self._mapped.items()):
            place = bisect_right(starts, offset)
            if place and offset + nbytes <= sum(free[place - 1]):
                self._driver.unmap_range(self.address + offset, nbytes)
                del self._mapped[offset]
                self.committed -= nbytes
                count += 1
        return count

    def runs(self) -> list[tuple[int, int]]:
        """Return (offset, bytes) of what is mapped without a gap."""
        found: list[tuple[int, int]] = []
        for offset, nbytes in sorted(self._mapped.items()):
            if found and sum(found[-1]) == offset:
                found[-1] = (found[-1][0], found[-1][1] + nbytes)
            else:
                found.append((offset, nbytes))
        return found
