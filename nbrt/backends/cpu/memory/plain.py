"""`PlainPool`: every block is a mapping of its own, gone when its arrays are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.memory.base import HostPool, round_up
from nbrt.backends.cpu.memory.blocks import ALIGNMENT, HostBlock
from nbrt.backends.cpu.memory.mapping import PAGE, address_of, forbid, map_segment
from nbrt.backends.pools import SMALL_LIMIT, SegmentInfo

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from nbrt.backends.queue import Queue

__all__ = ["PlainPool"]


class PlainPool(HostPool):
    """Nothing is cached, so that touching freed memory faults, as debugging tools expect.

    Parameters
    ----------
    mapper : callable, optional
        Returns a mapping of so many bytes, or raises one of `MAPPING_ERRORS`.
    guard : bool, optional
        Blocks end, up to alignment to 64 bytes, where a page begins that faults: an overrun is seen
        at once. Large blocks then need not begin with a page.
    """

    kind = "plain"
    caches = False

    def __init__(
        self, mapper: Callable[[int], mmap.mmap] = map_segment, *, guard: bool = False
    ) -> None:
        super().__init__(mapper)
        self._guard = PAGE if guard else 0
        self._held: dict[int, SegmentInfo] = {}

    def allocate(self, queue: Queue, nbytes: int) -> HostBlock:
        """Map a block of at least `nbytes`; raises OutOfMemoryError."""
        self._check_open()
        size = round_up(nbytes, ALIGNMENT)
        pages = round_up(size, PAGE)
        mapping = self._map(pages, self._guard)
        if isinstance(mapping, str):
            raise self._out_of_memory(pages, mapping)
        start = address_of(mapping)
        offset = 0
        if self._guard:
            forbid(start + pages, self._guard)
            offset = pages - size
        self._held[start + offset] = SegmentInfo(start, pages, is_small=size <= SMALL_LIMIT)
        return HostBlock(mapping, offset, size, start + offset)

    def deallocate(self, queue: Queue, block: Any) -> None:
        """Forget a block: its mapping goes with the last reference to its bytes."""
        block.release()
        self._given_back(self._held.pop(block.address).nbytes)

    def segments(self) -> list[SegmentInfo]:
        """Return the mappings, without guards."""
        return list(self._held.values())
