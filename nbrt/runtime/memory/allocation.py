"""`Allocation`: a block in use; `SizeClassCache`: free small blocks, allocated without a lock."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from nbrt._internal.callsite import CallSite
from nbrt.backends.pools import SMALL_LIMIT, AddressableBlock
from nbrt.errors import ArgumentError
from nbrt.runtime.commands import Command

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from nbrt._internal.device import Device
    from nbrt.backends.interface import Block
    from nbrt.backends.queue import Queue
    from nbrt.runtime.memory.pool_state import PoolState
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array

__all__ = [
    "MAX_UNREAD",
    "MAX_UNREAD_BYTES",
    "Allocation",
    "FreeRecord",
    "HookedFree",
    "SizeClassCache",
    "size_class",
]

_array = np.ndarray

MAX_UNREAD = 250
MAX_UNREAD_BYTES = 512 << 10
"""Limits of the unprocessed events, and of the bytes that they stand for. Blocks that were freed
recently are in the processor's caches, so they are reused first."""

_MIN_REUSE = 8 << 10
"""Bytes from which reusing the block that was freed last costs less than processing the log."""

_MAX_REUSE_LOG = 1000
"""Events up to which the log grows by such reuse."""

_MAX_REQUESTS = 4096
"""Limit of the requested sizes whose bin is cached."""

_MAX_STOCK = 128
_MAX_STOCK_BYTES = 128 << 10
"""Limits of the blocks that are cut in advance for a size class, and of their bytes."""


class FreeRecord(weakref.ref[Any]):
    """The event that ends an allocation: the weak reference to its array or handle is dead.

    Its callback is the C function that appends to the event log. So the end of an array runs no
    Python code and takes no lock: it may come in any thread, between any two instructions.
    """

    __slots__ = ("allocation", "is_reused")

    allocation: Allocation
    is_reused: bool
    """The block was allocated again at once, for as many bytes: one event stands for both."""


class HookedFree(Command):
    """The free command that hooks have seen; also its event in the log, as a `FreeRecord` is.

    One object serves all uses of an allocation, until it stands for an allocation as well.
    """

    __slots__ = ("allocation", "is_reused")

    def __init__(self, allocation: Allocation, function: Callable[..., None]) -> None:
        # As the constructor of `Command`, whose call takes a third of the time.
        self.kind = "free"
        self.function = function
        self.args = (allocation,)
        self.label = ""
        self.subject = None
        self.allocation = allocation
        self.is_reused = False


_Free = TypeVar("_Free", FreeRecord, HookedFree)


def _no_stream() -> Stream | None:
    return None


_is_addressable: dict[type, bool] = {}
"""By class of block: `isinstance` with a protocol takes 20 microseconds."""


class Allocation:
    """Device memory that lives as long as the arrays over it.

    The object belongs to the block, and describes its latest use.

    Attributes
    ----------
    block : Block
        The block of the backend.
    address, nbytes : int
        First byte on the device, and the bytes reserved: the requested bytes, rounded up.
    requested : int
        Bytes requested.
    pool : PoolState
        The pool that the block belongs to.
    recorded : set of Stream or None
        Other streams that use the memory. The block is not reused before they have passed.
    site : CallSite or object or None
        The call that allocated it, if recorded; observers may store more than a CallSite.
    entry : object
        The entry of a `MemoryRecorder` for this use, until a command allocates the block again.
    free_record : FreeRecord or None
        The weak reference to the array or handle of this use; None if the block is free.
    home : Queue
        The queue that it was allocated and is freed on.
    host : AddressableBlock or None
        The block, if arrays are made directly over its bytes; None: the backend makes them.
    bin : list of Allocation or None
        The bin of a size class that the block returns to; None: it returns to the backend.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "bin",
        "block",
        "dtype",
        "entry",
        "free_record",
        "home",
        "hooked_free",
        "host",
        "index",
        "is_small",
        "nbytes",
        "pool",
        "recorded",
        "requested",
        "shape",
        "site",
        "stream_ref",
        "template",
    )

    def __init__(
        self, pool: PoolState, block: Block, home: Queue, bin_: list[Allocation] | None
    ) -> None:
        self.pool = pool
        self.block = block
        self.home = home
        self.bin = bin_
        self.is_small = block.nbytes <= SMALL_LIMIT
        self.address = block.address
        self.nbytes = block.nbytes
        self.index = pool.device.index
        self.requested = 0
        # Programs request the same again: the shape and dtype of the last array, and its template.
        self.shape: tuple[int, ...] | None = None
        self.dtype: object = None
        self.template: Any = None
        self.stream_ref: Callable[[], Stream | None] = _no_stream
        self.recorded: set[Stream] | None = None
        self.site: CallSite | Any = None
        self.entry: Any = None
        self.free_record: FreeRecord | None = None
        self.hooked_free: HookedFree | None = None
        kind = type(block)
        is_host = _is_addressable.get(kind)
        if is_host is None:
            is_host = _is_addressable[kind] = isinstance(block, AddressableBlock)
        self.host: AddressableBlock | None = None
        if is_host:
            self.host = cast("AddressableBlock", block)
            block.handle(self)  # host memory stores its owner once, other memory at every use

    @property
    def device(self) -> Device:
        """The device of the memory."""
        return self.pool.device

    @property
    def stream(self) -> Stream | None:
        """The stream it was allocated for; None if the stream is gone, or before the first use."""
        return self.stream_ref()

    @property
    def handle(self) -> object | None:
        """The object that the arrays keep alive; None once they are gone."""
        return None if self.free_record is None else self.free_record()

    def host_array(self, host: AddressableBlock, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a plain array directly over the bytes, which is its own handle."""
        if self.dtype is dtype and self.shape == shape:
            # A view of a template takes a third of the time of an array of a buffer.
            self.template = host.template(shape, dtype)
            return self.template.view(_array)
        array: Array = _array(shape, dtype, host.view)
        self.shape, self.dtype, self.template = shape, dtype, None
        return array

    def record_stream(self, stream: Stream) -> None:
        """Keep the freed block from reuse until a stream has done the work that it has then."""
        if self.handle is None:
            raise ArgumentError("expected an array in use, got one whose memory was freed")
        if stream is not self.stream:
            # A new set each time: another thread may be reading the previous one.
            self.recorded = {*(self.recorded or ()), stream}

    def __repr__(self) -> str:
        return f"Allocation({self.requested} bytes at {self.address:#x} of {self.device})"


