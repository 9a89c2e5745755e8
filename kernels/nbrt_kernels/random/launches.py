"""Launches of fill kernels, and the boxes that make up a region of a draw."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

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
"""Threads of a thread block, where nothing asks for another number."""

Box = tuple[Any, Any, int, int, int]
"""(base, run, inner_rows, inner_stride, outer_stride), or a table: see `_places`."""


class Fill(NamedTuple):
    """One launch of a fill kernel.

    Attributes
    ----------
    kernel : callable
        Takes the array, or the part of it, the state, the blocks to skip, and then `arguments`.
    threads : int
        Threads that it needs; more do no harm.
    arguments : tuple
        What it takes further.
    part : slice or None
        The part of the flat array that it fills; None: all of it.
    skip_blocks : int
        Philox blocks to skip after the draw's offset.
    block : int
        Threads of a thread block; another number gives the same bits.
    target : array or None
        What it fills instead of the draw's array, such as a mask.
    """

    kernel: Callable[..., None]
    threads: int
    arguments: tuple[Any, ...]
    part: slice | None = None
    skip_blocks: int = 0
    block: int = THREADS
    target: Any = None


class Part(Protocol):
    """Which elements of a draw an array holds, such as `nbrt.index_sets.Region`."""

    @property
    def start(self) -> int:
        """Element of the draw that the first one is."""
        ...

    @property
    def rows(self) -> tuple[tuple[tuple[int, int], ...], int]:
        """(count, stride) of what steps over contiguous runs, outermost first, and a run."""
        ...


@runtime_checkable
class Table(Protocol):
    """Runs that an array holds of a draw, such as `nbrt.index_sets.RunTable`."""

    @property
    def starts(self) -> Any:
        """Element of the draw that each run starts with, an array of int64."""
        ...

    @property
    def begins(self) -> Any:
        """Elements of the runs before each, and of all of them, an array of int64."""
        ...

    @property
    def size(self) -> int:
        """Elements of all runs."""
        ...

    @property
    def unit(self) -> int:
        """What divides all numbers in the table."""
        ...

    @property
    def step(self) -> int:
        """Elements of the draw from one time through the table to the next."""
        ...


def boxes(region: Part | Table | None, count: int) -> list[tuple[slice | None, int, Box | None]]:
    """Return the pieces of a region that step over runs in two dimensions at most, or its table.

    Returns
    -------
    list of (part, size, box)
        Which part of the flat array, its elements, and where they are in the draw.
    """
    if region is None:
        return [(None, count, None)]
    if isinstance(region, Table):
        table = (region.starts, region.begins, len(region.starts), region.size, region.step)
        return [(None, count, table)]
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
    """Return a box as a kernel takes it: numbers of a type, and arrays as they are."""
    return tuple(one if np.ndim(one) > 0 else kind(one) for one in box)


def cut(values: tuple[Any, ...], count: int, part: slice | None) -> tuple[Any, ...]:
    """Return parameters for a part of `count` elements: arrays that have so many are cut."""
    if part is None:
        return values
    return tuple(
        value[part] if np.ndim(value) > 0 and len(value) == count else value for value in values
    )


def within(part: slice | None, inner: slice | None) -> slice | None:
    """Return a part of a part, as a part of the whole; None is all of it.

    Examples
    --------
    >>> within(slice(10, 20), slice(2, 5))
    slice(12, 15, None)
    """
    if part is None or inner is None:
        return inner or part
    return slice(part.start + inner.start, part.start + inner.stop)
