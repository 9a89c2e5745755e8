"""Where things are in the memory that a checked launch and its shadow runtime share.

One array of 64-bit words per process. Its address is compiled into checked code; a launch in
checked mode holds a lock, so there is never more than one using it.

A *cell* is the shadow of one granule of shared or global memory: a word that says which block has
initialised it (shared memory), then six *slots*, three for writes and three for reads: the last
access, the last one by another thread of the same block, the last one by another block. That is
enough to find a conflict if there is one: within a block any other thread will do, between blocks
any other block.

A slot is two words. ``who``: block + 1 (31 bits), thread (11), whether atomic (1), site (16); 0 is
an empty slot. ``when``: the launch's clock of fences (24 bits), barriers (20) and warp operations
(20) that the thread has passed.
"""

from __future__ import annotations

__all__ = [
    "ACQUIRED",
    "ARRIVALS",
    "ARRIVAL_RING",
    "BLOCK",
    "BLOCKS",
    "BLOCK_ACQUIRED",
    "BLOCK_THREADS",
    "BLOCK_WORDS",
    "CELL",
    "CLOCK",
    "EMPTY",
    "FAR_COUNT",
    "FAR_MADE",
    "FAR_SITES",
    "FENCED",
    "GLOBALS",
    "GLOBAL_COUNT",
    "GRID_ARRIVAL",
    "GRID_ARRIVALS",
    "GRID_SYNCED",
    "GRID_SYNCS",
    "LOCALS",
    "LOCAL_ARENA",
    "LOCAL_COUNT",
    "LOCAL_NEXT",
    "LOCAL_WORDS",
    "MADE_BARRIERS",
    "MADE_GRID_SYNCS",
    "MADE_WARPS",
    "MAX_FAR_SITES",
    "MAX_GLOBALS",
    "MAX_LOCALS",
    "MAX_REPORTS",
    "MAX_SEATS",
    "MAX_SHARED",
    "PAIRS",
    "PAIRS_USED",
    "PUBLISHED",
    "REGION",
    "REPORT",
    "REPORTS",
    "REPORT_COUNT",
    "RETURNED",
    "SCRATCH",
    "SCRATCH_BYTES",
    "SEAT",
    "SEATS",
    "SHARED",
    "SHARED_ARENA",
    "SHARED_CELLS",
    "SHARED_COUNT",
    "SHARED_MOST",
    "SHARED_NEXT",
    "SLOT",
    "STATE_WORDS",
    "STRICT",
    "THREAD",
    "THREADS",
    "THREAD_WORDS",
    "UNCHECKED",
    "WRITES",
]

MAX_SEATS = 4096
MAX_GLOBALS = 64
MAX_SHARED = 512
MAX_LOCALS = 16
MAX_REPORTS = 128
MAX_FAR_SITES = 8
ARRIVAL_RING = 1024
LOCAL_WORDS = 1 << 22
SHARED_CELLS = 1 << 19
SCRATCH_BYTES = 1 << 16

# -- the head: one word each -------------------------------------------------------------------
(
    THREAD,  # the thread that runs, by its rank in the block
    BLOCK,  # its block, counted from 1
    SEAT,  # row of its block's first thread in the table of threads
    BLOCK_THREADS,
    SEATS,  # rows in use: of one block, or of all where blocks wait for each other
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
    UNCHECKED,  # arrays that there was no shadow memory left for
    SHARED_MOST,  # most cells for shared memory that a block has used
    EMPTY,  # address of dynamic shared memory of no size
) = range(21)

# -- the tables --------------------------------------------------------------------------------
REGION = 5
"""Words of a region: start, end, log2 of the granule, address of its shadow, site."""

REPORT = 10
"""Words of a report: kind, site, thread, block, who and when of the other, four figures."""

(
    MADE_BARRIERS,
    MADE_WARPS,
    LOCAL_COUNT,
    ACQUIRED,
    MADE_GRID_SYNCS,
    RETURNED,
    FAR_MADE,
    FAR_COUNT,
    FAR_SITES,
) = range(9)
THREAD_WORDS = FAR_SITES + MAX_FAR_SITES
"""Words of a thread: barriers and warp operations that it has made, its local arrays, the clock at
its last atomic operation, grid barriers, whether a ``return`` statement has ended it; then the
barriers that it had made when it last reached the far side of one, and the last such sites."""

(PUBLISHED, FENCED, BLOCK_ACQUIRED) = range(3)
BLOCK_WORDS = 3
"""Words of a block: the clock that its last atomic operation made visible, the clock at its last
fence, and the clock at its last atomic operation."""

SLOT = 2
CELL = 1 + 6 * SLOT
WRITES = 1
"""First slot of writes in a cell; that of reads follows three slots later."""

GLOBALS = 32
SHARED = GLOBALS + MAX_GLOBALS * REGION
LOCALS = SHARED + MAX_SHARED * REGION
THREADS = LOCALS + MAX_SEATS * MAX_LOCALS * REGION
ARRIVALS = THREADS + MAX_SEATS * THREAD_WORDS
"""Ring of barriers: block, number, site and thread of who came first."""
GRID_ARRIVAL = 3
GRID_ARRIVALS = ARRIVALS + ARRIVAL_RING * 4
"""Ring of barriers of the grid: number, counted from 1, site and thread of who came first."""
PAIRS = GRID_ARRIVALS + ARRIVAL_RING * GRID_ARRIVAL
"""For each two lanes of a warp: operations of the first that name the second, two last sites."""
REPORTS = PAIRS + MAX_SEATS * 32 * 3
SCRATCH = REPORTS + MAX_REPORTS * REPORT
"""Zeros, in whose place an access outside its array happens."""
STATE_WORDS = SCRATCH + SCRATCH_BYTES // 8
