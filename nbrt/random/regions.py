"""`Part`: which elements of a whole draw an array holds, from the indices that would take them."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

from nbrt.backends.draw import Region, Runs
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.random.axes import Strides, axis_pieces

__all__ = ["Index", "Part", "Piece", "checked_part"]

Index: TypeAlias = slice | int | Runs | Sequence[slice | Runs]
"""What takes elements of one axis; a list or tuple takes those of its items in turn."""


class Piece(NamedTuple):
    """A region, and the box of the array that holds it.

    Attributes
    ----------
    region : Region
        Elements of the whole draw; may have more dimensions than the array.
    place : tuple of slice
        Where they are in the array, one slice for each dimension.
    shape : tuple of int
        Shape of that box.
    """

    region: Region
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
        one wherever the elements are one region.
    """

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def is_stacked(self) -> bool:
        """Whether the pieces are whole rows, so that one follows the other in contiguous memory."""
        return self.pieces[0].shape[1:] == self.shape[1:]


def checked_part(shape: tuple[int, ...], region: Any) -> Part:
    """Return the part of a whole draw of `shape` that `region` says.

    Parameters
    ----------
    shape : tuple of int
        Shape of the whole draw.
    region : Region, or tuple of slice, int, Runs, and list of slice and Runs
        A region, or indices; those left out are ``slice(None)``. One index alone needs no tuple.

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
    axes: list[list[tuple[Strides, slice]]] = []
    for axis, size in enumerate(shape):
        over = over // size if size else 0
        index = indices[axis] if axis < len(indices) else slice(None)
        if hasattr(index, "__index__"):
            start += _checked_index(index, size, axis) * over
        else:
            axes.append(_placed(index, size, axis, over))
    sizes = tuple([held[-1][1].stop if held else 0 for held in axes])
    if 0 in sizes:
        return _single(Region(0, sizes, (0,) * len(sizes)))
    return Part(sizes, tuple([_piece(start, boxes) for boxes in itertools.product(*axes)]))


def _placed(index: Any, size: int, axis: int, over: int) -> list[tuple[Strides, slice]]:
    """Return the pieces along an axis, in elements of the draw, and where they are in the array."""
    placed, end = [], 0
    for piece in axis_pieces(index, size, axis):
        start, end = end, end + piece.size
        dims = tuple([(count, step * over) for count, step in piece.dims])
        placed.append((Strides(piece.start * over, dims), slice(start, end)))
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
    place = tuple(slice(0, size) for size in region.shape)
    return Part(region.shape, (Piece(region, place, region.shape),))


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
    region = Region(region.start, tuple(region.shape), tuple(region.strides))
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
