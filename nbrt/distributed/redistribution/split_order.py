"""`SplitOrder`: the splits of a tensor's dimensions, in any order of the mesh's dimensions.

Placements split in the order of the mesh; intermediate orders need not. A rank's part under an
order contains its part under any order that continues the same splits, so the splits alone show
which steps need no communication, for any number of ranks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from nbrt.distributed.sharding import MeshSplit, dim_runs, mesh_splits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.distributed.placements import Placement
    from nbrt.index_sets import Runs

__all__ = [
    "SplitOrder",
    "continues",
    "elements",
    "part_of",
    "shared",
    "split_mesh_dims",
    "split_order_of",
]

SplitOrder: TypeAlias = tuple[tuple[MeshSplit, ...], ...]
"""The splits of each dimension of the tensor, in order."""


def split_order_of(
    shape: Sequence[int], mesh_shape: Sequence[int], placements: Sequence[Placement]
) -> SplitOrder:
    """Return the splits of placements, in the simplest equivalent form.

    Dimensions of the mesh with one rank do not split. A strided split that divides its dimension is
    equivalent to a plain split after the splits that make its chunks.

    Examples
    --------
    >>> from nbrt.distributed.placements import Shard, StridedShard
    >>> fsdp = split_order_of((8,), (4, 2), [StridedShard(0, 2), Shard(0)])
    >>> [split.mesh_dim for split in fsdp[0]]
    [1, 0]
    """
    return tuple(
        _plain(size, [split for split in splits if split.ranks > 1])
        for size, splits in zip(shape, mesh_splits(len(shape), mesh_shape, placements), strict=True)
    )


def _plain(size: int, splits: list[MeshSplit]) -> tuple[MeshSplit, ...]:
    for at in reversed(range(len(splits))):
        split = splits[at]
        if split.factor == 1 or not _divides(size, splits[: at + 1]):
            continue
        chunks, end = 1, at + 1
        while end < len(splits) and chunks < split.factor and splits[end].factor == 1:
            chunks *= splits[end].ranks
            end += 1
        if chunks == split.factor:
            splits[at:end] = [*splits[at + 1 : end], split._replace(factor=1)]
    return tuple(splits)


def _divides(size: int, splits: list[MeshSplit]) -> bool:
    """Return whether all splits make equal pieces."""
    for split in splits:
        if size % (split.ranks * split.factor):
            return False
        size //= split.ranks
    return True


def continues(longer: SplitOrder, shorter: SplitOrder) -> bool:
    """Return whether an order begins with the splits of another one, which contains its parts."""
    return all(ours[: len(splits)] == splits for ours, splits in zip(longer, shorter, strict=True))


def shared(one: Sequence[MeshSplit], other: Sequence[MeshSplit]) -> int:
    """Return the number of equal splits at the start of two sequences."""
    for count, (ours, theirs) in enumerate(zip(one, other, strict=False)):
        if ours != theirs:
            return count
    return min(len(one), len(other))


def split_mesh_dims(order: SplitOrder) -> set[int]:
    """Return the dimensions of the mesh that split."""
    return {split.mesh_dim for splits in order for split in splits}


def elements(shape: Sequence[int], order: SplitOrder) -> float:
    """Return the mean number of elements of a part, to compare costs."""
    return math.prod(shape) / math.prod(split.ranks for splits in order for split in splits)


def part_of(
    shape: Sequence[int], order: SplitOrder, coordinate: Sequence[int]
) -> tuple[tuple[Runs, ...], ...]:
    """Return the indices along each dimension that the rank at a coordinate holds."""
    return tuple(
        dim_runs(size, splits, coordinate) for size, splits in zip(shape, order, strict=True)
    )
