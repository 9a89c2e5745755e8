"""`BackendPool`: where the memory of one kind of pool comes from, as a backend offers it.

What people hold is `nbrt.MemoryPool`, written once in the runtime: statistics, bins of small
blocks, streams, limits and recovery lie there. A backend pool holds segments of the system's memory
and cuts blocks from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nbrt.errors import OutOfMemoryError

if TYPE_CHECKING:
    from nbrt.backends.queue import Queue
    from nbrt.typing import HostArray

__all__ = [
    "SMALL_LIMIT",
    "AddressableBlock",
    "BackendPool",
    "Block",
    "InterfacePool",
    "Lease",
    "SegmentInfo",
]

SMALL_LIMIT = 1 << 20
"""Bytes of the largest block that counts as small, as in torch."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A piece of memory that a pool holds from the system.

    Attributes
    ----------
    address, nbytes : int
        Where it begins, and its size: of an expandable segment, what is committed.
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


class Lease:
    """One use of a block: arrays keep it alive, and its death is how a use ends."""

    __slots__ = ("__weakref__", "tenant")

    def __init__(self, tenant: object) -> None:
        self.tenant = tenant


class Block(Protocol):
    """Device memory from a pool; the rest of it is the backend's own."""

    @property
    def address(self) -> int:
        """First byte, as the device sees it."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes reserved: at least the bytes asked for."""
        ...

    def lease(self, tenant: object) -> object:
        """Return a new weakly referable object that stands for one use of the block by `tenant`.

        Arrays over the block keep it alive, and `DeviceInterface.owner_of` finds the tenant by it.
        A `Lease`, unless the backend's arrays are made of something else.
        """
        ...


@runtime_checkable
class AddressableBlock(Block, Protocol):
    """A block of host memory over which the runtime makes NumPy arrays itself.

    Those arrays are leases themselves. Of every other block, `DeviceInterface.as_array` makes the
    arrays.
    """

    @property
    def view(self) -> memoryview:
        """The bytes. A plain array right over them is a lease of the last tenant."""
        ...

    def mould(self, shape: tuple[int, ...], dtype: Any) -> HostArray:
        """Return the bytes in a shape and dtype; plain arrays are views of it, quickly made."""
        ...


class BackendPool(Protocol):
    """Segments of the system's memory, and blocks cut from them; calls come one at a time.

    Attributes
    ----------
    kind : str
        One of the interface's `pool_kinds`.
    stream_ordered : bool
        Memory that dies may still be in use by work queued on its stream, so it is only handed out
        again on that stream. False where queued work keeps its arrays alive.
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

        The pool drops what it caches itself before it gives up; all else is tried above.
        """
        ...

    def deallocate(self, queue: Queue, block: Block) -> None:
        """Take a block back, behind the work that `queue` has so far."""
        ...

    def reserved(self) -> int:
        """Return the bytes held from the system."""
        ...

    def segments(self) -> list[SegmentInfo]:
        """Return what is held from the system."""
        ...

    def segment_counts(self) -> tuple[int, int]:
        """Return how many segments were ever taken from the system, and given back."""
        ...

    def set_limit(self, nbytes: int | None) -> None:
        """Bound `reserved` from now on; None: no bound."""
        ...

    def empty_cache(self) -> None:
        """Give back to the system what no block uses."""
        ...

    def close(self) -> None:
        """Do the same, and hand out nothing more; blocks that are out stay valid."""
        ...


class _Source(Protocol):
    def allocate(self, queue: Queue, nbytes: int) -> Block: ...

    def deallocate(self, queue: Queue, block: Any) -> None: ...


class InterfacePool:
    """The pool of a backend that has no more than `allocate` and `deallocate`.

    Parameters
    ----------
    source : DeviceInterface
        The backend.
    """

    kind = "caching"
    stream_ordered = True
    caches = False

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._limit: int | None = None
        self._held: dict[int, SegmentInfo] = {}
        self._bytes = 0
        self._made = 0

    def allocate(self, queue: Queue, nbytes: int) -> Block:
        """Ask the backend."""
        self._check_room(nbytes)
        block = self._source.allocate(queue, nbytes)
        try:
            self._check_room(block.nbytes)  # the backend has rounded up
        except OutOfMemoryError:
            self._source.deallocate(queue, block)
            raise
        is_small = block.nbytes <= SMALL_LIMIT
        self._held[block.address] = SegmentInfo(block.address, block.nbytes, queue.handle, is_small)
        self._bytes += block.nbytes
        self._made += 1
        return block

    def _check_room(self, nbytes: int) -> None:
        if self._limit is not None and self._bytes + nbytes > self._limit:
            raise OutOfMemoryError(
                f"expected room for {nbytes} bytes within {self._limit}, got {self._bytes} in use"
            )

    def deallocate(self, queue: Queue, block: Block) -> None:
        """Give the block back to the backend."""
        self._bytes -= self._held.pop(block.address).nbytes
        self._source.deallocate(queue, block)

    def reserved(self) -> int:
        """Return the bytes of the blocks that are out: the pool keeps no others."""
        return self._bytes

    def segments(self) -> list[SegmentInfo]:
        """Return the blocks that are out."""
        return list(self._held.values())

    def segment_counts(self) -> tuple[int, int]:
        """Return how many blocks were ever handed out, and given back."""
        return self._made, self._made - len(self._held)

    def set_limit(self, nbytes: int | None) -> None:
        """Bound the bytes that are out."""
        self._limit = nbytes

    def empty_cache(self) -> None:
        """Do nothing: nothing is cached."""

    def close(self) -> None:
        """Do nothing: nothing is cached."""
