"""`FakeSegment`: addresses without memory; `FakeBlock`: a part of them; `layout`: arrays over it.

No system maps these addresses, so a fake device of any size costs nothing and meets no limit, be it
``ulimit -v`` or ``vm.overcommit_memory``. Every access faults: bits 53 to 55 of an address are not
all equal, as they are in each address of x86-64 (48 bits, and 57 bits where a program asks for
them), of AArch64 (up to 52 bits; the top byte is ignored) and of RISC-V.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.pools import AllocationHandle, FreeRanges
from nbrt.errors import DeviceError

if TYPE_CHECKING:
    from nbrt.typing import HostArray

__all__ = [
    "ALIGNMENT",
    "FakeBlock",
    "FakeSegment",
    "address_of",
    "is_fake_address",
    "layout",
    "map_fake",
    "new_layout",
]

ALIGNMENT = 2 << 20
"""Segments begin at multiples of this many bytes, as on devices."""

_FIRST, _LAST = 1 << 53, (1 << 56) - (1 << 53)


class FakeSegment(ctypes.Array[ctypes.c_char]):
    """A range of addresses that are free again when it and all arrays over it are gone.

    NumPy makes arrays over any buffer, and ctypes makes buffers at any address. So the type has
    room for the largest segment, and an instance does not say how large it is.
    """

    _type_ = ctypes.c_char
    _length_ = _LAST - _FIRST

    nbytes: int

    def madvise(self, option: int, start: int, length: int, /) -> None:
        """Do nothing: there are no pages. The pools of CPU devices return pages by this method."""

    def __del__(self) -> None:
        # No lock: Python may call this at any time, also while `map_fake` holds it.
        _dropped.append((ctypes.addressof(self), self.nbytes))


_dropped: deque[tuple[int, int]] = deque()
_free = FreeRanges()
_free.add(_FIRST, _LAST - _FIRST)
_lock = threading.Lock()


def map_fake(nbytes: int) -> FakeSegment:
    """Return addresses for `nbytes`.

    Raises
    ------
    MemoryError
        If no addresses are left.
    """
    size = -(-nbytes // ALIGNMENT) * ALIGNMENT
    with _lock:
        while _dropped:
            _free.add(*_dropped.popleft())
        address = _free.take(size)
        if address is None:
            raise MemoryError(
                f"expected at most {_free.nbytes} bytes of a fake device, got {nbytes}"
            )
        segment = FakeSegment.from_address(address)
        segment.nbytes = size
    return segment


def address_of(segment: FakeSegment) -> int:
    """Return the first address."""
    return ctypes.addressof(segment)


def is_fake_address(address: int) -> bool:
    """Return whether an address is one of a fake device, which no memory has."""
    return _FIRST <= address <= _LAST


_new = object.__new__
_NOTHING = (None, None, None)


class FakeBlock:
    """A part of a segment.

    Attributes
    ----------
    address, nbytes : int
        First byte, and the usable bytes.
    segment : FakeSegment or None
        What it is a part of; None once it is free.
    offset : int
        First byte in the segment.
    position : int
        First byte as the pool counts.
    arena : object
        What the pool cut it from, if the pool needs that.
    latest : tuple of (shape, dtype, array or None)
        The latest layout; the array if it was requested twice. Programs request the same again.
    made : tuple of (array, memory, form) or None
        The array of `latest`, and the memory and the form of the `FakeArray` over it.
    """

    __slots__ = ("address", "arena", "latest", "made", "nbytes", "offset", "position", "segment")

    def __init__(
        self, segment: FakeSegment, offset: int, nbytes: int, address: int, position: int = 0
    ) -> None:
        self.segment: Any = segment  # a buffer, which mypy knows no ctypes arrays as
        self.offset = offset
        self.nbytes = nbytes
        self.address = address
        self.position = position
        self.arena: Any = None
        self.latest: tuple[Any, Any, Any] = _NOTHING
        self.made: tuple[HostArray, Any, tuple[Any, ...]] | None = None

    def handle(self, owner: object) -> AllocationHandle:
        """Return the object that stands for one use of the block."""
        handle: AllocationHandle = _new(AllocationHandle)  # half of the time of its constructor
        handle.owner = owner
        return handle

    def release(self) -> None:
        """Drop the segment: the block is free."""
        self.segment = self.made = None
        self.latest = _NOTHING


def layout(block: FakeBlock, shape: tuple[int, ...], dtype: Any) -> HostArray:
    """Return an array over a block in use, of which only views may be made.

    Reading or writing an element ends the process. The addresses stay taken as long as the array or
    a view of it lives.
    """
    latest_shape, latest_dtype, array = block.latest
    is_same = latest_dtype is dtype and latest_shape == shape
    if is_same and array is not None:
        # A fifth of the time of a new array. The caller may change the shape and the flags.
        return array.view()  # type: ignore[no-any-return]  # as made below
    if block.segment is None:
        raise DeviceError("expected a block in use, got one that was freed")
    made = np.ndarray(shape, dtype, block.segment, block.offset)
    block.latest = shape, dtype, made.view() if is_same else None
    return made


def new_layout(shape: tuple[int, ...], dtype: Any, order: Any = "C") -> HostArray:
    """Return an array over addresses that no pool counts, of which only views may be made."""
    kind = np.dtype(dtype)
    segment: Any = map_fake(max(1, math.prod(shape) * kind.itemsize))
    return np.ndarray(shape, kind, segment, 0, None, order)
