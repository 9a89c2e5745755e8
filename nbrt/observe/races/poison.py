"""Poison: a pattern in freed memory that exposes reads of it and writes to it.

The two bytes 0x7FFB, repeated: a NaN as float16, bfloat16, float32 and float64, and close to the
largest value as an integer of more than one byte.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nbrt.backends.pools import AllocationHandle
from nbrt.runtime.device import interface_of

if TYPE_CHECKING:
    from nbrt.observe.races.shadow_blocks import ShadowBlock, Span
    from nbrt.runtime.memory.allocation import Allocation

__all__ = ["PATTERN", "Poisoner"]

PATTERN = 0x7FFB

_DTYPE = np.dtype("<u2")
_MAX_BYTES = 1 << 20
"""Of a larger block, half of this is filled at either end."""


class Poisoner:
    """Fills freed memory with the pattern, and finds changes of it.

    Parameters
    ----------
    poison : bool or "all"
        Whether to fill; "all" includes the middle of large blocks.
    """

    def __init__(self, poison: bool | Literal["all"]) -> None:
        self._poison = poison

    def fill(self, allocation: Allocation) -> tuple[Span, ...]:
        """Fill a block that is no longer in use; return the address ranges to check later."""
        interface = interface_of(allocation.device)
        if not self._poison or not interface.capabilities.computes:
            return ()
        spans = self._spans(allocation.address, allocation.nbytes)
        if interface.capabilities.host_addressable:
            for begin, end in spans:
                _words(begin, end)[...] = PATTERN
            return spans
        if allocation.stream is not None and allocation.pool.kind != "pinned":
            # On its own stream: the memory is reused in the order of that stream only.
            words = allocation.nbytes // _DTYPE.itemsize
            whole = interface.as_array(allocation.block, (words,), _DTYPE, AllocationHandle(None))
            for begin, end in spans:
                first, last = begin - allocation.address, end - allocation.address
                interface.fill(allocation.stream.queue, whole[first // 2 : last // 2], PATTERN)
        return ()

    def first_change(self, block: ShadowBlock, begin: int, end: int) -> int | None:
        """Return the first address in a range of a block whose poison was overwritten."""
        for low, high in block.poisoned:
            low, high = max(low, begin), min(high, end)
            if low < high:
                changed = _words(low, high) != PATTERN
                index = int(np.argmax(changed))
                if changed[index]:
                    return low + index * _DTYPE.itemsize
        return None

    def _spans(self, address: int, nbytes: int) -> tuple[Span, ...]:
        end = address + nbytes // _DTYPE.itemsize * _DTYPE.itemsize
        if self._poison == "all" or nbytes <= _MAX_BYTES:
            return ((address, end),)
        half = _MAX_BYTES // 2
        return ((address, address + half), (end - half, end))


def _words(begin: int, end: int) -> np.ndarray[Any, np.dtype[Any]]:
    memory = (ctypes.c_uint16 * ((end - begin) // _DTYPE.itemsize)).from_address(begin)
    return np.frombuffer(memoryview(memory), _DTYPE)
