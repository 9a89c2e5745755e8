"""`HostPool`: one CPU device's memory, cached so that pages are touched and mapped once."""

from __future__ import annotations

import bisect
import contextlib
import mmap
from typing import Any

import numpy as np

from nbrt.errors import OutOfMemoryError

__all__ = ["ALIGNMENT", "HostBlock", "HostPool", "OwnedBytes", "owner_of"]

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector load."""

_SLAB_BYTES = 4 << 20
_SMALL_LIMIT = 1 << 20
_LARGE_STEP = 64 << 10
_MAX_WASTE = 1.25


class HostBlock:
    """A piece of a mapping.

    Attributes
    ----------
    address : int
        First byte; a multiple of `ALIGNMENT`.
    nbytes : int
        Bytes usable.
    """

    __slots__ = ("address", "buffer", "nbytes", "offset", "segment")

    def __init__(self, segment: _Segment, offset: int, nbytes: int) -> None:
        self.segment = segment
        self.buffer = segment.mapping
        self.offset = offset
        self.nbytes = nbytes
        self.address = segment.address + offset


class OwnedBytes(np.ndarray[Any, np.dtype[Any]]):
    """The memory under an array, and the owner that gives it back when the last view is gone.

    NumPy collapses chains of views, but never through another subclass: so every array over a block
    keeps this object, and no other object of ours is needed.
    """

    __slots__ = ("owner",)

    owner: object


def owner_of(array: object) -> object | None:
    """Return what was given as owner of the block under an array, or None for other memory."""
    while isinstance(array, np.ndarray):
        if type(array) is OwnedBytes:
            # A view that somebody took of an array's base has none, but its own base has.
            owner: object | None = getattr(array, "owner", None)
            if owner is not None:
                return owner
        array = array.base
    return None


class _Segment:
    """One anonymous mapping of the operating system."""

    __slots__ = ("address", "in_use", "mapping", "nbytes", "used")

    def __init__(self, nbytes: int) -> None:
        # Private: mmap's default would share the pages with forked children, and shared memory gets
        # no huge pages on most systems.
        self.mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if nbytes >= 2 << 20 and hasattr(mmap, "MADV_HUGEPAGE"):
            # 2 MiB pages: 512 times fewer faults at first touch. Refused on some kernels; harmless.
            with contextlib.suppress(OSError):
                self.mapping.madvise(mmap.MADV_HUGEPAGE)
        self.address = np.frombuffer(self.mapping, np.uint8, 1).ctypes.data
        self.nbytes = nbytes
        self.used = 0
        self.in_use = 0


class HostPool:
    """Best-fit cache of large blocks, size-class bins of small ones.

    A freed block is handed out again at once: an array dies only when no queued command holds it,
    so its memory is idle on every stream. Callers serialise the calls (the runtime holds one lock
    per device).

    Parameters
    ----------
    limit : int
        Bytes that may be mapped; 0 for no limit.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.reserved = 0
        self._bins: dict[int, list[HostBlock]] = {}
        self._slab: _Segment | None = None
        self._large: list[tuple[int, int, HostBlock]] = []

    def allocate(self, nbytes: int) -> HostBlock:
        """Return a block of at least `nbytes`; raises OutOfMemoryError."""
        if nbytes > _SMALL_LIMIT:
            return self._allocate_large(nbytes)
        size = _size_class(nbytes)
        cached = self._bins.get(size)
        block = cached.pop() if cached else self._carve(size)
        block.segment.in_use += 1
        return block

    def deallocate(self, block: HostBlock) -> None:
        """Take a block back into the cache."""
        block.segment.in_use -= 1
        if block.nbytes > _SMALL_LIMIT:
            bisect.insort(self._large, (block.nbytes, block.address, block))
        else:
            self._bins.setdefault(block.nbytes, []).append(block)

    def empty_cache(self) -> None:
        """Unmap every mapping that holds no block in use."""
        for _, _, block in self._large:
            self._unmap(block.segment)
        self._large.clear()
        idle: dict[int, _Segment] = {}
        for size, blocks in list(self._bins.items()):
            for block in blocks:
                if block.segment.in_use == 0:
                    idle[id(block.segment)] = block.segment
            self._bins[size] = [block for block in blocks if block.segment.in_use]
        if self._slab is not None and self._slab.in_use == 0:
            idle[id(self._slab)] = self._slab
            self._slab = None
        for segment in idle.values():
            self._unmap(segment)

    def _allocate_large(self, nbytes: int) -> HostBlock:
        size = -(-nbytes // _LARGE_STEP) * _LARGE_STEP
        place = bisect.bisect_left(self._large, (size, 0))
        if place < len(self._large) and self._large[place][0] <= size * _MAX_WASTE:
            block = self._large.pop(place)[2]
        else:
            block = HostBlock(self._map(size), 0, size)
        block.segment.in_use += 1
        return block

    def _carve(self, size: int) -> HostBlock:
        slab = self._slab
        if slab is None or slab.used + size > slab.nbytes:
            slab = self._slab = self._map(_SLAB_BYTES)
        block = HostBlock(slab, slab.used, size)
        slab.used += size
        return block

    def _map(self, nbytes: int) -> _Segment:
        if self.limit and self.reserved + nbytes > self.limit:
            self.empty_cache()
            if self.reserved + nbytes > self.limit:
                raise OutOfMemoryError(
                    f"expected room for {nbytes} bytes within the limit of {self.limit}, got "
                    f"{self.reserved} bytes in use; free arrays or raise NBRT_CPU_MEMORY_LIMIT"
                )
        try:
            segment = _Segment(nbytes)
        except (OSError, OverflowError, MemoryError, ValueError):
            self.empty_cache()
            segment = self._map_again(nbytes)
        self.reserved += segment.nbytes
        return segment

    def _map_again(self, nbytes: int) -> _Segment:
        try:
            return _Segment(nbytes)
        except (OSError, OverflowError, MemoryError, ValueError) as error:
            raise OutOfMemoryError(
                f"expected the system to map {nbytes} bytes, got {error}; {self.reserved} bytes "
                f"are reserved here after the cache was emptied; free arrays or ask for less"
            ) from error

    def _unmap(self, segment: _Segment) -> None:
        # The mapping goes when its last Python reference does: closing it by hand would fail while
        # a dying array still exports it.
        self.reserved -= segment.nbytes


def _size_class(nbytes: int) -> int:
    """Round up to a multiple of 64 bytes, coarser above 512: at most an eighth is wasted."""
    if nbytes <= 512:
        return (nbytes + 63) & -64 or ALIGNMENT
    mask = (1 << ((nbytes - 1).bit_length() - 3)) - 1
    return (nbytes + mask) & ~mask
