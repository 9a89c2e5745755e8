"""Regions of a draw, from the indices that would take the part out of the whole array."""

from __future__ import annotations

import math
from typing import Any

from nbrt.backends.draw import Region
from nbrt.errors import ArgumentError, ArgumentTypeError

__all__ = ["checked_region"]


def checked_region(shape: tuple[int, ...], region: Any) -> Region:
    """Return the region of a whole draw of `shape` that `region` says.

    Parameters
    ----------
    shape : tuple of int
        Shape of the whole draw.
    region : Region, slice, int, or tuple of slice and int
        A region, or indices; those left out are ``slice(None)``.

    Raises
    ------
    ArgumentError
        If it lies outside, or a step is negative.
    ArgumentTypeError
        If it is something else.

    Examples
    --------
    >>> checked_region((4, 10), (slice(1, 3), slice(0, 10, 5)))
    Region(start=10, shape=(2, 2), strides=(10, 5))
    """
    if isinstance(region, Region):
        return _inside(shape, region)
    indices = region if isinstance(region, tuple) else (region,)
    if len(indices) > len(shape):
        raise ArgumentError(
            f"expected at most {len(shape)} indices of a draw of shape {shape}, got {len(indices)}"
        )
    start, sizes, strides = 0, [], []
    step_over = math.prod(shape)
    for axis, size in enumerate(shape):
        step_over = step_over // size if size else 0
        index = indices[axis] if axis < len(indices) else slice(None)
        first, count, step = _indices(index, size, axis)
        start += first * step_over
        if count >= 0:
            sizes.append(count)
            strides.append(step * step_over)
    return Region(start, tuple(sizes), tuple(strides))


def _indices(index: Any, size: int, axis: int) -> tuple[int, int, int]:
    """Return first, count and step of an index; a count of -1 for one that drops its axis."""
    if isinstance(index, slice):
        first, stop, step = index.indices(size)
        if step < 0:
            raise ArgumentError(f"expected positive steps in a shard, got {index} on axis {axis}")
        count = len(range(first, stop, step))
        return (first if count else 0), count, step
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise ArgumentTypeError(
            f"expected slices and ints as the region of a shard, got {index!r} on axis {axis}"
        )
    number = int(index.__index__())
    if not -size <= number < size:
        raise ArgumentError(f"expected an index in [{-size}, {size}) on axis {axis}, got {number}")
    return number % size, -1, 1


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
