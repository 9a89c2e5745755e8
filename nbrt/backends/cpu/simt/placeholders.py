"""Placeholder intrinsics: calls in the LLVM IR of one thread for operations of several threads.

The builtins of the dialect emit these markers as calls of undefined functions. A lowering of the
block (lanes or coroutines) replaces each of them, so machine code contains none.

========================================  ======================================================
``void @nbrt.barrier()``                  ``cuda.syncthreads``
``i32 @nbrt.barrier.count(i32)``          ``syncthreads_count``; also ``.and`` and ``.or``
``void @nbrt.grid.sync()``                ``cuda.cg.this_grid().sync()``
``void @nbrt.warp.sync(i32 mask)``        ``cuda.syncwarp``
``iN @nbrt.shfl.M.iN(i32 mask, iN value,  ``shfl_sync`` (M = idx), ``shfl_up_sync`` (up), ``down``,
i32 lane)``                               ``xor``; N is 32 or 64, other types are cast around it
``i32 @nbrt.vote.K(i32 mask, i32 test)``  ``all``, ``any``, ``eq`` give 0 or 1, ``ballot`` a mask
``i32 @nbrt.match.any.iN(i32, iN)``       the lanes of the mask that hold the same value
``i32 @nbrt.match.all.iN(i32, iN)``       the mask if all its lanes hold one value, else 0
``i32 @nbrt.activemask()``                ``cuda.activemask``
``ptr @nbrt.shared.B.A.SITE()``           a static shared array of B bytes aligned to A; one array
                                          for every SITE (a call of ``shared.array`` in a function)
``ptr @nbrt.shared.dynamic()``            where dynamic shared memory begins
``i64 @nbrt.shared.bytes()``              its size in this launch, in bytes
``void @nbrt.place.HEX()``                no operation: ``FILE:LINE`` of the loop or barrier that
                                          follows; an empty function, which a lowering that
                                          needs source locations declares without a body
``void @nbrt.yield()``                    other threads run before this one continues
``void @nbrt.changed(i1)``                the thread makes progress, if the value is true; only
                                          ``coroutines/yields.py`` emits these two
``T @nbrt.sums.lanes(T)``                 the value of an active lane, zero in others; only
                                          ``lanes/analysis/warp_sums.py`` emits these three
``void @nbrt.sums.keep(ptr at, ptr sums,  store partial sums of a warp in `vectors`, where the
ptr vectors, T lanes)``                   sum would be in `sums`
``T @nbrt.sums.total(ptr sums,            the total of the sums at addresses in `sums`
ptr vectors, ptr...)``
========================================  ======================================================
"""

from __future__ import annotations

__all__ = [
    "ACTIVEMASK",
    "BARRIER",
    "CHANGED",
    "GRID_SYNC",
    "MATCH",
    "PLACE",
    "PREFIX",
    "SHARED",
    "SHARED_BYTES",
    "SHARED_DYNAMIC",
    "SHUFFLE",
    "SUMS",
    "SUM_KEEP",
    "SUM_LANES",
    "SUM_TOTAL",
    "VOTE",
    "WARP_OPERATIONS",
    "WARP_SIZE",
    "WARP_SYNC",
    "YIELD",
    "is_marker",
    "place_marker",
    "place_of",
    "shared_array",
    "shared_extent",
]

WARP_SIZE = 32

PREFIX = "nbrt."
BARRIER = "nbrt.barrier"
GRID_SYNC = "nbrt.grid.sync"
WARP_SYNC = "nbrt.warp.sync"
SHUFFLE = "nbrt.shfl."
VOTE = "nbrt.vote."
MATCH = "nbrt.match."
ACTIVEMASK = "nbrt.activemask"
WARP_OPERATIONS = (SHUFFLE, VOTE, MATCH, ACTIVEMASK)
SHARED = "nbrt.shared."
SHARED_DYNAMIC = "nbrt.shared.dynamic"
SHARED_BYTES = "nbrt.shared.bytes"
PLACE = "nbrt.place."
YIELD = "nbrt.yield"
CHANGED = "nbrt.changed"

SUMS = "nbrt.sums."
SUM_LANES = "nbrt.sums.lanes"
SUM_KEEP = "nbrt.sums.keep"
SUM_TOTAL = "nbrt.sums.total"


def is_marker(symbol: str) -> bool:
    """Return whether a called function is a marker."""
    return symbol.startswith(PREFIX)


def shared_array(size: int, alignment: int, site: str) -> str:
    """Return the name of the marker of a static shared array."""
    return f"{SHARED}{size}.{alignment}.{site}"


def shared_extent(symbol: str) -> tuple[int, int]:
    """Return size and alignment, in bytes, of a static shared array from its marker's name."""
    size, alignment = symbol.removeprefix(SHARED).split(".")[:2]
    return int(size), int(alignment)


def place_marker(file: str, line: int) -> str:
    """Return the name of the marker of a source location."""
    return PLACE + f"{file}:{line}".encode().hex()


def place_of(symbol: str) -> str:
    """Return the source location, ``FILE:LINE``, from its marker's name."""
    return bytes.fromhex(symbol.removeprefix(PLACE)).decode()
