"""`BackendPool`: a backend's source of memory; `PoolBase`, `FreeRanges`, `MappedRange` for pools.

Users hold an `nbrt.MemoryPool`, which the runtime implements once: statistics, caches of small
blocks, streams, limits and out-of-memory recovery. A backend's pool holds segments of the system's
memory and cuts blocks from them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nbrt.errors import DeviceError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.queue import Queue
    from nbrt.typing import HostArray

__all__ = [
    "SMALL_LIMIT",
    "AddressableBlock",
    "AllocationHandle",
    "BackendPool",
    "Block",
    "FreeRanges",
    "InterfacePool",
    "MappedRange",
    "PoolBase",
    "SegmentInfo",
]

SMALL_LIMIT = 1 << 20
"""Bytes of the largest block that counts as small, as in torch."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A range of memory that a pool holds from the system.

    Attributes
    ----------
    address, nbytes : int
        First byte, and size: of an expandable segment, the committed bytes.
    stream : int
        Raw handle of the stream it is kept for; 0 where pools do not keep memory by stream.
    is_small : bool
        It holds blocks of at most `SMALL_LIMIT` bytes.
    is_expandable : bool
        It can grow and shrink in place.
    """

    address: int
    nbytes: int
    stream: int = 0
    is_small: bool = False
    is_expandable: bool = False


class AllocationHandle:
    """One use of a block: arrays keep it alive, and the use ends when it dies."""

    __slots__ = ("__weakref__", "owner")

    def __init__(self, owner: object) -> None:
        self.owner = owner


class Block(Protocol):
    """Device memory from a pool; backends add what they need."""

    @property
    def address(self) -> int:
        """First byte, as the device sees it."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes reserved: at least the bytes requested."""
        ...

    def handle(self, owner: object) -> object:
        """Return a new weakly referable object that stands for one use of the block by `owner`.

        Arrays over the block keep it alive, and `DeviceInterface.owner_of` finds the owner by it.
        An `AllocationHandle`, unless the backend's arrays keep another object.
        """
        ...


@runtime_checkable
class AddressableBlock(Block, Protocol):
    """A block of host memory over which the runtime makes NumPy arrays itself.

    Those arrays are handles themselves. `DeviceInterface.as_array` makes the arrays of every other
    block.
    """

    @property
    def view(self) -> memoryview:
        """The bytes. A plain array directly over them is a handle of the last owner."""
        ...

    def template(self, shape: tuple[int, ...], dtype: Any) -> HostArray:
        """Return the bytes in a shape and dtype; plain arrays are views of it, made fast."""
        ...


class BackendPool(Protocol):
    """Segments of the system's memory, and blocks cut from them; calls are serialised.

    Attributes
    ----------
    kind : str
        One of the interface's `pool_kinds`.
    stream_ordered : bool
        Work queued on its stream may still use freed memory, so it is reused on that stream only.
        False where queued work keeps its arrays alive.
    caches : bool
        Small blocks may be kept in bins above the pool.
    """

    @property
    def kind(self) -> str: ...  # noqa: D102  # described in the class
    @property
    def stream_ordered(self) -> bool: ...  # noqa: D102
    @property
    def caches(self) -> bool: ...  # noqa: D102

    def allocate(self, queue: Queue, nbytes: int) -> Block:
        """Return a block of at least `nbytes` >= 1 for use on `queue`; OutOfMemoryError if none.

        The pool empties its own cache before it fails; the runtime tries everything else.
        """
        ...

    def deallocate(self, queue: Queue, block: Block) -> None:
        """Take a block back, behind the work that `queue` has so far."""
        ...

    def reserved(self) -> int:
        """Return the bytes held from the system."""
        ...

    def segments(self) -> list[SegmentInfo]:
        """Return the memory held from the system."""
        ...

    def segment_counts(self) -> tuple[int, int]:
        """Return how many segments were ever taken from the system, and returned to it."""
        ...

    def set_limit(self, nbytes: int | None) -> None:
        """Limit `reserved` from now on; None: no limit."""
        ...

    def empty_cache(self) -> None:
        """Return the memory that no block uses to the system."""
        ...

    def close(self) -> None:
        """Empty the cache, now and after each free, and refuse allocations."""
        ...


