"""`ExpandablePool`: addresses reserved once, memory committed when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.memory.caching import CachingPool, HostBlock, round_up
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
    from collections.abc import Callable

    from nbrt.backends.cpu.memory.caching import Arena
    from nbrt.backends.cpu.memory.mapping import Mapping

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
    make_block : callable, optional
        Makes a block of a part of a mapping; called as `HostBlock`.
    capacity : int, optional
        Bytes of the device; by default, of the machine.
    """

    kind = "expandable"

    def __init__(
        self,
        mapper: Callable[[int], Mapping] = map_segment,
        reserver: Callable[[int], Mapping] = reserve_segment,
        make_block: Callable[..., Any] = HostBlock,
        capacity: int | None = None,
    ) -> None:
        super().__init__(mapper, make_block)
        self._reserver = reserver
        self._capacity = total_memory() if capacity is None else capacity
        self._holes = FreeRanges()

    def segments(self) -> list[SegmentInfo]:
        """Return the mappings of small blocks, and each committed run of the reserved range."""
        infos = [info for info in super().segments() if info.is_small]
        for start, segment in self._large.segments.items():
            end = start + segment.nbytes
            holes = sorted((a, n) for a, n in self._holes.sizes.items() if start <= a < end)
            begin = start
            for position, nbytes in [*holes, (end, 0)]:
                if position > begin:
                    address = segment.address + begin - start
                    infos.append(SegmentInfo(address, position - begin, is_expandable=True))
                begin = position + nbytes
        return infos

    def empty_cache(self) -> None:
        """Return every free page; release reserved ranges without a block."""
        self._drop_idle(self._small, self._reserved)
        self._decommit(self._reserved)
        for position, segment in list(self._large.segments.items()):
            if self._holes.sizes.get(position) == segment.nbytes:
                self._holes.cut(position, segment.nbytes, position)
                self._large.drop(position)

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
        position = arena.free.take(size)
        assert position is not None
        # The new part has no pages yet, so returning others now is as good as before.
        peak = max(self._peak, self._in_use + size)
        bound = min(limit, peak + peak // _SLACK)
        self._decommit(self._reserved - bound)
        self._drop_idle(self._small, self._reserved - bound)
        if self._reserved > limit:
            arena.free.add(position, size)
            self._decommit(max(self._reserved - limit, part[2]))
            raise self._out_of_memory(size, f"a limit of {limit} bytes")
        return position

    def _cheapest_part(self, size: int) -> tuple[int, int, int] | None:
        """Return the hole, position and bytes to commit for a free range of `size` bytes.

        A part of a hole, together with the free range before or after it: the fewest bytes, and
        among equals the smallest hole.
        """
        free = self._large.free
        best: tuple[int, int, int, int] | None = None
        for hole, nbytes in self._holes.sizes.items():
            end = hole + nbytes
            before = hole - free.ends.get(hole, hole)
            after = free.sizes.get(end, 0)
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

    def _commit(self, hole: int, position: int, nbytes: int) -> None:
        self._holes.cut(position, nbytes, hole)
        self._large.free.add(position, nbytes)
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
                position = end - nbytes
                free.cut(position, nbytes, start)
                self._holes.add(position, nbytes)
                first = self._large.start_of(position)
                segment = self._large.segments[first]
                discard(segment.mapping, segment.offset + position - first, nbytes)
                excess -= nbytes
                self._remove_segment(nbytes)
