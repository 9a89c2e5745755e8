"""`ExpandablePool`: reserved address ranges that grow and shrink in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cuda.memory.base import CudaPool, round_up
from nbrt.backends.cuda.memory.blocks import CudaBlock
from nbrt.backends.pools import SMALL_LIMIT, MappedRange, SegmentInfo
from nbrt.errors import OutOfMemoryError

if TYPE_CHECKING:
    from typing import Any

    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.queues import CudaQueue

__all__ = ["ExpandablePool"]


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
        self._ranges: dict[tuple[int, bool], MappedRange] = {}

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
                area = MappedRange(self._driver, self._index, self._range_bytes, self._page)
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

    def _commit(self, area: MappedRange, start: int, nbytes: int) -> None:
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
