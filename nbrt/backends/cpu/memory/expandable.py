"""`ExpandablePool`: addresses reserved once, memory committed when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.memory.caching import CachingPool, round_up
from nbrt.backends.cpu.memory.mapping import (
    HUGE_PAGE,
    MAPPING_ERRORS,
    discard,
    map_segment,
    reserve_segment,
)
from nbrt.backends.cpu.properties import total_memory
from nbrt.backends.pools import FreeRanges, SegmentInfo

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from nbrt.backends.cpu.memory.caching import Arena

__all__ = ["ExpandablePool"]

GRANULE = HUGE_PAGE
"""Bytes that are committed and decommitted together."""

_SLACK = 16
"""Committed bytes may exceed the peak in use by one in so many."""

_MACHINES = 4
"""Reserved addresses, in multiples of the machine's memory."""

_SHRINK = 16
"""The quotient of the sizes of two attempts to reserve addresses."""


class ExpandablePool(CachingPool):
    """One range of addresses for all large blocks, so that growing never copies nor fragments.

    A range several times the size of the machine's memory is reserved once. Committing a part of it
    only changes counters: the system adds pages at first touch. Freed memory stays committed, to be
    reused without a fault. Where the pool must commit more, because no free range fits, it returns
    free pages until at most 1/16 more than the peak in use is committed. Where the system refuses
    so large a range (``ulimit -v``, ``vm.overcommit_memory=2``), there are several smaller ones.

    Small blocks are in separate mappings, as in the caching pool.

    Parameters
    ----------
    mapper, reserver : callable, optional
        Return a mapping of so many bytes, for small blocks and for addresses to commit later, or
        raise one of `MAPPING_ERRORS`.
    """

    kind = "expandable"

    def __init__(
        self,
        mapper: Callable[[int], mmap.mmap] = map_segment,
        reserver: Callable[[int], mmap.mmap] = reserve_segment,
    ) -> None:
        super().__init__(mapper)
        self._reserver = reserver
        self._capacity = total_memory()
        self._holes = FreeRanges(boundaries=self._large.segments)

    def segments(self) -> list[SegmentInfo]:
        """Return the mappings of small blocks, and each committed run of the reserved range."""
        infos = [info for info in super().segments() if info.is_small]
        for start, segment in self._large.segments.items():
            end = start + segment.nbytes
            holes = sorted((a, n) for a, n in self._holes.sizes.items() if start <= a < end)
            begin = start
            for address, nbytes in [*holes, (end, 0)]:
                if address > begin:
                    infos.append(SegmentInfo(begin, address - begin, is_expandable=True))
                begin = address + nbytes
        return infos

    def empty_cache(self) -> None:
        """Return every free page; release reserved ranges without a block."""
        self._drop_idle(self._small, self._reserved)
        self._decommit(self._reserved)
        for address, segment in list(self._large.segments.items()):
            if self._holes.sizes.get(address) == segment.nbytes:
                self._holes.cut(address, segment.nbytes, address)
                self._large.drop(address)

    def _grow(self, arena: Arena, size: int) -> int:
        if arena is self._small:
            return super()._grow(arena, size)
        limit = self._capacity if self._limit is None else self._limit
        if self._in_use + size > limit:
            raise self._out_of_memory(size, f"a limit of {limit} bytes")
        part = self._cheapest_part(size)
        if part is None:
            refusal = self._reserve(size)
            part = self._cheapest_part(size)
            if part is None:
                raise self._out_of_memory(size, refusal)
        self._commit(*part)
        address = arena.free.take(size)
        assert address is not None
        # The new part has no pages yet, so returning others now is as good as before.
        peak = max(self._peak, self._in_use + size)
        bound = min(limit, peak + peak // _SLACK)
        self._decommit(self._reserved - bound)
        self._drop_idle(self._small, self._reserved - bound)
        if self._reserved > limit:
            arena.free.add(address, size)
            self._decommit(max(self._reserved - limit, part[2]))
            raise self._out_of_memory(size, f"a limit of {limit} bytes")
        return address

    def _cheapest_part(self, size: int) -> tuple[int, int, int] | None:
        """Return the hole, first address and bytes to commit for a free range of `size` bytes.

        A part of a hole, together with the free range before or after it: the fewest bytes, and
        among equals the smallest hole.
        """
        free, boundaries = self._large.free, self._large.segments
        best: tuple[int, int, int, int] | None = None
        for hole, nbytes in self._holes.sizes.items():
            end = hole + nbytes
            before = 0 if hole in boundaries else hole - free.ends.get(hole, hole)
            after = 0 if end in boundaries else free.sizes.get(end, 0)
            cost = round_up(size - max(before, after), GRANULE)
            if cost <= nbytes:
                at = hole if before >= after else end - cost
            elif before + nbytes + after >= size:
                cost, at = nbytes, hole
            else:
                continue
            if best is None or (cost, nbytes) < best[:2]:
                best = (cost, nbytes, hole, at)
        return None if best is None else (best[2], best[3], best[0])

    def _reserve(self, size: int) -> str | None:
        """Reserve another range of addresses for a block; return the reason of a refusal."""
        minimum = round_up(size, GRANULE)
        refusal = None
        nbytes = _MACHINES * round_up(self._capacity, GRANULE)
        while True:
            nbytes = max(nbytes, minimum)
            try:
                mapping = self._reserver(nbytes + GRANULE)
            except MAPPING_ERRORS as error:
                refusal = f"{error!r} from the system"
            else:
                self._holes.add(self._large.add(mapping, nbytes, GRANULE), nbytes)
                return None
            if nbytes == minimum:
                return refusal
            nbytes = round_up(nbytes // _SHRINK, GRANULE)

    def _commit(self, hole: int, address: int, nbytes: int) -> None:
        self._holes.cut(address, nbytes, hole)
        self._large.free.add(address, nbytes)
        self._add_segment(nbytes)

    def _decommit(self, excess: int) -> None:
        """Return up to `excess` bytes of free pages, those freed first at the beginning."""
        free = self._large.free
        for start, size in list(free.sizes.items()):
            if excess <= 0:
                break
            end = (start + size) & -GRANULE
            nbytes = min(end - round_up(start, GRANULE), round_up(excess, GRANULE))
            if nbytes > 0:
                address = end - nbytes
                free.cut(address, nbytes, start)
                self._holes.add(address, nbytes)
                segment = self._large.segment_of(address)
                discard(segment.mapping, address - segment.origin, nbytes)
                excess -= nbytes
                self._remove_segment(nbytes)
