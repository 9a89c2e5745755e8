"""Launches of fill kernels, and the boxes that make up a region of a draw."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "THREADS",
    "Box",
    "Fill",
    "Part",
    "Table",
    "box_arguments",
    "boxes",
    "cut",
    "is_listed",
    "within",
]

THREADS = 256
"""Default number of threads of a thread block."""

Box = tuple[Any, Any, int, int, int]
"""(base, run, inner_rows, inner_stride, outer_stride), or a table, see `_index_maps`."""


class Fill(NamedTuple):
    """One launch of a fill kernel.

    Attributes
    ----------
    kernel : callable
        Takes the array or its part, the state, the blocks to skip, and then `arguments`.
    threads : int
        Threads that the kernel needs; more are allowed.
    arguments : tuple
        Further arguments of the kernel.
    part : slice or None
        The part of the flat array to fill; None: all of it.
    skip_blocks : int
        Philox blocks to skip after the draw's offset.
    block : int
        Threads of a thread block; it does not change the bits.
    target : array or None
        The array to fill instead of that of the draw, such as a mask.
    """

    kernel: Callable[..., None]
    threads: int
    arguments: tuple[Any, ...]
    part: slice | None = None
    skip_blocks: int = 0
    block: int = THREADS
    target: Any = None


class Part(Protocol):
    """The part of a draw that an array holds, such as `nbrt.index_sets.Region`."""

    @property
    def start(self) -> int:
        """Return the index in the draw of the first element."""

    @property
    def rows(self) -> tuple[tuple[tuple[int, int], ...], int]:
        """Return (count, stride) of each loop over runs, outermost first, and the run length."""


class Table(Protocol):
    """The runs of a draw that an array holds, such as `nbrt.index_sets.RunTable`."""

    @property
    def starts(self) -> Any:
        """Return the index in the draw of the start of each run, an array of int64."""

    @property
    def begins(self) -> Any:
        """Return the elements before each run, then those of all runs, an array of int64."""

    @property
    def size(self) -> int:
        """Return the number of elements of all runs."""

    @property
    def unit(self) -> int:
        """Return a common divisor of all numbers in the table."""

    @property
    def step(self) -> int:
        """Return the distance in the draw between repetitions of the table."""


def is_table(region: Part | Table | None) -> TypeGuard[Table]:
    """Return whether a region is a table of runs."""
    # Not isinstance of a protocol, which takes 20 times as long.
    return hasattr(region, "begins")


def boxes(region: Part | Table | None, count: int) -> list[tuple[slice | None, int, Box | None]]:
    """Return the boxes of a region, with at most two dimensions of runs each, or its table.

    Returns
    -------
    list of (part, size, box)
        The part of the flat array, its number of elements, and their indices in the draw.
    """
    if region is None:
        return [(None, count, None)]
    if is_table(region):
        table = (region.starts, region.begins, len(region.starts), region.size, region.step)
        return [(None, count, table)]
    region = cast("Part", region)
    rows, run = region.rows
    *loops, outer, inner = ((1, 0), (1, 0), *rows)
    size = run * outer[0] * inner[0]
    steps = itertools.product(*([step * i for i in range(n)] for n, step in loops))
    pieces: list[tuple[slice | None, int, Box | None]] = []
    for number, step in enumerate(steps):
        part = None if size == count else slice(number * size, (number + 1) * size)
        box = (region.start + sum(step), run, inner[0], inner[1], outer[1])
        pieces.append((part, size, box))
    return pieces


def is_listed(box: Box | None) -> bool:
    """Return whether a box is a table."""
    return box is not None and np.ndim(box[0]) > 0


def box_arguments(box: Box, kind: type[np.integer[Any]]) -> tuple[Any, ...]:
    """Return the kernel arguments of a box: numbers converted to `kind`, arrays unchanged."""
    return tuple(value if np.ndim(value) > 0 else kind(value) for value in box)


def cut(values: tuple[Any, ...], count: int, part: slice | None) -> tuple[Any, ...]:
    """Return the parameters for a part: arrays of `count` elements are sliced."""
    if part is None:
        return values
    return tuple(
        value[part] if np.ndim(value) > 0 and len(value) == count else value for value in values
    )


def within(part: slice | None, inner: slice | None) -> slice | None:
    """Compose two slices: `inner` is relative to `part`; None is the whole.

    Examples
    --------
    >>> within(slice(10, 20), slice(2, 5))
    slice(12, 15, None)
    """
    if part is None or inner is None:
        return inner or part
    return slice(part.start + inner.start, part.start + inner.stop)