class PoolBase(ABC):
    """The counters, the limit and the closed state of a `BackendPool`.

    Unless a subclass says otherwise, each block is a segment, and nothing is cached.

    Attributes
    ----------
    keeps_segments : bool
        `deallocate` returns no memory to the system while the pool is open.
    """

    kind = "caching"
    stream_ordered = True
    caches = False
    keeps_segments = False

    def __init__(self) -> None:
        self._limit: int | None = None
        self._reserved = 0
        self._made = 0
        self._released = 0
        self._is_closed = False
        self._segments: dict[int, SegmentInfo] = {}

    @abstractmethod
    def allocate(self, queue: Any, nbytes: int) -> Any:
        """Return a block of at least `nbytes`; raises OutOfMemoryError."""

    @abstractmethod
    def deallocate(self, queue: Any, block: Any) -> None:
        """Take a block back."""

    def reserved(self) -> int:
        """Return the bytes held from the system."""
        return self._reserved

    def segments(self) -> list[SegmentInfo]:
        """Return the memory held from the system."""
        return list(self._segments.values())

    def segment_counts(self) -> tuple[int, int]:
        """Return how many segments were ever taken from the system, and returned to it."""
        return self._made, self._released

    def set_limit(self, nbytes: int | None) -> None:
        """Limit the bytes held from the system; None: no limit."""
        self._limit = nbytes

    def empty_cache(self) -> None:
        """Return the memory that no block uses to the system."""

    def close(self) -> None:
        """Empty the cache, now and after each free, and refuse allocations."""
        self._is_closed = True
        self.empty_cache()

    def _check_open(self) -> None:
        if self._is_closed:
            raise DeviceError(f"expected an open {self.kind} pool, got a closed one; make another")

    def _check_limit(self, nbytes: int) -> None:
        """Raise OutOfMemoryError if the limit refuses so many more bytes."""
        if self._limit is not None and self.reserved() + nbytes > self._limit:
            raise self._out_of_memory(nbytes, f"a limit of {self._limit} bytes")

    def _out_of_memory(self, nbytes: int, refusal: str | None) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"expected room for {nbytes} bytes, got {refusal}, with {self.reserved()} bytes "
            f"reserved; free arrays or request less"
        )

    def _add_segment(self, nbytes: int) -> None:
        self._reserved += nbytes
        self._made += 1

    def _remove_segment(self, nbytes: int) -> None:
        self._reserved -= nbytes
        self._released += 1

    def _add_block(self, address: int, nbytes: int, stream: int) -> None:
        """Count a block that is a segment."""
        self._segments[address] = SegmentInfo(address, nbytes, stream, nbytes <= SMALL_LIMIT)
        self._add_segment(nbytes)

    def _remove_block(self, address: int) -> int:
        """Forget a block that is a segment; return its bytes."""
        nbytes = self._segments.pop(address).nbytes
        self._remove_segment(nbytes)
        return nbytes


class _Source(Protocol):
    def allocate(self, queue: Queue, nbytes: int) -> Block: ...

    def deallocate(self, queue: Queue, block: Any) -> None: ...


class InterfacePool(PoolBase):
    """The pool of a backend that has only `allocate` and `deallocate`."""

    def __init__(self, source: _Source) -> None:
        super().__init__()
        self._source = source

    def allocate(self, queue: Queue, nbytes: int) -> Block:
        """Return a block of the backend."""
        self._check_limit(nbytes)
        block = self._source.allocate(queue, nbytes)
        try:
            self._check_limit(block.nbytes)  # the backend has rounded up
        except OutOfMemoryError:
            self._source.deallocate(queue, block)
            raise
        self._add_block(block.address, block.nbytes, queue.handle)
        return block

    def deallocate(self, queue: Queue, block: Block) -> None:
        """Return the block to the backend."""
        self._remove_block(block.address)
        self._source.deallocate(queue, block)


