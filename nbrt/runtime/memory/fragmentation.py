"""What lies free between the blocks in use, worked out from addresses for any kind of pool."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nbrt.backends.pools import SegmentInfo
    from nbrt.runtime.memory.core import PoolImpl

__all__ = ["Split", "gaps", "split_blocks", "total_split"]

Split = dict[str, tuple[int, int]]
"""(count, bytes) of free blocks, by ``"small_pool"`` and ``"large_pool"``."""


def gaps(pool: PoolImpl) -> Iterator[tuple[SegmentInfo, list[int]]]:
    """Yield the segments of a pool, each with the sizes of what is free in it, by address."""
    waiting = {allocation for allocation, _ in pool.books.pending.waiting}
    used = sorted(
        (each.address, each.nbytes)
        for each in list(pool.allocations)  # a finalizer may allocate meanwhile
        if each.lease is not None or each in waiting
    )
    for segment in pool.segments_seen.values():
        end = segment.address + segment.nbytes
        first = bisect.bisect_left(used, (segment.address, 0))
        inside = used[first : bisect.bisect_left(used, (end, 0))]
        begins = [*(address for address, _ in inside), end]
        ends = [segment.address, *(address + size for address, size in inside)]
        free = (begin - end for end, begin in zip(ends, begins, strict=True))
        yield segment, [size for size in free if size > 0]


def split_blocks(pool: PoolImpl) -> Split:
    """Return the free pieces of those segments that are partly in use."""
    found = {"small_pool": (0, 0), "large_pool": (0, 0)}
    for segment, sizes in gaps(pool):
        if sizes != [segment.nbytes]:
            key = "small_pool" if segment.is_small else "large_pool"
            count, nbytes = found[key]
            found[key] = (count + len(sizes), nbytes + sum(sizes))
    return found


def total_split(parts: Iterable[Split]) -> Split:
    """Add up the pieces of several pools."""
    total = {"small_pool": (0, 0), "large_pool": (0, 0)}
    for part in parts:
        for key, (count, nbytes) in part.items():
            total[key] = (total[key][0] + count, total[key][1] + nbytes)
    return total
