"""The layout of the memory that a checked launch and the shadow runtime share.

It is one array of 64-bit words per process. Its address is a constant in checked code; a checked
launch holds a lock, so one launch at a time uses it.

A *cell* is the shadow of one granule of shared or global memory. Its first word is the block that
has initialised it (shared memory). Six *slots* follow, three for writes and three for reads: the
last access, the last one by another thread of the same block, the last one by another block. They
suffice to find a conflict: within a block any other thread will do, between blocks any other block.

A slot is two words. ``accessor``: block + 1 (31 bits), thread (11), whether atomic (1), site (16);
0 is an empty slot. ``epoch``: the launch's clock of fences (24 bits), and the barriers (20) and
warp operations (20) that the thread has passed.
"""

from __future__ import annotations

from enum import IntEnum


class Access(IntEnum):
    """A kind of access to an element."""

    READ = 0
    WRITE = 1
    ATOMIC = 2
    FILL = 3
    """A write by code that is not instrumented: the element is initialised from now on."""


class Kind(IntEnum):
    """The kind of a report."""

    OUT_OF_BOUNDS = 1
    NEGATIVE_INDEX = 2
    INDEX_OVERFLOW = 3
    UNINITIALISED = 4
    RACE = 5
    BARRIER = 6
    WARP = 7
    DYNAMIC_SHARED = 8
    LIMITS = 9


MAX_RESIDENT_THREADS = 4096
MAX_GLOBALS = 64
MAX_SHARED = 512
MAX_LOCALS = 16
MAX_REPORTS = 128
MAX_RECONVERGED_SITES = 8
ARRIVAL_RING = 1024
LOCAL_WORDS = 1 << 22
SHARED_CELLS = 1 << 19
SCRATCH_BYTES = 1 << 16

# -- the head: one word each -------------------------------------------------------------------
(
    THREAD,  # the thread that runs, by its rank in the block
    BLOCK,  # its block, counted from 1
    FIRST_ROW,  # row of its block's first thread in the table of threads
    BLOCK_THREADS,
    ROWS,  # rows in use: of one block, or of all blocks if they are resident together
    CLOCK,  # counts fences and grid barriers, from 1
    GRID_SYNCS,  # grid barriers passed
    GRID_SYNCED,  # the clock at the last one
    BLOCKS,  # address of the table of blocks
    GLOBAL_COUNT,
    SHARED_COUNT,
    SHARED_ARENA,  # address of the cells for shared memory, and the next free one
    SHARED_NEXT,
    LOCAL_ARENA,  # address of the words for local memory, and the next free one
    LOCAL_NEXT,
    REPORT_COUNT,
    STRICT,
    PAIRS_USED,
    UNCHECKED,  # arrays for which no shadow memory was left
    SHARED_PEAK,  # most cells for shared memory that a block has used
    EMPTY,  # address of dynamic shared memory of size 0
) = range(21)

# -- the tables --------------------------------------------------------------------------------
REGION = 5
"""Words of a region: start, end, log2 of the granule, address of its shadow, site."""

REPORT = 10
"""Words of a report: kind, site, thread, block, accessor and epoch of the other, four figures."""

(
    BARRIERS_PASSED,
    WARP_OPERATIONS_PASSED,
    LOCAL_COUNT,
    ACQUIRED,  # the clock at the thread's last atomic operation
    GRID_SYNCS_PASSED,
    RETURNED,  # whether a `return` statement has ended it
    RECONVERGED_AT,  # barriers that it had passed at its last point of reconvergence
    RECONVERGED_COUNT,
    RECONVERGED_SITES,  # the last barriers at whose points of reconvergence it was
) = range(9)
THREAD_WORDS = RECONVERGED_SITES + MAX_RECONVERGED_SITES

(
    PUBLISHED,  # the clock that the block's last atomic operation made visible
    FENCED,  # the clock at its last fence
    BLOCK_ACQUIRED,  # the clock at its last atomic operation
) = range(3)
BLOCK_WORDS = 3

SLOT = 2
CELL = 1 + 6 * SLOT
WRITES = 1
"""First slot of writes in a cell; the slots of reads follow three slots later."""

GLOBALS = 32
SHARED = GLOBALS + MAX_GLOBALS * REGION
LOCALS = SHARED + MAX_SHARED * REGION
THREADS = LOCALS + MAX_RESIDENT_THREADS * MAX_LOCALS * REGION
ARRIVALS = THREADS + MAX_RESIDENT_THREADS * THREAD_WORDS
"""Ring of barriers: block, number, and the site and thread of the first arrival."""
GRID_ARRIVAL = 3
GRID_ARRIVALS = ARRIVALS + ARRIVAL_RING * 4
"""Ring of grid barriers: number, counted from 1, and site and accessor of the first arrival."""
PAIRS = GRID_ARRIVALS + ARRIVAL_RING * GRID_ARRIVAL
"""For each two lanes of a warp: operations of the first that name the second, two last sites."""
REPORTS = PAIRS + MAX_RESIDENT_THREADS * 32 * 3
SCRATCH = REPORTS + MAX_REPORTS * REPORT
"""Zeros, to which an access outside its array is redirected."""
STATE_WORDS = SCRATCH + SCRATCH_BYTES // 8
