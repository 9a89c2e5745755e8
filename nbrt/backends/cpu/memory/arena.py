"""`Arena`: mappings for blocks of one kind of size, and what is free in them."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, NamedTuple

from nbrt.backends.cpu.memory.base import round_up
from nbrt.backends.cpu.memory.blocks import HostBlock
from nbrt.backends.cpu.memory.mapping import address_of
from nbrt.backends.ranges import FreeRanges

if TYPE_CHECKING:
    import mmap

__all__ = ["Arena", "Segment"]


class Segment(NamedTuple):
    """The used part of a mapping, which begins at `origin` or a little behind it."""

    mapping: mmap.mmap
    origin: int
    nbytes: int


class Arena:
    """Mappings for blocks of multiples of `unit` bytes, and what is free in them.

    Attributes
    ----------
    unit : int
        Bytes, a power of two.
    segments : dict of int to Segment
        By their first address.
    free : FreeRanges
        What blocks may be cut from; whoever adds a segment says what of it is free.
    """

    __slots__ = ("_starts", "free", "segments", "unit")

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self.segments: dict[int, Segment] = {}
        self.free = FreeRanges(walls=self.segments)
        self._starts: list[int] = []

    def add(self, mapping: mmap.mmap, nbytes: int, alignment: int = 1) -> int:
        """Take up `nbytes` of a mapping from its first aligned address on; return that."""
        origin = address_of(mapping)
        address = round_up(origin, alignment)
        self.segments[address] = Segment(mapping, origin, nbytes)
        insort(self._starts, address)
        return address

    def drop(self, address: int) -> None:
        """Forget a segment; its mapping lives as long as arrays over it do."""
        self._starts.remove(address)
        del self.segments[address]

    def idle(self) -> list[int]:
        """Return the segments that are wholly free, the one freed first at the beginning."""
        segments = self.segments
        return [
            address
            for address, nbytes in self.free.sizes.items()
            if address in segments and segments[address].nbytes == nbytes
        ]

    def segment_of(self, address: int) -> Segment:
        """Return the segment that an address lies in."""
        return self.segments[self._starts[bisect_right(self._starts, address) - 1]]

    def block(self, address: int, nbytes: int) -> HostBlock:
        """Return the block at an address that was taken from what is free."""
        segment = self.segment_of(address)
        return HostBlock(segment.mapping, address - segment.origin, nbytes, address)