class FreeRanges:
    """Free ranges of addresses: best fit, with adjacent ranges merged.

    Attributes
    ----------
    sizes : dict of int to int
        Bytes by first address; the range that changed last comes last.
    ends : dict of int to int
        First address by the address after the last.
    nbytes : int
        Free bytes.

    Examples
    --------
    >>> free = FreeRanges()
    >>> free.add(0, 64)
    >>> free.add(128, 64)
    >>> free.take(32), free.take(128)
    (0, None)
    >>> free.add(64, 64)
    >>> free.sizes
    {32: 160}
    """

    __slots__ = ("_order", "ends", "nbytes", "sizes")

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self._order: list[tuple[int, int]] = []
        self.nbytes = 0

    def add(self, address: int, nbytes: int) -> None:
        """Free a range, and merge it with adjacent free ranges."""
        # Without calls of `_put` and `_drop`, which would take half of the time.
        sizes, ends, order = self.sizes, self.ends, self._order
        end = address + nbytes
        self.nbytes += nbytes
        behind = sizes.pop(end, 0)
        if behind:
            del order[bisect_left(order, (behind, end))]
            end += behind
            del ends[end]
        start = ends.pop(address, None)
        if start is not None:
            before = sizes.pop(start)
            del order[bisect_left(order, (before, start))]
            address = start
        size = sizes[address] = end - address
        ends[end] = address
        insort(order, (size, address))

    def take(self, nbytes: int) -> int | None:
        """Take `nbytes` from the start of the smallest range that fits; None if none does.

        Of ranges of one size, the one with the lowest address.
        """
        order = self._order
        index = bisect_left(order, (nbytes,))
        if index == len(order):
            return None
        size, address = order.pop(index)
        del self.sizes[address]
        if size > nbytes:
            rest = address + nbytes
            self.sizes[rest] = left = size - nbytes
            self.ends[rest + left] = rest
            insort(order, (left, rest))
        else:
            del self.ends[address + size]
        self.nbytes -= nbytes
        return address

    def cut(self, address: int, nbytes: int, start: int) -> None:
        """Take `nbytes` at `address` out of the free range that begins at `start`."""
        end = start + self._drop(start)
        if address > start:
            self._put(start, address)
        if address + nbytes < end:
            self._put(address + nbytes, end)
        self.nbytes -= nbytes

    def _put(self, address: int, end: int) -> None:
        self.sizes[address] = end - address
        self.ends[end] = address
        insort(self._order, (end - address, address))

    def _drop(self, address: int) -> int:
        nbytes = self.sizes.pop(address)
        del self.ends[address + nbytes]
        del self._order[bisect_left(self._order, (nbytes, address))]
        return nbytes


class _Mapper(Protocol):
    def reserve_range(self, nbytes: int) -> int: ...

    def map_range(self, index: int, address: int, nbytes: int) -> None: ...

    def unmap_range(self, address: int, nbytes: int) -> None: ...


_MAX_MAPPED = 32 << 20
"""Limit of the bytes of a mapping; free mappings are returned as a whole."""


class MappedRange:
    """Addresses of a device that memory is mapped to as it is needed.

    Parameters
    ----------
    driver : object
        Reserves the addresses, and maps and unmaps memory.
    index : int
        The device.
    nbytes : int
        Bytes to reserve.
    page : int
        Granularity of mappings in bytes.

    Attributes
    ----------
    address : int
        First byte.
    free : FreeRanges
        The addresses that no block uses, counted from the first.
    """

    def __init__(self, driver: _Mapper, index: int, nbytes: int, page: int) -> None:
        self._driver = driver
        self._index = index
        self._page = page
        self.address = driver.reserve_range(nbytes)
        self.free = FreeRanges()
        self.free.add(0, nbytes)
        self._mapped: dict[int, int] = {}

    def missing(self, start: int, nbytes: int) -> list[tuple[int, int]]:
        """Return (offset, bytes) of the mappings that a part lacks."""
        missing: list[tuple[int, int]] = []
        end = -(-(start + nbytes) // self._page) * self._page
        at = start // self._page * self._page
        starts = sorted(self._mapped)
        while at < end:
            index = bisect_right(starts, at)
            mapped_end = starts[index - 1] + self._mapped[starts[index - 1]] if index else 0
            if mapped_end > at:
                at = mapped_end
                continue
            until = min(end, starts[index] if index < len(starts) else end, at + _MAX_MAPPED)
            missing.append((at, until - at))
            at = until
        return missing

    def map(self, offset: int, nbytes: int) -> None:
        """Map memory to a part."""
        self._driver.map_range(self._index, self.address + offset, nbytes)
        self._mapped[offset] = nbytes

    def unmap_free(self) -> Iterator[int]:
        """Unmap the memory that no block uses; yield the bytes of each mapping."""
        free = sorted(self.free.sizes.items())
        starts = [start for start, _ in free]
        for offset, nbytes in sorted(self._mapped.items()):
            index = bisect_right(starts, offset)
            if index and offset + nbytes <= sum(free[index - 1]):
                self._driver.unmap_range(self.address + offset, nbytes)
                del self._mapped[offset]
                yield nbytes

    def is_mapped(self) -> bool:
        """Return whether any memory is mapped."""
        return bool(self._mapped)

    def runs(self) -> list[tuple[int, int]]:
        """Return (offset, bytes) of the mapped memory, adjacent mappings as one."""
        runs: list[tuple[int, int]] = []
        for offset, nbytes in sorted(self._mapped.items()):
            if runs and sum(runs[-1]) == offset:
                runs[-1] = (runs[-1][0], runs[-1][1] + nbytes)
            else:
                runs.append((offset, nbytes))
        return runs
