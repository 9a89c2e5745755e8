"""`CachingPool`: mappings that are cut into blocks and kept for the next ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.memory.arena import Arena
from nbrt.backends.cpu.memory.base import HostPool, round_up
from nbrt.backends.cpu.memory.blocks import ALIGNMENT
from nbrt.backends.cpu.memory.mapping import HUGE_PAGE, map_segment
from nbrt.backends.pools import SMALL_LIMIT, SegmentInfo

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from nbrt.backends.cpu.memory.blocks import HostBlock
    from nbrt.backends.queue import Queue

__all__ = ["LARGE_UNIT", "CachingPool"]

LARGE_UNIT = 64 << 10
"""Large blocks are multiples of this many bytes: of every page size there is."""

_SHARED_BYTES = 16 << 20
_MOST_SHARING = 8 << 20
_MOST_KEPT = 2


class CachingPool(HostPool):
    """Best fit with split and merge: one arena for small blocks, one for large ones.

    A freed block may be handed out again at once: an array dies only when no queued command holds
    it, so its memory is idle on every stream. Small blocks are cut from segments of 2 MiB, blocks
    below 8 MiB from segments of 16 MiB; larger ones have their own, rounded up to 2 MiB. Before it
    grows, the pool gives back idle segments which it would otherwise hold beyond twice the most
    that was ever in use.

    Parameters
    ----------
    mapper : callable, optional
        Returns a mapping of so many bytes, or raises one of `MAPPING_ERRORS`.

    Attributes
    ----------
    before_growth : callable or None
        Called before more memory is taken from the system; blocks that it gives back are used.
    """

    kind = "caching"

    def __init__(self, mapper: Callable[[int], mmap.mmap] = map_segment) -> None:
        super().__init__(mapper)
        self._small = Arena(ALIGNMENT)
        self._large = Arena(LARGE_UNIT)
        self._in_use = 0
        self._peak = 0
        self.before_growth: Callable[[], None] | None = None

    def allocate(self, queue: Queue, nbytes: int) -> HostBlock:
        """Return a block of at least `nbytes`; raises OutOfMemoryError."""
        self._check_open()
        arena = self._small if nbytes <= SMALL_LIMIT else self._large
        size = round_up(nbytes, arena.unit)
        address = arena.free.take(size)
        if address is None and self.before_growth is not None:
            self.before_growth()
            address = arena.free.take(size)
        if address is None:
            address = self._grow(arena, size)
        self._in_use += size
        if self._in_use > self._peak:
            self._peak = self._in_use
        return arena.block(address, size)

    def deallocate(self, queue: Queue, block: Any) -> None:
        """Take a block back."""
        arena = self._small if block.nbytes <= SMALL_LIMIT else self._large
        block.release()
        arena.free.add(block.address, block.nbytes)
        self._in_use -= block.nbytes
        if self._is_closed:
            self.empty_cache()

    def segments(self) -> list[SegmentInfo]:
        """Return the mappings."""
        return [
            SegmentInfo(address, segment.nbytes, is_small=arena is self._small)
            for arena in (self._small, self._large)
            for address, segment in arena.segments.items()
        ]

    def empty_cache(self) -> None:
        """Unmap every mapping that holds no block."""
        for arena in (self._small, self._large):
            self._drop_idle(arena, self._reserved)

    def _grow(self, arena: Arena, size: int) -> int:
        """Map a segment and return the first address of `size` bytes of it."""
        roomy, exact = self._roomy(arena, size), round_up(size, LARGE_UNIT)
        most = _MOST_KEPT * max(self._peak, self._in_use + size)
        self._drop_idle(self._large, self._reserved + roomy - most)
        refusal = self._extend(arena, roomy) and self._extend(arena, exact)
        if refusal is not None:
            self.empty_cache()
            refusal = self._extend(arena, exact)
        address = arena.free.take(size)
        if address is None:
            raise self._out_of_memory(size, refusal)
        return address

    def _roomy(self, arena: Arena, size: int) -> int:
        """Return the bytes to map for a block of `size` where nothing is short."""
        if arena is self._small:
            return HUGE_PAGE
        return _SHARED_BYTES if size < _MOST_SHARING else round_up(size, HUGE_PAGE)

    def _extend(self, arena: Arena, nbytes: int) -> str | None:
        """Map a segment of an arena; return who refuses it, if anybody does."""
        mapping = self._map(nbytes)
        if isinstance(mapping, str):
            return mapping
        arena.free.add(arena.add(mapping, nbytes), nbytes)
        return None

    def _drop_idle(self, arena: Arena, excess: int) -> None:
        """Unmap idle segments of an arena until `excess` bytes are gone, or none is left."""
        for address in arena.idle():
            if excess <= 0:
                break
            nbytes = arena.segments[address].nbytes
            arena.free.cut(address, nbytes, address)
            arena.drop(address)
            excess -= nbytes
            self._given_back(nbytes)
