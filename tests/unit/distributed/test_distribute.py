"""`distribute_tensor`: whose values count, who talks, and that nothing is shared."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest

import nbrt.distributed as dist
from nbrt.distributed import Partial, Replicate, Shard, StridedShard, distribute_tensor
from nbrt.distributed.sharding import local_runs
from nbrt.errors import ArgumentError, ArgumentTypeError, PlacementError, RankMismatchError

R = Replicate()
LISTS: list[Any] = [
    [R, R],
    [Shard(0), R],
    [R, Shard(1)],
    [Shard(1), Shard(0)],
    [Shard(0), Shard(0)],
    [StridedShard(0, 2), Shard(0)],
    [Shard(0), StridedShard(1, 3)],
]
SHAPES = [(5, 3), (4, 6), (1, 1), (0, 2), (2, 3, 4)]


def parts(source: int | None) -> list[Any]:
    """Distribute different values on every rank; return the parts and the wholes."""
    mesh = dist.init_device_mesh("cpu", (2, 2))
    found = []
    for shape, placements in itertools.product(SHAPES, LISTS):
        x = np.arange(np.prod(shape)).reshape(shape) + 1000 * dist.get_rank()
        tensor = distribute_tensor(x, mesh, placements, src_data_rank=source)
        assert not np.shares_memory(tensor.to_local(), x)
        before = tensor.to_local().copy()
        x[...] = -1
        assert np.array_equal(tensor.to_local(), before)
        found.append((tensor.to_local(), tensor.full_tensor()))
    return found


@pytest.mark.parametrize("source", [0, 3])
def test_the_values_are_those_of_one_rank(source: int) -> None:
    results = dist.run(parts, source, ranks=4)
    for number, (shape, _) in enumerate(itertools.product(SHAPES, LISTS)):
        expected = np.arange(np.prod(shape)).reshape(shape) + 1000 * source
        for rank in range(4):
            assert np.array_equal(results[rank][number][1], expected)


def test_without_a_source_every_rank_cuts_its_own() -> None:
    results = dist.run(parts, None, ranks=4)
    for number, (shape, placements) in enumerate(itertools.product(SHAPES, LISTS)):
        for rank, place in enumerate(itertools.product(range(2), repeat=2)):
            x = np.arange(np.prod(shape)).reshape(shape) + 1000 * rank
            runs = local_runs(shape, (2, 2), place, placements)
            held = [
                [one.start + i * one.step + j for one in each
                 for i in range(one.count) for j in range(one.length)]
                for each in runs
            ]  # fmt: skip
            assert np.array_equal(results[rank][number][0], x[np.ix_(*held)])


def operations(placements: Any, source: int | None) -> list[str]:
    mesh = dist.init_device_mesh("cpu", (2,))
    group: Any = mesh.get_group()
    seen: list[str] = []
    for name in ("broadcast", "scatter", "all_gather", "all_to_all", "all_gather_object"):

        def noted(call: Any, name: str, *args: Any) -> Any:
            seen.append(name)
            return call(*args)

        setattr(group, name, functools.partial(noted, getattr(group, name), name))
    distribute_tensor(np.zeros(3), mesh, placements, src_data_rank=source)
    return seen


def test_one_collective_moves_the_values() -> None:
    assert dist.run(operations, [Shard(0)], 0, ranks=2) == [["all_gather_object", "scatter"]] * 2
    assert dist.run(operations, [R], 1, ranks=2) == [["all_gather_object", "broadcast"]] * 2
    assert dist.run(operations, [Shard(0)], None, ranks=2) == [[]] * 2


def test_a_mesh_of_one_rank_shares_nothing_either() -> None:
    x = np.arange(3)
    with dist.DeviceMesh("cpu", [0]):
        tensor = distribute_tensor(x)
    assert not np.shares_memory(tensor.to_local(), x)


def disagreement(what: str) -> str:
    mesh = dist.init_device_mesh("cpu", (3,))
    odd = dist.get_rank() == 2
    x = np.zeros(
        5 if odd and what == "shape" else 4, "int8" if odd and what == "dtype" else "int16"
    )
    try:
        distribute_tensor(x, mesh, [Shard(0)])
    except RankMismatchError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(("what", "said"), [("shape", "(5,)"), ("dtype", "int8")])
def test_ranks_that_disagree_are_named_everywhere(what: str, said: str) -> None:
    for message in dist.run(disagreement, what, ranks=3):
        assert f"same {what} on every rank" in message
        assert f"{said} on rank 2" in message


def other_arguments(name: str) -> str:
    odd = dist.get_rank() == 2
    placements = [Shard(1)] if odd and name == "placements" else [Shard(0)]
    source = 1 if odd and name == "src_data_rank" else 0
    with pytest.raises(RankMismatchError) as caught:
        distribute_tensor(
            np.zeros((3, 3)), dist.init_device_mesh("cpu", (3,)), placements, src_data_rank=source
        )
    return str(caught.value)


@pytest.mark.parametrize(("what", "said"), [("placements", "['S(1)']"), ("src_data_rank", "1")])
def test_ranks_that_ask_for_others_are_named_everywhere(what: str, said: str) -> None:
    for message in dist.run(other_arguments, what, ranks=3):
        assert f"same {what} on every rank" in message
        assert f"got {said} on rank 2" in message


def test_what_makes_no_sense_is_refused() -> None:
    mesh = dist.DeviceMesh("cpu", [0])
    with pytest.raises(PlacementError, match="redistribute to Partial"):
        distribute_tensor(np.zeros(2), mesh, [Partial()])
    with pytest.raises(ArgumentError, match=r"in \[0, 1\), got 1"):
        distribute_tensor(np.zeros(2), mesh, [R], src_data_rank=1)
    with pytest.raises(ArgumentTypeError, match="use its redistribute"):
        distribute_tensor(distribute_tensor(np.zeros(2), mesh, [R]), mesh, [R])


def beyond() -> tuple[Any, ...]:
    mesh = dist.DeviceMesh("cpu", [1, 0])
    tensor = distribute_tensor(np.arange(4) + 10 * dist.get_rank(), mesh, [Shard(0)])
    return tensor.shape, tensor.to_local().tolist()


def test_the_source_is_a_number_in_the_mesh() -> None:
    # Number 0 of the mesh is rank 1 of the world; rank 2 is not in it.
    assert dist.run(beyond, ranks=3) == [((4,), [12, 13]), ((4,), [10, 11]), ((4,), [])]
