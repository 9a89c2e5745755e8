"""`ExpandablePool`: addresses reserved once, memory committed as it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.memory.base import round_up
from nbrt.backends.cpu.memory.caching import CachingPool
from nbrt.backends.cpu.memory.mapping import (
    HUGE_PAGE,
    MAPPING_ERRORS,
    discard,
    map_segment,
    reserve_segment,
)
from nbrt.backends.cpu.properties import total_memory
from nbrt.backends.pools import SegmentInfo
from nbrt.backends.ranges import FreeRanges

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from nbrt.backends.cpu.memory.arena import Arena

__all__ = ["ExpandablePool"]

GRANULE = HUGE_PAGE
"""Bytes committed and given back at once."""

_SLACK = 16
_MACHINES = 4
_SMALLER = 16


class ExpandablePool(CachingPool):
    """One range of addresses for all large blocks, so that growing never copies nor fragments.

    A range several times the size of the machine's memory is reserved once. Committing a part of it
    is bookkeeping: the system gives it pages as they are touched. What is freed stays committed,
    to be used again without a fault; but where the pool must commit more, because what is free does
    not fit, it gives free pages back until no more is committed than 1/16 above the most that was
    ever in use. Where the system refuses so large a range (``ulimit -v``,
    ``vm.overcommit_memory=2``), there are several smaller ones.

    Small blocks live in mappings of their own, as in the caching pool.

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
        self._holes = FreeRanges(walls=self._large.segments)

    def segments(self) -> list[SegmentInfo]:
        """Return the mappings of small blocks, and each committed run of the reserved range."""
        found = [each for each in super().segments() if each.is_small]
        for start, segment in self._large.segments.items():
            end = start + segment.nbytes
            holes = sorted((a, n) for a, n in self._holes.sizes.items() if start <= a < end)
            begin = start
            for address, nbytes in [*holes, (end, 0)]:
                if address > begin:
                    found.append(SegmentInfo(begin, address - begin, is_expandable=True))
                begin = address + nbytes
        return found

    def empty_cache(self) -> None:
        """Give every free page back; a reserved range with no block in it goes as a whole."""
        self._drop_idle(self._small, self._reserved)
        self._decommit(self._reserved)
        for address, segment in list(self._large.segments.items()):
            if self._holes.sizes.get(address) == segment.nbytes:
                self._holes.cut(address, segment.nbytes, address)
                self._large.drop(address)

    def _grow(self, arena: Arena, size: int) -> int:
        if arena is self._small:
            return super()._grow(arena, size)
        most = self._capacity if self._limit is None else self._limit
        if self._in_use + size > most:
            raise self._out_of_memory(size, f"a limit of {most} bytes")
        place = self._cheapest_place(size)
        if place is None:
            refusal = self._reserve(size)
            place = self._cheapest_place(size)
            if place is None:
                raise self._out_of_memory(size, refusal)
        self._commit(*place)
        address = arena.free.take(size)
        assert address is not None
        # What was committed has no pages yet, so giving others back now is as good as before.
        peak = max(self._peak, self._in_use + size)
        bound = min(most, peak + peak // _SLACK)
        self._decommit(self._reserved - bound)
        self._drop_idle(self._small, self._reserved - bound)
        if self._reserved > most:
            arena.free.add(address, size)
            self._decommit(max(self._reserved - most, place[2]))
            raise self._out_of_memory(size, f"a limit of {most} bytes")
        return address

    def _cheapest_place(self, size: int) -> tuple[int, int, int] | None:
        """Return what to commit for a free range of `size` bytes: hole, first address and bytes.

        A part of a hole, together with what is free before or after it; the fewest bytes that do,
        and among equals the smallest hole.
        """
        free, walls = self._large.free, self._large.segments
        best: tuple[int, int, int, int] | None = None
        for hole, nbytes in self._holes.sizes.items():
            end = hole + nbytes
            before = 0 if hole in walls else hole - free.ends.get(hole, hole)
            after = 0 if end in walls else free.sizes.get(end, 0)
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
        """Reserve another range of addresses that a block fits in; return why not, if refused."""
        least = round_up(size, GRANULE)
        refusal = None
        nbytes = _MACHINES * round_up(self._capacity, GRANULE)
        while True:
            nbytes = max(nbytes, least)
            try:
                mapping = self._reserver(nbytes + GRANULE)
            except MAPPING_ERRORS as error:
                refusal = f"{error!r} from the system"
            else:
                self._holes.add(self._large.add(mapping, nbytes, GRANULE), nbytes)
                return None
            if nbytes == least:
                return refusal
            nbytes = round_up(nbytes // _SMALLER, GRANULE)

    def _commit(self, hole: int, address: int, nbytes: int) -> None:
        self._holes.cut(address, nbytes, hole)
        self._large.free.add(address, nbytes)
        self._taken(nbytes)

    def _decommit(self, excess: int) -> None:
        """Give free pages back, what was freed first at the beginning, until `excess` are gone."""
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
                self._given_back(nbytes)