Bins = dict[int, list[Allocation]]


class SizeClassCache:
    """Bins of free small blocks, one for each size class; allocating from them takes no lock.

    Parameters
    ----------
    state : PoolState
        The pool.
    events : deque
        The events of the log that allocations and frees are appended to.
    on_free : callable
        Called with the `FreeRecord` when the arrays over a block are gone: a C function, where
        possible.
    allocate_slow : callable
        Called as ``allocate_slow(cache, nbytes, stream, shape, dtype)`` to return an array if a bin
        is empty, a block is large, or the log is long.
    allocate_hooked : callable
        Called in the same way for an allocation that hooks see.
    return_block : callable
        Called with the `Allocation` of a block that no array was made over.
    as_array : callable
        Called as ``as_array(block, shape, dtype, handle)`` to return an array that keeps `handle`
        alive, for blocks that are not addressable by the host.
    granularity : int
        Size classes are multiples of this many bytes.

    Attributes
    ----------
    allocate_hooked : callable
        The same as `allocate` for a request, through a command that hooks see.
    bins, requests : dict of int to list of Allocation
        The bins by size class, and by the sizes requested lately.
    command_cache : list of (Command, object)
        Commands of hooked allocations that are not in use: programs request the same again.
    """

    __slots__ = (
        "_allocate_slow",
        "_append",
        "_as_array",
        "_events",
        "_granularity",
        "_return_block",
        "_stock",
        "allocate_hooked",
        "bins",
        "command_cache",
        "on_free",
        "requests",
        "state",
    )

    def __init__(
        self,
        state: PoolState,
        events: deque[Any],
        on_free: Callable[[FreeRecord], object],
        allocate_slow: Callable[..., Array],
        allocate_hooked: Callable[..., Array],
        return_block: Callable[[Allocation], object],
        as_array: Callable[..., Array],
        granularity: int = 1,
    ) -> None:
        self.state = state
        self._events = events
        self._append = events.append
        self.on_free = on_free
        self._allocate_slow = allocate_slow
        self.allocate_hooked = partial(allocate_hooked, self)
        self._return_block = return_block
        self._as_array = as_array
        self._granularity = granularity
        self.requests: Bins = {}
        self._stock: dict[int, int] = {}
        self.bins: Bins = {}
        self.command_cache: list[tuple[Command, Any]] = []

    def allocate(
        self, nbytes: int, stream: Stream, shape: tuple[int, ...] | None, dtype: Any
    ) -> Array:
        """Return an array over a block of at least `nbytes`.

        The allocation ends with the array and its views. Both are events in the log, which is
        processed later.

        Parameters
        ----------
        nbytes, stream, shape, dtype
            The request; without a shape the result is a bare handle of the block.

        Raises
        ------
        OutOfMemoryError
            If the device has no room.
        """
        unread = len(self._events)
        if unread * nbytes > MAX_UNREAD_BYTES or unread > MAX_UNREAD:
            return self._allocate_other(nbytes, stream, shape, dtype)
        try:
            allocation = self.requests[nbytes].pop()
        except (KeyError, IndexError):
            allocation = None
        if allocation is None:
            return self._allocate_other(nbytes, stream, shape, dtype)
        template = allocation.template
        if template is None or allocation.dtype is not dtype or allocation.shape != shape:
            return self.allocate_over(allocation, nbytes, stream, shape, dtype)
        # As `allocate_over`, whose call and cases would add a tenth to the time of the call.
        record, append = None, self._append  # a local function is called 30 ns sooner
        try:
            array: Array = template.view(_array)
            allocation.requested = nbytes
            allocation.stream_ref = stream.ref
            record = FreeRecord(array, self.on_free)
            record.allocation = allocation
            record.is_reused = False
            allocation.free_record = record
            append(allocation)
        except BaseException:
            if record is None:
                allocation.free_record = None
                self._return_block(allocation)
            raise
        return array

    def allocate_over(
        self,
        allocation: Allocation,
        nbytes: int,
        stream: Stream,
        shape: tuple[int, ...] | None,
        dtype: Any,
        on_free: Callable[[FreeRecord], object] | None = None,
        reused: FreeRecord | HookedFree | None = None,
    ) -> Array:
        """Return an array over a free block, as `allocate` does.

        Parameters
        ----------
        allocation : Allocation
            The block.
        nbytes, stream, shape, dtype
            As for `allocate`.
        on_free : callable, optional
            Called at the end instead of the cache's `on_free`. If no array can be made, the block
            stays with the caller, and `allocation.free_record` is None.
        reused : FreeRecord or HookedFree, optional
            The event that freed the block, if it stands for the allocation as well.
        """
        record, append = None, self._append
        template = allocation.template
        try:
            if template is not None and allocation.dtype is dtype and allocation.shape == shape:
                array = handle = template.view(_array)
            elif shape is not None and (host := allocation.host) is not None:
                array = handle = allocation.host_array(host, shape, dtype)
            else:
                array = handle = allocation.block.handle(allocation)
                if shape is not None:
                    array = self._as_array(allocation.block, shape, dtype, handle)
            allocation.requested = nbytes
            allocation.stream_ref = stream.ref
            record = FreeRecord(handle, self.on_free if on_free is None else on_free)
            record.allocation = allocation
            record.is_reused = False
            # Python looks for signals after calls only. So an interrupt finds either no record,
            # or a complete event.
            allocation.free_record = record
            if reused is None:
                append(allocation)
        except BaseException:
            if record is None:
                allocation.free_record = None
                if on_free is not None:
                    pass
                elif reused is not None:
                    self._undo_reuse(reused)
                else:
                    self._return_block(allocation)
            raise
        return array

    def _allocate_other(
        self, nbytes: int, stream: Stream, shape: tuple[int, ...] | None, dtype: Any
    ) -> Array:
        """Return an array over the block that was freed last, or one that is not in the bins."""
        reused = None
        if nbytes >= _MIN_REUSE:
            reused = self.reuse_last(nbytes, FreeRecord)
        if reused is None:
            return self._allocate_slow(self, nbytes, stream, shape, dtype)
        return self.allocate_over(reused.allocation, nbytes, stream, shape, dtype, None, reused)

    def reuse_last(self, nbytes: int, kind: type[_Free]) -> _Free | None:
        """Return the newest event, marked, if it freed a block for a request of as many bytes.

        `kind` is the class that the event must have.
        """
        events: deque[object] = self._events
        if nbytes < _MIN_REUSE or len(events) > _MAX_REUSE_LOG:
            return None
        state = self.state
        last = events[-1] if events else None
        if (
            not isinstance(last, kind)
            or (allocation := last.allocation).requested != nbytes
            or allocation.pool is not state
            or not state.is_reused_directly
            or allocation.recorded is not None
            or state.is_closed
        ):
            return None
        is_named = kind is FreeRecord and not allocation.is_small  # hooks may name it themselves
        site = CallSite.here(depth=3) if is_named else None
        # Threads and signal handlers run after calls only, so between these lines none does.
        if last.is_reused or not events or events[-1] is not last:
            return None
        last.is_reused = True
        allocation.site = site
        return last

    def _undo_reuse(self, record: FreeRecord | HookedFree) -> None:
        """Free a block that was reused, and that no array was made over."""
        is_counted = record not in self._events
        record.is_reused = False
        if is_counted:
            self._append(record)

    def bin_of(self, nbytes: int) -> tuple[int, list[Allocation]]:
        """Return the size class of a request, and its bin."""
        size = -(-size_class(nbytes) // self._granularity) * self._granularity
        bin_ = self.bins.get(size)
        if bin_ is None:
            bin_ = self.bins.setdefault(size, [])
        if len(self.requests) >= _MAX_REQUESTS:
            self.requests.clear()
        self.requests[nbytes] = bin_
        return size, bin_

    def refill_count(self, size: int) -> int:
        """Return how many blocks to cut for a size class whose bin was found empty.

        The number doubles each time, so that a loop soon finds a block for all events that the log
        may hold unprocessed.
        """
        stock = self._stock.get(size, 0)
        limit = max(1, min(_MAX_STOCK, _MAX_STOCK_BYTES // size))
        if stock < limit:
            count = min(max(1, stock), limit - stock)
            self._stock[size] = stock + count
            return count
        return 0 if self.bins[size] else limit


def size_class(nbytes: int) -> int:
    """Round up to a multiple of 64 bytes, coarser above 512: at most an eighth is wasted."""
    if nbytes <= 512:
        return (nbytes + 63) & -64 or 64
    mask = (1 << ((nbytes - 1).bit_length() - 3)) - 1
    return (nbytes + mask) & ~mask
