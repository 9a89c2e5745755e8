"""`Part`: which elements of a whole draw an array holds, from the indices that would take them."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeAlias

from nbrt.backends.draw import Region, Runs, RunTable
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.random.axes import Strides, axis_pieces
from nbrt.random.tables import MANY, RunArrays, long_list, run_table, runs_of

if TYPE_CHECKING:
    from nbrt.typing import DeviceLike

__all__ = ["Index", "Part", "Piece", "checked_part"]

Index: TypeAlias = slice | int | Runs | Sequence[slice | Runs]
"""What takes elements of one axis; a list or tuple takes those of its items in turn."""


class Piece(NamedTuple):
    """A region, and the box of the array that holds it.

    Attributes
    ----------
    region : Region or RunTable
        Elements of the whole draw; may have more dimensions than the array.
    place : tuple of slice
        Where they are in the array, one slice for each dimension.
    shape : tuple of int
        Shape of that box.
    """

    region: Region | RunTable
    place: tuple[slice, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Which elements of a whole draw an array holds.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array.
    pieces : tuple of Piece
        Disjoint boxes that together are the array, in the order in which they are drawn; a single
        one wherever the elements are one region, or many runs that make a table.
    """

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def is_stacked(self) -> bool:
        """Whether the pieces are whole rows, so that one follows the other in contiguous memory."""
        return self.pieces[0].shape[1:] == self.shape[1:]


def checked_part(shape: tuple[int, ...], region: Any, device: DeviceLike = None) -> Part:
    """Return the part of a whole draw of `shape` that `region` says.

    Parameters
    ----------
    shape : tuple of int
        Shape of the whole draw.
    region : Region, or tuple of slice, int, Runs, and list of slice and Runs
        A region, or indices; those left out are ``slice(None)``. One index alone needs no tuple.
    device : Device, str, int or None
        Where it will be drawn; many runs that follow no rule become a table in its memory.

    Raises
    ------
    ArgumentError
        If it lies outside, or a step is negative.
    ArgumentTypeError
        If it is something else.

    Examples
    --------
    >>> checked_part((4, 10), (slice(1, 3), slice(0, 10, 5))).pieces[0].region
    Region(start=10, shape=(2, 2), strides=(10, 5))
    >>> checked_part((10, 4), [slice(0, 2), slice(5, 7)]).pieces[0].region
    Region(start=0, shape=(2, 2, 4), strides=(20, 4, 1))
    """
    if isinstance(region, Region):
        return _single(_inside(shape, region))
    is_one = not isinstance(region, tuple) or isinstance(region, Runs)
    indices = (region,) if is_one else region
    if len(indices) > len(shape):
        raise ArgumentError(
            f"expected at most {len(shape)} indices of a draw of shape {shape}, got {len(indices)}"
        )
    start, over = 0, math.prod(shape)
    axes: list[_Axis] = []
    for axis, size in enumerate(shape):
        over = over // size if size else 0
        index = indices[axis] if axis < len(indices) else slice(None)
        if hasattr(index, "__index__"):
            start += _checked_index(index, size, axis) * over
        else:
            axes.append(_axis(index, size, axis, over))
    sizes = tuple([axis.held for axis in axes])
    if 0 in sizes:
        return _single(Region(0, sizes, (0,) * len(sizes)))
    table = _table(start, axes, device)
    if table is not None:
        return Part(sizes, (Piece(table, _whole(sizes), sizes),))
    placed = [_placed(axis) for axis in axes]
    return Part(sizes, tuple([_piece(start, boxes) for boxes in itertools.product(*placed)]))


class _Axis(NamedTuple):
    """What an index takes of an axis: in pieces, or in runs where these are many.

    `over` are elements of the draw from one index to the next, `held` indices that are taken.
    """

    index: Any
    size: int
    number: int
    over: int
    pieces: list[Strides]
    runs: RunArrays | None
    held: int


def _axis(index: Any, size: int, number: int, over: int) -> _Axis:
    runs = long_list(index, size)
    if isinstance(runs, RunArrays):
        return _Axis(index, size, number, over, [], runs, runs.size)
    index = index if runs is None else runs
    pieces = axis_pieces(index, size, number)
    return _Axis(index, size, number, over, pieces, None, sum([piece.size for piece in pieces]))


def _table(start: int, axes: list[_Axis], device: DeviceLike) -> RunTable | None:
    """Return a part as a table of its runs, unless it has few pieces, or too many runs."""
    if math.prod([MANY + 1 if axis.runs else len(axis.pieces) for axis in axes]) <= MANY:
        return None
    taken = [(axis.runs or runs_of(axis.pieces), axis.over) for axis in axes]
    return run_table(start, taken, device)


def _placed(axis: _Axis) -> list[tuple[Strides, slice]]:
    """Return the pieces along an axis, in elements of the draw, and where they are in the array."""
    placed, end = [], 0
    for piece in axis.pieces or axis_pieces(axis.index, axis.size, axis.number):
        start, end = end, end + piece.size
        dims = tuple([(count, step * axis.over) for count, step in piece.dims])
        placed.append((Strides(piece.start * axis.over, dims), slice(start, end)))
    return placed


def _piece(start: int, boxes: tuple[tuple[Strides, slice], ...]) -> Piece:
    sizes: list[int] = []
    steps: list[int] = []
    for (first, dims), _ in boxes:
        start += first
        for count, step in dims:
            sizes.append(count)
            steps.append(step)
    place = tuple([at for _, at in boxes])
    shape = tuple([at.stop - at.start for at in place])
    return Piece(Region(start, tuple(sizes), tuple(steps)), place, shape)


def _single(region: Region) -> Part:
    return Part(region.shape, (Piece(region, _whole(region.shape), region.shape),))


def _whole(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple([slice(0, size) for size in shape])


def _checked_index(index: SupportsIndex, size: int, axis: int) -> int:
    try:
        number = operator.index(index)
    except TypeError:  # an array, say
        number = None
    if number is None or isinstance(index, bool):
        raise ArgumentTypeError(
            f"expected slices and ints as the region of a shard, got {index!r} on axis {axis}"
        )
    if not -size <= number < size:
        raise ArgumentError(f"expected an index in [{-size}, {size}) on axis {axis}, got {number}")
    return number % size


def _inside(shape: tuple[int, ...], region: Region) -> Region:
    if len(region.shape) != len(region.strides):
        raise ArgumentError(f"expected as many strides as sizes in a region, got {region}")
    numbers = (region.start, *region.shape, *region.strides)
    if any(isinstance(one, bool) or not hasattr(one, "__index__") for one in numbers):
        raise ArgumentTypeError(f"expected integers in a region, got {region}")
    held, steps = (tuple(map(operator.index, one)) for one in (region.shape, region.strides))
    region = Region(operator.index(region.start), held, steps)
    last = region.start + sum(
        (size - 1) * step for size, step in zip(region.shape, region.strides, strict=True)
    )
    is_empty = 0 in region.shape
    if min((*region.shape, *region.strides, region.start), default=0) < 0:
        raise ArgumentError(f"expected a region without negative numbers, got {region}")
    if not is_empty and last >= math.prod(shape):
        raise ArgumentError(
            f"expected a region within the {math.prod(shape)} elements of a draw of shape {shape}, "
            f"got one that reaches element {last}"
        )
    return region
