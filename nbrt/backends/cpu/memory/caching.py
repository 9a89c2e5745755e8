"""`CachingPool`: host memory in mappings that are cut into blocks and kept for the next ones.

From the bottom: `HostBlock`, which arrays are made over; `Arena`, the mappings it is cut from;
`HostPool`, the base of all pools of host memory.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.backends.cpu.memory.mapping import HUGE_PAGE, MAPPING_ERRORS, address_of, map_segment
from nbrt.backends.pools import SMALL_LIMIT, FreeRanges, PoolBase, SegmentInfo

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from nbrt.backends.queue import Queue
    from nbrt.typing import HostArray

__all__ = [
    "ALIGNMENT",
    "LARGE_UNIT",
    "Arena",
    "BlockBytes",
    "CachingPool",
    "HostBlock",
    "HostPool",
    "block_from_external",
    "owner_of",
    "round_up",
]

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector load."""

LARGE_UNIT = 64 << 10
"""Large blocks are multiples of this many bytes, which is a multiple of every page size."""

_BYTE = np.dtype(np.uint8)
_SHARED_BYTES = 16 << 20
_MAX_SHARING = 8 << 20
_MAX_KEPT = 2


class BlockBytes(np.ndarray[Any, np.dtype[Any]]):
    """The bytes of a block, at the end of the bases of every array over it.

    NumPy collapses chains of views, but never through another class. So the one plain array
    directly over these bytes is kept by all its views, and dies with the last. This object keeps
    the mapping.
    """

    __slots__ = ("kept", "owner")

    kept: object
    owner: object

    def __array_finalize__(self, parent: object) -> None:
        # A view of an array's base must keep the array alive. So must a view of this class of an
        # array, which NumPy lets refer to the array's base.
        if type(parent) is BlockBytes:
            owner = getattr(parent, "owner", None)
            first = getattr(parent, "kept", None)
            self.kept = first if owner is None else getattr(owner, "handle", None)
        elif parent is not None:
            self.kept = parent


