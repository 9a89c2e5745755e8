"""Parts of one axis: slices and runs, joined into as few affine pieces as they allow."""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

from nbrt.backends.draw import Runs
from nbrt.errors import ArgumentError, ArgumentTypeError

__all__ = ["Strides", "axis_pieces"]


class Strides(NamedTuple):
    """Elements ``start + i * step + j * step' + ...``, the last index counting fastest.

    Attributes
    ----------
    start : int
        The first element.
    dims : tuple of (int, int)
        Count and step of each index, the outermost first.
    """

    start: int
    dims: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """How many elements."""
        return math.prod([count for count, _ in self.dims])


def axis_pieces(index: Any, size: int, axis: int) -> list[Strides]:
    """Return the elements of an axis that an index takes, in its order, without empty pieces.

    Parameters
    ----------
    index : slice, Runs, or list or tuple of them
        Those of a list one after the other. Elements may come more than once.
    size : int
        Length of the axis.
    axis : int
        Its number, for messages.

    Examples
    --------
    >>> axis_pieces([slice(0, 2), slice(5, 7)], 10, 0)
    [Strides(start=0, dims=((2, 5), (2, 1)))]
    >>> axis_pieces([slice(0, 3), slice(5, 7), slice(7, 8)], 10, 0)
    [Strides(start=0, dims=((2, 5), (3, 1)))]
    """
    if isinstance(index, slice):
        piece = _of_slice(index, size, axis)
        return [piece] if piece.size else []
    listed = index if isinstance(index, (list, tuple)) and not isinstance(index, Runs) else [index]
    pieces = [_of_one(one, size, axis) for one in listed]
    joined = _connected([piece for piece in pieces if piece.size])
    before = len(joined) + 1
    while len(joined) < before:
        before, joined = len(joined), _repeated(joined)
    return joined


def _of_one(index: Any, size: int, axis: int) -> Strides:
    if isinstance(index, Runs):
        return _of_runs(index, size, axis)
    if isinstance(index, slice):
        first, dims = _of_slice(index, size, axis)
        return Strides(first, _dense(dims))
    raise ArgumentTypeError(
        f"expected slices and ints as the region of a shard, or lists of slices and Runs, got "
        f"{index!r} on axis {axis}"
    )


def _of_slice(index: slice, size: int, axis: int) -> Strides:
    try:
        first, stop, step = index.indices(size)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"expected slices of integers in a shard, got {index} on axis {axis}: {error}"
        ) from None
    if step < 0:
        raise ArgumentError(f"expected positive steps in a shard, got {index} on axis {axis}")
    return Strides(first, ((len(range(first, stop, step)), step),))


def _of_runs(runs: Runs, size: int, axis: int) -> Strides:
    if any(isinstance(one, bool) or not hasattr(one, "__index__") for one in runs):
        raise ArgumentTypeError(f"expected integers in runs, got {runs} on axis {axis}")
    start, length, count, step = map(operator.index, runs)
    if min(start, length, count) < 0 or (step <= 0 and count > 1):
        raise ArgumentError(
            f"expected runs without negative numbers and a step above 0, got {runs} on axis {axis}"
        )
    if length * count and start + (count - 1) * step + length > size:
        raise ArgumentError(f"expected runs within {size} indices, got {runs} on axis {axis}")
    return Strides(start, _dense(((count, step), (length, 1))))


def _dense(dims: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return the same elements with as few dimensions as they take, at least one."""
    kept: list[tuple[int, int]] = []
    for count, step in dims:
        if kept and kept[-1][1] == count * step:
            kept[-1] = kept[-1][0] * count, step
        elif count != 1:
            kept.append((count, step))
    return tuple(kept) or ((1, 1),)


def _connected(pieces: list[Strides]) -> list[Strides]:
    """Join a run with one that starts where it ends."""
    joined: list[Strides] = []
    for piece in pieces:
        if joined and len(piece.dims) == len(joined[-1].dims) == 1:
            first, ((held, step),) = joined[-1]
            ((count, own_step),) = piece.dims
            if step == own_step == 1 and first + held == piece.start:
                joined[-1] = Strides(first, ((held + count, 1),))
                continue
        joined.append(piece)
    return joined


def _repeated(pieces: list[Strides]) -> list[Strides]:
    """Join neighbours that are alike but for where they start, at a constant distance."""
    joined: list[Strides] = []
    at = 0
    while at < len(pieces):
        start, dims = pieces[at]
        distance = pieces[at + 1].start - start if at + 1 < len(pieces) else 0
        count = 1
        while (
            distance > 0
            and at + count < len(pieces)
            and pieces[at + count] == (start + count * distance, dims)
        ):
            count += 1
        joined.append(Strides(start, _dense(((count, distance), *dims))))
        at += count
    return joined
