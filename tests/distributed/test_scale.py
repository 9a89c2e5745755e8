"""A million ranks and tensors of 2^48 elements and more, without the data: places and offsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from nbrt import Generator
from nbrt.distributed.random.offsets import compute_post_offset, compute_pre_offset
from nbrt.random import Runs
from nbrt.testing.recorder import CommandRecorder

SEED = 11
RANKS = 1_000_000
SAMPLED = (0, 1, 333_333, 777_777, RANKS - 1)
MESHES: tuple[tuple[tuple[int, ...], list[dist.Placement]], ...] = (
    ((RANKS,), [dist.Shard(0)]),
    ((1000, 1000), [dist.Shard(0), dist.Shard(1)]),
    ((1000, 1000), [dist.StridedShard(1, 1000), dist.Shard(1)]),
    ((100, 100, 100), [dist.Shard(1), dist.Shard(0), dist.Shard(1)]),
)
SHAPES = ((2**24 + 3, 2**24 - 7), (2**31 - 1, 2**30 + 1))


class OneOfMany:
    """A communicator of one rank without the other ranks: a draw must not need them."""

    timeout = 1.0

    def __init__(self, rank: int) -> None:
        self.rank, self.size = rank, RANKS
        self.ranks = range(RANKS)
        self.device = nbrt.Device("cpu", 0)

    def check_rank(self, generator: object, is_default: bool = False) -> None:
        """Allow every generator: a process is one rank."""


def mesh_of(shape: tuple[int, ...], rank: int) -> dist.DeviceMesh:
    everyone: Any = OneOfMany(rank)
    return dist.DeviceMesh("cpu", np.arange(RANKS).reshape(shape), communicator=everyone)


def at(element: int, count: int) -> Any:
    """Return consecutive elements of the whole draw: a later place of the stream starts there."""
    ahead = element % 4
    rng = Generator(SEED, "cpu:0").advance(element - ahead)
    return rng.random(ahead + count, "float32")[ahead:]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("mesh_shape", "placements"), MESHES, ids=str)
def test_a_rank_of_a_million_draws_its_elements_of_the_whole(
    mesh_shape: tuple[int, ...], placements: list[dist.Placement], shape: tuple[int, int]
) -> None:
    for rank in SAMPLED:
        spec = dist.DTensorSpec(mesh_of(mesh_shape, rank), placements, shape, "float32")
        assert spec.local_runs is not None
        rows, columns = (runs[-1] for runs in spec.local_runs)
        if not rows.size or not columns.size:
            continue
        # The end of its part, a corner small enough to draw.
        row = rows.start + (rows.count - 1) * rows.step + rows.length - 1
        width = min(columns.length, 5)
        column = columns.start + (columns.count - 1) * columns.step + columns.length - width
        corner = Generator(SEED, "cpu:0").shard(shape, (Runs(row, 1), Runs(column, width)))
        np.testing.assert_array_equal(
            corner.random(dtype="float32")[0], at(row * shape[1] + column, width)
        )


def test_thousands_of_irregular_runs_are_one_draw() -> None:
    placements: list[dist.Placement] = [dist.StridedShard(0, 50_021), dist.StridedShard(0, 20_011)]
    shape, mesh = (10**11 + 3,), mesh_of((1000, 1000), 333_333)
    spec = dist.DTensorSpec(mesh, placements, shape, "float32")
    assert spec.local_runs is not None
    (held,) = spec.local_runs
    assert len(held) > 1000
    rng = Generator(SEED, "cpu:0")
    with CommandRecorder() as recorder:
        drawn = rng.shard(shape, (held,)).random(dtype="float32")
    assert [command.kind for command in recorder.commands].count("draw") == 1
    assert rng.state.offset == shape[0] + 1
    before = 0
    for number, runs in enumerate(held):
        if number % 1000 == 0:
            last = runs.start + (runs.count - 1) * runs.step
            place = before + runs.size - runs.length
            found = drawn[place : place + runs.length]
            assert np.array_equal(found, at(last, runs.length))
        before += runs.size
    assert before == drawn.size


def test_ranks_without_elements_move_the_state_by_the_whole() -> None:
    mesh = mesh_of((RANKS,), RANKS - 1)
    rng = Generator(SEED, "cpu:0")
    wide = dist.MeshGenerator(mesh, [dist.Shard(0)], rng)

    drawn = wide.random(size=(3, 2**46 + 1), dtype="float32")

    assert drawn.shape == (3, 2**46 + 1)
    assert drawn.to_local().shape == (0, 2**46 + 1)
    assert rng.state == nbrt.PhiloxState(SEED, 4 * -(-3 * (2**46 + 1) // 4))
    wide.standard_normal(size=(3, 2**46 + 1), dtype="float64")
    assert rng.state.offset == 4 * -(-3 * (2**46 + 1) // 4) + 4 * -(-6 * (2**46 + 1) // 4)


def test_torchs_offsets_of_a_million_ranks_are_its_formula_in_whole_numbers() -> None:
    shape = (2**31, 2**31 - 1)
    rows = -(-shape[0] // RANKS)
    for rank in SAMPLED:
        ahead = compute_pre_offset(shape, (RANKS,), (rank,), [dist.Shard(0)])
        assert ahead == 4 * -(-rank * rows * shape[1] // 4)
    assert compute_post_offset(shape) == 4 * -(-shape[0] * shape[1] // 4)
