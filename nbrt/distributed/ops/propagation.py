"""Placements of operands and results: pure functions, so that all ranks choose alike.

An operation offers strategies for each dimension of the mesh: placements of its operands, and the
placement of the result that follows. `cheapest` takes the combination that moves the fewest bytes.
Nothing here depends on the running rank or on a mesh object.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from nbrt.distributed.placements import Partial, Placement, Replicate, Shard, StridedShard

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "OperandSpec",
    "Placements",
    "Strategy",
    "bytes_moved",
    "cheapest",
    "on_other_dim",
    "replicate_dims",
    "shard_dim",
]

Placements: TypeAlias = tuple[Placement, ...]


class OperandSpec(NamedTuple):
    """An operand: its shape, bytes of an element, and placements."""

    shape: tuple[int, ...]
    itemsize: int
    placements: Placements


class Strategy(NamedTuple):
    """Placements of the result and the operands along one dimension of the mesh."""

    result: Placement
    operands: Placements


def on_other_dim(placement: Placement, dim: int) -> Placement:
    """Return a split placement for another dimension of the tensor.

    Examples
    --------
    >>> on_other_dim(StridedShard(0, 2), 1)
    StridedShard(dim=1, split_factor=2)
    """
    if isinstance(placement, StridedShard):
        return StridedShard(dim, placement.split_factor)
    return Shard(dim)


def shard_dim(placement: Placement) -> int | None:
    """Return the dimension of the tensor that a placement splits; None if it splits none."""
    return placement.dim if isinstance(placement, (Shard, StridedShard)) else None


def replicate_dims(
    placements: Sequence[Placement], dims: Sequence[int] = (), *, partial: bool = False
) -> Placements:
    """Return placements that split none of some dimensions and, if `partial`, have no terms.

    Examples
    --------
    >>> replicate_dims([Shard(0), Shard(1), Partial()], [0], partial=True)
    (Replicate(), Shard(dim=1), Replicate())
    """
    return tuple(
        Replicate() if shard_dim(each) in dims or (partial and each.is_partial()) else each
        for each in placements
    )


def cheapest(
    mesh_shape: Sequence[int], operands: Sequence[OperandSpec], ways: Sequence[Sequence[Strategy]]
) -> tuple[Placements, tuple[Placements, ...]]:
    """Return the placements of the result and of each operand for which the fewest bytes move.

    `ways` are the strategies of each dimension of the mesh; of equal costs the first is best.
    """

    @functools.cache
    def cost(number: int, placements: Placements) -> int:
        return bytes_moved(mesh_shape, operands[number], placements)

    best: tuple[int, tuple[Strategy, ...]] | None = None
    for chosen in itertools.product(*ways):
        total = sum(
            cost(number, tuple(way.operands[number] for way in chosen))
            for number in range(len(operands))
        )
        if best is None or total < best[0]:
            best = total, chosen
        if total == 0:
            break
    assert best is not None, "an operation offers at least one way"
    taken = best[1]
    needed = tuple(tuple(way.operands[n] for way in taken) for n in range(len(operands)))
    return tuple(way.result for way in taken), needed


def bytes_moved(mesh_shape: Sequence[int], held: OperandSpec, placements: Placements) -> int:
    """Return about how many bytes each rank receives when a tensor gets other placements.

    The costs are those of ring algorithms for ``n`` bytes over ``r`` ranks: ``(r - 1) / r * n`` for
    a gather or a scattered reduction, twice that for an all-reduce, and that of one part for an
    exchange. Splitting local data is free. Other splits that stay make ``n`` smaller.

    Examples
    --------
    >>> held = OperandSpec((8, 4), 4, (Shard(0),))
    >>> [bytes_moved([4], held, (to,)) for to in (Shard(0), Shard(1), Replicate())]
    [0, 24, 96]
    """
    if placements == held.placements:
        return 0
    kept = math.prod(
        ranks
        for ranks, old, new in zip(mesh_shape, held.placements, placements, strict=True)
        if old == new and shard_dim(old) is not None
    )
    whole = -(-math.prod(held.shape) * held.itemsize // kept)
    total = 0
    for mesh_dim, (ranks, old, new) in enumerate(
        zip(mesh_shape, held.placements, placements, strict=True)
    ):
        if old != new:
            inner = {shard_dim(each) for each in held.placements[mesh_dim + 1 :]}
            total += _change_bytes(ranks, whole, old, new, shard_dim(new) in inner)
    return total


def _change_bytes(ranks: int, whole: int, old: Placement, new: Placement, is_outer: bool) -> int:
    """Return the bytes of one dimension of the mesh; `is_outer`: a later one splits there too."""
    share = whole * (ranks - 1) // ranks
    if isinstance(old, Partial):
        return 2 * share if shard_dim(new) is None else share
    if isinstance(old, Replicate):
        return share // ranks if shard_dim(new) is not None and is_outer else 0
    return share if isinstance(new, Replicate) else share // ranks
