"""`CachingPool`: host memory in mappings that are cut into blocks and kept for the next ones.

From the bottom: `HostBlock`, which arrays are made over; `Arena`, the mappings it is cut from;
`HostPool`, the base of all pools of host memory.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.backends.cpu.memory.mapping import HUGE_PAGE, MAPPING_ERRORS, address_of, map_segment
from nbrt.backends.pools import SMALL_LIMIT, FreeRanges, PoolBase, SegmentInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.memory.mapping import Mapping
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
    position : int
        First byte as its arena counts.

    Attributes
    ----------
    address, nbytes, position : int
        First byte, the usable bytes, and the first byte as its arena counts.
    view : memoryview
        The bytes. A plain array directly over them is a handle, for the latest owner.
    """

    __slots__ = ("_bytes", "address", "nbytes", "position", "view")

    def __init__(
        self, buffer: Any, offset: int, nbytes: int, address: int, position: int = 0
    ) -> None:
        self.address = address
        self.nbytes = nbytes
        self.position = position
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
    """The used part of a mapping: `nbytes` from `address` on, which is `offset` bytes into it."""

    mapping: Mapping
    offset: int
    address: int
    nbytes: int


class Arena:
    """Mappings for blocks of multiples of `unit` bytes, and the free memory in them.

    Memory is counted by positions, which go down: each segment ends before the start of the one
    added before it, as Linux maps addresses in an empty process. The system chooses addresses, so a
    best fit by address would make the peaks of a program depend on what else is mapped. A segment
    begins at a multiple of `HUGE_PAGE`.

    Parameters
    ----------
    unit : int
        Bytes, a power of two.
    make_block : callable
        Called as `HostBlock`.

    Attributes
    ----------
    unit : int
        Bytes, a power of two.
    segments : dict of int to HostSegment
        By their first position.
    free : FreeRanges
        The free memory by position. The caller of `add` adds the free part of the segment.
    """

    __slots__ = ("_lowest", "_make_block", "_starts", "free", "segments", "unit")

    def __init__(self, unit: int, make_block: Callable[..., Any] = HostBlock) -> None:
        self.unit = unit
        self._make_block = make_block
        self.segments: dict[int, HostSegment] = {}
        self.free = FreeRanges()
        self._starts: list[int] = []
        self._lowest = 0

    def add(self, mapping: Mapping, nbytes: int, alignment: int = 1) -> int:
        """Add `nbytes` of a mapping from its first aligned address on; return their position."""
        origin = address_of(mapping)
        address = round_up(origin, alignment)
        # A byte of no segment, at least, so that free ranges of two segments never merge.
        position = self._lowest = (self._lowest - nbytes - 1) & -HUGE_PAGE
        self.segments[position] = HostSegment(mapping, address - origin, address, nbytes)
        self._starts.insert(0, position)
        return position

    def drop(self, position: int) -> None:
        """Remove a segment; its mapping lives as long as arrays over it do."""
        self._starts.remove(position)
        del self.segments[position]

    def idle(self) -> list[int]:
        """Return the segments that are wholly free, in the order in which they became so."""
        segments = self.segments
        return [
            position
            for position, nbytes in self.free.sizes.items()
            if position in segments and segments[position].nbytes == nbytes
        ]

    def start_of(self, position: int) -> int:
        """Return the first position of the segment that a position lies in."""
        return self._starts[bisect_right(self._starts, position) - 1]

    def block(self, position: int, nbytes: int) -> Any:
        """Return the block at a position that was taken from the free memory."""
        starts = self._starts
        start = starts[bisect_right(starts, position) - 1]
        mapping, offset, address, _ = self.segments[start]
        behind = position - start
        return self._make_block(mapping, offset + behind, nbytes, address + behind, position)


class HostPool(PoolBase):
    """Mappings of the system, counted and limited.

    Parameters
    ----------
    mapper : callable, optional
        Returns a mapping of so many bytes, or raises one of `MAPPING_ERRORS`.
    make_block : callable, optional
        Makes a block of a part of a mapping; called as `HostBlock`.
    """

    stream_ordered = False
    caches = True

    def __init__(
        self,
        mapper: Callable[[int], Mapping] = map_segment,
        make_block: Callable[..., Any] = HostBlock,
    ) -> None:
        super().__init__()
        self._mapper = mapper
        self._make_block = make_block

    def _map(self, nbytes: int, guard: int = 0) -> Mapping | str:
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
    keeps_segments = True

    def __init__(
        self,
        mapper: Callable[[int], Mapping] = map_segment,
        make_block: Callable[..., Any] = HostBlock,
    ) -> None:
        super().__init__(mapper, make_block)
        self._small = Arena(ALIGNMENT, make_block)
        self._large = Arena(LARGE_UNIT, make_block)
        self._in_use = 0
        self._peak = 0
        self.before_growth: Callable[[], None] | None = None

    def allocate(self, queue: Queue, nbytes: int) -> Any:
        """Return a block of at least `nbytes`; raises OutOfMemoryError."""
        if self._is_closed:
            self._check_open()
        arena = self._small if nbytes <= SMALL_LIMIT else self._large
        unit = arena.unit
        size = (nbytes + unit - 1) & -unit
        position = arena.free.take(size)
        if position is None and self.before_growth is not None:
            self.before_growth()
            position = arena.free.take(size)
        if position is None:
            position = self._grow(arena, size)
        self._in_use += size
        if self._in_use > self._peak:
            self._peak = self._in_use
        return arena.block(position, size)

    def deallocate(self, queue: Queue, block: Any) -> None:
        """Free a block."""
        nbytes = block.nbytes
        arena = self._small if nbytes <= SMALL_LIMIT else self._large
        block.release()
        arena.free.add(block.position, nbytes)
        self._in_use -= nbytes
        if self._is_closed:
            self.empty_cache()

    def segments(self) -> list[SegmentInfo]:
        """Return the mappings."""
        return [
            SegmentInfo(segment.address, segment.nbytes, is_small=arena is self._small)
            for arena in (self._small, self._large)
            for segment in arena.segments.values()
        ]

    def empty_cache(self) -> None:
        """Unmap every mapping that holds no block."""
        for arena in (self._small, self._large):
            self._drop_idle(arena, self._reserved)

    def _grow(self, arena: Arena, size: int) -> int:
        """Map a segment and return the position of `size` bytes of it."""
        roomy, exact = self._roomy(arena, size), round_up(size, LARGE_UNIT)
        bound = _MAX_KEPT * max(self._peak, self._in_use + size)
        self._drop_idle(self._large, self._reserved + roomy - bound)
        refusal = self._extend(arena, roomy) and self._extend(arena, exact)
        if refusal is not None:
            self.empty_cache()
            refusal = self._extend(arena, exact)
        position = arena.free.take(size)
        if position is None:
            raise self._out_of_memory(size, refusal)
        return position

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
        for position in arena.idle():
            if excess <= 0:
                break
            nbytes = arena.segments[position].nbytes
            arena.free.cut(position, nbytes, position)
            arena.drop(position)
            excess -= nbytes
            self._remove_segment(nbytes)
