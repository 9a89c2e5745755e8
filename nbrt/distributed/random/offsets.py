"""Offsets of shards in torch's DTensor: the arithmetic of its offset-based tracker.

Pure functions of plain ints, equal to those of torch/distributed/tensor/_random.py (2.13 to 2.15).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nbrt.distributed.sharding import dim_runs, mesh_splits
from nbrt.random.state import whole_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.distributed.placements import Placement

__all__ = [
    "compute_post_offset",
    "compute_pre_offset",
    "first_shard_size",
    "shard_linear_index",
]


def compute_pre_offset(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[Placement],
) -> int:
    """Return the offset of the draw of the rank at a coordinate, relative to the state.

    It is the number of the shard times the size of the first shard, in whole blocks of 4.

    Examples
    --------
    >>> from nbrt.distributed.placements import Shard
    >>> [compute_pre_offset((8,), (4,), (rank,), [Shard(0)]) for rank in range(4)]
    [0, 4, 4, 8]
    """
    index = shard_linear_index(len(shape), mesh_shape, coordinate, placements)
    return whole_blocks(index * math.prod(first_shard_size(shape, mesh_shape, placements)))


def compute_post_offset(shape: Sequence[int]) -> int:
    """Return the offset that a draw adds on every rank: its elements, in whole blocks."""
    return whole_blocks(math.prod(shape))


def shard_linear_index(
    ndim: int,
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[Placement],
) -> int:
    """Return the number of the shard that the rank at a coordinate holds, in row-major order.

    Along a dimension of the tensor that several dimensions of the mesh cut, shards are counted as
    if each cut what the one before left, also where a strided cut does not.
    """
    linear = 0
    for splits in mesh_splits(ndim, mesh_shape, placements):
        for split in splits:
            linear = linear * split.ranks + coordinate[split.mesh_dim]
    return linear


def first_shard_size(
    shape: Sequence[int], mesh_shape: Sequence[int], placements: Sequence[Placement]
) -> tuple[int, ...]:
    """Return the shape of the first shard in torch's arithmetic.

    Of a dimension that is split more than once, only the last split counts, so the shape is larger
    than the shard.
    """
    splits = mesh_splits(len(shape), mesh_shape, placements)
    origin = (0,) * len(mesh_shape)
    return tuple(
        sum(run.size for run in dim_runs(size, each[-1:], origin))
        for size, each in zip(shape, splits, strict=True)
    )
