"""Prims: one command on the road, which another rank can replay."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt.distributed as dist
from nbrt.distributed import DTensor, FromLocal, Partial, Redistribute, Replicate, Shard
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.runtime.commands import install_hook

if TYPE_CHECKING:
    from nbrt.runtime.commands import Command
    from nbrt.runtime.stream import Stream

R = Replicate()
S0, S1 = Shard(0), Shard(1)


class Tape:
    """Keeps the ops that one thread submits."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.ops: list[Any] = []
        self.results: list[Any] = []

    def before(self, stream: Stream, command: Command) -> None:
        if command.kind == "collective" and threading.get_ident() == self.thread:
            assert stream.device.kind == "cpu"
            assert command.label in ("from_local", "redistribute")
            self.ops.append(command.args[0])

    def after(self, stream: Stream, command: Command, result: object) -> None:
        del stream
        if command.kind == "collective" and threading.get_ident() == self.thread:
            self.results.append(result)


def program(x: np.ndarray[Any, Any]) -> DTensor:
    """Do things of which each is one command."""
    mesh = dist.init_device_mesh("cpu", (2, 2))
    terms = DTensor.from_local(x * (dist.get_rank() + 1), mesh, [Partial(), S0], run_check=True)
    rows = terms.redistribute(placements=[S0, S1])
    return rows.redistribute(placements=[R, S0]).redistribute(placements=[S1, S1])


def replayed(x: np.ndarray[Any, Any], ops: list[Any]) -> tuple[np.ndarray[Any, Any], Any]:
    local, spec = x * (dist.get_rank() + 1), None
    for op in ops:
        local, spec = op.replay(local)
    return local, spec


def record_and_replay(shared: dict[str, Any], how: str) -> bool:
    x = np.arange(12.0).reshape(4, 3)
    world = dist.world()
    if dist.get_rank() == 0:
        tape = shared["tape"] = Tape()
        with install_hook(tape):
            own = program(x)
        ops = pickle.loads(pickle.dumps(tape.ops)) if how == "pickled" else tape.ops
        shared["ops"] = ops
    else:
        own = program(x)
    world.barrier()
    local, spec = replayed(x, shared["ops"])
    return bool(
        np.array_equal(local, own.to_local())
        and spec == own.spec
        and spec.mesh.get_rank() == dist.get_rank()
        and local is not own.to_local()
    )


@pytest.mark.parametrize("how", ["as it is", "pickled"])
def test_what_rank_0_recorded_gives_every_rank_its_own(how: str) -> None:
    shared: dict[str, Any] = {}
    assert dist.run(record_and_replay, shared, how, ranks=4) == [True] * 4
    kinds = [type(op) for op in shared["ops"]]
    assert kinds == [FromLocal, Redistribute, Redistribute, Redistribute]
    assert [local.shape for local, _ in shared["tape"].results][-1] == (8, 1)


def test_a_program_can_be_replayed_in_another_world() -> None:
    shared: dict[str, Any] = {}
    dist.run(record_and_replay, shared, "as it is", ranks=4)
    x = np.arange(12.0).reshape(4, 3) + 100
    twice = dist.run(lambda: [replayed(x, shared["ops"])[0] for _ in range(2)], ranks=4)
    expected = dist.run(lambda: program(x).to_local(), ranks=4)
    for rank in range(4):
        assert np.array_equal(twice[rank][0], expected[rank])
        assert np.array_equal(twice[rank][1], expected[rank])


def test_prims_are_values_that_hold_nothing_of_a_rank() -> None:
    def record() -> Redistribute:
        mesh = dist.init_device_mesh("cpu", (2,))
        return Redistribute(mesh, (S0,), (R,), (5,), np.dtype("float32"))

    first, second = dist.run(record, ranks=2)
    assert first == second
    assert hash(first) == hash(second)
    again = dist.run(lambda: pickle.loads(pickle.dumps(first)), ranks=2)[1]
    assert again == second


def test_a_part_that_is_not_the_ranks_own_is_refused() -> None:
    mesh = dist.DeviceMesh("cpu", [0])
    op = Redistribute(mesh, (S0,), (R,), (5,), np.dtype("float32"))
    with pytest.raises(ArgumentError, match=r"a part of float32 and shape \(5,\)"):
        op.replay(np.zeros(4, "float32"))
    with pytest.raises(ArgumentTypeError, match="expected an array or numbers, got NoneType"):
        op.replay(None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="a dimension of a 1-d tensor to cut"):
        FromLocal(mesh, (S1,)).replay(np.zeros(4))
    with pytest.raises(ArgumentTypeError, match="expected a DeviceMesh, got None"):
        FromLocal(None, (S0,)).replay(np.zeros(4))  # type: ignore[arg-type]


def test_a_rank_beyond_the_mesh_submits_too() -> None:
    def beyond() -> list[Any]:
        tape = Tape()
        with install_hook(tape):
            dist.zeros(3, device_mesh=dist.DeviceMesh("cpu", [0])).redistribute(placements=[S0])
        return tape.ops

    first, second = dist.run(beyond, ranks=2)
    assert first == second
    assert len(first) == 1
