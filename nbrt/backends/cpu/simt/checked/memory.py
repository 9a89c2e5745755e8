"""The memory of checked launches: the state, and the shadow of their arrays."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import binding

from nbrt.backends.cpu.simt.checked import layout
from nbrt.backends.cpu.simt.checked.shadow import FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PREFIX", "Argument", "LaunchState", "arrays_in", "granule", "lock", "state_address"]

PREFIX = "nbrt_check_"
"""Prefix of the names by which compiled code calls the functions of the shadow runtime."""

lock = threading.RLock()
"""Held by a checked launch: native code uses one state per process."""

_state: np.ndarray[Any, np.dtype[np.int64]] | None = None
_arenas: list[np.ndarray[Any, np.dtype[np.int64]]] = []


def _shared_state() -> np.ndarray[Any, np.dtype[np.int64]]:
    global _state
    if _state is None:
        _state = np.zeros(layout.STATE_WORDS, np.int64)
        _arenas.append(np.zeros(layout.SHARED_CELLS * layout.CELL, np.int64))
        _arenas.append(np.zeros(layout.LOCAL_WORDS, np.int64))
        for name, function in FUNCTIONS.items():
            binding.add_symbol(f"{PREFIX}{name}", function.address)
    return _state


def state_address() -> int:
    """Return the address of the state, a constant in compiled code."""
    return int(_shared_state().ctypes.data)


@dataclass(frozen=True, slots=True)
class Argument:
    """An array argument of a launch, with the name of its parameter."""

    name: str
    array: np.ndarray[Any, Any]

    @property
    def span(self) -> tuple[int, int]:
        """Address of the first byte, and the address after the last."""
        start, end = np.lib.array_utils.byte_bounds(self.array)
        return int(start), int(end)

    def position(self, address: int) -> tuple[int, ...] | None:
        """Return the index of the element at an address, or None."""
        offset = address - self.array.ctypes.data
        index = [0] * self.array.ndim
        strides = self.array.strides
        for axis in sorted(range(self.array.ndim), key=lambda axis: -abs(strides[axis])):
            if strides[axis]:
                index[axis], offset = divmod(offset, strides[axis])
                if strides[axis] < 0 and offset:
                    index[axis], offset = index[axis] + 1, offset - strides[axis]
        inside = all(0 <= at < extent for at, extent in zip(index, self.array.shape, strict=True))
        return tuple(index) if inside and 0 <= offset < self.array.itemsize else None


def arrays_in(name: str, value: object) -> Iterator[Argument]:
    """Yield the arrays of an argument, also those in tuples."""
    if isinstance(value, np.ndarray) and value.size:
        yield Argument(name, value)
    elif isinstance(value, tuple):
        for number, member in enumerate(value):
            yield from arrays_in(f"{name}[{number}]", member)


def granule(dtype: np.dtype[Any]) -> int:
    """Return the smallest unit in which elements of a type are accessed, a power of two."""
    if dtype.subdtype is not None:
        return granule(dtype.subdtype[0])
    if dtype.fields is not None:
        parts = [n for typ, at, *_ in dtype.fields.values() for n in (granule(typ), at)]
        size = math.gcd(*parts, dtype.itemsize)
    else:
        size = max(1, dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize)
    return size & -size


class LaunchState:
    """The state, set up for one launch; hold `lock` as long as it is used.

    `arguments` are the arrays that threads may share, `blocks` and `threads` the counts of the
    launch; `together`: all blocks are resident at once. `view_size` is the smallest size in bytes
    of an element of a view that the kernel makes.
    """

    def __init__(
        self,
        arguments: list[Argument],
        blocks: int,
        threads: int,
        *,
        together: bool,
        strict: bool,
        view_size: int,
    ) -> None:
        self._words = _shared_state()
        self._blocks = np.zeros(blocks * layout.BLOCK_WORDS, np.int64)
        self._shadows: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        head = self._words[: layout.GLOBALS]
        # Each launch numbers its blocks from 1: clear the cells of the last launch.
        _arenas[0][: int(head[layout.SHARED_PEAK]) * layout.CELL] = 0
        head[:] = 0
        head[layout.BLOCK_THREADS] = threads
        head[layout.CLOCK] = 1
        head[layout.ROWS] = blocks * threads if together else threads
        head[layout.BLOCKS] = self._blocks.ctypes.data
        head[layout.SHARED_ARENA] = _arenas[0].ctypes.data
        head[layout.LOCAL_ARENA] = _arenas[1].ctypes.data
        head[layout.STRICT] = strict
        head[layout.PAIRS_USED] = 1
        self._words[layout.ARRIVALS : layout.PAIRS] = 0
        self._add_regions(arguments, view_size)

    def _add_regions(self, arguments: list[Argument], view_size: int) -> None:
        merged: list[list[int]] = []
        for argument in sorted(arguments, key=lambda argument: argument.span):
            start, end = argument.span
            size = min(granule(argument.array.dtype), view_size)
            if merged and start < merged[-1][1]:
                last = merged[-1]
                last[1] = max(last[1], end)
                last[2] = math.gcd(last[2], size, start - last[0])
            else:
                merged.append([start, end, size])
        for number, (start, end, size) in enumerate(merged[: layout.MAX_GLOBALS]):
            shift = (size & -size).bit_length() - 1
            cells = np.zeros(((end - start - 1 >> shift) + 1) * layout.CELL, np.int64)
            self._shadows.append(cells)
            region = layout.GLOBALS + number * layout.REGION
            self._words[region : region + 4] = start, end, shift, cells.ctypes.data
            self._words[layout.GLOBAL_COUNT] = number + 1
        self._words[layout.UNCHECKED] = max(0, len(merged) - layout.MAX_GLOBALS)

    def rows(self) -> list[tuple[int, ...]]:
        """Return the reports in order."""
        count = int(self._words[layout.REPORT_COUNT])
        table = self._words[layout.REPORTS :][: count * layout.REPORT].reshape(count, layout.REPORT)
        return [tuple(int(word) for word in row) for row in table]

    @property
    def unchecked(self) -> int:
        """The number of arrays without a shadow."""
        return int(self._words[layout.UNCHECKED])
