"""The shadow runtime: native functions that instrumented code calls at accesses and barriers.

They work on the words that `layout` describes. They never fail: a fault becomes a report, one for
each kind and pair of sites, and the kernel continues.
"""

from __future__ import annotations

from numba import njit

from nbrt.backends.cpu.simt.checked import layout as at
from nbrt.backends.cpu.simt.checked.abi import (
    FUNCTIONS,
    block_of,
    load,
    native,
    pack_accessor,
    report,
    row_of,
    set_current,
    store,
)
from nbrt.backends.cpu.simt.checked.layout import Access, Kind

__all__ = ["FUNCTIONS"]

_READ = int(Access.READ)
_ATOMIC = int(Access.ATOMIC)
_FILL = int(Access.FILL)

_OUTSIDE = int(Kind.OUT_OF_BOUNDS)
_NEGATIVE = int(Kind.NEGATIVE_INDEX)
_OVERFLOW = int(Kind.INDEX_OVERFLOW)
_UNINITIALISED = int(Kind.UNINITIALISED)
_RACE = int(Kind.RACE)
_DYNAMIC = int(Kind.DYNAMIC_SHARED)
_BARRIER = int(Kind.BARRIER)
_WARP = int(Kind.WARP)
_FLAT = -1

_LOW20 = (1 << 20) - 1


# -- races -------------------------------------------------------------------------------------


@njit
def _synchronizes_with(s: int, accessor: int, epoch: int, acquired: int) -> bool:
    """Return whether a fence and an atomic follow an access, and an atomic precedes mine."""
    published = load(block_of(s, accessor >> 32), at.PUBLISHED)
    return bool((epoch >> 40) < published <= acquired)


@njit
def _conflicts(s: int, accessor: int, epoch: int, mine: int, now: int, shared: int) -> bool:
    """Return whether an earlier access, one of the two being a write, is unordered with mine."""
    if accessor == 0 or (accessor & mine & 0x10000):
        return False
    if accessor >> 32 != mine >> 32:
        if shared or (epoch >> 40) < load(s, at.GRID_SYNCED):
            return False
        return not _synchronizes_with(
            s, accessor, epoch, load(block_of(s, mine >> 32), at.BLOCK_ACQUIRED)
        )
    theirs, me = (accessor >> 17) & 0x7FF, (mine >> 17) & 0x7FF
    if theirs == me or ((epoch ^ now) >> 20) & _LOW20:
        return False
    if theirs >> 5 == me >> 5 and (epoch ^ now) & _LOW20:
        return False
    return not _synchronizes_with(s, accessor, epoch, load(s, row_of(s, me) + at.ACQUIRED))


@njit
def _remember(cell: int, first: int, mine: int, now: int) -> None:
    """Store an access in the three slots of its kind."""
    accessor = load(cell, first)
    # A thread's atomic access does not replace its plain one: only a plain access races with
    # atomics.
    if accessor >> 16 != mine >> 16 and accessor != 0:
        slot = first + (2 if accessor >> 32 == mine >> 32 else 4)
        store(cell, slot, accessor)
        store(cell, slot + 1, load(cell, first + 1))
        if slot == first + 4:
            store(cell, first + 2, 0)
    store(cell, first, mine)
    store(cell, first + 1, now)


@njit
def _check_race(
    s: int, cell: int, mine: int, now: int, kind: int, shared: int, address: int, start: int
) -> None:
    site = mine & 0xFFFF
    last = at.WRITES + (3 if kind == _READ else 6) * at.SLOT
    for slot in range(at.WRITES, last, at.SLOT):
        accessor, epoch = load(cell, slot), load(cell, slot + 1)
        if _conflicts(s, accessor, epoch, mine, now, shared):
            was_read = 1 if slot >= at.WRITES + 3 * at.SLOT else 0
            report(s, _RACE, site, accessor, epoch, address, start, was_read, shared)
            return


@njit
def _check_cell(
    s: int, cell: int, mine: int, now: int, kind: int, shared: int, address: int, start: int
) -> None:
    block = mine >> 32
    if shared:
        if load(cell, 0) != block:
            if kind in (_READ, _ATOMIC):
                report(s, _UNINITIALISED, mine & 0xFFFF, 0, 0, address, start, 1, shared - 1)
            # A new block: forget the accesses of another block to its own shared memory.
            for word in range(at.CELL):
                store(cell, word, 0)
            store(cell, 0, block)
        if kind == _FILL:
            return
    _check_race(s, cell, mine, now, kind, shared, address, start)
    _remember(cell, at.WRITES + (3 * at.SLOT if kind == _READ else 0), mine, now)


@njit
def _check_local(s: int, region: int, address: int, size: int, site: int, kind: int) -> None:
    start, shift = load(s, region), load(s, region + 2)
    words = load(s, region + 3)
    for index in range((address - start) >> shift, ((address + size - 1 - start) >> shift) + 1):
        if kind in (_READ, _ATOMIC) and load(words, index) == 0:
            owner = load(s, region + 4)
            report(s, _UNINITIALISED, site, 0, 0, address, start, 0, owner)
            return
        store(words, index, 1)


@njit
def _find(s: int, table: int, count: int, address: int) -> int:
    for i in range(count):
        region = table + i * at.REGION
        if load(s, region) <= address < load(s, region + 1):
            return region
    return -1


