"""`ExpandablePool`: reserved address ranges that grow and shrink in place."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from nbrt.backends.cuda.memory.base import CudaPool, round_up
from nbrt.backends.cuda.memory.blocks import CudaBlock
from nbrt.backends.pools import SMALL_LIMIT, FreeRanges, SegmentInfo
from nbrt.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.queues import CudaQueue

__all__ = ["ExpandablePool"]

_MAX_MAPPED = 32 << 20
"""Limit of the bytes of a mapping; free mappings are returned as a whole."""


class ExpandablePool(CudaPool):
    """Memory in address ranges larger than the device, with pages mapped as they are needed.

    There is one range for each stream and size of block. Freed neighbours always merge, so a
    program whose sizes grow does not leave holes that no later block fits in.

    Notes
    -----
    cuda.core's ``VirtualMemoryResource`` moves a range that it cannot extend, and cannot shrink one
    (cuda-core 1.2).
    """

    def __init__(self, driver: Driver, index: int, nbytes: int) -> None:
        super().__init__(driver, index, "expandable")
        self._page = driver.granularity(index)
        # Twice, so that a large block still fits between small holes.
        self._range_bytes = round_up(2 * nbytes, self._page)
        self._ranges: dict[tuple[int, bool], _Range] = {}

    def segments(self) -> list[SegmentInfo]:
        """Return the mapped memory, adjacent mappings as one entry."""
        return [
            SegmentInfo(area.address + start, nbytes, stream, is_small, is_expandable=True)
            for (stream, is_small), area in self._ranges.items()
            for start, nbytes in area.runs()
        ]

    def _take(self, queue: CudaQueue, nbytes: int) -> CudaBlock:
        size = round_up(nbytes)
        key = (queue.handle, size <= SMALL_LIMIT)
        area = self._ranges.get(key)
        if area is None:
            with self._driver.relaxed():
                area = _Range(self._driver, self._index, self._range_bytes, self._page)
            self._ranges[key] = area
        start = area.free.take(size)
        if start is None:
            raise OutOfMemoryError(
                f"expected room for {size} bytes among {self._range_bytes} addresses for "
                f"cuda:{self._index}, got no free range as large; free arrays or request less"
            )
        try:
            self._commit(area, start, size)
        except BaseException:
            area.free.add(start, size)
            raise
        return CudaBlock(area.address + start, size, self._index, queue, (area, start))

    def _commit(self, area: _Range, start: int, nbytes: int) -> None:
        missing = area.missing(start, nbytes)
        if missing:
            self._check_limit(sum(size for _, size in missing))
        with self._driver.relaxed():
            for offset, size in missing:
                area.map(offset, size)
                self._add_segment(size)

    def _give(self, queue: CudaQueue, block: Any) -> None:
        area, start = block.kept
        super()._give(queue, block)
        area.free.add(start, block.nbytes)

    def _drop(self) -> None:
        # Unlike cudaFree, unmapping does not wait for work that uses the memory (torch waits, too:
        # ExpandableSegment::unmapHandles of CUDACachingAllocator.cpp).
        self._driver.synchronize_device(self._index)
        for key, area in list(self._ranges.items()):
            for nbytes in area.unmap_free():
                self._remove_segment(nbytes)
            if self._is_closed and not area.is_mapped():
                del self._ranges[key]
                self._driver.release_range(area.address, self._range_bytes)


class _Range:
    """Reserved addresses, the free ones, and the mapped ones."""

    def __init__(self, driver: Driver, index: int, nbytes: int, page: int) -> None:
        self._driver = driver
        self._index = index
        self._page = page
        self.address = driver.reserve_range(nbytes)
        self.free = FreeRanges()
        self.free.add(0, nbytes)
        self._mapped: dict[int, int] = {}

    def missing(self, start: int, nbytes: int) -> list[tuple[int, int]]:
        """Return (offset, bytes) of the mappings that a part lacks."""
        missing: list[tuple[int, int]] = []
        end = round_up(start + nbytes, self._page)
        at = start // self._page * self._page
        starts = sorted(self._mapped)
        while at < end:
            index = bisect_right(starts, at)
            mapped_end = starts[index - 1] + self._mapped[starts[index - 1]] if index else 0
            if mapped_end > at:
                at = mapped_end
                continue
            until = min(end, starts[index] if index < len(starts) else end, at + _MAX_MAPPED)
            missing.append((at, until - at))
            at = until
        return missing

    def map(self, offset: int, nbytes: int) -> None:
        """Map memory to a part."""
        self._driver.map_range(self._index, self.address + offset, nbytes)
        self._mapped[offset] = nbytes

    def unmap_free(self) -> Iterator[int]:
        """Unmap the memory that no block uses; yield the bytes of each mapping."""
        free = sorted(self.free.sizes.items())
        starts = [start for start, _ in free]
        for offset, nbytes in sorted(self._mapped.items()):
            index = bisect_right(starts, offset)
            if index and offset + nbytes <= sum(free[index - 1]):
                self._driver.unmap_range(self.address + offset, nbytes)
                del self._mapped[offset]
                yield nbytes

    def is_mapped(self) -> bool:
        """Return whether any memory is mapped."""
        return bool(self._mapped)

    def runs(self) -> list[tuple[int, int]]:
        """Return (offset, bytes) of the mapped memory, adjacent mappings as one."""
        runs: list[tuple[int, int]] = []
        for offset, nbytes in sorted(self._mapped.items()):
            if runs and sum(runs[-1]) == offset:
                runs[-1] = (runs[-1][0], runs[-1][1] + nbytes)
            else:
                runs.append((offset, nbytes))
        return runs
