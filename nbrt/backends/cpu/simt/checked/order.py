"""The part of the shadow runtime that follows what orders threads: barriers, warps, fences."""

from __future__ import annotations

from numba import njit

from nbrt.backends.cpu.simt.checked import layout as at
from nbrt.backends.cpu.simt.checked.abi import (
    block_of,
    load,
    native,
    report,
    row_of,
    store,
    take_up,
    who_of,
)
from nbrt.backends.cpu.simt.checked.kinds import Kind

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
    "passed",
    "returned",
]

_BARRIER = int(Kind.BARRIER)
_WARP = int(Kind.WARP)


@njit
def _arrival(s: int, made: int) -> int:
    """Give the entry of a block's barrier in the ring."""
    threads = load(s, at.BLOCK_THREADS)
    blocks, own = load(s, at.SEATS) // threads, load(s, at.SEAT) // threads
    return at.ARRIVALS + int((made * blocks + own) % at.ARRIVAL_RING) * 4


@native
def begin_block(s: int, block: int) -> None:
    """Begin a block, or all that wait for each other: no state of earlier ones is left."""
    take_up(s, block + 1, 0)
    store(s, at.SHARED_COUNT, 0)
    store(s, at.SHARED_NEXT, 0)
    store(s, at.LOCAL_NEXT, 0)
    seats = load(s, at.SEATS)
    for word in range(at.THREADS, at.THREADS + seats * at.THREAD_WORDS):
        store(s, word, 0)
    if load(s, at.PAIRS_USED):
        for word in range(at.PAIRS, at.PAIRS + seats * 96):
            store(s, word, 0)
        store(s, at.PAIRS_USED, 0)


@njit
def _has_reached(s: int, row: int, made: int, site: int) -> bool:
    """Return whether a thread was behind the barrier at a site without having made it."""
    if load(s, row + at.FAR_MADE) != made:
        return False
    for place in range(min(load(s, row + at.FAR_COUNT), at.MAX_FAR_SITES)):
        if load(s, row + at.FAR_SITES + place) == site:
            return True
    return False


@njit
def _check_grid(s: int) -> None:
    """Look for a barrier of the grid to which this block has not come."""
    syncs = load(s, at.GRID_SYNCS)
    made = 0
    for thread in range(load(s, at.BLOCK_THREADS)):
        made = max(made, load(s, row_of(s, thread) + at.MADE_GRID_SYNCS))
    entry = at.GRID_ARRIVALS + int(made % at.ARRIVAL_RING) * at.GRID_ARRIVAL
    if made < syncs and load(s, entry) == made + 1:
        report(s, _BARRIER, load(s, entry + 1), load(s, entry + 2), 0, made, 2, 0, 0)


@native
def end_block(s: int, number: int) -> None:
    """Look for threads that have left out a barrier which others made."""
    block = number + 1
    take_up(s, block, 0)
    _check_grid(s)
    threads = load(s, at.BLOCK_THREADS)
    most = 0
    for thread in range(threads):
        most = max(most, load(s, row_of(s, thread) + at.MADE_BARRIERS))
    for thread in range(threads):
        row = row_of(s, thread)
        made = load(s, row + at.MADE_BARRIERS)
        if made < most:
            entry = _arrival(s, made)
            if load(s, entry) != block or load(s, entry + 1) != made:
                entry = _arrival(s, most - 1)  # forgotten: the last is as good
            site = load(s, entry + 2)
            went_on = load(s, row + at.RETURNED) == 0 or _has_reached(s, row, made, site)
            if went_on or load(s, at.STRICT):
                who = who_of(load(s, entry + 3), block, 0, 0xFFFF)
                store(s, at.THREAD, thread)
                report(s, _BARRIER, site, who, 0, made, 1, 0, 0)


@native
def begin_thread(s: int, block: int, thread: int) -> None:
    """Say which thread runs: at its beginning, and whenever it goes on after it has waited."""
    take_up(s, block + 1, thread)


@njit
def _arrive(s: int, site: int) -> None:
    thread = load(s, at.THREAD)
    made = load(s, row_of(s, thread) + at.MADE_BARRIERS)
    entry = _arrival(s, made)
    if load(s, entry) != load(s, at.BLOCK) or load(s, entry + 1) != made:
        store(s, entry, load(s, at.BLOCK))
        store(s, entry + 1, made)
        store(s, entry + 2, site)
        store(s, entry + 3, thread)
    elif load(s, entry + 2) != site:
        who = who_of(load(s, entry + 3), load(s, at.BLOCK), 0, load(s, entry + 2))
        report(s, _BARRIER, site, who, 0, made, 0, 0, 0)


