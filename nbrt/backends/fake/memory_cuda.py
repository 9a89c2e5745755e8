"""The pools of fake CUDA devices: the same cuts of the same segments as the real ones make.

The kinds "caching", "managed" and "system" are models of ``cupy.cuda.MemoryPool``: best fit among
the free blocks of a stream, split at the front, merged with free neighbours of the same segment.
Where several blocks fit equally well, CuPy takes any; these take the one in the newest segment.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from nbrt.backends.cpu.memory.caching import Arena, round_up
from nbrt.backends.fake.memory_device import DeviceFullError
from nbrt.backends.fake.memory_segments import FakeBlock, FakeSegment, address_of, map_fake
from nbrt.backends.pools import SMALL_LIMIT, MappedRange, PoolBase, SegmentInfo
from nbrt.errors import OutOfMemoryError

if TYPE_CHECKING:
    from nbrt.backends.fake.memory_device import DeviceMemory
    from nbrt.backends.queue import Queue

__all__ = [
    "FakeCudaPool",
    "FakeCupyPool",
    "FakeExpandablePool",
    "FakePinnedPool",
    "FakePlainPool",
    "FakeStreamOrderedPool",
]

_UNIT = 512
"""Bytes that blocks are multiples of."""

_SMALL_SEGMENT = 2 << 20
"""Bytes taken at once for small blocks."""

_MIN_RANGE = 1 << 45
"""Bytes of addresses of an expandable range where the size of the device is not enforced."""


class FakeCudaPool(PoolBase):
    """Fake memory of one device.

    Parameters
    ----------
    memory : DeviceMemory
        The memory of the device.
    kind : str
        The kind of pool.

    Attributes
    ----------
    granularity : int
        Bytes that blocks are multiples of.
    is_on_device : bool
        The segments take memory of the device.
    """

    caches = True
    granularity = _UNIT
    is_on_device = True

    def __init__(self, memory: DeviceMemory, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self._memory = memory

    def allocate(self, queue: Queue, nbytes: int) -> FakeBlock:
        """Return a block for work on `queue`; the cache is emptied before it fails."""
        if self._is_closed:
            self._check_open()
        size = (nbytes + _UNIT - 1) & -_UNIT
        try:
            return self._take(queue.handle, size)
        except OutOfMemoryError:
            self._drop()
            return self._take(queue.handle, size)

    def deallocate(self, queue: Queue, block: FakeBlock) -> None:
        """Free a block; idempotent."""
        if block.segment is None:
            return
        self._give(block)
        block.release()
        if self._is_closed:
            self._drop()

    def empty_cache(self) -> None:
        """Return the memory that no block uses."""
        self._drop()

    @abstractmethod
    def _take(self, stream: int, size: int) -> FakeBlock:
        """Return a block of `size` bytes."""

    @abstractmethod
    def _give(self, block: FakeBlock) -> None:
        """Free a block."""

    @abstractmethod
    def _drop(self) -> None:
        """Return unused memory."""

    def _obtain(self, nbytes: int) -> FakeSegment:
        """Return a new segment, which counts."""
        self._check_limit(nbytes)
        self._check_device(nbytes)
        segment = _mapped(nbytes)
        self._add_segment(nbytes)
        return segment

    def _check_device(self, nbytes: int) -> None:
        if self.is_on_device:
            self._memory.check(nbytes)


class FakeCupyPool(FakeCudaPool):
    """Cached memory: for each stream, an arena of small blocks and one of large ones."""

    keeps_segments = True

    def __init__(self, memory: DeviceMemory, kind: str) -> None:
        super().__init__(memory, kind)
        self.is_on_device = kind == "caching"
        self._arenas: dict[tuple[bool, int], Arena] = {}

    def segments(self) -> list[SegmentInfo]:
        """Return the segments."""
        return [
            SegmentInfo(segment.address, segment.nbytes, stream, is_small)
            for (is_small, stream), arena in self._arenas.items()
            for segment in arena.segments.values()
        ]

    def _take(self, stream: int, size: int) -> FakeBlock:
        is_small = size <= SMALL_LIMIT
        arena = self._arenas.get((is_small, stream))
        if arena is None:
            arena = self._arenas[is_small, stream] = Arena(_UNIT, FakeBlock)
        position = arena.free.take(size)
        if position is None:
            self._grow(arena, is_small, size)
            position = arena.free.take(size)
            assert position is not None
        block: FakeBlock = arena.block(position, size)
        block.arena = arena
        return block

    def _grow(self, arena: Arena, is_small: bool, size: int) -> None:
        """Add a segment with room for a block to an arena."""
        if is_small:
            try:
                self._extend(arena, is_small, _SMALL_SEGMENT)
            except OutOfMemoryError:
                pass
            else:
                return
        self._extend(arena, is_small, size)

    def _extend(self, arena: Arena, is_small: bool, nbytes: int) -> None:
        try:
            segment = self._obtain(nbytes)
        except DeviceFullError:
            self._drop_idle(is_small)
            segment = self._obtain(nbytes)
        arena.free.add(arena.add(segment, nbytes), nbytes)

    def _give(self, block: FakeBlock) -> None:
        block.arena.free.add(block.position, block.nbytes)

    def _drop(self) -> None:
        self._drop_idle(True)
        self._drop_idle(False)

    def _drop_idle(self, is_small: bool) -> None:
        """Return the segments of small or of large blocks that hold no block."""
        for key, arena in self._arenas.items():
            if key[0] == is_small:
                for position in arena.idle():
                    nbytes = arena.segments[position].nbytes
                    arena.free.cut(position, nbytes, position)
                    arena.drop(position)
                    self._remove_segment(nbytes)


class FakePlainPool(FakeCudaPool):
    """Every block is a segment."""

    caches = False

    def _take(self, stream: int, size: int) -> FakeBlock:
        segment = self._obtain(size)
        block = FakeBlock(segment, 0, size, address_of(segment))
        self._segments[block.address] = SegmentInfo(
            block.address, size, stream, size <= SMALL_LIMIT
        )
        return block

    def _give(self, block: FakeBlock) -> None:
        self._remove_block(block.address)

    def _drop(self) -> None:
        """Do nothing: nothing is cached."""


class FakePinnedPool(FakeCudaPool):
    """Page-locked host memory in powers of two; freed segments serve requests of their size.

    A model of ``cupy.cuda.PinnedMemoryPool``.
    """

    stream_ordered = False
    is_on_device = False

    def __init__(self, memory: DeviceMemory, kind: str) -> None:
        super().__init__(memory, kind)
        self._free: dict[int, list[FakeSegment]] = {}

    def _take(self, stream: int, size: int) -> FakeBlock:
        size = 1 << (size - 1).bit_length()
        free = self._free.get(size)
        if free:
            segment = free.pop()
        else:
            segment = self._obtain(size)
            address = address_of(segment)
            self._segments[address] = SegmentInfo(address, size)
        return FakeBlock(segment, 0, size, address_of(segment))

    def _give(self, block: FakeBlock) -> None:
        self._free.setdefault(block.nbytes, []).append(block.segment)

    def _drop(self) -> None:
        for segments in self._free.values():
            for segment in segments:
                self._remove_block(address_of(segment))
        self._free.clear()


class FakeStreamOrderedPool(FakeCudaPool):
    """A pool of the driver, which holds the bytes in use, rounded up, and what it held before.

    It returns memory above a threshold, the limit, when a block is freed.
    """

    caches = False

    def __init__(self, memory: DeviceMemory, kind: str) -> None:
        super().__init__(memory, kind)
        self._unit = memory.driver.pool_unit
        self._held: int | None = None  # None: the driver has no pool

    def reserved(self) -> int:
        """Return the bytes of the driver's pool; once closed, of the blocks in use."""
        return self._reserved if self._held is None else self._held

    def close(self) -> None:
        """Destroy the driver's pool."""
        super().close()
        self._held = None

    def _take(self, stream: int, size: int) -> FakeBlock:
        if self._limit is not None and self._reserved + size > self._limit:
            raise self._out_of_memory(size, f"a limit of {self._limit} bytes")
        held = self._held or 0
        needed = round_up(self._reserved + size, self._unit)
        if needed > held:
            self._check_device(needed - held)
        segment = _mapped(size)
        self._held = max(held, needed)
        block = FakeBlock(segment, 0, size, address_of(segment))
        self._add_block(block.address, size, stream)
        return block

    def _give(self, block: FakeBlock) -> None:
        self._remove_block(block.address)
        if self._limit is not None:
            self._shrink(self._limit)

    def _drop(self) -> None:
        self._shrink(0)

    def _shrink(self, kept: int) -> None:
        if self._held is not None and kept <= self._held:
            self._held = min(self._held, round_up(max(self._reserved, kept), self._unit))


