"""What two parts of a tensor have in common, and where each of them has it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.draw import Runs
    from nbrt.typing import HostArray

__all__ = ["Common", "Selection", "common", "part_shape", "whole"]

Selection: TypeAlias = "tuple[slice | HostArray, ...]"
"""Indices along each dimension of a part: a slice where they are regular, else an int64 array."""

Part: TypeAlias = "Sequence[Sequence[Runs]]"


class Common(NamedTuple):
    """The elements that two parts have in common.

    Attributes
    ----------
    shape : tuple of int
        Of a box that holds them.
    first, second : Selection
        Where each part has them.
    """

    shape: tuple[int, ...]
    first: Selection
    second: Selection

    @property
    def size(self) -> int:
        """How many they are."""
        return math.prod(self.shape)


def common(first: Part, second: Part) -> Common:
    """Return what two parts have in common; both hold their indices in ascending order.

    Examples
    --------
    >>> from nbrt.backends.draw import Runs
    >>> common([[Runs(0, 4)]], [[Runs(1, 8)]])
    Common(shape=(3,), first=(slice(1, 4, 1),), second=(slice(0, 3, 1),))
    """
    found = [_along(one, other) for one, other in zip(first, second, strict=True)]
    return Common(
        tuple(count for count, _, _ in found),
        tuple(one for _, one, _ in found),
        tuple(other for _, _, other in found),
    )


def part_shape(part: Part) -> tuple[int, ...]:
    """Return the shape of a part."""
    return tuple(sum(run.size for run in runs) for runs in part)


def whole(part: Part) -> Selection:
    """Return the selection of all of a part."""
    return tuple(slice(0, size, 1) for size in part_shape(part))


def _along(
    first: Sequence[Runs], second: Sequence[Runs]
) -> tuple[int, slice | HostArray, slice | HostArray]:
    if len(first) == len(second) == first[0].count == second[0].count == 1:
        start = max(first[0].start, second[0].start)
        stop = min(first[0].start + first[0].length, second[0].start + second[0].length)
        count = max(0, stop - start)
        if not count:
            return 0, slice(0, 0, 1), slice(0, 0, 1)
        ours, theirs = start - first[0].start, start - second[0].start
        return count, slice(ours, ours + count, 1), slice(theirs, theirs + count, 1)
    _, inner, outer = np.intersect1d(
        _indices(first), _indices(second), assume_unique=True, return_indices=True
    )
    return len(inner), _regular(inner), _regular(outer)


def _indices(runs: Sequence[Runs]) -> HostArray:
    return np.concatenate(
        [
            (run.start + np.arange(run.count)[:, None] * run.step + np.arange(run.length)).ravel()
            for run in runs
        ]
    )


def _regular(indices: HostArray) -> slice | HostArray:
    if not len(indices):
        return slice(0, 0, 1)
    steps = np.diff(indices)
    step = int(steps[0]) if len(steps) else 1
    if np.any(steps != step):
        return indices
    return slice(int(indices[0]), int(indices[-1]) + 1, step)
