"""Meshes, distributed tensors and collectives on fake devices.

The oracle is a run of the same ranks on real CPU devices.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from nbrt.distributed import DTensor, Partial, Replicate, Shard
from nbrt.errors import ArgumentError, FakeReadError, RankMismatchError
from nbrt.planning.plan import MemoryPlan

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = 4


def mesh_of(kind: str) -> dist.DeviceMesh:
    return dist.init_device_mesh(kind, (2, 2), mesh_dim_names=("data", "model"))


def factories(mesh: dist.DeviceMesh) -> list[Any]:
    places = [Shard(0), Shard(1)]
    made = [
        dist.zeros(9, 6, device_mesh=mesh, placements=places),
        dist.full((5, 6), 2, device_mesh=mesh, placements=[Shard(1), Shard(0)]),
        dist.distribute_tensor(nbrt.zeros((8, 8)), mesh, places),
        DTensor.from_local(nbrt.zeros((4, 3)), mesh, places),
        DTensor.from_local(nbrt.zeros((4, 3)), mesh, [Shard(0), Replicate()], run_check=True),
    ]
    return [*made, made[0].to_local(), made[2].full_tensor()]


def moves(mesh: dist.DeviceMesh) -> list[Any]:
    x = dist.zeros(9, 6, device_mesh=mesh, placements=[Shard(0), Replicate()])
    terms = DTensor.from_local(nbrt.zeros((9, 6)), mesh, [Partial(), Replicate()])
    targets = [[Replicate(), Shard(0)], [Shard(1), Shard(0)], [Replicate()] * 2]
    return [each.redistribute(placements=target) for each in (x, terms) for target in targets]


def operations(mesh: dist.DeviceMesh) -> list[Any]:
    x = dist.rand(8, 6, device_mesh=mesh, placements=[Shard(0), Shard(1)])
    y = dist.randn(8, 6, device_mesh=mesh, placements=[Shard(0), Replicate()])
    return [
        x + y, x * 2, np.exp(x), x @ y.T, x.sum(), x.sum(axis=0), x.mean(axis=1), y.max(axis=0),
        y.std(), y[2:5], y.reshape(4, 12), np.concatenate([y, y]), y.astype("float16"), y > 0,
    ]  # fmt: skip


def draws(mesh: dist.DeviceMesh) -> list[Any]:
    own = nbrt.Generator(5)
    nbrt.manual_seed(3)
    found: list[Any] = [
        dist.rand(9, device_mesh=mesh, placements=[Shard(0), Replicate()]),
        dist.randint(100, (11,), device_mesh=mesh, placements=[Shard(0), Shard(0)]),
        dist.randn(5, 7, device_mesh=mesh, placements=[Replicate(), Shard(1)], generator=own),
        dist.MeshGenerator(mesh, [Shard(0), Replicate()], own).standard_normal(6, dtype="float16"),
        dist.MeshGenerator(mesh, [Shard(0), Shard(1)]).exponential(size=(3, 4)),
    ]
    states = own.state, nbrt.default_generator().state, dist.current_tracker().get_states()
    return [*found, repr(states)]


def collectives(mesh: dist.DeviceMesh) -> list[Any]:
    group = mesh.communicator
    x = nbrt.zeros((3, 5))
    pieces = [nbrt.zeros((2, rank)) for rank in range(group.size)]
    sizes = [(2, group.rank)] * group.size
    into = nbrt.zeros((3, 5))
    group.scatter([x] * group.size if group.rank == 0 else None, into)
    group.barrier()
    return [
        group.broadcast(x), group.all_reduce(x, "max"), *group.all_gather(x),
        *group.all_gather(nbrt.zeros((group.rank, 2)), [(rank, 2) for rank in range(group.size)]),
        group.reduce_scatter([x] * group.size), *group.all_to_all(pieces, sizes), into,
        group.all_gather_object(group.rank), group.broadcast_object(group.rank, 2),
    ]  # fmt: skip


PROGRAMS = pytest.mark.parametrize("program", [factories, moves, operations, draws, collectives])


def described(value: Any) -> Any:
    if isinstance(value, DTensor):
        return value.shape, str(value.dtype), value.placements, value.to_local().shape
    return (value.shape, str(value.dtype)) if hasattr(value, "shape") else value


def run(program: Callable[[dist.DeviceMesh], list[Any]], kind: str) -> Any:
    def rank() -> Any:
        nbrt.manual_seed(7)
        return [described(each) for each in program(mesh_of(kind))]

    return dist.run(rank, ranks=RANKS, device_type=kind, timeout=60)


def recorded(program: Any, kind: str) -> tuple[Any, MemoryPlan, list[int]]:
    """Return the results of a program on real devices, its plan, and its peaks.

    The peaks are without the bytes that other tests had left in use.
    """
    devices = tuple(nbrt.Device(kind, index) for index in range(nbrt.device_count(kind)))
    plan = MemoryPlan(kind, devices, nbrt.get_device_properties(kind), None, ())
    gc.collect()  # so that the run frees no array of another test
    plan._start()
    try:
        before = [nbrt.memory_allocated(device) for device in devices]
        results = run(program, kind)
    finally:
        plan._stop()
    peaks = zip(allocated_peaks(plan), before, strict=True)
    return results, plan, [peak - in_use for peak, in_use in peaks]


def allocated_peaks(plan: MemoryPlan) -> list[int]:
    return [peak.allocated for peak in plan.peaks.values()]


@PROGRAMS
def test_a_fake_cpu_does_as_a_real_one(program: Any) -> None:
    expected, real, peaks = recorded(program, "cpu")
    with nbrt.fake("cpu", devices=RANKS) as plan:
        found = run(program, "cpu")
    assert found == expected
    assert allocated_peaks(plan) == peaks
    assert set(plan.transfers) == set(real.transfers)


@PROGRAMS
def test_eight_fake_gpus_give_shapes_placements_and_states_of_a_cpu(program: Any) -> None:
    expected = run(program, "cpu")
    with nbrt.fake("cuda", devices=8):
        assert run(program, "cuda") == expected


def test_the_plan_has_the_bytes_of_each_rank() -> None:
    def rank() -> None:
        group = mesh_of("cuda").communicator
        x = nbrt.zeros(1000)
        group.all_reduce(x)
        group.all_gather(x)
        group.reduce_scatter([x] * RANKS)
        group.all_to_all([x] * RANKS)

    with nbrt.fake("cuda", devices=RANKS) as plan:
        dist.run(rank, ranks=RANKS, device_type="cuda")
    assert {(each.name, each.device.index, each.nbytes) for each in plan.collectives} == {
        (name, index, nbytes)
        for index in range(RANKS)
        for name, nbytes in [
            ("all_reduce", 4000), ("all_gather", 4000), ("reduce_scatter", 16000),
            ("exchange", 16000),
        ]
    }  # fmt: skip


def test_ranks_that_differ_are_named() -> None:
    def rank() -> None:
        group = mesh_of("cuda").communicator
        group.all_reduce(nbrt.zeros(3 + (group.rank == 2)))

    with nbrt.fake("cuda", devices=RANKS), pytest.raises(RankMismatchError, match="rank 2"):
        dist.run(rank, ranks=RANKS, device_type="cuda")


def test_values_of_tensors_are_read_by_the_policy() -> None:
    def rank() -> float:
        return float(dist.zeros(4, device_mesh=mesh_of("cuda"), placements=[Shard(0)] * 2).sum())

    with nbrt.fake("cuda", devices=RANKS), pytest.raises(FakeReadError):
        dist.run(rank, ranks=RANKS, device_type="cuda")
    with nbrt.fake("cuda", devices=RANKS, reads="zeros"):
        assert dist.run(rank, ranks=RANKS, device_type="cuda") == [0.0] * RANKS


def test_graphs_of_tensors_replay() -> None:
    def rank() -> Any:
        mesh = mesh_of("cpu")
        x = nbrt.zeros((4, 3))
        with nbrt.graph() as g:
            terms = DTensor.from_local(x, mesh, [Partial(), Replicate()])
            whole = terms.full_tensor()
            dist.rand(8, device_mesh=mesh, placements=[Shard(0), Replicate()])
        g.replay()
        g.replay()
        return whole.shape, nbrt.default_generator().get_offset(), len(g)

    expected = dist.run(rank, ranks=RANKS, device_type="cpu")
    with nbrt.fake("cpu", devices=RANKS):
        assert dist.run(rank, ranks=RANKS, device_type="cpu") == expected


def test_one_process_plans_its_rank_of_a_large_mesh() -> None:
    with nbrt.fake("cuda", gpu="H100", devices=8) as plan:
        dist.init_process_group("nccl", rank=11, world_size=64)
        try:
            mesh = dist.init_device_mesh("cuda", (8, 8))
            x = dist.rand(1024, 2048, device_mesh=mesh, placements=[Shard(0), Shard(1)])
            y = x.redistribute(placements=[Replicate(), Shard(1)])
            local, device, rank = y.to_local(), y.to_local().device, dist.get_rank()
            with pytest.raises(FakeReadError):
                float(y.sum())
        finally:
            dist.destroy_process_group()
    assert (local.shape, str(device), rank) == ((1024, 256), "cuda:3", 11)
    gathered = next(each for each in plan.collectives if each.name == "all_gather")
    assert (gathered.calls, gathered.nbytes) == (1, 128 * 256 * 4)


def test_a_rank_without_others_agrees_with_a_rank_among_threads() -> None:
    """A rank of a world whose other ranks do not exist has the memory of one that has them."""
    with nbrt.fake("cuda", devices=RANKS) as among:
        expected = run(moves, "cuda")[1]
    with nbrt.fake("cuda", devices=RANKS) as alone:
        dist.init_process_group("fake", rank=1)
        try:
            with nbrt.device("cuda:1"):
                found = [described(each) for each in moves(mesh_of("cuda"))]
        finally:
            dist.destroy_process_group()
    device = nbrt.Device("cuda", 1)
    assert found == expected
    assert alone.peaks[device].allocated == among.peaks[device].allocated
    assert [each for each in among.collectives if each.device == device] == [
        each for each in alone.collectives if each.device == device
    ]


@pytest.mark.parametrize("options", [{"rank": 4, "world_size": 4}, {"rank": -1}])
def test_bad_ranks_are_refused(options: Any) -> None:
    with nbrt.fake("cuda", devices=2), pytest.raises(ArgumentError, match="rank below"):
        dist.init_process_group("fake", **options)
    assert not dist.is_initialized()


def test_real_devices_have_no_fake_world() -> None:
    with pytest.raises(ArgumentError, match=r"nbrt\.fake"):
        dist.init_process_group("fake", device="cpu:0")
