"""`MemoryPool`: a pool of a device's memory that people make, look into and choose."""

from __future__ import annotations

import sys
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbrt._internal import scopes
from nbrt.errors import ArgumentError, ArgumentTypeError, DeviceError
from nbrt.runtime.memory.allocators import Allocator, AllocatorPool
from nbrt.runtime.memory.device_allocator import allocator_for, host_allocator_for
from nbrt.runtime.memory.limits import checked_limit
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from nbrt._internal.device import Device
    from nbrt.backends.interface import Block
    from nbrt.backends.pools import SegmentInfo
    from nbrt.runtime.memory.allocation import Allocation
    from nbrt.runtime.memory.core import Arena, PoolImpl
    from nbrt.runtime.memory.device_allocator import DeviceAllocator
    from nbrt.runtime.stream import Stream
    from nbrt.typing import DeviceLike

__all__ = ["MemoryPool", "current_pool", "default_pool", "host_pool", "use_pool"]


class MemoryPool:
    """Memory of one device, kept apart from that of its other pools.

    Arrays made under ``use_pool(pool)`` take their memory from it. When the pool object is gone, or
    closed, its memory goes back to the system as soon as the last array over it does.

    Parameters
    ----------
    device : Device, str, int or None
        Whose memory; the current device's by default.
    kind : str
        ``"caching"`` keeps freed memory and hands it out again. ``"expandable"`` grows and shrinks
        in place, in one range of addresses, so that sizes which grow from step to step leave no
        holes. ``"plain"`` asks the system each time, for debugging. cuda also has ``"async"``
        (the driver's stream-ordered pool), ``"managed"`` and ``"system"`` memory.
    limit : int, float or None
        The most it may hold from the system: bytes, or a fraction of the device's memory.
    allocator : Allocator, optional
        Somebody else's memory as the source; then `kind` is not given.
    name : str
        What reports call it.
    **options
        Of the kind: ``guard=True`` of ``"plain"`` on cpu puts an inaccessible page behind blocks.

    Attributes
    ----------
    device : Device
        Whose memory.
    id : tuple of (int, int)
        (0, n) for the n-th pool of the device, as torch numbers pools.
    name : str
        As given.

    Raises
    ------
    NotSupportedError
        If the device has no pool of that kind.

    Examples
    --------
    >>> import nbrt
    >>> pool = nbrt.MemoryPool("cpu:0", "expandable", limit=1 << 30)
    >>> with nbrt.use_pool(pool):
    ...     x = nbrt.zeros(1000, device="cpu:0")
    >>> pool.memory_allocated()
    4096
    """

    def __init__(
        self,
        device: DeviceLike = None,
        kind: str | None = None,
        *,
        limit: float | None = None,
        allocator: Allocator | None = None,
        name: str = "",
        **options: Any,
    ) -> None:
        books = allocator_for(device)
        bound = checked_limit(limit, books)
        if not isinstance(name, str):
            raise ArgumentTypeError(f"expected a name for the pool, got {name!r}")
        if allocator is None:
            if kind is not None and not isinstance(kind, str):
                raise ArgumentTypeError(f"expected the name of a kind of pool, got {kind!r}")
            backend: Any = books.interface.create_pool(
                books.device.index, "caching" if kind is None else kind, options
            )
        else:
            if kind is not None or options:
                raise ArgumentError(
                    f"expected either an allocator or a kind of pool, got both {kind!r} and an "
                    f"allocator"
                )
            if not isinstance(allocator, Allocator):
                raise ArgumentTypeError(
                    f"expected an allocator with allocate and deallocate, got {allocator!r}"
                )
            backend = AllocatorPool(books.interface, books.device, allocator)
        self._hold(books, books.add_pool(backend, name, bound))
        # A forked child and the end of the interpreter leave the memory to the system.
        self._finalizer = weakref.finalize(self, _retire, books, self._core)

    def _hold(self, books: DeviceAllocator, core: PoolImpl) -> None:
        self._own_books = books
        self._core = core
        self.device: Device = books.device
        self.id = core.id
        self.name = core.name

    @classmethod
    def _default(cls, books: DeviceAllocator) -> MemoryPool:
        pool = object.__new__(cls)
        pool._hold(books, books.default_pool)
        return pool

    @property
    def _books(self) -> DeviceAllocator:
        # The child of a fork has them, but perhaps with a lock that nobody opens any more.
        self._own_books.interface.lazy.ensure()
        return self._own_books

    def arena(self, stream: Stream) -> Arena:
        """Return where memory for a stream is taken from."""
        if not stream.interface.lazy.is_ready:
            stream.interface.lazy.ensure()
        return self._core.arena(stream)

    @property
    def kind(self) -> str:
        """The kind of pool."""
        return self._core.kind

    @property
    def note(self) -> str:
        """What is to be known of the pool besides; empty if nothing is."""
        return str(getattr(self._core.backend, "note", ""))

    @property
    def limit(self) -> int | None:
        """The most bytes it may hold from the system; None: no bound of its own."""
        return self._core.limit

    @limit.setter
    def limit(self, value: float | None) -> None:
        self._core.limit = checked_limit(value, self._books)

    def memory_allocated(self) -> int:
        """Return the bytes that arrays hold, rounded up as the pool does."""
        return self.stats()["allocated_bytes.all.current"]

    def memory_reserved(self) -> int:
        """Return the bytes held from the system, in use and cached."""
        with self._books.lock:
            return self._core.backend.reserved()

    def stats(self) -> dict[str, int]:
        """Return the pool's numbers, with the keys of `memory_stats`."""
        self._books.settle()
        with self._books.lock:
            self._books.note_split()
            return (self._core.statistics or self._books.statistics).as_dict()

    def allocations(self) -> list[Allocation]:
        """Return what arrays hold now."""
        return [each for each in self._books.live_allocations() if each.pool is self._core]

    def segments(self) -> list[SegmentInfo]:
        """Return what is held from the system."""
        with self._books.lock:
            return self._core.backend.segments()

    def empty_cache(self) -> None:
        """Give unused memory back to the system."""
        self._books.settle()
        with self._books.lock:
            self._books.empty_pool(self._core)

    def close(self) -> None:
        """Hand out nothing more; memory goes back to the system when its last array does."""
        if self._core is self._books.default_pool:
            raise ArgumentError(
                f"expected a pool that was made with MemoryPool, got the default pool of "
                f"{self.device}; empty_cache gives its unused memory back"
            )
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._core)