@njit
def _check_cells(
    s: int, region: int, address: int, size: int, site: int, kind: int, shared: int
) -> None:
    start, end, shift = load(s, region), load(s, region + 1), load(s, region + 2)
    cells = load(s, region + 3)
    thread = load(s, at.THREAD)
    mine = pack_accessor(thread, load(s, at.BLOCK), 1 if kind == _ATOMIC else 0, site)
    row = row_of(s, thread)
    barriers = load(s, row + at.BARRIERS_PASSED) & _LOW20
    warps = load(s, row + at.WARP_OPERATIONS_PASSED) & _LOW20
    now = (load(s, at.CLOCK) << 40) | (barriers << 20) | warps
    last = min(address + size, end) - 1
    for index in range((address - start) >> shift, ((last - start) >> shift) + 1):
        cell = cells + index * (at.CELL * 8)
        _check_cell(s, cell, mine, now, kind, shared, address, start)


@native
def access(s: int, address: int, size: int, site: int, kind: int) -> None:
    """Check one access of `size` bytes that is within its array."""
    thread = load(s, at.THREAD)
    row = row_of(s, thread)
    mine = at.LOCALS + (load(s, at.FIRST_ROW) + thread) * at.MAX_LOCALS * at.REGION
    count = load(s, row + at.LOCAL_COUNT)
    region = _find(s, mine, count, address)
    if region >= 0:
        _check_local(s, region, address, size, site, kind)
        return
    if kind == _ATOMIC:
        clock = load(s, at.CLOCK)
        block = block_of(s, load(s, at.BLOCK))
        store(s, row + at.ACQUIRED, clock)
        store(block, at.BLOCK_ACQUIRED, clock)
        store(block, at.PUBLISHED, load(block, at.FENCED))
    region = _find(s, at.SHARED, load(s, at.SHARED_COUNT), address)
    if region >= 0:
        # Counted from 1: 0 is global memory.
        _check_cells(s, region, address, size, site, kind, load(s, region + 4) + 1)
        return
    region = _find(s, at.GLOBALS, load(s, at.GLOBAL_COUNT), address)
    if region >= 0 and kind != _FILL:
        _check_cells(s, region, address, size, site, kind, 0)


# -- indices -----------------------------------------------------------------------------------


@native
def bounds(s: int, site: int, index: int, extent: int, axis: int, data: int) -> None:
    """Report an index outside [0, extent)."""
    scratch = s + at.SCRATCH * 8
    if scratch <= data < scratch + at.SCRATCH_BYTES or data == load(s, at.EMPTY):
        return  # in a view of memory that an earlier report is about
    for word in range(at.SCRATCH, at.STATE_WORDS):
        store(s, word, 0)
    # An index into `a.flat` counts from the first element alone.
    kind = _NEGATIVE if -extent <= index < 0 and axis != _FLAT else _OUTSIDE
    report(s, kind, site, 0, 0, index, extent, axis, 0)


@native
def overflow(s: int, site: int, left: int, right: int, bits: int) -> None:
    """Report an operation on integers whose exact result does not fit into `bits`."""
    report(s, _OVERFLOW, site, 0, 0, left, right, bits, 0)


# -- local and shared arrays -------------------------------------------------------------------


@native
def local_array(s: int, address: int, size: int, shift: int, site: int) -> None:
    """Register a local array, all of it uninitialised."""
    thread = load(s, at.THREAD)
    row = row_of(s, thread) + at.LOCAL_COUNT
    table = at.LOCALS + (load(s, at.FIRST_ROW) + thread) * at.MAX_LOCALS * at.REGION
    count = load(s, row)
    kept = 0
    words = 0
    for i in range(count):
        region = table + i * at.REGION
        start, end = load(s, region), load(s, region + 1)
        if start == address and end == address + size:
            words = load(s, region + 3)
        elif end <= address or address + size <= start:
            # Another array at the same stack address belongs to a call that has returned.
            for word in range(at.REGION):
                store(s, table + kept * at.REGION + word, load(s, region + word))
            kept += 1
    needed = ((size - 1) >> shift) + 1
    if words == 0:
        following = load(s, at.LOCAL_NEXT)
        if kept == at.MAX_LOCALS or following + needed > at.LOCAL_WORDS:
            store(s, at.UNCHECKED, load(s, at.UNCHECKED) + 1)
            store(s, row, kept)
            return
        words = load(s, at.LOCAL_ARENA) + following * 8
        store(s, at.LOCAL_NEXT, following + needed)
    for word in range(needed):
        store(words, word, 0)
    region = table + kept * at.REGION
    store(s, region, address)
    store(s, region + 1, address + size)
    store(s, region + 2, shift)
    store(s, region + 3, words)
    store(s, region + 4, site)
    store(s, row, kept + 1)


@native
def shared_array(s: int, address: int, size: int, shift: int, site: int) -> None:
    """Register a shared array, unless a thread of the block has done so."""
    if size == 0:
        store(s, at.EMPTY, address)
        report(s, _DYNAMIC, site, 0, 0, 0, 0, 0, 0)
        return
    count = load(s, at.SHARED_COUNT)
    if _find(s, at.SHARED, count, address) >= 0:
        return
    needed = ((size - 1) >> shift) + 1
    following = load(s, at.SHARED_NEXT)
    if count == at.MAX_SHARED or following + needed > at.SHARED_CELLS:
        store(s, at.UNCHECKED, load(s, at.UNCHECKED) + 1)
        return
    region = at.SHARED + count * at.REGION
    store(s, region, address)
    store(s, region + 1, address + size)
    store(s, region + 2, shift)
    store(s, region + 3, load(s, at.SHARED_ARENA) + following * (at.CELL * 8))
    store(s, region + 4, site)
    store(s, at.SHARED_NEXT, following + needed)
    store(s, at.SHARED_PEAK, max(load(s, at.SHARED_PEAK), following + needed))
    store(s, at.SHARED_COUNT, count + 1)


# -- the order of threads ----------------------------------------------------------------------


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
    for index in range(min(load(s, row + at.RECONVERGED_COUNT), at.MAX_RECONVERGED_SITES)):
        if load(s, row + at.RECONVERGED_SITES + index) == site:
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
