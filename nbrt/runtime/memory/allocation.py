"""`Allocation`: a block and who uses it; `FreeRecord` and `HookedFree`: how the use ends."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nbrt._internal.callsite import CallSite
from nbrt.backends.pools import SMALL_LIMIT, AddressableBlock
from nbrt.errors import ArgumentError
from nbrt.runtime.commands import Command

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt._internal.device import Device
    from nbrt.backends.interface import Block
    from nbrt.backends.queue import Queue
    from nbrt.runtime.memory.core import PoolImpl
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array

__all__ = ["Allocation", "FreeRecord", "HookedFree"]

_array = np.ndarray


def _no_stream() -> Stream | None:
    return None


_is_addressable: dict[type, bool] = {}
"""By class of block: `isinstance` with a protocol takes 20 microseconds."""


def _addressable(block: Block) -> AddressableBlock | None:
    """Return the block, if it is an `AddressableBlock`."""
    kind = type(block)
    known = _is_addressable.get(kind)
    if known is None:
        known = _is_addressable[kind] = isinstance(block, AddressableBlock)
    return cast("AddressableBlock", block) if known else None


class FreeRecord(weakref.ref[Any]):
    """Tells that the arrays over an allocation are gone: the reference to its lease went dead.

    The callback is the C function that appends to the device's log, so that the end of an array
    runs no Python code and takes no lock: it may come in any thread, in the middle of anything.
    """

    __slots__ = ("allocation", "is_taken")

    allocation: Allocation
    is_taken: bool
    """The block was handed out again before this was read: the reader leaves it alone."""


class HookedFree(Command):
    """The free of which the taps are told; in the log, the end of which they have been told.

    Made once for each allocation that is watched, and the same for all its uses.
    """

    __slots__ = ("allocation",)

    is_taken = False

    def __init__(self, allocation: Allocation, function: Callable[..., None]) -> None:
        super().__init__("free", function, (allocation,))
        self.allocation = allocation


class Allocation:
    """Device memory that lives as long as the arrays over it.

    The object belongs to the block: when that is handed out again, so is the object, with the facts
    of the new use.

    Attributes
    ----------
    block : Block
        What the backend handed out.
    address, nbytes : int
        Where it begins on the device, and the bytes reserved: what was asked for, rounded up.
    requested : int
        Bytes asked for.
    pool : PoolImpl
        Where it came from.
    recorded : set of Stream or None
        Other streams that use it: its memory is not used again before they have passed.
    site : CallSite or object or None
        Where it was allocated, if that was taken down; watchers may put more than that here.
    ending : FreeRecord or None
        The reference to the lease of this use, which the arrays keep alive.
    home : Queue
        The queue it was cut for, and is given back on.
    host : AddressableBlock or None
        The block, if arrays are made right over its bytes; None: the backend makes them.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "bin",
        "block",
        "dtype",
        "ending",
        "home",
        "host",
        "index",
        "is_small",
        "mould",
        "nbytes",
        "pool",
        "recorded",
        "requested",
        "shape",
        "site",
        "stream_ref",
        "told",
    )

    def __init__(
        self, pool: PoolImpl, block: Block, home: Queue, bin_: list[Allocation] | None
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
        # A program asks for the same again: the shape and dtype of the last array, and its mould.
        self.shape: tuple[int, ...] | None = None
        self.dtype: object = None
        self.mould: Any = None
        self.stream_ref: Callable[[], Stream | None] = _no_stream
        self.recorded: set[Stream] | None = None
        self.site: CallSite | Any = None
        self.ending: FreeRecord | None = None
        self.told: HookedFree | None = None
        block.lease(self)  # host memory learns its tenant here; the others at every lease
        self.host = _addressable(block)

    @property
    def device(self) -> Device:
        """The device whose memory it is."""
        return self.pool.device

    @property
    def stream(self) -> Stream | None:
        """The stream it was allocated for; None if that is gone, or before the first use."""
        return self.stream_ref()

    def begin(self, nbytes: int, stream: Stream) -> None:
        """Take down the facts of a new use."""
        self.requested = nbytes
        self.stream_ref = stream.ref
        if not self.is_small:
            # A microsecond beside the cost of large memory, and an out-of-memory error can say
            # who holds it.
            self.site = CallSite.here(depth=3)

    def array(self, host: AddressableBlock, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array right over the bytes of `self.host`, which is a lease itself."""
        if self.dtype is dtype and self.shape == shape:
            # A view of a mould takes a third of the time that an array of a buffer takes.
            mould = self.mould
            if mould is None:
                mould = self.mould = host.mould(shape, dtype)
            return mould.view(_array)
        array: Array = _array(shape, dtype, host.view)
        self.shape, self.dtype, self.mould = shape, dtype, None
        return array

    def end_with(self, array: Array, note: Callable[[Any], object]) -> None:
        """Have `note` called at the end of an array: what the ways that lend do without a call."""
        ending = self.ending = FreeRecord(array, note)
        ending.allocation, ending.is_taken = self, False

    @property
    def lease(self) -> object | None:
        """What the arrays keep alive; None once they are gone."""
        return None if self.ending is None else self.ending()

    def record_stream(self, stream: Stream) -> None:
        """Keep the freed block from reuse until a stream has done the work that it has then."""
        if self.lease is None:
            raise ArgumentError("expected an array in use, got one whose memory was freed")
        if stream is not self.stream:
            # A new set each time: another thread may be reading the previous one.
            self.recorded = {*(self.recorded or ()), stream}

    def __repr__(self) -> str:
        return f"Allocation({self.requested} bytes at {self.address:#x} of {self.device})"