def _retire(books: DeviceAllocator, core: PoolImpl) -> None:
    if not sys.is_finalizing() and books.interface.lazy.is_ready:
        books.retire(core)


def default_pool(device: DeviceLike = None) -> MemoryPool:
    """Return the pool that arrays of a device come from, unless told otherwise."""
    return MemoryPool._default(allocator_for(device))


def host_pool(device: DeviceLike = None) -> MemoryPool:
    """Return the pool of page-locked host memory for a device."""
    return MemoryPool._default(host_allocator_for(device))


def current_pool(device: DeviceLike = None) -> MemoryPool:
    """Return the pool that arrays of a device come from now, in this thread or task."""
    books = allocator_for(device)
    found = scopes.current().pools.get(books.device)
    return found if isinstance(found, MemoryPool) else MemoryPool._default(books)


@contextmanager
def use_pool(pool: MemoryPool) -> Iterator[MemoryPool]:
    """Take the memory of arrays on a pool's device from that pool, for a block.

    Per thread and task; blocks nest. On cuda plain CuPy code allocates from the pool as well.

    Parameters
    ----------
    pool : MemoryPool
        The pool; the current device stays as it is.

    Examples
    --------
    >>> import nbrt
    >>> pool = nbrt.MemoryPool("cpu:0")
    >>> with nbrt.use_pool(pool):
    ...     x = nbrt.empty(16, device="cpu:0")
    >>> [each.requested for each in pool.allocations()]
    [64]
    """
    if not isinstance(pool, MemoryPool):
        raise ArgumentTypeError(f"expected an nbrt.MemoryPool, got {pool!r}")
    core, books = pool._core, pool._books
    if core.is_retired:
        raise DeviceError(f"expected an open pool, got {pool!r}, which was closed")
    guard = object()
    top = scopes.current()
    undo = books.interface.enter_allocator(books.device.index, _allocate_through(core))
    scopes.push(guard, top.device, None, undo, {**top.pools, books.device: pool})
    try:
        yield pool
    finally:
        left = scopes.pop_device(guard).undo
        if left is not None:
            left()


def _allocate_through(core: PoolImpl) -> Callable[[int], tuple[Block, object]]:
    """Return what another library allocates by: as `nbrt.empty` does, on the current stream."""

    def allocate(nbytes: int) -> tuple[Block, object]:
        stream = current_stream(core.device)
        lease = core.arena(stream).lease(nbytes, stream)
        return lease.tenant.block, lease

    return allocate
