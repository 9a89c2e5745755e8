"""The part of the shadow runtime that follows what orders threads: barriers, warps, fences."""

from __future__ import annotations

from numba import njit

from nbrt.backends.cpu.simt.checked import layout as at
from nbrt.backends.cpu.simt.checked.kinds import Kind
from nbrt.backends.cpu.simt.checked.words import (
    block_of,
    load,
    native,
    report,
    row_of,
    store,
    take_up,
    who_of,
)

__all__ = [
    "after_barrier",
    "after_grid",
    "after_warp",
    "before_barrier",
    "before_warp",
    "begin_block",
    "begin_thread",
    "end_block",
    "fence",
    "passed",
]

_BARRIER = int(Kind.BARRIER)
_WARP = int(Kind.WARP)


@njit  # type: ignore[untyped-decorator]
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


@native
def end_block(s: int, number: int) -> None:
    """Look for threads that have left out a barrier which others made."""
    block = number + 1
    take_up(s, block, 0)
    threads = load(s, at.BLOCK_THREADS)
    most = 0
    for thread in range(threads):
        most = max(most, load(s, row_of(s, thread) + at.MADE_BARRIERS))
    for thread in range(threads):
        row = row_of(s, thread)
        made = load(s, row + at.MADE_BARRIERS)
        if made < most:
            entry = _arrival(s, made)
            site = load(s, entry + 2)
            known = load(s, entry) == block and load(s, entry + 1) == made
            is_behind = load(s, row + at.FAR_SITE) == site and load(s, row + at.FAR_MADE) == made
            went_on = is_behind and load(s, row + at.FAR_USED)
            if known and (went_on or load(s, at.STRICT)):
                who = who_of(load(s, entry + 3), block, 0, 0xFFFF)
                store(s, at.THREAD, thread)
                report(s, _BARRIER, site, who, 0, made, 1, 0, 0)


@native
def begin_thread(s: int, block: int, thread: int) -> None:
    """Say which thread runs."""
    take_up(s, block + 1, thread)


@njit  # type: ignore[untyped-decorator]
def _leave(s: int) -> int:
    """Give what `_come_back` needs to know of the thread that runs."""
    return (int(load(s, at.BLOCK)) << 11) | int(load(s, at.THREAD))


@njit  # type: ignore[untyped-decorator]
def _come_back(s: int, left: int) -> int:
    """Take a thread up again; gives its row."""
    take_up(s, left >> 11, left & 0x7FF)
    return int(row_of(s, left & 0x7FF))


@native
def before_barrier(s: int, site: int) -> int:
    """Arrive at a barrier; gives what `after_barrier` needs."""
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
    return int(_leave(s))


@native
def after_barrier(s: int, left: int) -> None:
    """Go on behind a barrier."""
    row = _come_back(s, left) + at.MADE_BARRIERS
    store(s, row, load(s, row) + 1)


@native
def after_grid(s: int, left: int) -> None:
    """Go on behind a barrier of the grid: what all threads did before is over."""
    row = _come_back(s, left)
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
    store(s, row + at.FAR_SITE, site)
    store(s, row + at.FAR_MADE, load(s, row + at.MADE_BARRIERS))
    store(s, row + at.FAR_USED, 0)


@native
def before_warp(s: int, site: int, mask: int) -> int:
    """Arrive at a warp operation; gives what `after_warp` needs."""
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
    return int(_leave(s))


@native
def after_warp(s: int, left: int, site: int, mask: int) -> None:
    """Go on behind a warp operation: every lane of the mask must have come to it."""
    row = _come_back(s, left) + at.MADE_WARPS
    thread = load(s, at.THREAD)
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
