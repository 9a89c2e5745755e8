"""Free ranges that choose among equals as another pool has chosen."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from nbrt.backends.pools import FreeRanges

if TYPE_CHECKING:
    from nbrt.backends.pools import SegmentInfo

__all__ = ["Guide", "GuidedRanges"]


class GuidedRanges(FreeRanges):
    """Best fit; where several ranges fit equally well, the one at `wanted`.

    CuPy keeps free blocks of a size in a set, so which of them it takes depends on where Python has
    put the objects. A model is exact if CuPy's choice is always one of its equals.
    """

    __slots__ = ("wanted",)

    def __init__(self) -> None:
        super().__init__()
        self.wanted: int | None = None

    def take(self, nbytes: int) -> int | None:
        """Take the wanted range, which must be a best fit; any best fit if none is wanted."""
        index = bisect_left(self._order, (nbytes,))
        if index == len(self._order) or self.wanted is None:
            return super().take(nbytes)
        size = self._order[index][0]
        equals = [start for found, start in self._order if found == size]
        assert self.wanted in equals, (self.wanted, equals)
        self.cut(self.wanted, nbytes, self.wanted)
        return self.wanted


class Guide:
    """Where the blocks of a real pool are, in the positions of a fake pool's arenas.

    Parameters
    ----------
    real : BackendPool
        The pool that chooses.
    arenas : dict
        The arenas of the fake pool, with `GuidedRanges`.
    """

    def __init__(self, real: Any, arenas: dict[Any, Any]) -> None:
        self._real = real
        self._arenas = arenas
        self._known: dict[int, tuple[Any, int]] = {}
        self._infos: list[SegmentInfo] = []

    def before(self, address: int) -> None:
        """Want the fake block where the real pool has put its newest one, at `address`."""
        self.refresh()
        info = self._segment_of(address)
        for arena in self._arenas.values():
            arena.free.wanted = None
        if info.address in self._known:
            arena, position = self._known[info.address]
            arena.free.wanted = position + address - info.address

    def after(self, address: int, arena: Any, position: int) -> None:
        """Remember that the fake block at `position` stands for the real one at `address`."""
        info = self._segment_of(address)
        self._known[info.address] = arena, position - (address - info.address)

    def refresh(self) -> None:
        """Forget the segments that the real pool has returned."""
        self._infos = self._real.segments()
        addresses = {info.address for info in self._infos}
        self._known = {start: at for start, at in self._known.items() if start in addresses}

    def _segment_of(self, address: int) -> SegmentInfo:
        return next(i for i in self._infos if i.address <= address < i.address + i.nbytes)
