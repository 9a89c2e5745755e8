"""Segments of a pool: how they change, and the free memory in them."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nbrt.backends.pools import SegmentInfo

__all__ = ["SegmentChanges", "Split", "diff_segments", "free_blocks", "split_blocks", "total_split"]

Split = dict[str, tuple[int, int]]
"""(count, bytes) of free blocks, by ``"small_pool"`` and ``"large_pool"``."""


@dataclass(frozen=True, slots=True)
class SegmentChanges:
    """The difference between two states of a pool's segments.

    Attributes
    ----------
    released, reserved : list of SegmentInfo
        Memory returned to the system and taken from it: whole segments; parts of expandable ones.
    removed, added : list of SegmentInfo
        Segments that are gone, and new ones. An expandable segment that begins at another address
        now is neither.
    """

    released: list[SegmentInfo]
    reserved: list[SegmentInfo]
    removed: list[SegmentInfo]
    added: list[SegmentInfo]


def diff_segments(
    before: Mapping[int, SegmentInfo],
    now: Mapping[int, SegmentInfo],
    count: int,
    used: Iterable[int],
) -> SegmentChanges:
    """Compare two states of a pool's segments.

    Parameters
    ----------
    before, now : Mapping of int to SegmentInfo
        The segments by address.
    count : int
        Segments that the pool took from the system between the two states.
    used : iterable of int
        Addresses of blocks that were allocated in both states.
    """
    old = [info for address, info in before.items() if now.get(address) != info]
    new = [info for address, info in now.items() if before.get(address) != info]
    fixed_old, moving_old = _partitioned(old)
    fixed_new, moving_new = _partitioned(new)
    if count > len(fixed_new) + len(moving_new):
        # A segment was released, and an equal one reserved at its address: one without a block.
        same = [info for address, info in before.items() if now.get(address) == info]
        replaced = _idle([info for info in same if not info.is_expandable], used)
        fixed_old += replaced
        fixed_new += replaced
    moved = min(len(moving_old), len(moving_new))
    return SegmentChanges(
        released=fixed_old + _difference(moving_old, moving_new),
        reserved=fixed_new + _difference(moving_new, moving_old),
        removed=fixed_old + moving_old[moved:],
        added=fixed_new + moving_new[moved:],
    )


def _partitioned(infos: list[SegmentInfo]) -> tuple[list[SegmentInfo], list[SegmentInfo]]:
    fixed = [info for info in infos if not info.is_expandable]
    return fixed, [info for info in infos if info.is_expandable]


def _idle(infos: list[SegmentInfo], used: Iterable[int]) -> list[SegmentInfo]:
    addresses = sorted(used)
    return [
        info
        for info in infos
        if bisect.bisect_left(addresses, info.address)
        == bisect.bisect_left(addresses, info.address + info.nbytes)
    ]


def _difference(first: list[SegmentInfo], second: list[SegmentInfo]) -> list[SegmentInfo]:
    """Return the parts of `first` outside `second`; neither list has overlaps."""
    others = sorted(second, key=lambda info: info.address)
    parts = []
    for info in sorted(first, key=lambda info: info.address):
        begin, end = info.address, info.address + info.nbytes
        for other in others:
            if other.address >= end or other.address + other.nbytes <= begin:
                continue
            if other.address > begin:
                parts.append(replace(info, address=begin, nbytes=other.address - begin))
            begin = other.address + other.nbytes
        if begin < end:
            parts.append(replace(info, address=begin, nbytes=end - begin))
    return parts


def free_blocks(
    segments: Iterable[SegmentInfo], blocks: Iterable[tuple[int, int]]
) -> Iterator[tuple[SegmentInfo, list[int]]]:
    """Yield segments with the sizes of their parts outside `blocks`, which are (address, bytes)."""
    used = sorted(blocks)
    for segment in segments:
        end = segment.address + segment.nbytes
        first = bisect.bisect_left(used, (segment.address, 0))
        inside = used[first : bisect.bisect_left(used, (end, 0))]
        begins = [*(address for address, _ in inside), end]
        ends = [segment.address, *(address + size for address, size in inside)]
        free = (begin - end for end, begin in zip(ends, begins, strict=True))
        yield segment, [size for size in free if size > 0]


def split_blocks(free: Iterable[tuple[SegmentInfo, list[int]]]) -> Split:
    """Return count and bytes of the free blocks in those segments that are partly in use."""
    split = {"small_pool": (0, 0), "large_pool": (0, 0)}
    for segment, sizes in free:
        if sizes != [segment.nbytes]:
            key = "small_pool" if segment.is_small else "large_pool"
            split = total_split((split, {key: (len(sizes), sum(sizes))}))
    return split


def total_split(splits: Iterable[Split]) -> Split:
    """Return the sums of several pools."""
    total = {"small_pool": (0, 0), "large_pool": (0, 0)}
    for split in splits:
        for key, (count, nbytes) in split.items():
            total[key] = (total[key][0] + count, total[key][1] + nbytes)
    return total
