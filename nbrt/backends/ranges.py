"""`FreeRanges`: what is free of an address range; best fit, with neighbours merged."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ["FreeRanges"]


class FreeRanges:
    """Free ranges of addresses, none next to another.

    Parameters
    ----------
    walls : Container of int
        Addresses that no range may cross: where a mapping begins, another may end.

    Attributes
    ----------
    sizes : dict of int to int
        Bytes by first address; the range that has changed last comes last.
    ends : dict of int to int
        First address by the address after the last.
    nbytes : int
        Bytes free.

    Examples
    --------
    >>> free = FreeRanges()
    >>> free.add(0, 64)
    >>> free.add(128, 64)
    >>> free.take(32), free.take(128)
    (0, None)
    >>> free.add(64, 64)
    >>> free.sizes
    {32: 160}
    """

    __slots__ = ("_order", "_walls", "ends", "nbytes", "sizes")

    def __init__(self, walls: Container[int] = ()) -> None:
        self._walls = walls
        self.sizes: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self._order: list[tuple[int, int]] = []
        self.nbytes = 0

    def add(self, address: int, nbytes: int) -> None:
        """Free a range, and merge it with the ranges at its ends."""
        end = address + nbytes
        self.nbytes += nbytes
        if end in self.sizes and end not in self._walls:
            end += self._drop(end)
        if address in self.ends and address not in self._walls:
            address = self.ends[address]
            self._drop(address)
        self._put(address, end)

    def take(self, nbytes: int) -> int | None:
        """Take `nbytes` from the beginning of the smallest range that has them; None: none has.

        Of ranges of one size, the one of the lowest address.
        """
        place = bisect_left(self._order, (nbytes, 0))
        if place == len(self._order):
            return None
        size, address = self._order.pop(place)
        del self.sizes[address]
        del self.ends[address + size]
        if size > nbytes:
            self._put(address + nbytes, address + size)
        self.nbytes -= nbytes
        return address

    def cut(self, address: int, nbytes: int, start: int) -> None:
        """Take `nbytes` at `address` out of the range that begins at `start`."""
        end = start + self._drop(start)
        if address > start:
            self._put(start, address)
        if address + nbytes < end:
            self._put(address + nbytes, end)
        self.nbytes -= nbytes

    def _put(self, address: int, end: int) -> None:
        self.sizes[address] = end - address
        self.ends[end] = address
        insort(self._order, (end - address, address))

    def _drop(self, address: int) -> int:
        nbytes = self.sizes.pop(address)
        del self.ends[address + nbytes]
        del self._order[bisect_left(self._order, (nbytes, address))]
        return nbytes
