"""Every way to spread a tensor over a few ranks, and what each rank then holds, by brute force.

What a rank holds is found here by cutting arrays of indices, as one would on paper: none of the
closed forms of `nbrt.distributed.sharding` is used.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.distributed import Placement, Replicate, Shard, StridedShard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "Sharding",
    "cuts_of",
    "held_by",
    "indices_held",
    "mesh_shapes",
    "placements_of",
    "shardings",
]

MAX_RANKS = 8


class Sharding(NamedTuple):
    """A shape of tensor on a shape of mesh."""

    mesh: tuple[int, ...]
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        places = ",".join(map(str, self.placements))
        return f"{list(self.shape)} on {list(self.mesh)} [{places}]"


def mesh_shapes(ndims: Iterable[int] = (1, 2, 3), least: int = 1) -> Iterator[tuple[int, ...]]:
    """Yield every mesh of up to 8 ranks, with at least `least` of them along each dimension."""
    for ndim in ndims:
        for shape in itertools.product(range(least, MAX_RANKS + 1), repeat=ndim):
            if math.prod(shape) <= MAX_RANKS:
                yield shape


def placements_of(ndim: int, mesh_ndim: int) -> Iterator[tuple[Placement, ...]]:
    """Yield every list of placements of a tensor of `ndim`, strided shards among them."""
    kinds: list[Placement] = [Replicate()]
    for dim in range(ndim):
        kinds += [Shard(dim), StridedShard(dim, 2)]
    yield from itertools.product(kinds, repeat=mesh_ndim)


def shardings(
    meshes: Iterable[tuple[int, ...]], shapes: Sequence[tuple[int, ...]]
) -> Iterator[Sharding]:
    """Yield every placement of every shape on every mesh."""
    for mesh in meshes:
        for shape in shapes:
            for placements in placements_of(len(shape), len(mesh)):
                yield Sharding(mesh, placements, shape)


def indices_held(
    size: int, dim: int, sharding: Sharding, coordinate: Sequence[int]
) -> np.ndarray[Any, Any]:
    """Return the indices of a dimension that the rank at a coordinate holds, in its order."""
    return _cut(size, _cuts(dim, sharding, coordinate))


def _cuts(
    dim: int, sharding: Sharding, coordinate: Sequence[int]
) -> tuple[tuple[int, int, int], ...]:
    placed = zip(sharding.placements, sharding.mesh, coordinate, strict=True)
    return tuple(
        [
            (placement.split_factor if isinstance(placement, StridedShard) else 1, ranks, place)
            for placement, ranks, place in placed
            if placement.is_shard(dim)
        ]
    )


@functools.cache
def _cut(size: int, cuts: tuple[tuple[int, int, int], ...]) -> np.ndarray[Any, Any]:
    held = np.arange(size)
    for factor, ranks, place in cuts:
        pieces = [_chunks(part, ranks)[place] for part in _chunks(held, factor)]
        held = np.concatenate(pieces)
    return held


def held_by(
    whole: np.ndarray[Any, Any], sharding: Sharding, rank: int
) -> np.ndarray[Any, Any] | None:
    """Return what a rank holds of a whole array; None if the rank is not in the mesh.

    Axes of `whole` behind those of the sharding's shape are not cut.
    """
    if rank >= math.prod(sharding.mesh):
        return None
    part = whole
    for dim, (size, cuts) in enumerate(cuts_of(sharding, rank)):
        part = part.take(_cut(size, cuts), axis=dim)
    return part


def cuts_of(
    sharding: Sharding, rank: int
) -> tuple[tuple[int, tuple[tuple[int, int, int], ...]], ...]:
    """Return what `held_by` depends on: for each dimension its size, and how it is cut.

    A cut is the number of chunks that are split separately, the ranks, and the place of the rank.
    """
    coordinate = _coordinate(rank, sharding.mesh)
    return tuple(
        (size, _cuts(dim, sharding, coordinate)) for dim, size in enumerate(sharding.shape)
    )


@functools.cache
def _coordinate(rank: int, mesh: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(one) for one in np.unravel_index(rank, mesh))


def _chunks(indices: np.ndarray[Any, Any], pieces: int) -> list[np.ndarray[Any, Any]]:
    width = -(-len(indices) // pieces)
    return [indices[piece * width : (piece + 1) * width] for piece in range(pieces)]