class FakeExpandablePool(FakeCudaPool):
    """Address ranges larger than the device, of which pages are mapped as they are needed.

    Parameters
    ----------
    memory : DeviceMemory
        The memory of the device.
    """

    def __init__(self, memory: DeviceMemory, kind: str) -> None:
        super().__init__(memory, kind)
        self._page = memory.driver.page
        nbytes = 2 * memory.properties.total_memory
        if not memory.enforce:
            nbytes = max(nbytes, _MIN_RANGE)
        self._range_bytes = round_up(nbytes, self._page)
        self._ranges: dict[tuple[int, bool], _Pages] = {}

    def segments(self) -> list[SegmentInfo]:
        """Return the mapped memory, adjacent mappings as one entry."""
        return [
            SegmentInfo(area.address + start, nbytes, stream, is_small, is_expandable=True)
            for (stream, is_small), area in self._ranges.items()
            for start, nbytes in area.runs()
        ]

    def _take(self, stream: int, size: int) -> FakeBlock:
        key = (stream, size <= SMALL_LIMIT)
        area = self._ranges.get(key)
        if area is None:
            area = self._ranges[key] = _Pages(self._range_bytes, self._page)
        start = area.free.take(size)
        if start is None:
            raise self._out_of_memory(size, f"no free range as large of {self._range_bytes}")
        try:
            missing = area.missing(start, size)
            if missing:
                self._check_limit(sum(nbytes for _, nbytes in missing))
            for offset, nbytes in missing:
                self._check_device(nbytes)
                area.map(offset, nbytes)
                self._add_segment(nbytes)
        except OutOfMemoryError:
            area.free.add(start, size)
            raise
        block = FakeBlock(area.segment, start, size, area.address + start, start)
        block.arena = area
        return block

    def _give(self, block: FakeBlock) -> None:
        block.arena.free.add(block.position, block.nbytes)

    def _drop(self) -> None:
        for key, area in list(self._ranges.items()):
            for nbytes in area.unmap_free():
                self._remove_segment(nbytes)
            if self._is_closed and not area.is_mapped():
                del self._ranges[key]


class _Pages(MappedRange):
    """A range of fake addresses, whose pages are only counted."""

    def __init__(self, nbytes: int, page: int) -> None:
        self.segment = _mapped(nbytes)
        super().__init__(self, 0, nbytes, page)

    def reserve_range(self, nbytes: int) -> int:
        """Return the first address."""
        return address_of(self.segment)

    def map_range(self, index: int, address: int, nbytes: int) -> None:
        """Do nothing."""

    def unmap_range(self, address: int, nbytes: int) -> None:
        """Do nothing."""


def _mapped(nbytes: int) -> FakeSegment:
    try:
        return map_fake(nbytes)
    except MemoryError as error:
        raise OutOfMemoryError(f"{error}; free arrays or request less") from error
