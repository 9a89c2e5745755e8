"""Redistribution against plain lists of indices: values, operations and bytes, for every pair."""

from __future__ import annotations

import itertools
import math
import threading
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from helpers.partition import Placements, indices_of, parts_of, reduced, values
from nbrt.distributed.communicators.base import REDUCTIONS
from nbrt.distributed.dtensor import DTensor
from nbrt.distributed.placements import Partial, Placement, Replicate, Shard, StridedShard
from nbrt.distributed.redistribution.plan import plan_redistribute
from nbrt.distributed.redistribution.steps import steps_between
from nbrt.errors import ArgumentError, ArgumentTypeError, PlacementError
from nbrt.runtime.commands import install_hook
from nbrt.testing import Latch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.redistribution.plan import RedistributionPlan
    from nbrt.runtime.commands import Command
    from nbrt.runtime.stream import Stream

R = Replicate()
P = Partial()
MAX = Partial("max")
AVG = Partial("avg")
S0, S1 = Shard(0), Shard(1)


class Counted:
    """A communicator that writes down what passes it, in operations and bytes."""

    def __init__(self, group: Any, log: list[tuple[str, int, int]]) -> None:
        self._group = group
        self._log = log

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._group, name)
        if name not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            return operation

        def counted(given: Any, *args: Any) -> Any:
            result = operation(given, *args)
            size, rank = self._group.size, self._group.rank
            if name == "all_gather":
                sent = (size - 1) * given.nbytes
            elif name == "all_reduce":
                sent = 2 * (size - 1) * given.size // size * given.itemsize
            else:
                sent = sum(each.nbytes for at, each in enumerate(given) if at != rank)
            if name == "all_reduce":
                got = sent
            elif name == "reduce_scatter":
                got = (size - 1) * result.nbytes
            else:
                got = sum(each.nbytes for at, each in enumerate(result) if at != rank)
            self._log.append((name, sent, got))
            return result

        return counted


# -- every pair ------------------------------------------------------------------------------------

LISTS: dict[tuple[int, ...], list[Placements]] = {
    (2,): [(R,), (S0,), (S1,), (StridedShard(0, 2),), (P,), (MAX,)],
    (3,): [(R,), (S0,), (S1,), (StridedShard(0, 2),), (StridedShard(0, 3),), (P,), (AVG,)],
    (4,): [(R,), (S0,), (S1,), (StridedShard(1, 3),), (P,), (Partial("prod"),)],
    (2, 2): [
        (R, R),
        (S0, R),
        (R, S0),
        (S0, S0),
        (S0, S1),
        (S1, S0),
        (StridedShard(0, 2), S0),
        (S1, StridedShard(1, 3)),
        (P, R),
        (P, S0),
        (S0, P),
        (P, P),
        (P, MAX),
        (MAX, P),
        (R, P),
        (Partial("prod"), P),
        (P, AVG),
        (AVG, S0),
    ],
    (2, 3): [
        (R, R),
        (R, S1),
        (S0, S0),
        (S1, S0),
        (StridedShard(0, 3), S0),
        (S0, StridedShard(0, 2)),
        (P, S1),
        (S0, P),
        (Partial("min"), Partial("prod")),
        (AVG, Partial("min")),
    ],
    (2, 2, 2): [
        (R, R, R),
        (S0, S0, S0),
        (S0, S1, R),
        (S1, R, S0),
        (StridedShard(0, 4), StridedShard(0, 2), S0),
        (P, S0, P),
        (P, R, MAX),
        (S0, P, S1),
    ],
}
SHAPES = [(7,), (5, 3), (8, 6), (1,), (0, 3), (3, 2, 5)]


def fits(placements: Placements, ndim: int) -> bool:
    return all(each.dim < ndim for each in placements if isinstance(each, (Shard, StridedShard)))


def pairs(mesh_shape: tuple[int, ...], ndim: int) -> Iterator[tuple[Placements, Placements]]:
    lists = [each for each in LISTS[mesh_shape] if fits(each, ndim)]
    return itertools.product(lists, lists)


