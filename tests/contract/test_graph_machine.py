"""A state machine of graphs: several alive at once, between eager work, seeds and other streams."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import nbrt
from helpers.graph_programs import Program, World, programs
from nbrt.memory import memory_stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt.graphs import Graph


@pytest.fixture(autouse=True)
def on_device(device: nbrt.Device) -> Iterator[None]:
    with nbrt.device(device):
        yield


class Captured:
    """A graph, and the program that it was captured from."""

    def __init__(self, program: Program, graph: Graph, children: list[Callable[[World], None]]):
        self.program, self.graph, self.children = program, graph, children

    def run(self, world: World) -> None:
        """Do the same on one stream without a graph."""
        self.program.run(world, serial=True, children=self.children)


class _InterruptedError(Exception):
    pass


class GraphMachine(RuleBasedStateMachine):
    """Graphs over the arrays and generators of one world, and a twin without graphs."""

    device: nbrt.Device
    captured: Any = Bundle("captured")

    @initialize()
    def begin(self) -> None:
        self.world, self.twin = World(self.device, 5), World(self.device, 5)
        self.alive: list[Captured] = []

    @rule(target=captured, data=st.data(), children=st.lists(captured, max_size=2))
    def capture(self, data: st.DataObject, children: list[Captured]) -> Any:
        program = data.draw(_programs(self.device, children=bool(children)))
        stream = nbrt.Stream() if data.draw(st.booleans()) else None
        with nbrt.graph(stream) as g:
            program.run(self.world, children=[lambda _, c=c: c.graph.replay() for c in children])
        made = Captured(program, g, [each.run for each in children])
        self.alive.append(made)
        return made

    @rule(data=st.data(), place=st.integers(1, 6))
    def fail_to_capture(self, data: st.DataObject, place: int) -> None:
        program = data.draw(_programs(self.device))
        ops = iter(range(place))

        def before_op() -> None:
            if next(ops, None) is None:
                raise _InterruptedError

        try:
            with nbrt.graph():
                program.run(self.world, before_op=before_op)
                raise _InterruptedError
        except _InterruptedError:
            pass
        assert not nbrt.current_stream().is_capturing()

    @rule(each=captured, on_other_stream=st.booleans(), times=st.integers(1, 2))
    def replay(self, each: Captured, on_other_stream: bool, times: int) -> None:
        main = nbrt.current_stream()
        stream = nbrt.Stream() if on_other_stream else main
        if stream is not main:
            stream.wait_stream(main)
        for _ in range(times):
            each.graph.replay(stream=stream)
            each.run(self.twin)
        if stream is not main:
            main.wait_stream(stream)

    @rule(data=st.data())
    def run_eagerly(self, data: st.DataObject) -> None:
        program = data.draw(_programs(self.device))
        program.run(self.world)
        program.run(self.twin, serial=True)

    @precondition(lambda self: self.world.generators)
    @rule(which=st.integers(0, 1), seed=st.integers(0, 2**63 - 1))
    def set_seed(self, which: int, seed: int) -> None:
        for world in (self.world, self.twin):
            world.generators[which].manual_seed(seed)

    @rule(each=consumes(captured))
    def reset(self, each: Captured) -> None:
        each.graph.reset()
        self.alive.remove(each)

    @invariant()
    def values_are_equal(self) -> None:
        if hasattr(self, "world"):
            assert self.world.state() == self.twin.state()

    def teardown(self) -> None:
        for each in self.alive:
            each.graph.reset()
        self.alive = []


def _programs(device: nbrt.Device, *, children: bool = False) -> st.SearchStrategy[Program]:
    return programs(control=device.kind != "sample", children=children)


def test_graphs_between_other_work_do_what_eager_calls_do(device: nbrt.Device) -> None:
    machine = type("Machine", (GraphMachine,), {"device": device})
    gc.collect()
    nbrt.synchronize()
    stats = memory_stats(device)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=12,
            stateful_step_count=8,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    gc.collect()
    nbrt.synchronize()
    name = "allocated_bytes.all.current"
    assert memory_stats(device).get(name, 0) == stats.get(name, 0)
