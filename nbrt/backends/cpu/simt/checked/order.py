"""The part of the shadow runtime that tracks the order of threads: barriers, warps, fences."""

from __future__ import annotations

from numba import njit

from nbrt.backends.cpu.simt.checked import layout as at
from nbrt.backends.cpu.simt.checked.abi import (
    block_of,
    load,
    native,
    pack_accessor,
    report,
    row_of,
    set_current,
    store,
)
from nbrt.backends.cpu.simt.checked.layout import Kind

__all__ = [
    "after_barrier",
    "after_grid",
    "after_warp",
    "before_barrier",
    "before_grid",
    "before_warp",
    "begin_block",
    "begin_thread",
    "end_block",
    "fence",
    "reconverged",
    "returned",
]

_BARRIER = int(Kind.BARRIER)
_WARP = int(Kind.WARP)


@njit
def _arrival(s: int, count: int) -> int:
    """Return the entry of a block's barrier in the ring."""
    threads = load(s, at.BLOCK_THREADS)
    blocks, own = load(s, at.ROWS) // threads, load(s, at.FIRST_ROW) // threads
    return at.ARRIVALS + int((count * blocks + own) % at.ARRIVAL_RING) * 4


@native
def begin_block(s: int, block: int) -> None:
    """Begin a block, or all resident blocks, and clear the state of earlier ones."""
    set_current(s, block + 1, 0)
    store(s, at.SHARED_COUNT, 0)
    store(s, at.SHARED_NEXT, 0)
    store(s, at.LOCAL_NEXT, 0)
    rows = load(s, at.ROWS)
    for word in range(at.THREADS, at.THREADS + rows * at.THREAD_WORDS):
        store(s, word, 0)
    if load(s, at.PAIRS_USED):
        for word in range(at.PAIRS, at.PAIRS + rows * 96):
            store(s, word, 0)
        store(s, at.PAIRS_USED, 0)


@njit
def _has_reconverged(s: int, row: int, count: int, site: int) -> bool:
    """Return whether a thread was at the point of reconvergence of a barrier it did not pass."""
    if load(s, row + at.RECONVERGED_AT) != count:
        return False
    for place in range(min(load(s, row + at.RECONVERGED_COUNT), at.MAX_RECONVERGED_SITES)):
        if load(s, row + at.RECONVERGED_SITES + place) == site:
            return True
    return False


@njit
def _check_grid(s: int) -> None:
    """Report a barrier of the grid that this block did not reach."""
    syncs = load(s, at.GRID_SYNCS)
    count = 0
    for thread in range(load(s, at.BLOCK_THREADS)):
        count = max(count, load(s, row_of(s, thread) + at.GRID_SYNCS_PASSED))
    entry = at.GRID_ARRIVALS + int(count % at.ARRIVAL_RING) * at.GRID_ARRIVAL
    if count < syncs and load(s, entry) == count + 1:
        report(s, _BARRIER, load(s, entry + 1), load(s, entry + 2), 0, count, 2, 0, 0)


@native
def end_block(s: int, number: int) -> None:
    """Report threads that left out a barrier which others of the block passed."""
    block = number + 1
    set_current(s, block, 0)
    _check_grid(s)
    threads = load(s, at.BLOCK_THREADS)
    highest = 0
    for thread in range(threads):
        highest = max(highest, load(s, row_of(s, thread) + at.BARRIERS_PASSED))
    for thread in range(threads):
        row = row_of(s, thread)
        count = load(s, row + at.BARRIERS_PASSED)
        if count < highest:
            entry = _arrival(s, count)
            if load(s, entry) != block or load(s, entry + 1) != count:
                entry = _arrival(s, highest - 1)  # overwritten: use the last barrier
            site = load(s, entry + 2)
            went_on = load(s, row + at.RETURNED) == 0 or _has_reconverged(s, row, count, site)
            if went_on or load(s, at.STRICT):
                accessor = pack_accessor(load(s, entry + 3), block, 0, 0xFFFF)
                store(s, at.THREAD, thread)
                report(s, _BARRIER, site, accessor, 0, count, 1, 0, 0)


@native
def begin_thread(s: int, block: int, thread: int) -> None:
    """Set the current thread: when it begins, and when it continues after a wait."""
    set_current(s, block + 1, thread)


@njit
def _arrive(s: int, site: int) -> None:
    thread = load(s, at.THREAD)
    count = load(s, row_of(s, thread) + at.BARRIERS_PASSED)
    entry = _arrival(s, count)
    if load(s, entry) != load(s, at.BLOCK) or load(s, entry + 1) != count:
        store(s, entry, load(s, at.BLOCK))
        store(s, entry + 1, count)
        store(s, entry + 2, site)
        store(s, entry + 3, thread)
    elif load(s, entry + 2) != site:
        accessor = pack_accessor(load(s, entry + 3), load(s, at.BLOCK), 0, load(s, entry + 2))
        report(s, _BARRIER, site, accessor, 0, count, 0, 0, 0)


