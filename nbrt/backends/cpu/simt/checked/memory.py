"""The memory of checked launches: the state, and the shadow of what a launch is given."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import binding

from nbrt.backends.cpu.simt.checked import accesses, layout, order

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PREFIX", "Argument", "LaunchState", "arrays_in", "lock", "state_address"]

PREFIX = "nbrt_check_"
"""Prefix of the names by which compiled code calls the functions of the shadow runtime."""

_FUNCTIONS = (
    accesses.access,
    accesses.bounds,
    accesses.overflow,
    accesses.local_array,
    accesses.shared_array,
    order.begin_block,
    order.end_block,
    order.begin_thread,
    order.before_barrier,
    order.before_grid,
    order.after_barrier,
    order.after_grid,
    order.reconverged,
    order.returned,
    order.before_warp,
    order.after_warp,
    order.fence,
)

lock = threading.RLock()
"""Held by a launch in checked mode: native code knows one state per process."""

_state: np.ndarray[Any, np.dtype[np.int64]] | None = None
_arenas: list[np.ndarray[Any, np.dtype[np.int64]]] = []


def _shared_state() -> np.ndarray[Any, np.dtype[np.int64]]:
    global _state
    if _state is None:
        _state = np.zeros(layout.STATE_WORDS, np.int64)
        _arenas.append(np.zeros(layout.SHARED_CELLS * layout.CELL, np.int64))
        _arenas.append(np.zeros(layout.LOCAL_WORDS, np.int64))
        for function in _FUNCTIONS:
            binding.add_symbol(f"{PREFIX}{function.__name__}", function.address)
    return _state


def state_address() -> int:
    """Give the address of the state, which is compiled into code as a constant."""
    return int(_shared_state().ctypes.data)


@dataclass(frozen=True, slots=True)
class Argument:
    """An array that a launch was given, by the name of its parameter."""

    name: str
    array: np.ndarray[Any, Any]

    @property
    def span(self) -> tuple[int, int]:
        """First byte, and the one behind the last."""
        start, end = np.lib.array_utils.byte_bounds(self.array)
        return int(start), int(end)

    def position(self, address: int) -> tuple[int, ...] | None:
        """Give the index of the element at an address, if there is one."""
        offset = address - self.array.ctypes.data
        found = [0] * self.array.ndim
        strides = self.array.strides
        for axis in sorted(range(self.array.ndim), key=lambda axis: -abs(strides[axis])):
            if strides[axis]:
                found[axis], offset = divmod(offset, strides[axis])
                if strides[axis] < 0 and offset:
                    found[axis], offset = found[axis] + 1, offset - strides[axis]
        inside = all(0 <= at < extent for at, extent in zip(found, self.array.shape, strict=True))
        return tuple(found) if inside and 0 <= offset < self.array.itemsize else None


def arrays_in(name: str, value: object) -> Iterator[Argument]:
    """Go through the arrays of an argument, also those in tuples."""
    if isinstance(value, np.ndarray) and value.size:
        yield Argument(name, value)
    elif isinstance(value, tuple):
        for number, member in enumerate(value):
            yield from arrays_in(f"{name}[{number}]", member)


def _granule(dtype: np.dtype[Any]) -> int:
    """Give the size of the smallest piece in which elements of a type are read and written."""
    if dtype.subdtype is not None:
        return _granule(dtype.subdtype[0])
    if dtype.fields is not None:
        fields = dtype.fields.values()
        sizes = [_granule(field[0]) for field in fields]
        return math.gcd(*sizes, *(int(field[1]) for field in fields), dtype.itemsize)
    return max(1, dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize)


class LaunchState:
    """The state, set up for one launch; hold `lock` as long as it is used.

    Parameters
    ----------
    arguments : list of Argument
        The arrays that threads may share.
    blocks, threads : int
        Blocks in the grid, threads in a block.
    together : bool
        Whether all blocks are under way at once.
    strict : bool
        Whether a thread that returns before a barrier of others is a fault.
    """

    def __init__(
        self,
        arguments: list[Argument],
        blocks: int,
        threads: int,
        *,
        together: bool = False,
        strict: bool = False,
    ) -> None:
        self._words = _shared_state()
        self._blocks = np.zeros(blocks * layout.BLOCK_WORDS, np.int64)
        self._shadows: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        head = self._words[: layout.GLOBALS]
        # Blocks are numbered anew in each launch: cells of the last one would look like its own.
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
        self._add_regions(arguments)

    def _add_regions(self, arguments: list[Argument]) -> None:
        merged: list[list[int]] = []
        for argument in sorted(arguments, key=lambda argument: argument.span):
            start, end = argument.span
            size = _granule(argument.array.dtype)
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
        """Give the reports, in the order in which they were made."""
        count = int(self._words[layout.REPORT_COUNT])
        table = self._words[layout.REPORTS :][: count * layout.REPORT].reshape(count, layout.REPORT)
        return [tuple(int(word) for word in row) for row in table]

    @property
    def thread(self) -> int:
        """The rank in its block of the thread that has run last."""
        return int(self._words[layout.THREAD])

    @property
    def block(self) -> int:
        """The number in the grid of the block that has run last."""
        return int(self._words[layout.BLOCK]) - 1

    @property
    def unchecked(self) -> int:
        """How many arrays there was no shadow for."""
        return int(self._words[layout.UNCHECKED])
