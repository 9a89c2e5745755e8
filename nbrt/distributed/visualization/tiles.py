"""Tiles: the boxes into which a sharding splits a tensor, and the ranks of each."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

from nbrt.distributed.placements import Partial
from nbrt.distributed.sharding import dim_runs, mesh_splits
from nbrt.index_sets import expand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nbrt.distributed.spec import DTensorSpec

__all__ = ["DimInterval", "dim_intervals", "empty_ranks", "holders", "is_drawable", "shown_dims"]

_MAX_TILES = 4096


class DimInterval(NamedTuple):
    """An interval of indices along a dimension, and the coordinates of the ranks that hold it.

    Attributes
    ----------
    start, stop : int
        The indices.
    places : tuple of (int, int)
        Dimensions of the mesh that split here, with the coordinate along each.
    """

    start: int
    stop: int
    places: tuple[tuple[int, int], ...]


def dim_intervals(spec: DTensorSpec, dim: int) -> list[DimInterval]:
    """Return the intervals into which a dimension of a tensor is split, in order.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> mesh = dist.DeviceMesh("cpu", [0])
    >>> dim_intervals(dist.DTensorSpec(mesh, [dist.Shard(0)], (4, 6), "float32"), 0)
    [DimInterval(start=0, stop=4, places=((0, 0),))]
    """
    mesh_shape = spec.mesh.shape
    splits = mesh_splits(spec.ndim, mesh_shape, spec.placements)[dim]
    intervals = []
    for along in itertools.product(*(range(split.ranks) for split in splits)):
        places = tuple(zip((split.mesh_dim for split in splits), along, strict=True))
        coordinate = [dict(places).get(mesh_dim, 0) for mesh_dim in range(len(mesh_shape))]
        runs = expand(dim_runs(spec.shape[dim], splits, coordinate))
        for start, length in zip(*(column.tolist() for column in runs), strict=True):
            if length:
                intervals.append(DimInterval(start, start + length, places))
    return sorted(intervals)


def holders(spec: DTensorSpec, places: Mapping[int, int]) -> list[list[int]]:
    """Return the ranks that hold a tile, in groups with equal values.

    Parameters
    ----------
    spec : DTensorSpec
        Of the tensor.
    places : mapping of int to int
        The coordinate along each dimension of the mesh that splits the tensor.

    Returns
    -------
    terms : list of list of int
        One list of ranks with equal values; several if the tensor is partial.
    """
    mesh = spec.mesh.mesh
    free = [dim for dim in range(mesh.ndim) if dim not in places]
    terms = [dim for dim in free if isinstance(spec.placements[dim], Partial)]
    copies = [dim for dim in free if dim not in terms]

    def ranks(fixed: dict[int, int]) -> Iterator[int]:
        for along in itertools.product(*(range(mesh.shape[dim]) for dim in copies)):
            at = {**places, **fixed, **dict(zip(copies, along, strict=True))}
            yield int(mesh[tuple(at[dim] for dim in range(mesh.ndim))])

    return [
        list(ranks(dict(zip(terms, along, strict=True))))
        for along in itertools.product(*(range(mesh.shape[dim]) for dim in terms))
    ]


def empty_ranks(spec: DTensorSpec) -> list[int]:
    """Return the ranks of the mesh that hold no element."""
    held = [{interval.places for interval in dim_intervals(spec, dim)} for dim in range(spec.ndim)]
    ranks = []
    for coordinate in itertools.product(*map(range, spec.mesh.shape)):
        for dim, splits in enumerate(mesh_splits(spec.ndim, spec.mesh.shape, spec.placements)):
            if (
                tuple((split.mesh_dim, coordinate[split.mesh_dim]) for split in splits)
                not in held[dim]
            ):
                ranks.append(int(spec.mesh.mesh[coordinate]))
                break
    return sorted(ranks)


def shown_dims(spec: DTensorSpec) -> tuple[int, ...] | None:
    """Return the at most two dimensions that a picture shows; None if more are split."""
    if spec.ndim <= 2:
        return tuple(range(spec.ndim))
    split = tuple(
        dim
        for dim, splits in enumerate(mesh_splits(spec.ndim, spec.mesh.shape, spec.placements))
        if splits
    )
    return split if len(split) <= 2 else None


def is_drawable(spec: DTensorSpec) -> bool:
    """Return whether ranks and tiles are few enough to draw."""
    splits = mesh_splits(spec.ndim, spec.mesh.shape, spec.placements)
    most = max(
        (math.prod(split.ranks * split.factor for split in dim_splits) for dim_splits in splits),
        default=1,
    )
    return max(spec.mesh.size(), most) <= _MAX_TILES
