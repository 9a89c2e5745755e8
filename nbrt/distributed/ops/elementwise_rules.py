"""Rules of element-wise operations: splits follow broadcasting; exact terms stay partial."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from nbrt.distributed.ops.propagation import (
    OperandSpec,
    Placements,
    Strategy,
    cheapest,
    on_other_dim,
    shard_dim,
)
from nbrt.distributed.placements import Partial, Placement, Replicate
from nbrt.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["spread_elementwise"]

_ALL_PARTIAL = {
    "add": ("sum", "avg"),
    "subtract": ("sum", "avg"),
    "multiply": ("prod",),
    "maximum": ("max",),
    "minimum": ("min",),
}
"""Operations on terms of the same reduction: f(reduce(a), reduce(b)) = reduce(f(a, b))."""

_ONE_PARTIAL = {
    "positive": ("sum", "avg", "prod", "min", "max"),
    "negative": ("sum", "avg"),
    "conjugate": ("sum", "avg"),
    "copy": ("sum", "avg", "prod", "min", "max"),
    "multiply": ("sum", "avg"),
    "divide": ("sum", "avg"),
    "maximum": ("max",),
    "minimum": ("min",),
}
"""Operations on terms and replicated values: f(reduce(a), b) = reduce(f(a, b))."""


@functools.lru_cache(maxsize=4096)
def spread_elementwise(
    name: str,
    mesh_shape: tuple[int, ...],
    operands: tuple[OperandSpec, ...],
    *,
    scalars: bool = False,
    linear: bool = True,
    result: Placements | None = None,
) -> tuple[Placements, tuple[Placements, ...]]:
    """Return the placements of the result and of each operand.

    `name` is the name of the operation, such as ``np.add.__name__``; the shapes of `operands`
    broadcast; `scalars`: whether there are scalar operands too. If `linear`, partial terms may stay
    terms. `result` is the required placements of the result, if any.

    Raises
    ------
    PlacementError
        If the result must be partial, and cannot be.

    Examples
    --------
    >>> from nbrt.distributed import Shard
    >>> matrix, row = OperandSpec((8, 6), 4, (Shard(0),)), OperandSpec((6,), 4, (Replicate(),))
    >>> spread_elementwise("add", (2,), (matrix, row))
    ((Shard(dim=0),), ((Shard(dim=0),), (Replicate(),)))
    """
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    ways: list[list[Strategy]] = []
    for mesh_dim in range(len(mesh_shape)):
        wanted = None if result is None else result[mesh_dim]
        if wanted is None or wanted.is_partial():
            offers = list(_offers(name, shape, operands, mesh_dim, scalars, linear))
        else:
            offers = [_way(shape, operands, wanted)]
        if wanted is not None:
            offers = [way for way in offers if way.result == wanted]
        if not offers:
            raise PlacementError(
                f"expected an out array without partial terms for {name} of these operands, got "
                f"placements [{', '.join(map(str, result or ()))}]; redistribute it first, to "
                f"Replicate() or Shard(dim)"
            )
        ways.append(offers)
    return cheapest(mesh_shape, operands, ways)


def _offers(
    name: str,
    shape: tuple[int, ...],
    operands: Sequence[OperandSpec],
    mesh_dim: int,
    scalars: bool,
    linear: bool,
) -> Iterator[Strategy]:
    for number, operand in enumerate(operands):
        placement = operand.placements[mesh_dim]
        dim = shard_dim(placement)
        if isinstance(placement, Partial):
            if linear and _is_of_one_reduction(operand):
                yield from _partial_ways(name, operands, mesh_dim, number, placement, scalars)
        elif dim is not None and operand.shape[dim] == shape[dim - len(operand.shape)]:
            yield _way(
                shape, operands, on_other_dim(placement, dim + len(shape) - len(operand.shape))
            )
    yield _way(shape, operands, Replicate())


def _way(shape: tuple[int, ...], operands: Sequence[OperandSpec], result: Placement) -> Strategy:
    """Return the strategy of a split or replicated result."""
    return Strategy(result, tuple(_needed(shape, each, result) for each in operands))


def _needed(shape: tuple[int, ...], operand: OperandSpec, result: Placement) -> Placement:
    target = shard_dim(result)
    if target is None:
        return Replicate()
    dim = target + len(operand.shape) - len(shape)
    if dim < 0 or operand.shape[dim] != shape[target]:
        return Replicate()  # broadcast along the split: every rank needs the whole
    return on_other_dim(result, dim)


def _partial_ways(
    name: str,
    operands: Sequence[OperandSpec],
    mesh_dim: int,
    number: int,
    placement: Partial,
    scalars: bool,
) -> Iterator[Strategy]:
    # Replicated values become terms without communication: one rank keeps them, others use zeros.
    alike = len(operands) > 1 and all(
        each.placements[mesh_dim] in (placement, Replicate())
        and {one for one in each.placements if one.is_partial()} <= {placement}
        for each in operands
    )
    if placement.op in _ALL_PARTIAL.get(name, ()) and alike and not scalars:
        yield Strategy(placement, (placement,) * len(operands))
    if placement.op not in _ONE_PARTIAL.get(name, ()) or (name == "divide" and number):
        return
    needed: list[Placement] = [Replicate()] * len(operands)
    needed[number] = placement
    yield Strategy(placement, tuple(needed))


def _is_of_one_reduction(operand: OperandSpec) -> bool:
    """Return whether terms may stay: the order of several reductions matters."""
    return len({each for each in operand.placements if isinstance(each, Partial)}) <= 1
