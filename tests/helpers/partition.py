"""Partitions of tensors over meshes as plain lists of indices, an oracle for shardings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nbrt.distributed.placements import Partial, Placement, Shard, StridedShard

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Placements", "indices_of", "parts_of", "reduced", "values"]

UFUNCS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "avg": np.add,
}

Placements: TypeAlias = tuple[Placement, ...]


def chunks(indices: list[int], count: int) -> list[list[int]]:
    """Cut as torch.chunk does, with empty chunks at the end."""
    width = max(1, -(-len(indices) // count))
    return [indices[at * width : (at + 1) * width] for at in range(count)]


def indices_of(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
    placements: Placements,
) -> list[list[int]]:
    """Return the indices along each dimension that the rank at a coordinate holds."""
    held = [list(range(size)) for size in shape]
    for ranks, at, each in zip(mesh_shape, coordinate, placements, strict=True):
        if isinstance(each, Shard):
            held[each.dim] = chunks(held[each.dim], ranks)[at]
        elif isinstance(each, StridedShard):
            pieces = chunks(held[each.dim], each.split_factor)
            held[each.dim] = [index for piece in pieces for index in chunks(piece, ranks)[at]]
    return held


def split(x: np.ndarray[Any, Any], op: str, ranks: int) -> list[np.ndarray[Any, Any]]:
    """Return different terms of a reduction that is `x`, exactly."""
    others = [np.full_like(x, rank + 2) for rank in range(ranks - 1)]
    if op == "sum":
        return [*others, x - sum(others)]
    if op == "avg":
        return [*others, ranks * x - sum(others)]
    if op == "prod":
        return [np.full_like(x, -1) for _ in others] + [x * (-1) ** (ranks - 1)]
    away = -1 if op == "max" else 1
    return [x + away * other for other in others] + [x]


def parts_of(
    x: np.ndarray[Any, Any], mesh_shape: tuple[int, ...], placements: Placements
) -> dict[tuple[int, ...], np.ndarray[Any, Any]]:
    """Return what each rank holds of `x`; terms of the outer dimensions are split further."""
    terms: dict[tuple[int, ...], np.ndarray[Any, Any]] = {(): x}
    for ranks, each in zip(mesh_shape, placements, strict=True):
        terms = {
            (*place, at): term
            for place, held in terms.items()
            for at, term in enumerate(
                split(held, each.op, ranks) if isinstance(each, Partial) else [held] * ranks
            )
        }
    return {
        place: term[np.ix_(*indices_of(x.shape, mesh_shape, place, placements))]
        for place, term in terms.items()
    }


def reduced(
    parts: dict[tuple[int, ...], np.ndarray[Any, Any]],
    mesh_shape: tuple[int, ...],
    placements: Placements,
) -> dict[tuple[int, ...], np.ndarray[Any, Any]]:
    """Return the parts with their terms combined, those of the last dimension first."""
    found = dict(parts)
    for dim in reversed(range(len(mesh_shape))):
        each = placements[dim]
        if isinstance(each, Partial):
            for place in list(found):
                line = [(*place[:dim], at, *place[dim + 1 :]) for at in range(mesh_shape[dim])]
                if place == line[0]:
                    total = found[line[0]]
                    for other in line[1:]:
                        total = UFUNCS[each.op](total, found[other])
                    if each.op == "avg":
                        total = total / np.float32(len(line))
                    found.update(dict.fromkeys(line, total))
    return found


def values(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return float32 numbers of both signs, of which sums and products of a few are exact."""
    return (np.arange(math.prod(shape), dtype=np.float32) - 4.5).reshape(shape)
