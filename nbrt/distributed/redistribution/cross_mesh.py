"""`move_to_mesh`: redistribution to another mesh by one all_to_all over the ranks of both."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from nbrt.distributed.consistency import check_alike
from nbrt.distributed.mesh import DeviceMesh, mesh_of_this_rank
from nbrt.distributed.placements import Partial, Replicate
from nbrt.distributed.redistribution.execute import execute, put, take
from nbrt.distributed.redistribution.plan import plan_redistribute
from nbrt.distributed.redistribution.split_order import part_of, split_mesh_dims, split_order_of
from nbrt.errors import CollectiveTimeoutError, RankMismatchError
from nbrt.index_sets import intersect
from nbrt.runtime.creation import empty
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from nbrt.distributed.communicators.base import Communicator
    from nbrt.distributed.redistribution.split_order import SplitOrder
    from nbrt.distributed.spec import DTensorSpec
    from nbrt.index_sets import Runs
    from nbrt.typing import Array

__all__ = ["check_move", "move_to_mesh"]


def move_to_mesh(local: Array, source: DTensorSpec, target: DTensorSpec) -> Array:
    """Return this rank's part of a tensor on another mesh.

    Partial terms are reduced on the source mesh before, and created on the target mesh after.

    The meshes are of one world and device type. A part, given or returned, has shape (0,) if the
    rank is not in its mesh. The result is a new array.
    """
    combined = _without_terms(source)
    local = execute(plan_redistribute(source, combined.placements), local)
    plain = _without_terms(target)
    terms = plan_redistribute(plain, target.placements)
    result = empty(plain.local_shape, plain.dtype, device=plain.mesh.device)
    if source.size:
        _exchange(local, result, combined, plain)
    return execute(terms, result)


def check_move(source: DTensorSpec, target: DTensorSpec) -> None:
    """Raise the errors of `move_to_mesh` that follow from the specs."""
    plan_redistribute(source, _without_terms(source).placements)
    plan_redistribute(_without_terms(target), target.placements)


def _without_terms(spec: DTensorSpec) -> DTensorSpec:
    places = [Replicate() if isinstance(each, Partial) else each for each in spec.placements]
    return spec.replaced(placements=places)


def _exchange(local: Array, result: Array, source: DTensorSpec, target: DTensorSpec) -> None:
    """Fill this rank's part under `target` with data of the ranks of `source`."""
    ranks = np.union1d(source.mesh.mesh, target.mesh.mesh)
    mesh = mesh_of_this_rank(DeviceMesh(target.mesh.device_type, ranks))
    if mesh.get_coordinate() is None:
        return
    route = _Route(source, target)
    me = mesh.get_rank()
    stream = current_stream(mesh.device)
    sent = []
    for peer in ranks.tolist():
        shared = route.between(me, peer)
        sent.append(
            empty((0,), target.dtype, stream=stream)
            if shared is None
            else take(local, intersect(*shared).first, stream)
        )
    overlaps = [route.between(peer, me) for peer in ranks.tolist()]
    shapes = [(0,) if each is None else intersect(*each).shape for each in overlaps]
    pieces = _exchanged(mesh.get_group(), sent, shapes, f"{source.mesh} to {target.mesh}")
    for shared, piece in zip(overlaps, pieces, strict=True):
        if shared is not None:
            put(result, intersect(*shared).second, piece, stream)


def _exchanged(
    group: Communicator, sent: list[Array], shapes: list[tuple[int, ...]], way: str
) -> list[Array]:
    """Return the arrays for this rank; add the meshes to errors of ranks that disagree."""
    try:
        return group.all_to_all(sent, shapes)
    except RankMismatchError:  # on all ranks
        said = group.all_gather_object(way)
        advice = "a sub-mesh by name, such as mesh['dp'], is another one on other ranks"
        check_alike(said, group.ranks, "meshes of a redistribution", advice=advice)
        raise
    except CollectiveTimeoutError as error:
        error.add_note(f"in a redistribution from {way}, which every rank must call for")
        raise


class _Route:
    """The senders of each receiver, computed equally on every rank."""

    def __init__(self, source: DTensorSpec, target: DTensorSpec) -> None:
        self._shape = source.shape
        self._mesh_shape = source.mesh.shape
        self._held = split_order_of(source.shape, source.mesh.shape, source.placements)
        self._wanted = split_order_of(target.shape, target.mesh.shape, target.placements)
        self._split_mesh_dims = split_mesh_dims(self._held)
        self._senders = _places(source.mesh)
        self._receivers = _places(target.mesh)
        # Ranks off the source mesh receive from the replicas in turn.
        turns = itertools.cycle(itertools.product(*map(range, self._mesh_shape)))
        self._nearest = {
            rank: self._senders.get(rank, turn)
            for rank, turn in zip(self._receivers, turns, strict=False)
        }

    def between(
        self, sender: int, receiver: int
    ) -> tuple[tuple[tuple[Runs, ...], ...], tuple[tuple[Runs, ...], ...]] | None:
        """Return the parts of two ranks if the first sends to the second, else None."""
        here, there = self._senders.get(sender), self._receivers.get(receiver)
        if here is None or there is None:
            return None
        replica = self._nearest[receiver]
        if any(
            here[dim] != replica[dim]
            for dim in range(len(here))
            if dim not in self._split_mesh_dims
        ):
            return None
        return self._part(self._held, here), self._part(self._wanted, there)

    def _part(self, order: SplitOrder, place: tuple[int, ...]) -> tuple[tuple[Runs, ...], ...]:
        return part_of(self._shape, order, place)


def _places(mesh: DeviceMesh) -> dict[int, tuple[int, ...]]:
    return {int(rank): place for place, rank in np.ndenumerate(mesh.mesh)}