class HostBlock:
    """Host memory for one owner at a time.

    Parameters
    ----------
    buffer : object
        The memory that the block is a part of; kept as long as any array over the block.
    offset, nbytes : int
        The part.
    address : int
        First byte.

    Attributes
    ----------
    address, nbytes : int
        First byte, and the usable bytes.
    view : memoryview
        The bytes. A plain array directly over them is a handle, for the latest owner.
    """

    __slots__ = ("_bytes", "address", "nbytes", "view")

    def __init__(self, buffer: Any, offset: int, nbytes: int, address: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self._bytes = BlockBytes((nbytes,), _BYTE, buffer, offset)
        # NumPy looks through memoryviews: the base of an array over it is the bytes.
        self.view = memoryview(self._bytes)  # type: ignore[arg-type]  # mypy knows no buffers before 3.12

    def handle(self, owner: object) -> HostArray:
        """Return the bytes as a new array, which every array made over it keeps."""
        self._bytes.owner = owner
        return np.ndarray((self.nbytes,), _BYTE, self.view)

    def template(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
        """Return the bytes in a shape and dtype: plain arrays are views of it, made fast."""
        template = BlockBytes(shape, dtype, self.view)
        template.owner = self._bytes.owner
        return template

    def release(self) -> None:
        """Drop the owner and the memory: the block is free."""
        self._bytes.owner = None
        del self._bytes, self.view


def block_from_external(address: int, nbytes: int, keep: object) -> HostBlock:
    """Return memory of another allocator as a block; `keep` lives as long as any array over it."""
    memory = (ctypes.c_char * nbytes).from_address(address)
    memory.keep = keep  # type: ignore[attr-defined]
    return HostBlock(memory, 0, nbytes, address)


def owner_of(array: object) -> object | None:
    """Return the owner of the block under an array or a view of it; None if there is no block."""
    base: Any = array
    while True:
        kind = type(base)
        if kind is np.ndarray:
            base = base.base
        elif kind is BlockBytes:
            # A user's view of the bytes has no owner, but its own base has.
            owner: object | None = getattr(base, "owner", None)
            if owner is not None:
                return owner
            base = base.base
        elif kind is memoryview:
            base = base.obj
        elif base is None or (base is array and not isinstance(base, np.ndarray)):
            return None
        else:
            # An array of another class, or NumPy's stride tricks between two arrays.
            base = getattr(base, "base", None)


def round_up(nbytes: int, unit: int) -> int:
    """Return the smallest multiple of `unit`, a power of two, that is at least `nbytes`."""
    return (nbytes + unit - 1) & -unit


class HostSegment(NamedTuple):
    """The used part of a mapping, which begins at `origin` or a little behind it."""

    mapping: mmap.mmap
    origin: int
    nbytes: int


class Arena:
    """Mappings for blocks of multiples of `unit` bytes, and the free memory in them.

    Attributes
    ----------
    unit : int
        Bytes, a power of two.
    segments : dict of int to HostSegment
        By their first address.
    free : FreeRanges
        The free memory. The caller of `add` adds the free part of the segment.
    """

    __slots__ = ("_starts", "free", "segments", "unit")

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self.segments: dict[int, HostSegment] = {}
        self.free = FreeRanges(boundaries=self.segments)
        self._starts: list[int] = []

    def add(self, mapping: mmap.mmap, nbytes: int, alignment: int = 1) -> int:
        """Add `nbytes` of a mapping from its first aligned address on; return that."""
        origin = address_of(mapping)
        address = round_up(origin, alignment)
        self.segments[address] = HostSegment(mapping, origin, nbytes)
        insort(self._starts, address)
        return address

    def drop(self, address: int) -> None:
        """Remove a segment; its mapping lives as long as arrays over it do."""
        self._starts.remove(address)
        del self.segments[address]

    def idle(self) -> list[int]:
        """Return the segments that are wholly free, in the order in which they became so."""
        segments = self.segments
        return [
            address
            for address, nbytes in self.free.sizes.items()
            if address in segments and segments[address].nbytes == nbytes
        ]

    def segment_of(self, address: int) -> HostSegment:
        """Return the segment that an address lies in."""
        return self.segments[self._starts[bisect_right(self._starts, address) - 1]]

    def block(self, address: int, nbytes: int) -> HostBlock:
        """Return the block at an address that was taken from the free memory."""
        segment = self.segment_of(address)
        return HostBlock(segment.mapping, address - segment.origin, nbytes, address)


class HostPool(PoolBase):
    """Mappings of the system, counted and limited.

    Parameters
    ----------
    mapper : callable, optional
        Returns a mapping of so many bytes, or raises one of `MAPPING_ERRORS`.
    """

    stream_ordered = False
    caches = True

    def __init__(self, mapper: Callable[[int], mmap.mmap] = map_segment) -> None:
        super().__init__()
        self._mapper = mapper

    def _map(self, nbytes: int, guard: int = 0) -> mmap.mmap | str:
        """Return a mapping, which counts without its guard; or the reason of a refusal."""
        if self._limit is not None and self._reserved + nbytes > self._limit:
            return f"a limit of {self._limit} bytes"
        try:
            mapping = self._mapper(nbytes + guard)
        except MAPPING_ERRORS as error:
            return f"{error!r} from the system"
        self._add_segment(nbytes)
        return mapping


class CachingPool(HostPool):
    """Best fit with split and merge: one arena for small blocks, one for large ones.

    A freed block may be reused at once: queued commands keep their arrays alive, so its memory is
    idle on every stream. Small blocks are cut from segments of 2 MiB, blocks below 8 MiB from
    segments of 16 MiB; larger ones have their own, rounded up to 2 MiB. Before it grows, the pool
    releases idle segments that it would otherwise hold beyond twice the peak in use.

    Attributes
    ----------
    before_growth : callable or None
        Called before the pool takes memory from the system; blocks that it frees are used.
    """

    kind = "caching"

    def __init__(self, mapper: Callable[[int], mmap.mmap] = map_segment) -> None:
        super().__init__(mapper)
        self._small = Arena(ALIGNMENT)
        self._large = Arena(LARGE_UNIT)
        self._in_use = 0
        self._peak = 0
        self.before_growth: Callable[[], None] | None = None

    def allocate(self, queue: Queue, nbytes: int) -> HostBlock:
        """Return a block of at least `nbytes`; raises OutOfMemoryError."""
        self._check_open()
        arena = self._small if nbytes <= SMALL_LIMIT else self._large
        size = round_up(nbytes, arena.unit)
        address = arena.free.take(size)
        if address is None and self.before_growth is not None:
            self.before_growth()
            address = arena.free.take(size)
        if address is None:
            address = self._grow(arena, size)
        self._in_use += size
        if self._in_use > self._peak:
            self._peak = self._in_use
        return arena.block(address, size)

    def deallocate(self, queue: Queue, block: Any) -> None:
        """Free a block."""
        arena = self._small if block.nbytes <= SMALL_LIMIT else self._large
        block.release()
        arena.free.add(block.address, block.nbytes)
        self._in_use -= block.nbytes
        if self._is_closed:
            self.empty_cache()

    def segments(self) -> list[SegmentInfo]:
        """Return the mappings."""
        return [
            SegmentInfo(address, segment.nbytes, is_small=arena is self._small)
            for arena in (self._small, self._large)
            for address, segment in arena.segments.items()
        ]

    def empty_cache(self) -> None:
        """Unmap every mapping that holds no block."""
        for arena in (self._small, self._large):
            self._drop_idle(arena, self._reserved)

    def _grow(self, arena: Arena, size: int) -> int:
        """Map a segment and return the first address of `size` bytes of it."""
        roomy, exact = self._roomy(arena, size), round_up(size, LARGE_UNIT)
        bound = _MAX_KEPT * max(self._peak, self._in_use + size)
        self._drop_idle(self._large, self._reserved + roomy - bound)
        refusal = self._extend(arena, roomy) and self._extend(arena, exact)
        if refusal is not None:
            self.empty_cache()
            refusal = self._extend(arena, exact)
        address = arena.free.take(size)
        if address is None:
            raise self._out_of_memory(size, refusal)
        return address

    def _roomy(self, arena: Arena, size: int) -> int:
        """Return the bytes to map for a block of `size` if memory is not short."""
        if arena is self._small:
            return HUGE_PAGE
        return _SHARED_BYTES if size < _MAX_SHARING else round_up(size, HUGE_PAGE)

    def _extend(self, arena: Arena, nbytes: int) -> str | None:
        """Map a segment of an arena; return the reason of a refusal."""
        mapping = self._map(nbytes)
        if isinstance(mapping, str):
            return mapping
        arena.free.add(arena.add(mapping, nbytes), nbytes)
        return None

    def _drop_idle(self, arena: Arena, excess: int) -> None:
        """Unmap idle segments of an arena, up to `excess` bytes."""
        for address in arena.idle():
            if excess <= 0:
                break
            nbytes = arena.segments[address].nbytes
            arena.free.cut(address, nbytes, address)
            arena.drop(address)
            excess -= nbytes
            self._remove_segment(nbytes)
