"""Graphs built node by node, and graphs inside of graphs."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import nbrt
from helpers.graph_arrays import add, arrays, host
from nbrt.errors import ArgumentError, ArgumentTypeError, CaptureError, GraphError

pytestmark = pytest.mark.usefixtures("on_device")


@nbrt.kernel
def count_down(flag: Any) -> None:
    flag[0] -= 1


def test_nodes_follow_those_that_they_name() -> None:
    x, y, z = arrays(0, 0, 0)
    calls: list[str] = []
    with nbrt.graph() as g:
        a = g.fill(x, 1.0, after=())
        b = g.fill(y, 2.0, after=())
        c = g.launch(add[1, 4], z, x, 1.0, after=[a])
        d = g.launch(add[1, 4], z, y, 10.0, after=[b, c])
        g.call(calls.append, "done", after=[d])
        nbrt.copy(x, z)
    assert g.edges == [("0", "2"), ("1", "3"), ("2", "3"), ("3", "4"), *_last(g)]
    g.replay()
    nbrt.synchronize()
    assert (host(x), host(z), calls) == ([21.0] * 4, [21.0] * 4, ["done"])


def _last(g: nbrt.Graph) -> list[tuple[str, str]]:
    return [edge for edge in g.edges if edge[1] == "5"]


def test_without_after_a_node_follows_all_work_so_far() -> None:
    x, y = arrays(0, 2)
    with nbrt.graph() as g:
        add.forall(4)(x, y, 1.0)
        node = g.copy(y, x)
    assert node.index == 1
    assert g.edges == [("0", "1")]
    g.replay()
    assert host(y) == [2.0] * 4


def test_draws_and_graphs_are_added_by_their_functions(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    x, y = arrays(0, 2)
    generator = nbrt.Generator(5)
    with nbrt.graph() as inner:
        add.forall(4)(y, y, 1.0)
    with nbrt.graph() as g:
        drawn = g.add(generator.random, out=x, dtype="float32", after=())
        g.add(inner.replay, after=[drawn])
    assert [g[0].kind, g[1].kind] == ["draw", "graph"]
    g.replay()
    assert host(x) == host(nbrt.Generator(5).random(4, dtype="float32"))
    assert host(y) == [4.0] * 4


def test_wrong_nodes_are_refused() -> None:
    x, y = arrays(0, 2)
    with nbrt.graph() as other:
        foreign = other.fill(x, 1.0)
    with nbrt.graph() as g:
        with pytest.raises(ArgumentError, match="of another"):
            g.fill(x, 1.0, after=[foreign])
        with pytest.raises(ArgumentTypeError, match="nodes of this graph"):
            g.fill(x, 1.0, after=[0])  # type: ignore[list-item]
        with pytest.raises(ArgumentTypeError, match="configured kernel"):
            g.launch(add, x, y, 1.0)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="submitted none"):
            g.add(lambda: None)
        g.fill(x, 3.0)
    assert len(g) == 1
    with pytest.raises(GraphError, match="inside of"):
        g.fill(x, 1.0)
    g.replay()
    assert host(x) == [3.0] * 4


def test_work_on_a_stream_outside_of_the_capture_is_refused() -> None:
    x, y = arrays(0, 2)
    side = nbrt.Stream()
    side.wait_stream(nbrt.current_stream())  # the fills of `x` and `y`
    refused = pytest.raises(CaptureError, match="stream of the capture")
    with nbrt.graph(), nbrt.stream(side), refused:
        add.forall(4)(x, y, 1.0)
    with nbrt.graph(error_mode="relaxed"), nbrt.stream(side):
        add.forall(4)(x, y, 1.0)
    nbrt.synchronize()
    assert host(x) == [2.0] * 4


def test_replays_of_one_graph_inside_of_another_do_not_overlap() -> None:
    x, y = arrays(0, 2)
    side = nbrt.Stream()
    with nbrt.graph() as inner:
        step = nbrt.full(4, 1.0, "float32")
        add.forall(4)(step, y, 1.0)
        add.forall(4)(x, step, 1.0)
        del step
    with nbrt.graph() as outer:
        main = nbrt.current_stream()
        side.wait_stream(main)
        inner.replay()
        with nbrt.stream(side):
            inner.replay()
        main.wait_stream(side)
    assert ("0", "1") in outer.edges
    outer.replay()
    assert host(x) == [6.0] * 4


def test_a_graph_in_a_graph_draws_the_next_numbers(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    generator, eager = nbrt.Generator(1), nbrt.Generator(1)
    x, y = arrays(0, 0)
    flag, three = nbrt.full(1, 0, "int32"), nbrt.full(1, 3, "int32")

    def turn() -> None:
        generator.random(out=x, dtype="float32")
        count_down[1, 1](flag)

    with nbrt.graph() as inner:
        nbrt.copy(flag, three)
        generator.random(8)
        nbrt.graphs.while_(flag, turn)
    with nbrt.graph() as outer:
        generator.random(4, dtype="float32")
        inner.replay()
        generator.random(out=y, dtype="float32")
    for _ in range(2):
        outer.replay()
        eager.random(4, dtype="float32")
        eager.random(8)
        for _ in range(3):
            last = host(eager.random(4, dtype="float32"))
        assert host(x) == last
        assert host(y) == host(eager.random(4, dtype="float32"))
        assert generator.state == eager.state
        inner.replay()
        eager.random(8)
        for _ in range(3):
            last = host(eager.random(4, dtype="float32"))
        assert host(x) == last


def test_a_host_call_may_replay_its_graph_on_another_stream(device: nbrt.Device) -> None:
    if device.kind != "cpu":
        pytest.skip("host calls of CUDA call no CUDA; the sample backend has no concurrent streams")
    first, second = nbrt.Stream(), nbrt.Stream()
    calls: list[int] = []
    entered, released = threading.Event(), threading.Event()

    def call() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            entered.set()
            assert released.wait(60)
            g.replay(stream=second)

    with nbrt.graph() as g:
        nbrt.current_stream().call(call)
    g.replay(stream=first)
    assert entered.wait(60)
    thread = threading.Thread(target=g.replay, kwargs={"stream": nbrt.default_stream()})
    thread.start()
    released.set()
    thread.join(60)
    assert not thread.is_alive()
    first.synchronize()
    second.synchronize()
    assert calls == [0, 1, 2]
