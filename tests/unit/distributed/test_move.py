"""Redistribution to another mesh of the same world."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt.distributed as dist
from helpers.partition import Placements, indices_of, parts_of, reduced, values
from nbrt.distributed import DTensor, Partial, Replicate, Shard, StridedShard
from nbrt.errors import CollectiveTimeoutError, RankMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

R = Replicate()
P = Partial()
MAX = Partial("max")
S0, S1 = Shard(0), Shard(1)

MESHES: list[Any] = [[0, 1], [2, 1, 0], [[0, 3], [1, 2]], [3], [[4, 0, 1], [2, 3, 5]]]
PLACED: dict[int, list[Placements]] = {
    1: [(R,), (S1,), (P,), (StridedShard(0, 2),)],
    2: [(R, S0), (P, MAX), (StridedShard(0, 2), S0)],
}


def mesh_pairs() -> Iterator[tuple[Any, Placements, Any, Placements]]:
    for one, other in itertools.permutations(MESHES, 2):
        for source in PLACED[np.ndim(one)]:
            for target in PLACED[np.ndim(other)]:
                yield one, source, other, target


def move_all(shape: tuple[int, ...]) -> list[Any]:
    """Move a tensor between all pairs of meshes; return this rank's parts."""
    found = []
    meshes = {str(each): dist.DeviceMesh("cpu", each) for each in MESHES}
    for one, source, other, target in mesh_pairs():
        spec = dist.DTensorSpec(meshes[str(one)], source, shape, "float32")
        place = spec.mesh.get_coordinate()
        mine = (
            np.zeros(0, "float32")
            if place is None
            else parts_of(values(shape), spec.mesh.shape, source)[place]
        )
        moved = DTensor(mine, spec).redistribute(meshes[str(other)], target)
        assert moved.device_mesh is meshes[str(other)]
        found.append(moved.to_local())
    return found


@pytest.mark.parametrize("shape", [(5, 3), (0, 2)])
def test_between_any_two_meshes(shape: tuple[int, ...]) -> None:
    results = dist.run(move_all, shape, ranks=7)
    for number, (_, source, other, target) in enumerate(mesh_pairs()):
        mesh = np.array(other)
        parts = {place: results[rank][number] for place, rank in np.ndenumerate(mesh)}
        whole = reduced(parts, mesh.shape, target)
        for place in parts:
            expected = values(shape)[np.ix_(*indices_of(shape, mesh.shape, place, target))]
            assert whole[place].tobytes() == expected.tobytes(), (source, other, target, place)
        for rank in set(range(7)) - set(mesh.ravel().tolist()):
            assert results[rank][number].shape == (0,)


def test_ranks_that_go_different_ways_are_told_which() -> None:
    def to_own(at: str) -> str:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        x = dist.distribute_tensor(values((12,)), mesh, [S0, S0])
        with pytest.raises(RankMismatchError) as caught:
            x.redistribute(mesh[at], [S0])
        return str(caught.value)

    for text in dist.run(to_own, "dp", ranks=4):
        assert "expected the same meshes of a redistribution on every rank" in text
        assert "to DeviceMesh('cpu', [0, 2], mesh_dim_names=('dp',)) as most have" in text
        assert "to DeviceMesh('cpu', [1, 3], mesh_dim_names=('dp',)) on rank 1" in text
        assert "a sub-mesh by name" in text


def test_a_way_that_others_do_not_go_is_named() -> None:
    def between() -> None:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        x = dist.distribute_tensor(values((6,)), mesh["dp"], [S0])
        if dist.get_rank() == 0:  # with ranks 1 and 2, which do not come
            x.redistribute(mesh["tp"], [S0])

    with pytest.raises(CollectiveTimeoutError) as caught:
        dist.run(between, ranks=4)
    assert any("from DeviceMesh('cpu', [0, 2]" in note for note in caught.value.__notes__)


def replayed() -> tuple[Any, Any]:
    one, other = dist.DeviceMesh("cpu", [0, 1]), dist.DeviceMesh("cpu", [[1, 2], [3, 0]])
    prim = dist.Redistribute(one, (S0,), (R, S0), (5,), np.dtype("float32"), other)
    mine = np.arange(3, dtype="float32") + 3 * dist.get_rank()
    local = mine[: max(0, 3 - dist.get_rank())] if dist.get_rank() < 2 else mine[:0]
    part, spec = prim.replay(local)
    return part.tolist(), spec.mesh == other


def test_it_is_one_prim_that_can_be_replayed() -> None:
    first, last = [0.0, 1.0, 2.0], [3.0, 4.0]
    assert dist.run(replayed, ranks=5) == [
        (last, True),
        (first, True),
        (last, True),
        (first, True),
        ([], True),
    ]