def redistribute_all(mesh_shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """Redistribute between all pairs on one rank; return its parts."""
    mesh = dist.init_device_mesh("cpu", mesh_shape)
    log: list[tuple[str, int, int]] = []
    plain = mesh.get_group
    grouped: Any = lambda dims=None: Counted(plain(dims), log)  # noqa: E731
    mesh.get_group = grouped  # type: ignore[method-assign]
    place = mesh.get_coordinate()
    assert place is not None
    found = []
    for shape in SHAPES:
        for source, target in pairs(mesh_shape, len(shape)):
            mine = parts_of(values(shape), mesh_shape, source)[place]
            spec = dist.DTensorSpec(mesh, source, shape, "float32")
            plan = plan_redistribute(spec, target)
            log.clear()
            result = DTensor(mine, spec).redistribute(placements=target)
            assert result.placements == target
            assert [name for name, _, _ in log] == list(plan.collectives), (source, target)
            talk = [at for at, step in enumerate(plan.steps) if step.is_collective]
            assert [sent for _, sent, _ in log] == [plan.bytes_sent[at] for at in talk], plan
            assert [got for _, _, got in log] == [plan.bytes_received[at] for at in talk], plan
            found.append(result.to_local())
    return found


@pytest.mark.parametrize("mesh_shape", LISTS, ids=str)
def test_every_pair_gives_the_parts_of_the_same_tensor(mesh_shape: tuple[int, ...]) -> None:
    results = dist.run(redistribute_all, mesh_shape, ranks=math.prod(mesh_shape))
    places = list(itertools.product(*map(range, mesh_shape)))
    number = 0
    for shape in SHAPES:
        x = values(shape)
        for source, target in pairs(mesh_shape, len(shape)):
            parts = {place: results[at][number] for at, place in enumerate(places)}
            whole = reduced(parts, mesh_shape, target)
            for place in places:
                expected = x[np.ix_(*indices_of(shape, mesh_shape, place, target))]
                assert whole[place].tobytes() == expected.tobytes(), (shape, source, target, place)
                assert whole[place].shape == expected.shape
            number += 1
    assert all(len(each) == number for each in results)


# -- the plan --------------------------------------------------------------------------------------


def plan(
    mesh_shape: tuple[int, ...],
    shape: tuple[int, ...],
    source: Placements,
    target: Placements,
    coordinate: tuple[int, ...] | None = None,
) -> RedistributionPlan:
    """Plan on a mesh as large as asked, whatever the world; only coordinate and shape matter."""
    ranks = math.prod(mesh_shape)

    def make() -> RedistributionPlan:
        mesh = dist.init_device_mesh("cpu", mesh_shape)
        spec = dist.DTensorSpec(mesh, source, shape, "float32")
        return plan_redistribute(spec, target, coordinate=coordinate)

    made: RedistributionPlan = dist.run(make, ranks=ranks)[0]
    return made


TABLE: list[tuple[Placements, Placements, list[str]]] = [
    ((R, R), (S0, S1), ["cut"]),
    ((S0, R), (S0, S0), ["cut"]),
    ((S0, S0), (S0, R), ["all_gather (1,)"]),
    ((S0, S0), (R, R), ["all_gather (0, 1)"]),
    ((S1, S0), (R, R), ["all_gather (0, 1)"]),
    ((StridedShard(0, 2), S0), (R, S0), ["all_gather (0,)"]),
    ((S0, S0), (R, S0), ["all_to_all (0, 1)"]),
    ((S0, R), (S1, R), ["all_to_all (0,)"]),
    ((S0, R), (R, S0), ["all_to_all (0,)"]),
    ((S0, R), (R, S1), ["cut", "all_gather (0,)"]),
    ((P, R), (R, R), ["all_reduce (0,)"]),
    ((P, P), (R, R), ["all_reduce (0, 1)"]),
    ((P, P), (S0, S0), ["reduce_scatter (0, 1)"]),
    ((P, P), (S0, S1), ["reduce_scatter (0, 1)"]),
    ((P, R), (S0, R), ["reduce_scatter (0,)"]),
    ((P, R), (S0, S0), ["reduce_scatter (0,)"]),
    ((R, P), (S0, S1), ["cut", "reduce_scatter (1,)"]),
    ((P, P), (R, P), ["all_reduce (0,)"]),
    ((P, MAX), (P, R), ["all_reduce (1,)"]),
    ((P, MAX), (R, R), ["all_reduce (1,)", "all_reduce (0,)"]),
    ((P, MAX), (R, MAX), ["all_reduce (1,)", "all_reduce (0,)", "terms"]),
    ((P, S0), (S1, R), ["reduce_scatter (0,)", "all_gather (1,)"]),
    ((P, S0), (R, R), ["all_reduce (0,)", "all_gather (1,)"]),
    ((P, S0), (P, S1), ["all_to_all (1,)"]),
    ((R, R), (P, R), ["terms"]),
    ((S0, S1), (P, P), ["terms"]),
    ((S0, S0), (S0, P), ["terms"]),
    ((P, R), (MAX, R), ["all_reduce (0,)", "terms"]),
    ((R, P), (R, P), []),
]


@pytest.mark.parametrize(("source", "target", "expected"), TABLE, ids=str)
def test_operations_are_the_native_ones(
    source: Placements, target: Placements, expected: list[str]
) -> None:
    steps = plan((2, 2), (8, 8), source, target).steps
    said = [
        f"{step.operation} {step.mesh_dims}" if step.is_collective else step.operation
        for step in steps
    ]
    assert said == expected


def test_terms_in_one_part_are_scattered_where_that_moves_less() -> None:
    wide = plan((8, 2), (64, 64), (P, S0), (S0, R))
    assert wide.collectives == ("reduce_scatter", "all_to_all")
    # 2 * 7/8 of a half by all_reduce; 7/8 of it and at most an eighth of the whole this way.
    assert max(wide.bytes_received) == 7 * (64 * 64 // 16) * 4


def test_no_dimension_with_one_rank_talks() -> None:
    assert plan((1, 2), (6,), (S0, R), (R, R)).steps == ()
    assert plan((1, 2), (6,), (P, S0), (R, S0)).steps == ()
    assert plan((2, 1), (6,), (S0, P), (R, S0)).collectives == ("all_gather",)


def test_a_tensor_without_elements_needs_nobody() -> None:
    for source, target in itertools.product(LISTS[2, 2], repeat=2):
        assert steps_between((0, 3), (2, 2), source, target) == ()


def test_no_plan_depends_on_how_many_ranks_or_elements_there_are() -> None:
    def said(source: Placements, target: Placements) -> list[tuple[str, tuple[int, ...]]]:
        steps = steps_between((2**24, 2**24), (2**10, 2**10), source, target)
        return [(step.operation, step.mesh_dims) for step in steps]

    assert said((S0, S0), (R, R)) == [("all_gather", (0, 1))]
    assert said((StridedShard(0, 2**10), S0), (R, S0)) == [("all_gather", (0,))]
    assert said((P, P), (S0, S1)) == [("reduce_scatter", (0, 1))]
    assert said((S0, S1), (S1, S0)) == [("all_to_all", (0, 1))]


def test_bytes_are_those_of_the_asked_rank() -> None:
    last = plan((4,), (10, 2), (S0,), (R,), coordinate=(3,))
    assert last.bytes_sent == (3 * 1 * 2 * 4,)
    assert last.bytes_received == (9 * 2 * 4,)
    assert last.bytes_moved == 96
    assert "all_gather along (0,): 24 bytes out, 72 in" in str(last)
    with pytest.raises(ArgumentError, match="coordinate in a mesh of shape"):
        plan((4,), (10, 2), (S0,), (R,), coordinate=(4,))


# -- values that reductions could change -----------------------------------------------------------


def to_terms_and_back(dtype: Any, op: Any) -> bool:
    mesh = dist.init_device_mesh("cpu", (2,))
    x = np.array([0, 1, 3, 5, 100]).astype(dtype)
    if np.dtype(dtype).kind in "fcV":
        x[0] = -0.0
    whole = dist.DTensorSpec(mesh, [R], x.shape, dtype)
    tensor = DTensor(x, whole)
    ways = [tensor, tensor.redistribute(placements=[S0])]
    back = [each.redistribute(placements=[Partial(op)]).full_tensor() for each in ways]
    return all(each.tobytes() == x.tobytes() for each in back)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint64", "float16", "float64", "complex64", ml_dtypes.bfloat16]
)
def test_neutral_elements_keep_every_bit(dtype: Any) -> None:
    for op in (*REDUCTIONS, "avg"):
        if op == "avg" and np.dtype(dtype).kind in "iub":
            with pytest.raises(PlacementError, match="numbers to average, got"):
                dist.run(to_terms_and_back, dtype, op, ranks=2)
        elif dtype == "complex64" and op not in (
            "sum",
            "avg",
        ):  # (inf + 0j) * (1 + 0j) is inf + nanj
            with pytest.raises(PlacementError, match="neutral element"):
                dist.run(to_terms_and_back, dtype, op, ranks=2)
        else:
            assert all(dist.run(to_terms_and_back, dtype, op, ranks=2)), (dtype, op)


def test_placements_and_meshes_that_cannot_be_are_refused(sample_backend: Any) -> None:
    mesh = dist.DeviceMesh("cpu", [0])
    tensor = DTensor(np.zeros(3), dist.DTensorSpec(mesh, [R], (3,), "float64"))
    with pytest.raises(ArgumentTypeError, match="placements to redistribute to"):
        tensor.redistribute()
    with pytest.raises(ArgumentError, match="expected a mesh of kind 'cpu'"):
        tensor.redistribute(dist.DeviceMesh(sample_backend.name, [0]), [R])
    apart = dist.DeviceMesh("cpu", [[0]], communicator=dist.world().group([0]))
    with pytest.raises(ArgumentError, match="two meshes of the running rank's world"):
        tensor.redistribute(apart, [R, R])


def ranks_beyond_the_mesh() -> tuple[Any, ...]:
    mesh: DeviceMesh = dist.DeviceMesh("cpu", [2, 0])
    x = np.arange(5.0) if mesh.get_coordinate() is not None else np.zeros(0)
    tensor = DTensor(x, dist.DTensorSpec(mesh, [R], (5,), "float64"))
    cut = tensor.redistribute(placements=[S0])
    return cut.to_local().tolist(), cut.full_tensor().tolist(), cut.shape


def test_a_rank_beyond_the_mesh_holds_nothing() -> None:
    results = dist.run(ranks_beyond_the_mesh, ranks=3)
    whole = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert results == [([3.0, 4.0], whole, (5,)), ([], [], (5,)), ([0.0, 1.0, 2.0], whole, (5,))]


# -- order -----------------------------------------------------------------------------------------


class Signal:
    """A tap that tells when a rank has come to a redistribution."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.come = threading.Event()

    def before(self, stream: Stream, command: Command) -> None:
        del stream
        if command.kind == "collective" and threading.get_ident() == self.thread:
            self.come.set()

    def after(self, stream: Stream, command: Command, result: object) -> None:
        """Check nothing: the caller checks the result."""


def behind_a_latch(source: Placement, target: Placement, shared: dict[str, Any]) -> Any:
    """Redistribute on rank 0 an array that another stream has not yet written."""
    mesh = dist.init_device_mesh("cpu", (2,))
    spec = dist.DTensorSpec(mesh, [source], (5,), "float32")
    x = np.arange(5, dtype="float32")
    (mine,) = indices_of((5,), (2,), (dist.get_rank(),), (source,))
    if dist.get_rank() == 1:
        shared["ready"].wait()
        shared["signal"].come.wait()
        shared["latch"].release()
        return DTensor(x[mine], spec).redistribute(placements=[target]).to_local()
    stream = nbrt.Stream(mesh.device)
    signal = shared["signal"] = Signal()
    with Latch() as latch, nbrt.stream(stream), install_hook(signal):
        shared["latch"] = latch
        local = nbrt.zeros(len(mine), device=mesh.device)
        stream.synchronize()
        latch.hold(stream)
        nbrt.copy(local, x[mine])
        shared["ready"].set()
        result = DTensor(local, spec).redistribute(placements=[target]).to_local()
        stream.synchronize()
        return result


@pytest.mark.parametrize(
    ("source", "target"),
    [(R, StridedShard(0, 2)), (StridedShard(0, 2), R), (S0, R), (S0, StridedShard(0, 2)), (R, P)],
    ids=str,
)
def test_what_a_stream_has_yet_to_make_is_waited_for(source: Placement, target: Placement) -> None:
    results = dist.run(behind_a_latch, source, target, {"ready": threading.Event()}, ranks=2)
    (mine,) = indices_of((5,), (2,), (0,), (target,))
    assert results[0].tolist() == mine


def test_a_plan_needs_a_spec_and_a_place() -> None:
    mesh = dist.DeviceMesh("cpu", [0])
    tensor = DTensor(np.zeros(3), dist.DTensorSpec(mesh, [R], (3,), "float64"))
    with pytest.raises(ArgumentTypeError, match=r"got DTensor; of a DTensor pass x\.spec"):
        plan_redistribute(tensor, [R])  # type: ignore[arg-type]
    for wrong in (0, ["a"], [0.5]):
        with pytest.raises(ArgumentTypeError, match="coordinate as ints"):
            plan_redistribute(tensor.spec, [R], coordinate=wrong)  # type: ignore[arg-type]
    for beyond in ([1], [-1], [0, 0], []):
        with pytest.raises(ArgumentError, match=r"coordinate in a mesh of shape \(1,\)"):
            plan_redistribute(tensor.spec, [R], coordinate=beyond)
