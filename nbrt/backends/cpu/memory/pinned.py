"""`PinnedPool`: page-locked host memory, where the system permits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.memory.caching import LARGE_UNIT, CachingPool, HostBlock, round_up
from nbrt.backends.cpu.memory.mapping import PAGE, address_of, lock_pages, map_segment

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.memory.caching import Arena
    from nbrt.backends.cpu.memory.mapping import Mapping

__all__ = ["PinnedPool"]


class PinnedPool(CachingPool):
    """A caching pool of page-locked memory; where locking is refused, of ordinary memory.

    Parameters
    ----------
    locker : callable, optional
        Locks the pages of an address and bytes; returns None, or the reason of a refusal.
    make_block : callable, optional
        Makes a block of a part of a mapping; called as `HostBlock`.

    Attributes
    ----------
    why_not : str or None
        The reason of the first refusal; None: all memory of the pool is locked.
    """

    kind = "pinned"

    def __init__(
        self,
        mapper: Callable[[int], Mapping] = map_segment,
        locker: Callable[[int, int], str | None] = lock_pages,
        make_block: Callable[..., Any] = HostBlock,
    ) -> None:
        super().__init__(mapper, make_block)
        self._locker = locker
        # Tried with one page, so that `note` is known before the first allocation.
        self.why_not = locker(address_of(probe := map_segment(PAGE)), len(probe))

    @property
    def note(self) -> str:
        """The reason why memory is not locked; empty if all of it is."""
        return "" if self.why_not is None else f"the memory is not page-locked: {self.why_not}"

    @property
    def is_page_locked(self) -> bool:
        """Whether all memory of this pool is locked."""
        return self.why_not is None

    def _roomy(self, arena: Arena, size: int) -> int:
        # Locked addresses count against a limit of the system: nothing is mapped in advance.
        return round_up(size, LARGE_UNIT) if arena is self._large else super()._roomy(arena, size)

    def _map(self, nbytes: int, guard: int = 0) -> Mapping | str:
        mapping = super()._map(nbytes, guard)
        if not isinstance(mapping, str):
            refusal = self._locker(address_of(mapping), nbytes)
            self.why_not = self.why_not or refusal
        return mapping
