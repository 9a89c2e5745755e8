"""`ShadowMemory`: whose memory is what, who has used it, and which uses nothing orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.observe.races.clocks import StreamClocks
from nbrt.observe.races.reports import report_freed, report_race
from nbrt.observe.races.tenancies import TenancyMap

if TYPE_CHECKING:
    from collections.abc import Collection

    from nbrt._internal.callsite import CallSite
    from nbrt.observe.races.reports import MemoryRaceReport
    from nbrt.observe.races.tenancies import Access, AccessKind, StreamKey, Tenancy

__all__ = ["Piece", "ShadowMemory"]

_MOST_ACCESSES = 64
"""Of one block; the oldest are forgotten first."""

Piece = tuple[int, int, "Tenancy"]
"""A range of addresses (begin, end) and what was there."""


class ShadowMemory:
    """The memory that is watched, and the order of what uses it.

    Attributes
    ----------
    clocks : StreamClocks
        The order of the streams' work.
    map : TenancyMap
        The blocks in use, and freed ones until they are handed out again.
    """

    def __init__(self) -> None:
        self.clocks: StreamClocks[StreamKey] = StreamClocks()
        self.map = TenancyMap()

    def allocate(self, tenancy: Tenancy) -> list[Piece]:
        """Begin a tenancy; return the pieces of memory that it takes over from earlier ones."""
        taken = self.map.insert(tenancy)
        for begin, end, old in taken:
            # A pool hands memory out again in the order of the stream it was allocated for. Handed
            # to another stream, it is the pool's own business to wait.
            if old.is_freed and old.stream.key == tenancy.stream.key:
                self._inherit(tenancy, old, begin, end)
        return taken

    def free(self, tenancy: Tenancy, site: CallSite, passed: Collection[StreamKey]) -> None:
        """End a tenancy; its memory is not handed out before the streams `passed` have come by."""
        tenancy.freed = site
        tenancy.freed_at = self.clocks.now(tenancy.stream.key)
        tenancy.accesses = {
            key: access
            for key, access in tenancy.accesses.items()
            if access.stream.key not in passed
            and (access.stream.key == tenancy.stream.key or not access.is_recorded)
        }

    def judge(self, access: Access) -> MemoryRaceReport | None:
        """Return what is wrong with an access to come, if anything is."""
        tenancy = access.tenancy
        if tenancy.is_freed:
            return report_freed(access)
        for other in tenancy.accesses.values():
            if (
                _conflict(access, other)
                and not self.clocks.is_ordered(
                    other.stream.key, other.step, before=access.stream.key
                )
                and access.footprint.overlaps(other.footprint)
            ):
                return report_race(access, other)
        return None

    def note(self, access: Access) -> None:
        """Note an access that was submitted; it takes the place of the same one before."""
        accesses = access.tenancy.accesses
        key = (*access.kind, access.footprint, access.tenancy)
        accesses.pop(key, None)
        if len(accesses) >= _MOST_ACCESSES:
            self._forget(access.tenancy)
        accesses[key] = access

    def _forget(self, tenancy: Tenancy) -> None:
        accesses = tenancy.accesses
        for key, access in list(accesses.items()):
            if self.clocks.is_settled(access.stream.key, access.step):
                del accesses[key]
        while len(accesses) >= _MOST_ACCESSES:
            del accesses[next(iter(accesses))]

    def _inherit(self, tenancy: Tenancy, old: Tenancy, begin: int, end: int) -> None:
        latest: dict[AccessKind, Access] = {}
        for access in old.accesses.values():
            footprint, kind = access.footprint, access.kind
            if footprint.begin < end and begin < footprint.end:
                best = latest.get(kind)
                if best is None or best.step < access.step:
                    latest[kind] = access
        for kind, access in latest.items():
            if not self.clocks.is_settled(access.stream.key, access.step):
                tenancy.accesses[*kind, access.footprint, access.tenancy] = access
        if begin <= old.address and old.address + old.nbytes <= end:
            old.accesses = {}  # else a tenancy would hold all those before it


def _conflict(access: Access, other: Access) -> bool:
    """Return whether two accesses must be ordered.

    A launch may write what it uses; a call is trusted to read. Atomic operations order themselves.
    What an earlier tenant did must be over in any case.
    """
    if access.tenancy is not other.tenancy:
        return not access.mode == other.mode == "reads"
    if access.mode == other.mode == "updates":
        return False
    return _may_write(access) or _may_write(other)


def _may_write(access: Access) -> bool:
    return access.mode in ("writes", "updates") or (access.mode == "uses" and access.is_launch)
