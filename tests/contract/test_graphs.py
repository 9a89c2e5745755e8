"""Graphs: a capture runs nothing, a replay does what the captured calls would have done."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import nbrt
from helpers.graph_arrays import add, arrays, host
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    CaptureError,
    EventError,
    GraphError,
    NbrtError,
)
from nbrt.runtime.commands import install_hook
from nbrt.testing import Latch

pytestmark = pytest.mark.usefixtures("on_device")


@nbrt.kernel
def count_down(flag: Any, x: Any) -> None:
    flag[0] -= 1
    x[0] += 1.0


# -- capture ---------------------------------------------------------------------------------------


def test_nothing_runs_during_a_capture() -> None:
    x, y = arrays(0, 2)
    with nbrt.graph() as g:
        add.forall(4)(x, y, 1.0)
        nbrt.copy(y, x)
        z = nbrt.full(4, 7.0, "float32")
    assert (host(x), host(y)) == ([0.0] * 4, [2.0] * 4)
    g.replay()
    assert (host(x), host(y), host(z)) == ([2.0] * 4, [2.0] * 4, [7.0] * 4)
    assert [node["kind"] for node in g.nodes] == ["launch", "copy", "fill"]


def test_a_graph_may_capture_the_current_stream() -> None:
    stream = nbrt.Stream()
    x, y = arrays(0, 2)
    nbrt.synchronize()
    with nbrt.stream(stream), nbrt.graph(stream) as g:
        assert nbrt.current_stream() is stream
        assert stream.is_capturing()
        add.forall(4)(x, y, 1.0)
    assert not stream.is_capturing()
    g.replay()
    nbrt.synchronize()
    assert host(x) == [2.0] * 4


def test_host_calls_run_in_order() -> None:
    seen: list[str] = []
    with nbrt.graph() as g:
        nbrt.current_stream().call(seen.append, "first")
        nbrt.current_stream().call(seen.append, "second")
    assert not seen
    for _ in range(2):
        g.replay()
        nbrt.synchronize()
    assert seen == ["first", "second"] * 2


def test_streams_that_wait_for_events_become_branches() -> None:
    side = nbrt.Stream()
    x, y, z = arrays(0, 2, 0)
    with nbrt.graph() as g:
        main = nbrt.current_stream()
        add.forall(4)(y, y, 1.0)
        side.wait_stream(main)
        with nbrt.stream(side):
            add.forall(4)(x, y, 1.0)
        add.forall(4)(z, y, 2.0)
        main.wait_stream(side)
        add.forall(4)(x, z, 1.0)
    assert g.edges == [("0", "1"), ("0", "2"), ("1", "3"), ("2", "3")]
    g.replay()
    assert (host(x), host(z)) == ([12.0] * 4, [8.0] * 4)
    assert not side.is_capturing()


def test_an_unjoined_branch_is_named_with_the_line_that_forked_it() -> None:
    side = nbrt.Stream()
    x, y = arrays(0, 2)
    fork = r"joined(.|\n)*side\.wait_stream\(main\)"
    with pytest.raises(CaptureError, match=fork), nbrt.graph():  # noqa: PT012  # a capture
        main = nbrt.current_stream()
        side.wait_stream(main)
        with nbrt.stream(side):
            add.forall(4)(x, y, 1.0)
    side.synchronize()
    add.forall(4)(x, y, 1.0)
    assert host(x) == [2.0] * 4


@pytest.mark.parametrize(
    "call",
    [
        lambda x: nbrt.current_stream().synchronize(),
        lambda x: nbrt.current_stream().query(),
        lambda x: nbrt.synchronize(),
        nbrt.to_host,
        lambda x: nbrt.current_stream().record_event().synchronize(),
        lambda x: nbrt.current_stream().record_event().query(),
    ],
    ids=["synchronize", "query", "device", "to_host", "event", "event_query"],
)
def test_what_cannot_be_captured_raises_at_the_call(call: Any) -> None:
    x, y = arrays(0, 2)
    generator = nbrt.Generator(3)
    has_draws = nbrt.current_device().kind != "sample"
    pool = nbrt.MemoryPool()
    before = nbrt.current_stream()
    with pytest.raises((CaptureError, EventError)), nbrt.graph(pool=pool) as g:  # noqa: PT012
        stream = nbrt.current_stream()
        if has_draws:
            generator.random(4, dtype="float32")
        add.forall(4)(x, y, 1.0)
        call(x)
    assert nbrt.current_stream() is before
    assert not stream.is_capturing()
    assert generator.get_offset() == 0
    gc.collect()
    assert pool.memory_allocated() == 0
    with pytest.raises(GraphError, match="not captured"):
        g.replay()
    with nbrt.graph(stream) as again:
        add.forall(4)(x, y, 1.0)
    again.replay()
    assert host(x) == [2.0] * 4


def test_an_event_from_before_the_capture_is_refused() -> None:
    event = nbrt.current_stream().record_event()
    with pytest.raises(CaptureError, match="recorded before"), nbrt.graph():
        nbrt.current_stream().wait_event(event)


def test_a_captured_event_is_no_point_in_time_later() -> None:
    with nbrt.graph():
        event = nbrt.current_stream().record_event()
    with pytest.raises(EventError, match="captured"):
        event.synchronize()
    with pytest.raises(CaptureError, match="recorded in a capture"):
        nbrt.current_stream().wait_event(event)
    event.record()
    event.synchronize()


def test_a_refused_launch_leaves_the_capture_as_it_was(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend interprets kernels and has no argument types")
    x, y = arrays(0, 2)
    with nbrt.graph() as g:
        add.forall(4)(x, y, 1.0)
        with pytest.raises(NbrtError):
            add.forall(4)(x, object(), 1.0)
        add.forall(4)(x, y, 1.0)
    g.replay()
    assert host(x) == [4.0] * 4


def test_an_exception_of_the_block_ends_the_capture() -> None:
    x, y = arrays(0, 2)
    with pytest.raises(ZeroDivisionError), nbrt.graph() as g:  # noqa: PT012
        add.forall(4)(x, y, 1.0)
        raise ZeroDivisionError
    assert len(g) == 0
    add.forall(4)(x, y, 1.0)
    assert host(x) == [2.0] * 4


# -- replay ----------------------------------------------------------------------------------------


def test_arrays_are_replaced_for_one_replay() -> None:
    x, y, other = arrays(0, 2, 10)
    with nbrt.graph() as g:
        add.forall(4)(x, y, 1.0)
    assert {"x", "y"} <= set(g.parameters)
    g.replay(y=other)
    assert host(x) == [10.0] * 4
    g.replay()
    assert host(x) == [12.0] * 4
    g.replay((x, other))
    assert (host(other), host(x)) == ([12.0] * 4, [12.0] * 4)


def test_numbers_are_replaced_by_the_names_of_kernel_parameters(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend interprets kernels and has no argument types")
    x, y = arrays(0, 2)
    with nbrt.graph() as g:
        add.forall(4)(x, y, 1.0)
        add.forall(4)(x, y, 1.0)
    g.replay(factor=3.0)
    assert host(x) == [12.0] * 4
    g.replay()
    assert host(x) == [16.0] * 4
    with pytest.raises(ArgumentTypeError, match="number"):
        g.replay(factor="3")


def test_wrong_replacements_are_refused() -> None:
    x, y = arrays(0, 2)
    with nbrt.graph() as g:
        add.forall(4)(x, y, 1.0)
    with pytest.raises(ArgumentError, match="it has x, y"):
        g.replay(unknown=x)
    with pytest.raises(ArgumentError, match="shape"):
        g.replay(x=nbrt.zeros(5))
    with pytest.raises(ArgumentError, match="float64"):
        g.replay(x=nbrt.zeros(4, "float64"))
    with pytest.raises(ArgumentError, match="first of a pair"):
        g.replay((nbrt.zeros(4), x))
    assert host(x) == [0.0] * 4


def test_a_graph_keeps_its_arrays_alive() -> None:
    x, y = arrays(0, 2)
    with nbrt.graph() as g:
        add.forall(4)(x, y, 1.0)
    del y
    gc.collect()
    fillers = arrays(*range(20))
    g.replay()
    assert host(x) == [2.0] * 4
    assert len(fillers) == 20


def test_arrays_that_died_share_memory() -> None:
    x = nbrt.zeros(1024)
    with nbrt.graph() as g:
        for _ in range(8):
            step = nbrt.full(1024, 1.0, "float32")
            add.forall(1024)(x, step, 1.0)
            del step
    g.replay()
    assert nbrt.to_host(x).tolist() == [8.0] * 1024
    if nbrt.current_device().kind != "cuda":
        assert g.memory_plan is not None
        assert g.memory_plan.peak == 4096
        assert g.memory_plan.saved == 7 * 4096


def test_reset_releases_memory_also_of_a_replay_in_flight() -> None:
    stream = nbrt.Stream()
    x, y = arrays(0, 2)
    pool = nbrt.MemoryPool()
    with nbrt.graph(pool=pool) as g:
        z = nbrt.full(4, 1.0, "float32")
        add.forall(4)(x, z, 1.0)
        del z
    nbrt.synchronize()
    if nbrt.get_interface_for_device(x_device()).capabilities.concurrent_streams:
        with Latch() as latch:
            latch.hold(stream)
            g.replay(stream=stream)
            g.reset()
            g.reset()
        stream.synchronize()
        assert host(x) == [1.0] * 4
    else:
        g.reset()
    with pytest.raises(GraphError, match="reset"):
        g.replay()
    gc.collect()
    assert pool.memory_allocated() == 0
    assert host(y) == [2.0] * 4


def x_device() -> nbrt.Device:
    return nbrt.current_device()


def test_nodes_can_be_disabled() -> None:
    x, y = arrays(0, 2)
    with nbrt.graph() as g:
        add.forall(4)(x, y, 1.0)
        add.forall(4)(x, y, 10.0)
    g[1].enable(False)
    g.replay()
    assert host(x) == [2.0] * 4
    g[1].enable()
    g.replay()
    assert host(x) == [24.0] * 4
    with pytest.raises(ArgumentError, match="below 2"):
        g[2]


def test_update_takes_over_another_capture() -> None:
    x, y, z = arrays(0, 2, 5)

    def captured(*steps: Any) -> nbrt.Graph:
        with nbrt.graph() as g:
            for step in steps:
                add.forall(4)(x, step, 1.0)
        return g

    g = captured(y, y)
    g.update(captured(z, z))
    g.replay()
    assert host(x) == [10.0] * 4
    with pytest.raises(GraphError, match="topology"):
        g.update(captured(z))
    g.replay()
    assert host(x) == [20.0] * 4


def test_a_function_is_captured_once_for_each_kind_of_arguments() -> None:
    calls = []

    @nbrt.graph
    def step(x: Any, y: Any, factor: float) -> Any:
        calls.append(factor)
        add.forall(x.size)(x, y, factor)
        return x.size

    x, y, z = arrays(0, 2, 0)
    assert step(x, y, 1.0) == 4
    assert step(z, y, 1.0) == 4
    step(x, y, 1.0)
    assert (host(x), host(z), calls) == ([4.0] * 4, [2.0] * 4, [1.0])
    step(x, y, 2.0)
    assert (host(x), calls) == ([8.0] * 4, [1.0, 2.0])
    assert len(step.graphs) == 2


def test_a_function_may_run_eagerly_if_it_cannot_be_captured() -> None:
    @nbrt.graph(on_error="eager")
    def step(x: Any, y: Any) -> None:
        add.forall(4)(x, y, 1.0)
        nbrt.current_stream().synchronize()

    x, y = arrays(0, 2)
    step(x, y)
    step(x, y)
    assert host(x) == [4.0] * 4


def test_a_replay_inside_a_capture_is_a_child() -> None:
    x, y, z = arrays(0, 2, 10)
    with nbrt.graph() as inner:
        add.forall(4)(x, y, 1.0)
    with nbrt.graph() as outer:
        inner.replay()
        inner.replay(y=z)
        add.forall(4)(x, y, 1.0)
    assert host(x) == [0.0] * 4
    outer.replay()
    assert host(x) == [14.0] * 4
    assert len(outer) == 3
    assert [outer[number].kind for number in range(3)] == ["graph", "graph", "launch"]


# -- views -----------------------------------------------------------------------------------------


def test_views_name_the_nodes() -> None:
    x, y = arrays(0, 2)
    with nbrt.graph() as g:
        add.forall(4)(x, y, 1.0)
    assert "add" in repr(g)
    assert "test_graphs.py" in repr(g)
    assert "<svg" in g._repr_html_()
    assert g.to_dot().startswith("digraph")
    with nbrt.graph() as other:
        add.forall(4)(x, y, 2.0)
    difference = g.difference(other)
    assert difference is not None
    assert difference.path == "0"
    assert g.difference(g) is None


def test_hooks_see_graphs() -> None:
    seen: list[str] = []
    names = "capture_begin", "capture_end", "instantiate", "replay_begin", "replay_end", "destroy"
    with nbrt.graphs.on("capture_begin", lambda g: seen.append("capture_begin")):
        pass
    x, y = arrays(0, 2)
    from contextlib import ExitStack

    with ExitStack() as stack:
        for name in names:
            stack.enter_context(nbrt.graphs.on(name, lambda g, name=name: seen.append(name)))
        with nbrt.graph() as g:
            add.forall(4)(x, y, 1.0)
        g.replay()
        g.reset()
    assert seen == list(names)


class CommandHook:
    """Keeps the kinds, labels and arguments of launches, copies and draws."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, tuple[Any, ...]]] = []

    def before(self, stream: Any, command: Any) -> None:
        if command.kind in ("launch", "copy", "draw"):
            self.seen.append((command.kind, command.label, command.args))

    def after(self, stream: Any, command: Any, result: Any) -> None:
        pass


