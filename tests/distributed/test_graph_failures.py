"""Graphs of ranks that cannot be captured or replayed: every rank is told, and nothing is done."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import nbrt
import nbrt.distributed as dist
from helpers.clocks import HANG_TIMEOUT
from helpers.dtensor_programs import S0, R, line
from nbrt.distributed import DTensor, Partial, Shard
from nbrt.errors import (
    ArgumentError,
    CaptureError,
    CollectiveTimeoutError,
    DistributedError,
    KernelError,
    NbrtError,
    PlacementError,
    RankFailedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    with nbrt.device("cpu:0"):
        yield


def refused(call: Callable[[dist.DeviceMesh, Any, DTensor], Any], ranks: int = 2) -> list[Any]:
    """Return the errors of captures on each rank; nothing else changes."""

    def rank() -> Any:
        mesh = line()
        x, own = nbrt.full(4, 1.0), nbrt.Generator(7)
        tensor = DTensor.from_local(x, mesh, [S0])
        stream = nbrt.Stream()
        with pytest.raises(NbrtError) as found, nbrt.graph(stream):  # noqa: PT012  # a capture
            dist.rand(9, device_mesh=mesh, placements=[S0], generator=own)
            call(mesh, x, tensor)
        assert not stream.is_capturing()
        assert own.get_offset() == 0
        assert x.tolist() == [1.0] * 4
        with nbrt.graph(stream) as g:
            whole = tensor.full_tensor()
        g.replay()
        assert whole.tolist() == [1.0] * 4 * dist.get_world_size()
        return type(found.value), str(found.value)

    return dist.run(rank, ranks=ranks, timeout=60)


@pytest.mark.parametrize(
    "call",
    [
        lambda mesh, x, tensor: tensor.sum().item(),
        lambda mesh, x, tensor: tensor + 1,
        lambda mesh, x, tensor: mesh.get_group().all_reduce(x),
        lambda mesh, x, tensor: dist.distribute_tensor(x, mesh, [S0]),
        lambda mesh, x, tensor: DTensor.from_local(x, mesh, [R], run_check=True),
        lambda mesh, x, tensor: dist.MeshGenerator(mesh).permutation(tensor),
        lambda mesh, x, tensor: str(tensor),
    ],
    ids=["item", "add", "all_reduce", "distribute", "run_check", "permutation", "str"],
)
def test_what_needs_values_is_refused_on_every_rank(call: Any) -> None:
    for kind, text in refused(call):
        assert kind is CaptureError
        assert "expected only work that can be captured" in text


def test_wrong_arguments_are_refused_at_the_capture() -> None:
    mean = refused(lambda mesh, x, tensor: tensor.redistribute(placements=[Shard(3)]))
    part = refused(lambda mesh, x, tensor: DTensor.from_local(x, mesh, [S0], shape=3))
    term = refused(lambda mesh, x, tensor: dist.rand(4, device_mesh=mesh, placements=[Partial()]))
    assert {kind for kind, _ in mean} <= {ArgumentError, PlacementError}
    assert {kind for kind, _ in part} == {ArgumentError}
    assert {kind for kind, _ in term} == {PlacementError}


def captured_rank(mesh: dist.DeviceMesh, own: nbrt.Generator) -> tuple[nbrt.graphs.Graph, Any]:
    with nbrt.graph() as g:
        drawn = dist.rand(8, device_mesh=mesh, placements=[S0], generator=own)
        whole = drawn.full_tensor()
    return g, whole


def test_a_rank_that_raises_between_replays_ends_the_others() -> None:
    offsets = {}

    def rank() -> None:
        own = nbrt.Generator(7)
        g, _ = captured_rank(line(), own)
        g.replay()
        if dist.get_rank() == 1:
            raise KeyError("planted")
        try:
            g.replay()
        finally:
            offsets[dist.get_rank()] = own.get_offset()

    with pytest.raises(KeyError, match="planted"):
        dist.run(rank, ranks=4)
    assert offsets == {0: 8, 2: 8, 3: 8}


def test_a_rank_that_does_not_replay_is_named_and_nothing_is_drawn() -> None:
    def rank() -> Any:
        own = nbrt.Generator(7)
        g, whole = captured_rank(line(), own)
        g.replay()
        if dist.get_rank() == 1:
            return None
        before = whole.copy()
        with pytest.raises(CollectiveTimeoutError) as found:
            g.replay()
        notes = "".join(found.value.__notes__)
        assert "node 1 of the graph, collective 'redistribute'" in notes
        assert "whole = drawn.full_tensor()" in notes
        return str(found.value), own.get_offset(), bool((whole == before).all())

    for rank_result in dist.run(rank, ranks=4)[::2]:
        text, offset, is_same = rank_result
        assert "to come to all_gather" in text
        assert "but [1] have returned" in text
        assert (offset, is_same) == (8, True)


def test_a_rank_that_comes_late_is_named_and_all_may_try_again() -> None:
    gone = threading.Event()

    def rank() -> Any:
        mesh, own = line(), nbrt.Generator(7)
        g, whole = captured_rank(mesh, own)
        group = mesh.get_group(0)
        if dist.get_rank() == 1:
            assert gone.wait(HANG_TIMEOUT)
        else:
            group.timeout = 0.05
        with pytest.raises(CollectiveTimeoutError, match=r"expected ranks \[1\] to come"):
            g.replay()
        offset = own.get_offset()
        group.timeout = HANG_TIMEOUT
        gone.set()
        g.replay()
        return offset, own.get_offset(), whole.tolist()

    wanted = nbrt.Generator(7).random(8, "f4").tolist()
    assert dist.run(rank, ranks=2) == [(0, 8, wanted)] * 2


def test_a_rank_that_raises_in_its_capture_ends_the_others() -> None:
    def rank() -> None:
        mesh = line()
        x = nbrt.full(4, 1.0)
        with nbrt.graph() as g:
            whole = DTensor.from_local(x, mesh, [S0]).full_tensor()
            if dist.get_rank() == 1:
                raise KeyError("planted")
        with pytest.raises(RankFailedError, match="rank 1 ended with KeyError"):
            g.replay()
        assert whole.shape == (8,)

    with pytest.raises(KeyError, match="planted"):
        dist.run(rank, ranks=2)


def test_ranks_that_replay_different_graphs_are_told() -> None:
    def rank() -> Any:
        mesh = line()
        x = nbrt.full(4, 1.0)
        graphs = []
        for placements in ([S0], [Partial()]):
            with nbrt.graph() as g:
                DTensor.from_local(x, mesh, placements).full_tensor()
            graphs.append(g)
        with pytest.raises(DistributedError, match="expected every rank in all_"):
            graphs[dist.get_rank()].replay()

    dist.run(rank, ranks=2)


def test_another_rank_may_not_replay_a_graph() -> None:
    graphs: dict[int, Any] = {}

    def rank() -> Any:
        mesh, own = line(), nbrt.Generator(7)
        graphs[dist.get_rank()], whole = captured_rank(mesh, own)
        dist.world().barrier()
        other = 1 - dist.get_rank()
        with pytest.raises(DistributedError, match=f"expected rank {other}, which captured"):
            graphs[other].replay()
        dist.world().barrier()
        thread = threading.Thread(target=graphs[dist.get_rank()].replay)
        thread.start()  # a thread of no rank acts for the rank of the graph
        thread.join()
        return whole.tolist(), own.get_offset()

    first, second = dist.run(rank, ranks=2)
    assert first == second
    assert first[1] == 8
    with pytest.raises(CollectiveTimeoutError, match="have returned"):
        graphs[0].replay()
    with pytest.raises(DistributedError, match="expected rank 0, which captured"):
        dist.run(graphs[0].replay, ranks=1)


def test_a_failure_before_the_collective_fails_the_replay_and_takes_no_words() -> None:
    def rank() -> Any:
        mesh, own = line(), nbrt.Generator(7)
        flag = nbrt.asarray([1])
        with nbrt.graph() as g:
            whole = dist.rand(8, device_mesh=mesh, placements=[S0], generator=own).full_tensor()
            nbrt.graphs.while_(flag, lambda: None, limit=3)
        with pytest.raises(KernelError, match="at most 3 turns"):
            g.replay()
        offset = own.get_offset()
        flag[0] = 0
        g.replay()
        return (
            offset,
            own.get_offset(),
            whole.tolist() == nbrt.Generator(7).random(8, "f4").tolist(),
        )

    assert dist.run(rank, ranks=2) == [(0, 8, True)] * 2