@native
def before_barrier(s: int, site: int) -> None:
    """Arrive at a barrier."""
    _arrive(s, site)


@native
def after_barrier(s: int) -> None:
    """Go on behind a barrier."""
    row = row_of(s, load(s, at.THREAD)) + at.MADE_BARRIERS
    store(s, row, load(s, row) + 1)


@native
def before_grid(s: int, site: int) -> None:
    """Arrive at a barrier of the grid."""
    _arrive(s, site)
    thread = load(s, at.THREAD)
    made = load(s, row_of(s, thread) + at.MADE_GRID_SYNCS)
    entry = at.GRID_ARRIVALS + int(made % at.ARRIVAL_RING) * at.GRID_ARRIVAL
    if load(s, entry) != made + 1:
        store(s, entry, made + 1)
        store(s, entry + 1, site)
        store(s, entry + 2, who_of(thread, load(s, at.BLOCK), 0, 0xFFFF))


@native
def after_grid(s: int) -> None:
    """Go on behind a barrier of the grid: what all threads did before is over."""
    row = row_of(s, load(s, at.THREAD))
    made = load(s, row + at.MADE_GRID_SYNCS) + 1
    store(s, row + at.MADE_BARRIERS, load(s, row + at.MADE_BARRIERS) + 1)
    store(s, row + at.MADE_GRID_SYNCS, made)
    if made > load(s, at.GRID_SYNCS):
        clock = load(s, at.CLOCK) + 1
        store(s, at.GRID_SYNCS, made)
        store(s, at.CLOCK, clock)
        store(s, at.GRID_SYNCED, clock)


@native
def passed(s: int, site: int) -> None:
    """Be at a place that every thread reaches behind the barrier at `site`."""
    row = row_of(s, load(s, at.THREAD))
    made = load(s, row + at.MADE_BARRIERS)
    if load(s, row + at.FAR_MADE) != made:
        store(s, row + at.FAR_MADE, made)
        store(s, row + at.FAR_COUNT, 0)
    if not _has_reached(s, row, made, site):
        count = load(s, row + at.FAR_COUNT)
        store(s, row + at.FAR_SITES + int(count % at.MAX_FAR_SITES), site)
        store(s, row + at.FAR_COUNT, count + 1)


@native
def returned(s: int) -> None:
    """Come to a ``return`` statement of the kernel."""
    store(s, row_of(s, load(s, at.THREAD)) + at.RETURNED, 1)


@native
def before_warp(s: int, site: int, mask: int) -> None:
    """Arrive at a warp operation."""
    thread = load(s, at.THREAD)
    lane = thread & 31
    if not (mask >> lane) & 1:
        report(s, _WARP, site, 0, 0, mask & 0xFFFFFFFF, lane, 0, 0)
    store(s, at.PAIRS_USED, 1)
    first = at.PAIRS + (load(s, at.SEAT) + thread) * 96
    for other in range(32):
        if (mask >> other) & 1:
            pair = first + other * 3
            made = load(s, pair) + 1
            store(s, pair, made)
            store(s, pair + 1 + (made & 1), site)


@native
def after_warp(s: int, site: int, mask: int) -> None:
    """Go on behind a warp operation: every lane of the mask must have come to it."""
    thread = load(s, at.THREAD)
    row = row_of(s, thread) + at.MADE_WARPS
    first, lane = thread & ~31, thread & 31
    threads, seat = load(s, at.BLOCK_THREADS), load(s, at.SEAT)
    for other in range(32):
        if (mask >> other) & 1 and other != lane and first + other < threads:
            made = load(s, at.PAIRS + ((seat + thread) * 32 + other) * 3)
            pair = at.PAIRS + ((seat + first + other) * 32 + lane) * 3
            their_site = load(s, pair + 1 + (made & 1))
            if load(s, pair) < made or their_site != site:
                who = who_of(first + other, load(s, at.BLOCK), 0, 0xFFFF)
                report(s, _WARP, site, who, 0, mask & 0xFFFFFFFF, other, 1, 0)
                break
    store(s, row, load(s, row) + 1)


@native
def fence(s: int) -> None:
    """Make what the block has written so far visible to whoever sees its next atomic operation."""
    clock = load(s, at.CLOCK) + 1
    store(s, at.CLOCK, clock)
    store(block_of(s, load(s, at.BLOCK)), at.FENCED, clock)