def test_hooks_of_commands_see_a_replay(device: nbrt.Device) -> None:
    x, y = arrays(0, 2)
    with install_hook(hook := CommandHook()):
        with nbrt.graph() as g:
            add.forall(4)(x, y, 1.0)
            nbrt.copy(y, x)
        assert not hook.seen
        g.replay()
    assert [seen[:2] for seen in hook.seen] == [("launch", "add"), ("copy", "")]
    if device.kind == "cpu":
        seen = hook.seen[0][2]
        assert np.shares_memory(seen[0], x)
        assert seen[2] == 1.0


def test_a_backend_may_register_its_stream_methods(device: nbrt.Device) -> None:
    entered = []

    def context(stream: nbrt.Stream) -> Any:
        entered.append(stream)
        return nbrt.stream(stream)

    own = nbrt.graphs.stream_method(device.kind, "create_stream_context")
    nbrt.graphs.register_stream_method(device.kind, {"create_stream_context": context})
    try:
        with nbrt.graph():
            assert entered == [nbrt.current_stream()]
    finally:
        nbrt.graphs.register_stream_method(device.kind, {"create_stream_context": own})
    stream = nbrt.Stream()
    with nbrt.stream(None):
        before = nbrt.current_stream()
    with nbrt.stream(before):
        nbrt.graphs.stream_method(device.kind, "set_stream_by_id")(stream.id)
        assert nbrt.graphs.stream_method(device.kind, "current_stream")() is stream
        with pytest.raises(ArgumentError, match="stream that still exists"):
            nbrt.graphs.stream_method(device.kind, "set_stream_by_id")(10**9)
    with pytest.raises(ArgumentError, match="method of streams"):
        nbrt.graphs.register_stream_method(device.kind, {"unknown": context})  # type: ignore[dict-item]


def test_a_capture_keeps_no_variables_of_its_function_alive() -> None:
    for _ in range(2):
        x, y, unused = arrays(0, 2, 3)
        names = locals()
        with nbrt.graph() as g:
            add.forall(4)(x, y, 1.0)
        assert "unused" in names
        del names
        with nbrt.graph() as g:
            add.forall(4)(x, y, 1.0)
        alive = [weakref.ref(each) for each in (x, unused, g)]
        del x, y, unused, g
        gc.collect()
        assert [each() for each in alive] == [None] * 3
