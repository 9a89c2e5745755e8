"""`ShadowMemory`: whose memory is what, who has used it, and which uses nothing orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.observe.races.reports import report_freed, report_race
from nbrt.observe.races.shadow_blocks import AddressMap
from nbrt.observe.races.vector_clocks import VectorClocks

if TYPE_CHECKING:
    from collections.abc import Collection

    from nbrt._internal.callsite import CallSite
    from nbrt.observe.races.reports import MemoryRaceReport
    from nbrt.observe.races.shadow_blocks import AccessKey, MemoryAccess, ShadowBlock, StreamKey

__all__ = ["BlockRange", "ShadowMemory"]

_MAX_ACCESSES = 64
"""Of one block; the oldest are forgotten first."""

BlockRange = tuple[int, int, "ShadowBlock"]
"""A range of addresses (begin, end) and what was there."""


class ShadowMemory:
    """The memory that is watched, and the order of what uses it.

    Attributes
    ----------
    clocks : VectorClocks
        The order of the streams' work.
    map : AddressMap
        The blocks in use, and freed ones until they are handed out again.
    """

    def __init__(self) -> None:
        self.clocks: VectorClocks[StreamKey] = VectorClocks()
        self.map = AddressMap()

    def allocate(self, block: ShadowBlock) -> list[BlockRange]:
        """Begin a block; return the pieces of memory that it takes over from earlier ones."""
        taken = self.map.insert(block)
        for begin, end, old in taken:
            # A pool hands memory out again in the order of the stream it was allocated for. Handed
            # to another stream, it is the pool's own business to wait.
            if old.is_freed and old.stream.key == block.stream.key:
                self._inherit(block, old, begin, end)
        return taken

    def free(self, block: ShadowBlock, site: CallSite, passed: Collection[StreamKey]) -> None:
        """End a block; its memory is not handed out before the streams `passed` have come by."""
        block.freed = site
        block.freed_at = self.clocks.now(block.stream.key)
        block.accesses = {
            key: access
            for key, access in block.accesses.items()
            if access.stream.key not in passed
            and (access.stream.key == block.stream.key or not access.is_recorded)
        }

    def check(self, access: MemoryAccess) -> MemoryRaceReport | None:
        """Return what is wrong with an access to come, if anything is."""
        block = access.block
        if block.is_freed:
            return report_freed(access)
        for other in block.accesses.values():
            if (
                _conflict(access, other)
                and not self.clocks.is_ordered(
                    other.stream.key, other.step, before=access.stream.key
                )
                and access.footprint.overlaps(other.footprint)
            ):
                return report_race(access, other)
        return None

    def note(self, access: MemoryAccess) -> None:
        """Note an access that was submitted; it takes the place of the same one before."""
        accesses = access.block.accesses
        key = (*access.kind, access.footprint, access.block)
        accesses.pop(key, None)
        if len(accesses) >= _MAX_ACCESSES:
            self._forget(access.block)
        accesses[key] = access

    def _forget(self, block: ShadowBlock) -> None:
        accesses = block.accesses
        for key, access in list(accesses.items()):
            if self.clocks.is_settled(access.stream.key, access.step):
                del accesses[key]
        while len(accesses) >= _MAX_ACCESSES:
            del accesses[next(iter(accesses))]

    def _inherit(self, block: ShadowBlock, old: ShadowBlock, begin: int, end: int) -> None:
        latest: dict[AccessKey, MemoryAccess] = {}
        for access in old.accesses.values():
            footprint, kind = access.footprint, access.kind
            if footprint.begin < end and begin < footprint.end:
                best = latest.get(kind)
                if best is None or best.step < access.step:
                    latest[kind] = access
        for kind, access in latest.items():
            if not self.clocks.is_settled(access.stream.key, access.step):
                block.accesses[*kind, access.footprint, access.block] = access
        if begin <= old.address and old.address + old.nbytes <= end:
            old.accesses = {}  # else a block would hold all those before it


def _conflict(access: MemoryAccess, other: MemoryAccess) -> bool:
    """Return whether two accesses must be ordered.

    A launch may write what it uses; a call is trusted to read. Atomic operations order themselves.
    What an earlier tenant did must be over in any case.
    """
    if access.block is not other.block:
        return not access.mode == other.mode == "reads"
    if access.mode == other.mode == "updates":
        return False
    return _may_write(access) or _may_write(other)


def _may_write(access: MemoryAccess) -> bool:
    return access.mode in ("writes", "updates") or (access.mode == "uses" and access.is_launch)