@native
def before_barrier(s: int, site: int) -> None:
    """Arrive at a barrier."""
    _arrive(s, site)


@native
def after_barrier(s: int) -> None:
    """Continue after a barrier."""
    row = row_of(s, load(s, at.THREAD)) + at.BARRIERS_PASSED
    store(s, row, load(s, row) + 1)


@native
def before_grid(s: int, site: int) -> None:
    """Arrive at a barrier of the grid."""
    _arrive(s, site)
    thread = load(s, at.THREAD)
    count = load(s, row_of(s, thread) + at.GRID_SYNCS_PASSED)
    entry = at.GRID_ARRIVALS + int(count % at.ARRIVAL_RING) * at.GRID_ARRIVAL
    if load(s, entry) != count + 1:
        store(s, entry, count + 1)
        store(s, entry + 1, site)
        store(s, entry + 2, pack_accessor(thread, load(s, at.BLOCK), 0, 0xFFFF))


@native
def after_grid(s: int) -> None:
    """Continue after a barrier of the grid, which orders all earlier accesses."""
    row = row_of(s, load(s, at.THREAD))
    count = load(s, row + at.GRID_SYNCS_PASSED) + 1
    store(s, row + at.BARRIERS_PASSED, load(s, row + at.BARRIERS_PASSED) + 1)
    store(s, row + at.GRID_SYNCS_PASSED, count)
    if count > load(s, at.GRID_SYNCS):
        clock = load(s, at.CLOCK) + 1
        store(s, at.GRID_SYNCS, count)
        store(s, at.CLOCK, clock)
        store(s, at.GRID_SYNCED, clock)


@native
def reconverged(s: int, site: int) -> None:
    """Reach the point of reconvergence of the barrier at `site`."""
    row = row_of(s, load(s, at.THREAD))
    count = load(s, row + at.BARRIERS_PASSED)
    if load(s, row + at.RECONVERGED_AT) != count:
        store(s, row + at.RECONVERGED_AT, count)
        store(s, row + at.RECONVERGED_COUNT, 0)
    if not _has_reconverged(s, row, count, site):
        count = load(s, row + at.RECONVERGED_COUNT)
        store(s, row + at.RECONVERGED_SITES + int(count % at.MAX_RECONVERGED_SITES), site)
        store(s, row + at.RECONVERGED_COUNT, count + 1)


@native
def returned(s: int) -> None:
    """Reach a ``return`` statement of the kernel."""
    store(s, row_of(s, load(s, at.THREAD)) + at.RETURNED, 1)


@native
def before_warp(s: int, site: int, mask: int) -> None:
    """Arrive at a warp operation."""
    thread = load(s, at.THREAD)
    lane = thread & 31
    if not (mask >> lane) & 1:
        report(s, _WARP, site, 0, 0, mask & 0xFFFFFFFF, lane, 0, 0)
    store(s, at.PAIRS_USED, 1)
    first = at.PAIRS + (load(s, at.FIRST_ROW) + thread) * 96
    for other in range(32):
        if (mask >> other) & 1:
            pair = first + other * 3
            count = load(s, pair) + 1
            store(s, pair, count)
            store(s, pair + 1 + (count & 1), site)


@native
def after_warp(s: int, site: int, mask: int) -> None:
    """Continue after a warp operation, at which every lane of the mask must have arrived."""
    thread = load(s, at.THREAD)
    row = row_of(s, thread) + at.WARP_OPERATIONS_PASSED
    first, lane = thread & ~31, thread & 31
    threads, first_row = load(s, at.BLOCK_THREADS), load(s, at.FIRST_ROW)
    for other in range(32):
        if (mask >> other) & 1 and other != lane and first + other < threads:
            count = load(s, at.PAIRS + ((first_row + thread) * 32 + other) * 3)
            pair = at.PAIRS + ((first_row + first + other) * 32 + lane) * 3
            their_site = load(s, pair + 1 + (count & 1))
            if load(s, pair) < count or their_site != site:
                accessor = pack_accessor(first + other, load(s, at.BLOCK), 0, 0xFFFF)
                report(s, _WARP, site, accessor, 0, mask & 0xFFFFFFFF, other, 1, 0)
                break
    store(s, row, load(s, row) + 1)


@native
def fence(s: int) -> None:
    """Publish the block's writes to observers of its next atomic operation."""
    clock = load(s, at.CLOCK) + 1
    store(s, at.CLOCK, clock)
    store(block_of(s, load(s, at.BLOCK)), at.FENCED, clock)
