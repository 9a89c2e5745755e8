"""Graphs inside of graphs, and graphs that take over others: memory, arguments and order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from numba import cuda

import nbrt
from helpers.graph_arrays import add, arrays, host
from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    import pathlib

pytestmark = pytest.mark.usefixtures("on_device")


@nbrt.kernel
def scale(x: Any, y: Any, factor: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        x[i] = factor * y[i]


# -- replacements reach the graphs inside ----------------------------------------------------------


def test_a_replacement_reaches_the_graphs_inside() -> None:
    x, y, z = arrays(1, 0, 0)
    with nbrt.graph() as inner:
        add.forall(4)(y, x, 1.0)
    with nbrt.graph() as middle:
        inner.replay()
    with nbrt.graph() as outer:
        add.forall(4)(y, x, 100.0)
        middle.replay()
    outer.replay(y=z)
    assert (host(y), host(z)) == ([0.0] * 4, [101.0] * 4)
    outer.replay()
    assert (host(y), host(z)) == ([101.0] * 4, [101.0] * 4)


def test_captured_functions_call_each_other() -> None:
    @nbrt.graph
    def inner(y: Any, x: Any) -> None:
        add.forall(4)(y, x, 1.0)

    @nbrt.graph
    def outer(y: Any, x: Any) -> None:
        add.forall(4)(y, x, 100.0)
        inner(y, x)

    x, y, z = arrays(1, 0, 0)
    outer(y, x)
    outer(z, x)
    assert (host(y), host(z)) == ([101.0] * 4, [101.0] * 4)


def test_arrays_of_a_graph_inside_are_parameters() -> None:
    x, y, z = arrays(1, 0, 0)
    with nbrt.graph() as inner:
        add.forall(4)(y, x, 1.0)
    with nbrt.graph() as outer:
        inner.replay()
    assert set(outer.parameters) >= {"x", "y"}
    outer.replay(y=z)
    assert (host(y), host(z)) == ([0.0] * 4, [1.0] * 4)


def test_a_saved_graph_has_one_array_for_all_uses(
    device: nbrt.Device, tmp_path: pathlib.Path
) -> None:
    if device.kind == "sample":
        pytest.skip("graphs of the sample backend are not saved")
    x, y, z = arrays(1, 0, 0)
    with nbrt.graph() as inner:
        temporary = nbrt.zeros(4)
        add.forall(4)(temporary, x, 1.0)
        add.forall(4)(y, temporary, 1.0)
        del temporary
    with nbrt.graph() as outer:
        add.forall(4)(y, x, 100.0)
        inner.replay()
    outer.save(tmp_path / "graph")
    loaded = nbrt.graphs.load(tmp_path / "graph", y=z)
    loaded.replay()
    nbrt.synchronize()
    assert (host(y), host(z)) == ([0.0] * 4, [101.0] * 4)


def test_a_part_of_an_array_replaces_one_of_a_graph_inside() -> None:
    x, y, whole, other = nbrt.full(4, 1.0, "float32"), *arrays(0), nbrt.zeros(12), nbrt.zeros(12)
    with nbrt.graph() as inner:
        add.forall(4)(y, x, 1.0)
    with nbrt.graph() as outer:
        inner.replay(y=whole[4:8])
        add.forall(12)(whole, whole, 1.0)
    outer.replay(whole=other)
    assert host(whole) == [0.0] * 12
    assert host(other) == [0.0] * 4 + [2.0] * 4 + [0.0] * 4
    with nbrt.graph() as outer:
        part = whole[4:8]
        inner.replay(y=part)
        add.forall(12)(whole, whole, 1.0)
    with pytest.raises(ArgumentError, match="replace the whole array"):
        outer.replay(part=y)


def test_memory_of_the_outer_graph_is_an_argument_of_the_inner_one() -> None:
    x, y, z = arrays(1, 0, 0)
    with nbrt.graph() as inner:
        add.forall(4)(y, x, 1.0)
    with nbrt.graph() as outer:
        for factor in (1.0, 10.0):
            temporary = nbrt.zeros(4)
            inner.replay(y=temporary)
            add.forall(4)(z, temporary, factor)
            del temporary
    outer.replay()
    outer.replay()
    assert (host(y), host(z)) == ([0.0] * 4, [22.0] * 4)
    plan = outer.memory_plan
    assert plan is None or (len(plan.buffers), plan.saved > 0) == (2, True)


# -- memory of graphs inside -----------------------------------------------------------------------


def held_graph(gate: Any, x: Any, y: Any) -> Any:
    """Return a graph that copies `x` into `y` through private memory, and calls `gate` between."""
    with nbrt.graph() as g:
        temporary = nbrt.zeros(4)
        add.forall(4)(temporary, x, 1.0)
        nbrt.current_stream().call(gate)
        scale.forall(4)(y, temporary, 1.0)
        del temporary
    return g


class Gate:
    """Holds the first call until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        if not self.entered.is_set():
            self.entered.set()
            self.opened.wait()


