"""Tiles: the boxes into which a sharding cuts a tensor, and the ranks of each."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

from nbrt.distributed.placements import Partial
from nbrt.distributed.sharding import cuts_of, dim_runs
from nbrt.index_sets import expand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nbrt.distributed.spec import DTensorSpec

__all__ = ["Piece", "empty_ranks", "holders", "is_drawable", "pieces", "shown_dims"]

_MAX_TILES = 4096


class Piece(NamedTuple):
    """An interval of indices along a dimension, and the coordinates of the ranks that hold it.

    Attributes
    ----------
    start, stop : int
        The indices.
    places : tuple of (int, int)
        Dimensions of the mesh that cut here, with the coordinate along each.
    """

    start: int
    stop: int
    places: tuple[tuple[int, int], ...]


def pieces(spec: DTensorSpec, dim: int) -> list[Piece]:
    """Return the intervals into which a dimension of a tensor is cut, in order.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> mesh = dist.DeviceMesh("cpu", [0])
    >>> pieces(dist.DTensorSpec(mesh, [dist.Shard(0)], (4, 6), "float32"), 0)
    [Piece(start=0, stop=4, places=((0, 0),))]
    """
    mesh_shape = spec.mesh.shape
    cuts = cuts_of(spec.ndim, mesh_shape, spec.placements)[dim]
    found = []
    for along in itertools.product(*(range(cut.ranks) for cut in cuts)):
        places = tuple(zip((cut.mesh_dim for cut in cuts), along, strict=True))
        coordinate = [dict(places).get(mesh_dim, 0) for mesh_dim in range(len(mesh_shape))]
        runs = expand(dim_runs(spec.shape[dim], cuts, coordinate))
        for start, length in zip(*(column.tolist() for column in runs), strict=True):
            if length:
                found.append(Piece(start, start + length, places))
    return sorted(found)


def holders(spec: DTensorSpec, places: Mapping[int, int]) -> list[list[int]]:
    """Return the ranks that hold a tile, in groups with equal values.

    Parameters
    ----------
    spec : DTensorSpec
        Of the tensor.
    places : mapping of int to int
        The coordinate along each dimension of the mesh that cuts the tensor.

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
    held = [{piece.places for piece in pieces(spec, dim)} for dim in range(spec.ndim)]
    found = []
    for coordinate in itertools.product(*map(range, spec.mesh.shape)):
        for dim, cuts in enumerate(cuts_of(spec.ndim, spec.mesh.shape, spec.placements)):
            if tuple((cut.mesh_dim, coordinate[cut.mesh_dim]) for cut in cuts) not in held[dim]:
                found.append(int(spec.mesh.mesh[coordinate]))
                break
    return sorted(found)


def shown_dims(spec: DTensorSpec) -> tuple[int, ...] | None:
    """Return the at most two dimensions that a picture shows; None if more are cut."""
    if spec.ndim <= 2:
        return tuple(range(spec.ndim))
    cut = tuple(
        dim for dim, cuts in enumerate(cuts_of(spec.ndim, spec.mesh.shape, spec.placements)) if cuts
    )
    return cut if len(cut) <= 2 else None


def is_drawable(spec: DTensorSpec) -> bool:
    """Return whether ranks and tiles are few enough to draw."""
    cuts = cuts_of(spec.ndim, spec.mesh.shape, spec.placements)
    most = max((math.prod(cut.ranks * cut.factor for cut in each) for each in cuts), default=1)
    return max(spec.mesh.size(), most) <= _MAX_TILES
