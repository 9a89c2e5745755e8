"""`PlainPool`: one mapping for each block, for debugging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.memory.caching import ALIGNMENT, HostBlock, HostPool, round_up
from nbrt.backends.cpu.memory.mapping import PAGE, address_of, map_segment, protect_none
from nbrt.backends.pools import SMALL_LIMIT, SegmentInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.memory.mapping import Mapping
    from nbrt.backends.queue import Queue

__all__ = ["PlainPool"]


class PlainPool(HostPool):
    """Cache nothing, so that an access to freed memory faults, as debugging tools expect.

    Parameters
    ----------
    mapper : callable, optional
        Returns a mapping of so many bytes, or raises one of `MAPPING_ERRORS`.
    make_block : callable, optional
        Makes a block of a part of a mapping; called as `HostBlock`.
    protector : callable, optional
        Makes every access to the pages of an address and bytes fault.
    guard : bool, optional
        Blocks end at a page that faults, up to alignment to 64 bytes, so that an overrun faults.
        Large blocks then need not begin with a page.
    """

    kind = "plain"
    caches = False

    def __init__(
        self,
        mapper: Callable[[int], Mapping] = map_segment,
        make_block: Callable[..., Any] = HostBlock,
        protector: Callable[[int, int], object] = protect_none,
        *,
        guard: bool = False,
    ) -> None:
        super().__init__(mapper, make_block)
        self._protector = protector
        self._guard = PAGE if guard else 0

    def allocate(self, queue: Queue, nbytes: int) -> Any:
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
            self._protector(start + pages, self._guard)
            offset = pages - size
        self._segments[start + offset] = SegmentInfo(start, pages, is_small=size <= SMALL_LIMIT)
        return self._make_block(mapping, offset, size, start + offset)

    def deallocate(self, queue: Queue, block: Any) -> None:
        """Free a block: its mapping is gone with the last reference to its bytes."""
        block.release()
        self._remove_segment(self._segments.pop(block.address).nbytes)