@pytest.mark.parametrize("kind", ["child", "update"])
def test_graphs_over_the_same_memory_do_not_disturb_each_other(
    device: nbrt.Device, kind: str
) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no concurrent streams")
    x, y, other, z = arrays(1, 0, 3, 0)
    gate = Gate()
    first = held_graph(gate, x, y)
    if kind == "child":
        with nbrt.graph() as second:
            first.replay()
    else:
        second = held_graph(gate, other, z)
        second.update(first)
    a, b = nbrt.Stream(), nbrt.Stream()
    nbrt.synchronize()
    first.replay(stream=a)
    gate.entered.wait()
    second.replay(x=other, y=z, stream=b)
    if device.kind == "cpu":  # both have memory; on CUDA one waits for the other
        b.synchronize()
        assert host(z) == [3.0] * 4
    gate.opened.set()
    nbrt.synchronize()
    assert (host(y), host(z)) == ([1.0] * 4, [3.0] * 4)


def test_graphs_inside_have_states_of_generators(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    generator, twin = nbrt.Generator(3), nbrt.Generator(3)
    x, y = nbrt.zeros(64), nbrt.zeros(64)
    with nbrt.graph() as inner:
        generator.random(out=x, dtype="float32")
    with nbrt.graph() as outer:
        inner.replay()
        inner.replay(x=y)
    a, b = nbrt.Stream(), nbrt.Stream()
    z = nbrt.zeros(64)
    nbrt.synchronize()
    for _ in range(3):
        inner.replay(x=z, stream=a)
        outer.replay(stream=b)
        nbrt.synchronize()
        for drawn in (z, x, y):
            assert host(drawn) == host(twin.random(64, dtype="float32"))


# -- update ----------------------------------------------------------------------------------------


def captured(factor: float, x: Any, y: Any) -> Any:
    with nbrt.graph() as g:
        add.forall(4)(y, x, factor)
    return g


def test_an_update_keeps_the_references_to_nodes() -> None:
    x, y = arrays(1, 0)
    g, other = captured(1.0, x, y), captured(10.0, x, y)
    reference = g[0]
    g.update(other)
    reference.enable(False)
    assert not g[0].is_enabled
    g.replay()
    assert host(y) == [0.0] * 4
    assert other[0].is_enabled
    other.replay()
    assert host(y) == [10.0] * 4
    reference.enable(True)
    g.replay()
    assert host(y) == [20.0] * 4


def test_an_update_keeps_which_nodes_are_left_out() -> None:
    x, y = arrays(1, 0)
    g, other = captured(1.0, x, y), captured(10.0, x, y)
    g[0].enable(False)
    g.update(other)
    g.replay()
    assert (host(y), g[0].is_enabled) == ([0.0] * 4, False)
    with nbrt.graph() as outer:
        g.replay()
    outer.replay()
    assert host(y) == [0.0] * 4
    g[0].enable()
    g.replay()
    assert host(y) == [10.0] * 4
    other[0].enable(False)
    g.update(other)
    g.replay()
    assert host(y) == [20.0] * 4


def test_replays_and_updates_in_several_threads() -> None:
    x, y, z = arrays(1, 0, 0)
    g, others = captured(1.0, x, y), [captured(10.0, x, y), captured(100.0, x, y)]
    nbrt.synchronize()
    failures: list[BaseException] = []
    begun, done = threading.Event(), threading.Event()
    stream = nbrt.Stream()

    def replay() -> None:
        try:
            while not done.is_set():
                g.replay(stream=stream)
                g.replay(y=z, stream=stream)
                begun.set()
        except BaseException as error:  # noqa: BLE001  # for the main thread
            failures.append(error)
            begun.set()

    thread = threading.Thread(target=replay)
    thread.start()
    begun.wait()
    for _ in range(20):
        for other in others:
            g.update(other)
    done.set()
    thread.join()
    nbrt.synchronize()
    assert not failures
    assert min(host(y)) > 0
    assert min(host(z)) > 0
