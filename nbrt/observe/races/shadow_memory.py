"""`ShadowMemory`: the blocks of the memory, their accesses, and the check for unordered ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.observe.races.reports import report_freed, report_race
from nbrt.observe.races.shadow_blocks import AddressMap
from nbrt.observe.races.vector_clocks import VectorClocks

if TYPE_CHECKING:
    from collections.abc import Collection

    from nbrt._internal.callsite import CallSite
    from nbrt.observe.races.reports import MemoryRaceReport
    from nbrt.observe.races.shadow_blocks import (
        AccessKey,
        BlockRange,
        MemoryAccess,
        ShadowBlock,
        StreamKey,
    )

__all__ = ["ShadowMemory"]

_MAX_ACCESSES = 64
"""Accesses stored for a block; the oldest are dropped first."""


class ShadowMemory:
    """The watched memory and the order of its accesses.

    Attributes
    ----------
    clocks : VectorClocks
        The order of the work of the streams.
    map : AddressMap
        The blocks in use, and freed blocks until their memory is reused.
    """

    def __init__(self) -> None:
        self.clocks: VectorClocks[StreamKey] = VectorClocks()
        self.map = AddressMap()

    def allocate(self, block: ShadowBlock) -> list[BlockRange]:
        """Insert a block; return the ranges of earlier blocks that it reuses."""
        reused = self.map.insert(block)
        for begin, end, old in reused:
            # The pool reuses memory in the order of the allocation's stream. It waits itself before
            # it reuses memory for another stream.
            if old.is_freed and old.stream.key == block.stream.key:
                self._inherit(block, old, begin, end)
        return reused

    def free(self, block: ShadowBlock, site: CallSite, passed: Collection[StreamKey]) -> None:
        """Free a block; its memory is reused only after the work of the streams `passed`."""
        block.freed = site
        block.freed_at = self.clocks.now(block.stream.key)
        block.accesses = {
            key: access
            for key, access in block.accesses.items()
            if access.stream.key not in passed
            and (access.stream.key == block.stream.key or not access.is_recorded)
        }

    def check(self, access: MemoryAccess) -> MemoryRaceReport | None:
        """Return a report if an access that is about to be submitted is a fault."""
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

    def record(self, access: MemoryAccess) -> None:
        """Store a submitted access; it replaces an earlier one with the same key and bytes."""
        accesses = access.block.accesses
        key = (*access.key, access.footprint, access.block)
        accesses.pop(key, None)
        if len(accesses) >= _MAX_ACCESSES:
            self._drop_accesses(access.block)
        accesses[key] = access

    def _drop_accesses(self, block: ShadowBlock) -> None:
        accesses = block.accesses
        for key, access in list(accesses.items()):
            if self.clocks.is_settled(access.stream.key, access.step):
                del accesses[key]
        while len(accesses) >= _MAX_ACCESSES:
            del accesses[next(iter(accesses))]

    def _inherit(self, block: ShadowBlock, old: ShadowBlock, begin: int, end: int) -> None:
        latest: dict[AccessKey, MemoryAccess] = {}
        for access in old.accesses.values():
            if access.footprint.begin < end and begin < access.footprint.end:
                best = latest.get(access.key)
                if best is None or best.step < access.step:
                    latest[access.key] = access
        for key, access in latest.items():
            if not self.clocks.is_settled(access.stream.key, access.step):
                block.accesses[*key, access.footprint, access.block] = access
        if begin <= old.address and old.address + old.nbytes <= end:
            old.accesses = {}  # otherwise a block would keep all earlier blocks alive


def _conflict(access: MemoryAccess, other: MemoryAccess) -> bool:
    """Return whether two accesses must be ordered.

    An unknown access of a launch may write; a host call only reads. Atomic operations need no
    order. Accesses to an earlier block of the memory must be done in any case.
    """
    if access.block is not other.block:
        return not access.mode == other.mode == "reads"
    if access.mode == other.mode == "updates":
        return False
    return _may_write(access) or _may_write(other)


def _may_write(access: MemoryAccess) -> bool:
    return access.mode in ("writes", "updates") or (access.mode == "uses" and access.is_launch)
