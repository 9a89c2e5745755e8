"""The code of a graph: executed, it gives the bits of a replay, and moves the generators alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from helpers.graph_kernels import add, add_tuple, count_down, draw, scale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt.graphs import Graph


class Case:
    """Arrays and a generator, for a program to work on."""

    def __init__(self) -> None:
        self.stream, self.other = nbrt.Stream("cpu:0"), nbrt.Stream("cpu:0")
        self.generator = nbrt.Generator(5, device="cpu:0")
        self.x = nbrt.asarray(np.arange(24, dtype=np.float32).reshape(4, 6), device="cpu:0")
        self.y = nbrt.full(24, 0.5, "float32", device="cpu:0")
        self.flag = nbrt.full(1, 3, "int32", device="cpu:0")
        self.called: list[Any] = []

    def arrays(self) -> list[Any]:
        return [self.x, self.y, self.flag]

    def state(self) -> Any:
        """Return all bits, once the work is done."""
        nbrt.synchronize("cpu:0")
        bits = [each.tobytes() for each in self.arrays()]
        return bits, list(self.called), repr(self.generator)

    def restore(self, values: list[Any]) -> None:
        for array, value in zip(self.arrays(), values, strict=True):
            array[...] = value
        self.generator.state = nbrt.Generator(5, device="cpu:0").state
        self.called.clear()


@pytest.fixture
def case() -> Iterator[Case]:
    with nbrt.device("cpu:0"):
        yield Case()


def launches(case: Case) -> None:
    x, y = case.x, case.y
    scale[2, 16](x.reshape(-1), 2.0)
    scale[(1, 1, 1), (32, 1), case.stream, 64](y, np.float32(0.1))
    add[1, 32](x[1:3].reshape(-1), y[:12])
    add_tuple[1, 32](y, (1.5, np.float32(2.5)), True)


def scalars(case: Case) -> None:
    for factor in (float("inf"), float("nan"), -0.0, np.float32(1e-45), np.int64(-3), 1e300):
        add_tuple[1, 32](case.y, (factor, 1), np.bool_(True))


def views(case: Case) -> None:
    x, y = case.x, case.y
    nbrt.copy(x[::2, 1:5:3], x[1::2, :2])
    nbrt.copy(x[:, 5], y[::6])
    nbrt.copy(x.T[2:4, ::-1], x.T[:2])
    nbrt.copy(y[3:4], x[2, 3])


def private_memory(case: Case) -> None:
    made = nbrt.zeros((4, 6), "float32")
    add[1, 32](made.reshape(-1), case.y)
    nbrt.copy(case.x[0], made[2])
    words = nbrt.full(8, 7, "uint8")
    nbrt.copy(words.view("uint16")[1:], np.arange(3, dtype=np.uint16))
    nbrt.copy(case.flag, words.view("int32")[1:])


def draws(case: Case) -> None:
    generator, x, y = case.generator, case.x, case.y
    generator.standard_normal(out=x, dtype="float32")
    nbrt.copy(y, generator.random(24, dtype="float32"))
    part = generator.shard((8, 6), (slice(2, 6), slice(0, 6)))
    nbrt.copy(x, part.random(dtype="float32"))
    generator.bernoulli(0.25, 24)
    generator.gamma(2.0, out=x, dtype="float32")


def kernels_that_draw(case: Case) -> None:
    case.generator.standard_normal(out=case.x, dtype="float32")
    draw[1, 6](case.y, *case.generator.kernel_state(24))
    case.other.wait_stream(case.stream)
    draw[1, 6, case.other](case.x.reshape(-1), *case.generator.kernel_state(24))
    case.stream.wait_stream(case.other)


def streams(case: Case) -> None:
    x, y = case.x, case.y
    case.other.wait_stream(case.stream)
    scale[1, 32](y, 3.0)
    with nbrt.stream(case.other):
        scale[1, 32](x.reshape(-1), 2.0)
        event = case.other.record_event()
        scale[1, 32](x.reshape(-1), 5.0)
    case.stream.wait_event(event)
    add[1, 32](y, y)
    case.stream.wait_stream(case.other)


def host_calls(case: Case) -> None:
    case.stream.call(case.called.append, "first")
    case.stream.call(case.called.append, (1, 2.5, None, b"x"))


def control_flow(case: Case) -> None:
    x, y, flag, generator = case.x, case.y, case.flag, case.generator

    def turn() -> None:
        drawn = generator.random(24, dtype="float32")
        add[1, 32](y, drawn)
        count_down[1, 1](flag)

    generator.standard_normal(out=x, dtype="float32")
    nbrt.graphs.while_(flag, turn, limit=10)
    generator.standard_normal(out=x, dtype="float32")
    nbrt.graphs.cond(flag, lambda: scale[1, 32](y, 2.0), lambda: scale[1, 32](y, 3.0))

    def nested() -> None:
        nbrt.graphs.cond(flag, lambda: None, lambda: scale[1, 32](y, 0.5))

    nbrt.graphs.switch(flag, [nested, turn])


PROGRAMS = [
    launches, scalars, views, private_memory, draws, kernels_that_draw, streams, host_calls,
    control_flow,
]  # fmt: skip


def captured(case: Case, program: Callable[[Case], None]) -> Graph:
    with nbrt.graph(case.stream) as g:
        x, y, flag = case.x, case.y, case.flag
        program(case)
    del x, y, flag
    return g


@pytest.mark.parametrize("program", PROGRAMS)
def test_executed_code_gives_the_bits_of_a_replay(
    case: Case, program: Callable[[Case], None]
) -> None:
    before = [each.copy() for each in case.arrays()]
    graph = captured(case, program)
    for _ in range(2):
        graph.replay(stream=case.stream)
    replayed = case.state()
    case.restore(before)
    code, namespace = graph.code, graph.namespace
    for _ in range(2):
        exec(code, dict(namespace))
    assert case.state() == replayed


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_captured_code_is_an_equal_graph(case: Case, program: Callable[[Case], None]) -> None:
    graph = captured(case, program)
    code, namespace = graph.code, dict(graph.namespace)
    with nbrt.graph(case.stream) as again:
        exec(code, namespace)
    found = graph.difference(again)
    assert found is None, f"{found}\n{code}"


def test_a_graph_inside_of_a_graph_draws_the_next_numbers(case: Case) -> None:
    before = [each.copy() for each in case.arrays()]
    inner = captured(case, draws)

    def program(case: Case) -> None:
        case.generator.standard_normal(out=case.x, dtype="float32")
        inner.replay(stream=case.stream)
        add[1, 32](case.y, case.generator.random(24, dtype="float32"))
        inner.replay(stream=case.stream)

    graph = captured(case, program)
    graph.replay(stream=case.stream)
    replayed = case.state()
    case.restore(before)
    exec(graph.code, graph.namespace)
    assert case.state() == replayed


def test_a_disabled_node_is_a_comment(case: Case) -> None:
    graph = captured(case, launches)
    graph[1].enable(False)
    assert "# disabled: scale[1, 32, " in graph.code
    before = [each.copy() for each in case.arrays()]
    graph.replay(stream=case.stream)
    replayed = case.state()
    case.restore(before)
    exec(graph.code, graph.namespace)
    assert case.state() == replayed


def test_a_stream_that_is_gone_is_named(case: Case) -> None:
    graph = captured(case, launches)
    code = graph.code.replace(f"from_id({case.stream.id})", "from_id(987654321)")
    with pytest.raises(nbrt.errors.ArgumentError, match="id of a stream of this process, got 9876"):
        exec(code, graph.namespace)


def test_a_capture_draws_after_a_replay_whose_loop_draws(case: Case) -> None:
    graph = captured(case, control_flow)
    graph.replay(stream=case.stream)
    # The state is read during the capture, of a stream that waits for nothing.
    with nbrt.graph(case.stream) as after:
        case.generator.standard_normal(out=case.x, dtype="float32")
    after.replay(stream=case.stream)
    nbrt.synchronize("cpu:0")
    # One draw before the loop, one in each of its 3 turns, one behind it, none in the switch.
    twin = nbrt.Generator(5, device="cpu:0")
    for _ in range(5):
        twin.standard_normal(24, dtype="float32")
    assert (case.x.reshape(-1) == twin.standard_normal(24, dtype="float32")).all()
