"""Operations that change a tensor from one list of placements to another, equal on every rank.

The two split orders determine the steps, so the cost of planning does not depend on the number of
ranks. A plan has the fewest operations and, among those, the fewest bytes:

- further splits (``cut``) and the creation of terms (``terms``) need no communication;
- the removal of splits is one ``all_gather`` over the ranks of all dimensions that change;
- a reduction is one ``all_reduce``, or one ``reduce_scatter`` if the result is split, over all
  dimensions with the same reduction;
- any other change is one ``all_to_all``, after the reduction if there is one. A rank receives from
  peers that have its coordinate along the dimensions of the mesh that did not split the tensor.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from nbrt.distributed.placements import Partial, Placement
from nbrt.distributed.redistribution.split_order import (
    SplitOrder,
    continues,
    elements,
    shared,
    split_mesh_dims,
    split_order_of,
)
from nbrt.distributed.sharding import MeshSplit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.distributed.placements import TermOp

__all__ = ["Operation", "Step", "steps_between"]

Operation: TypeAlias = Literal[
    "cut", "terms", "all_gather", "all_to_all", "all_reduce", "reduce_scatter"
]

_Placements: TypeAlias = tuple[Placement, ...]


class Step(NamedTuple):
    """One operation of a redistribution.

    Attributes
    ----------
    operation : str
        A collective operation; or, without communication, "cut": keep a part of the local data, or
        "terms": create the terms of a reduction.
    mesh_dims : tuple of int
        The dimensions of the mesh over which it works.
    source, target : SplitOrder
        The splits of the tensor before and after.
    op : str or None
        The reduction of "all_reduce" and "reduce_scatter".
    terms : tuple of (int, str)
        For "terms": all dimensions of the mesh with terms afterwards, and their reductions.
    """

    operation: Operation
    mesh_dims: tuple[int, ...]
    source: SplitOrder
    target: SplitOrder
    op: TermOp | None = None
    terms: tuple[tuple[int, TermOp], ...] = ()

    @property
    def is_collective(self) -> bool:
        """Whether ranks communicate."""
        return self.operation not in ("cut", "terms")


@functools.lru_cache(maxsize=1024)
def steps_between(
    shape: tuple[int, ...],
    mesh_shape: tuple[int, ...],
    source: _Placements,
    target: _Placements,
) -> tuple[Step, ...]:
    """Return the operations from one list of placements to another one; see the module.

    Notes
    -----
    Terms of several reductions are nested as the mesh is: those along the last dimension are
    combined first.
    """
    if not math.prod(shape):
        return ()
    here = split_order_of(shape, mesh_shape, source)
    there = split_order_of(shape, mesh_shape, target)
    kept, reductions = _reductions(mesh_shape, source, target)
    steps: list[Step] = []
    for op, dims in reductions[:-1]:
        steps.append(Step("all_reduce", dims, here, here, op))
    terms = tuple(
        (dim, each.op)
        for dim, each in enumerate(target)
        if isinstance(each, Partial) and mesh_shape[dim] > 1
    )
    created = tuple(dim for dim, _ in terms if dim not in kept)
    candidates = []
    for before in dict.fromkeys((_own_terms(here, there, created, terms), there)):
        if reductions:
            op, dims = reductions[-1]
            ways = _reduce(shape, mesh_shape, here, before, dims, op)
        else:
            ways = [_exchange(here, before)]
        end = [Step("terms", created, before, there, terms=terms)] if created else []
        candidates += [[*way, *end] for way in ways]
    return (*steps, *min(candidates, key=functools.partial(_cost, shape, mesh_shape)))


def _reductions(
    mesh_shape: tuple[int, ...], source: _Placements, target: _Placements
) -> tuple[set[int], list[tuple[TermOp, tuple[int, ...]]]]:
    """Return the dimensions that keep terms, and the reductions of the others in order."""
    kept: set[int] = set()
    reduced: list[tuple[TermOp, int]] = []
    for dim, placement in enumerate(source):
        if not isinstance(placement, Partial) or mesh_shape[dim] == 1:
            continue
        # Terms of an outer reduction are combined after those of an inner one, if ops differ.
        if target[dim] == placement and all(op == placement.op for op, _ in reduced):
            kept.add(dim)
        else:
            reduced.append((placement.op, dim))
    runs = itertools.groupby(reversed(reduced), key=lambda each: each[0])
    return kept, [(op, tuple(sorted(dim for _, dim in run))) for op, run in runs]


def _own_terms(
    here: SplitOrder,
    there: SplitOrder,
    created: tuple[int, ...],
    terms: Sequence[tuple[int, TermOp]],
) -> SplitOrder:
    """Return an order whose parts, filled up with neutral elements, are terms under `there`."""
    ops = {op for _, op in terms}
    if len(ops) != 1 or "avg" in ops:  # which has no neutral element
        return there
    return tuple(
        splits + tuple(split for split in ours if split.mesh_dim in created)
        for ours, splits in zip(here, there, strict=True)
    )


def _exchange(here: SplitOrder, there: SplitOrder) -> list[Step]:
    """Return the steps between split orders without terms: at most one collective operation."""
    nearer = _cut_further(here, there)
    cut = [] if nearer == here else [_cut(here, nearer)]
    if nearer == there:
        return cut
    if continues(nearer, there):
        dims = split_mesh_dims(nearer) - split_mesh_dims(there)
        return [*cut, Step("all_gather", tuple(sorted(dims)), nearer, there)]
    changed = {
        split.mesh_dim
        for ours, theirs in zip(here, there, strict=True)
        for split in ours[shared(ours, theirs) :]
    }
    return [Step("all_to_all", tuple(sorted(changed)), here, there)]


def _cut_further(here: SplitOrder, there: SplitOrder, without: Sequence[int] = ()) -> SplitOrder:
    """Return `here` with the further splits of `there` that need no other rank.

    It ends before the first split along a dimension of `without`, or one that splits already.
    """
    taken = split_mesh_dims(here).union(without)
    return tuple(
        ours
        + tuple(itertools.takewhile(lambda split: split.mesh_dim not in taken, theirs[len(ours) :]))
        if theirs[: len(ours)] == ours
        else ours
        for ours, theirs in zip(here, there, strict=True)
    )


def _cut(here: SplitOrder, there: SplitOrder) -> Step:
    return Step("cut", tuple(sorted(split_mesh_dims(there) - split_mesh_dims(here))), here, there)


def _reduce(
    shape: tuple[int, ...],
    mesh_shape: tuple[int, ...],
    here: SplitOrder,
    there: SplitOrder,
    dims: tuple[int, ...],
    op: TermOp,
) -> list[list[Step]]:
    """Return ways to combine terms along `dims` and come to `there`."""
    nearer = _cut_further(here, there, without=dims)
    cut = [] if nearer == here else [_cut(here, nearer)]
    ways = [[*cut, Step("all_reduce", dims, nearer, nearer, op), *_exchange(nearer, there)]]
    for between in _scattered(shape, mesh_shape, nearer, there, dims):
        scatter = Step("reduce_scatter", dims, nearer, between, op)
        ways.append([*cut, scatter, *_exchange(between, there)])
    return ways


def _scattered(
    shape: tuple[int, ...],
    mesh_shape: tuple[int, ...],
    here: SplitOrder,
    there: SplitOrder,
    dims: tuple[int, ...],
) -> list[SplitOrder]:
    """Return orders that continue `here` with the splits along `dims` that `there` uses."""
    useful = tuple(
        ours + tuple(split for split in theirs if split.mesh_dim in dims and split not in ours)
        for ours, theirs in zip(_cut_further(here, there), there, strict=True)
    )
    if useful == here:
        return []
    left = [dim for dim in dims if dim not in split_mesh_dims(useful)]
    longest = max(range(len(shape)), key=lambda dim: shape[dim])
    more = tuple(MeshSplit(dim, mesh_shape[dim], 1) for dim in left)
    finest = tuple(splits + more if dim == longest else splits for dim, splits in enumerate(useful))
    return list(dict.fromkeys((useful, finest)))


def _cost(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], steps: Sequence[Step]
) -> tuple[int, float, int]:
    """Return collectives, elements that a rank gets if all parts are of one size, and steps."""
    moved = 0.0
    for step in steps:
        ranks = math.prod(mesh_shape[dim] for dim in step.mesh_dims)
        held = elements(shape, step.target)
        if step.operation == "all_reduce":
            moved += 2 * (ranks - 1) / ranks * held
        elif step.operation == "reduce_scatter":
            moved += (ranks - 1) * held
        elif step.is_collective:
            moved += (ranks - 1) / ranks * held
    return sum(step.is_collective for step in steps), moved, len(steps)
