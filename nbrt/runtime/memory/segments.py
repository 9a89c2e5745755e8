"""What has changed of the memory that a pool holds from the system, between two looks at it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nbrt.backends.pools import SegmentInfo

__all__ = ["SegmentChanges", "changes"]


@dataclass(frozen=True, slots=True)
class SegmentChanges:
    """What was given back and what was taken.

    Attributes
    ----------
    given, taken : list of SegmentInfo
        Whole segments; of expandable ones the pieces that are gone, and those that are new.
    dropped, made : list of SegmentInfo
        The segments that are gone, and those that are new; an expandable one that begins elsewhere
        now is neither.
    """

    given: list[SegmentInfo]
    taken: list[SegmentInfo]
    dropped: list[SegmentInfo]
    made: list[SegmentInfo]


def changes(
    before: Mapping[int, SegmentInfo],
    now: Mapping[int, SegmentInfo],
    made: int,
    used: Iterable[int],
) -> SegmentChanges:
    """Compare two looks at a pool's segments, by their addresses.

    Parameters
    ----------
    before, now : Mapping of int to SegmentInfo
        The segments by address.
    made : int
        How many segments the pool took from the system in between.
    used : iterable of int
        Addresses of blocks that were out all the time.
    """
    old = [info for address, info in before.items() if now.get(address) != info]
    new = [info for address, info in now.items() if before.get(address) != info]
    fixed_old, moving_old = _parted(old)
    fixed_new, moving_new = _parted(new)
    if made > len(fixed_new) + len(moving_new):
        # One was given back, and another came to lie in its place: any that holds no block.
        same = [info for address, info in before.items() if now.get(address) == info]
        replaced = _idle([info for info in same if not info.is_expandable], used)
        fixed_old += replaced
        fixed_new += replaced
    moved = min(len(moving_old), len(moving_new))
    return SegmentChanges(
        given=fixed_old + _difference(moving_old, moving_new),
        taken=fixed_new + _difference(moving_new, moving_old),
        dropped=fixed_old + moving_old[moved:],
        made=fixed_new + moving_new[moved:],
    )


def _parted(infos: list[SegmentInfo]) -> tuple[list[SegmentInfo], list[SegmentInfo]]:
    fixed = [info for info in infos if not info.is_expandable]
    return fixed, [info for info in infos if info.is_expandable]


def _idle(infos: list[SegmentInfo], used: Iterable[int]) -> list[SegmentInfo]:
    places = list(used)
    return [
        info
        for info in infos
        if not any(info.address <= place < info.address + info.nbytes for place in places)
    ]


def _difference(first: list[SegmentInfo], second: list[SegmentInfo]) -> list[SegmentInfo]:
    """Return what lies in `first` and not in `second`, as pieces; both without overlaps."""
    walls = sorted(second, key=lambda info: info.address)
    found = []
    for info in sorted(first, key=lambda info: info.address):
        begin, end = info.address, info.address + info.nbytes
        for wall in walls:
            if wall.address >= end or wall.address + wall.nbytes <= begin:
                continue
            if wall.address > begin:
                found.append(replace(info, address=begin, nbytes=wall.address - begin))
            begin = wall.address + wall.nbytes
        if begin < end:
            found.append(replace(info, address=begin, nbytes=end - begin))
    return found
