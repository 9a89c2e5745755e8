"""`MemoryPool`: a pool of a device's memory, and the pool that arrays come from."""

from __future__ import annotations

import sys
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbrt._internal import scopes
from nbrt.errors import ArgumentError, ArgumentTypeError, DeviceError
from nbrt.runtime import commands
from nbrt.runtime.memory.allocators import Allocator, AllocatorPool
from nbrt.runtime.memory.limits import checked_limit
from nbrt.runtime.memory.registry import allocator_for, host_allocator_for
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from nbrt._internal.device import Device
    from nbrt.backends.interface import Block
    from nbrt.backends.pools import SegmentInfo
    from nbrt.runtime.memory.allocation import Allocation, SizeClassCache
    from nbrt.runtime.memory.device_allocator import DeviceAllocator
    from nbrt.runtime.memory.pool_impl import PoolImpl
    from nbrt.runtime.stream import Stream
    from nbrt.typing import DeviceLike

__all__ = ["MemoryPool", "current_pool", "default_pool", "host_pool", "use_pool"]


class MemoryPool:
    """Memory of one device, separate from that of its other pools.

    Arrays made under ``use_pool(pool)`` take their memory from it. When the pool object is gone, or
    closed, its memory returns to the system as soon as the last array over it is gone.

    Parameters
    ----------
    device : Device, str, int or None
        The device; the current one by default.
    kind : str
        ``"caching"`` keeps freed memory and reuses it. ``"expandable"`` grows and shrinks in place,
        in one range of addresses, so that sizes which grow from step to step leave no holes.
        ``"plain"`` asks the system each time, for debugging. cuda also has ``"async"``
        (the driver's stream-ordered pool), ``"managed"`` and ``"system"`` memory.
    limit : int, float or None
        Limit of the memory held from the system: bytes, or a fraction of the device's memory.
    allocator : Allocator, optional
        Another library's memory as the source; excludes `kind`.
    name : str
        The name in reports.
    **options
        Of the kind: ``guard=True`` of ``"plain"`` on cpu puts an inaccessible page behind blocks.

    Attributes
    ----------
    device : Device
        The device.
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
        owner = allocator_for(device)
        limit_bytes = checked_limit(limit, owner)
        if not isinstance(name, str):
            raise ArgumentTypeError(f"expected a name for the pool, got {name!r}")
        if allocator is None:
            if kind is not None and not isinstance(kind, str):
                raise ArgumentTypeError(f"expected the name of a kind of pool, got {kind!r}")
            backend: Any = owner.interface.create_pool(
                owner.device.index, "caching" if kind is None else kind, options
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
            backend = AllocatorPool(owner.interface, owner.device, allocator)
        self._set(owner, owner.add_pool(backend, name, limit_bytes))
        # A forked child and the end of the interpreter leave the memory to the system.
        self._finalizer = weakref.finalize(self, _close, owner, self._impl)

    def _set(self, allocator: DeviceAllocator, impl: PoolImpl) -> None:
        self._own_allocator = allocator
        self._impl = impl
        self.device: Device = allocator.device
        self.id = impl.state.id
        self.name = impl.state.name

    @classmethod
    def _default(cls, allocator: DeviceAllocator) -> MemoryPool:
        pool = object.__new__(cls)
        pool._set(allocator, allocator.default_pool)
        return pool

    @property
    def _allocator(self) -> DeviceAllocator:
        # A forked child inherits the lock, possibly held by a thread that no longer exists.
        self._own_allocator.interface.lazy.ensure()
        return self._own_allocator

    def cache_for(self, stream: Stream) -> SizeClassCache:
        """Return the cache that allocations for a stream use."""
        if not stream.interface.lazy.is_ready:
            stream.interface.lazy.ensure()
        return self._impl.cache_for(stream)

    @property
    def kind(self) -> str:
        """The kind of pool."""
        return self._impl.state.kind

    @property
    def note(self) -> str:
        """A remark of the backend, such as why memory is not page-locked; may be empty."""
        return str(getattr(self._impl.backend, "note", ""))

    @property
    def limit(self) -> int | None:
        """Limit of the bytes held from the system; None: no limit for this pool."""
        return self._impl.limit

    @limit.setter
    def limit(self, value: float | None) -> None:
        self._impl.limit = checked_limit(value, self._allocator)

    def memory_allocated(self) -> int:
        """Return the bytes that arrays hold, rounded up as the pool does."""
        return self.stats()["allocated_bytes.all.current"]

    def memory_reserved(self) -> int:
        """Return the bytes held from the system, in use and cached."""
        with self._allocator.lock:
            return self._impl.backend.reserved()

    def stats(self) -> dict[str, int]:
        """Return the statistics of the pool, with the keys of `memory_stats`."""
        return self._allocator.stats(self._impl)

    def allocations(self) -> list[Allocation]:
        """Return the allocations of arrays that are alive."""
        state = self._impl.state
        return [each for each in self._allocator.live_allocations() if each.pool is state]

    def segments(self) -> list[SegmentInfo]:
        """Return the memory held from the system."""
        with self._allocator.lock:
            return self._impl.backend.segments()

    def empty_cache(self) -> None:
        """Return unused memory to the system."""
        self._allocator.process_log()
        self._allocator.empty_pool(self._impl)

    def close(self) -> None:
        """Refuse further allocations; memory returns to the system after its last array."""
        if self._impl is self._allocator.default_pool:
            raise ArgumentError(
                f"expected a pool that was made with MemoryPool, got the default pool of "
                f"{self.device}; empty_cache returns its unused memory"
            )
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._impl)


def _close(allocator: DeviceAllocator, impl: PoolImpl) -> None:
    if not sys.is_finalizing() and allocator.interface.lazy.is_ready:
        allocator.append(impl.state)


def default_pool(device: DeviceLike = None) -> MemoryPool:
    """Return the pool that arrays of a device come from outside `use_pool`."""
    return MemoryPool._default(allocator_for(device))


def host_pool(device: DeviceLike = None) -> MemoryPool:
    """Return the pool of page-locked host memory for a device."""
    return MemoryPool._default(host_allocator_for(device))


def current_pool(device: DeviceLike = None) -> MemoryPool:
    """Return the pool that arrays of a device come from now, in this thread or task."""
    allocator = allocator_for(device)
    pool = scopes.current().pools.get(allocator.device)
    return pool if isinstance(pool, MemoryPool) else MemoryPool._default(allocator)


@contextmanager
def use_pool(pool: MemoryPool) -> Iterator[MemoryPool]:
    """Take the memory of arrays on a pool's device from that pool, for a block.

    Per thread and task; blocks nest. On cuda plain CuPy code allocates from the pool as well.

    Parameters
    ----------
    pool : MemoryPool
        The pool; the current device stays the same.

    Examples
    --------
    >>> import nbrt
    >>> pool = nbrt.MemoryPool("cpu:0")
    >>> with nbrt.use_pool(pool):
    ...     x = nbrt.empty(16, device="cpu:0")
    >>> [allocation.requested for allocation in pool.allocations()]
    [64]
    """
    if not isinstance(pool, MemoryPool):
        raise ArgumentTypeError(f"expected an nbrt.MemoryPool, got {pool!r}")
    allocator, impl, device = pool._allocator, pool._impl, pool.device
    if impl.state.is_closed:
        raise DeviceError(f"expected an open pool, got {pool!r}, which was closed")

    def allocate(nbytes: int) -> tuple[Block, object]:
        """Allocate for another library, on the current stream."""
        stream = current_stream(device)
        cache = impl.cache_for(stream)
        make = cache.allocate_hooked if commands.memory_is_hooked else cache.allocate
        handle: Any = make(nbytes, stream, None, None)
        return handle.owner.block, handle

    guard = object()
    top = scopes.current()
    undo = allocator.interface.enter_allocator(device.index, allocate)
    scopes.push(guard, top.device, None, undo, {**top.pools, device: pool})
    try:
        yield pool
    finally:
        left = scopes.pop_device(guard).undo
        if left is not None:
            left()
