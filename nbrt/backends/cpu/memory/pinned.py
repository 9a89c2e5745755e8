"""`PinnedPool`: host memory that stays in memory, where that is permitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.memory.base import round_up
from nbrt.backends.cpu.memory.caching import LARGE_UNIT, CachingPool
from nbrt.backends.cpu.memory.mapping import PAGE, address_of, lock_pages, map_segment

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from nbrt.backends.cpu.memory.arena import Arena

__all__ = ["PinnedPool"]


class PinnedPool(CachingPool):
    """A caching pool of page-locked memory; where locking is refused, of ordinary memory.

    Parameters
    ----------
    mapper : callable, optional
        Returns a mapping of so many bytes, or raises one of `MAPPING_ERRORS`.
    locker : callable, optional
        Takes an address and bytes and locks their pages, or returns why not.

    Attributes
    ----------
    why_not : str or None
        Why memory of this pool is not locked, from the first refusal on; None: all of it is.
    """

    kind = "pinned"

    def __init__(
        self,
        mapper: Callable[[int], mmap.mmap] = map_segment,
        locker: Callable[[int, int], str | None] = lock_pages,
    ) -> None:
        super().__init__(mapper)
        self._locker = locker
        # Asked with one page, so that people can know before they allocate.
        self.why_not = locker(address_of(probe := map_segment(PAGE)), len(probe))

    @property
    def note(self) -> str:
        """What is to be known of the pool: that its memory is not locked, and why."""
        return "" if self.why_not is None else f"the memory is not page-locked: {self.why_not}"

    @property
    def is_page_locked(self) -> bool:
        """Whether all memory of this pool is locked."""
        return self.why_not is None

    def _roomy(self, arena: Arena, size: int) -> int:
        # Locked pages are there from the beginning, so blocks that nobody asked for are not free.
        return round_up(size, LARGE_UNIT) if arena is self._large else super()._roomy(arena, size)

    def _map(self, nbytes: int, guard: int = 0) -> mmap.mmap | str:
        mapping = super()._map(nbytes, guard)
        if not isinstance(mapping, str):
            refusal = self._locker(address_of(mapping), nbytes)
            self.why_not = self.why_not or refusal
        return mapping
