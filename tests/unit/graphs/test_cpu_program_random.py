"""Random graphs on CPU devices give the values of a plain execution in their order."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numba import cuda

import nbrt
from helpers.cpu_graphs import Graph
from nbrt.backends.cpu.block_scheduler import get_num_threads, set_num_threads
from nbrt.backends.cpu.graphs import regions
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.graphs import ReplayValues

_ARRAYS = 5
_SIZE = 8


def mix(x, y, factor):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = (x[i] * factor + y[i] + i) % 1009


def choose(flag, x, modulus):
    flag[0] = x[0] % modulus


def lower(flag):
    if flag[0] > 0:
        flag[0] -= 1


@dataclass
class Step:
    """A node: its kind, the arrays it uses, and its bodies."""

    kind: str
    x: int
    y: int
    number: int
    bodies: list[list[Step]] = field(default_factory=list)


def _steps(depth: int) -> Any:
    arrays, numbers = st.integers(0, _ARRAYS - 1), st.integers(1, 5)
    plain = st.builds(
        Step,
        st.sampled_from(["mix", "wide", "copy", "fill", "call", "part"]),
        arrays,
        arrays,
        numbers,
    )
    if not depth:
        return st.lists(plain, max_size=4)
    bodies = st.lists(_steps(depth - 1), min_size=1, max_size=3)
    control = st.builds(
        Step, st.sampled_from(["if", "while", "switch"]), arrays, arrays, numbers, bodies
    )
    return st.lists(st.one_of(plain, plain, control), max_size=10 if depth == 2 else 4)


@functools.cache
def _program(kernel):
    """Return the program of a kernel, which the nodes of all graphs share, as those of users do."""
    return CpuProgram(kernel)


class _Builder:
    """Adds steps to a graph; a node waits for the earlier ones that use its arrays."""

    def __init__(self, arrays: list[np.ndarray], flags: np.ndarray) -> None:
        self.graph = Graph()
        self._arrays = arrays
        self._flags = flags
        self._used = 0

    def add(self, steps: list[Step], *, is_outermost: bool = True) -> None:
        users: dict[int, list[Any]] = {}
        for step in steps:
            before = None
            touched = _touched(step)
            if is_outermost:
                before = list({id(n): n for a in touched for n in users.get(a, ())}.values())
            node = self._node(step, before)
            for array in touched:
                users.setdefault(array, []).append(node)

    def _node(self, step: Step, before: list[Any] | None) -> Any:
        graph, x, y = self.graph, self._arrays[step.x], self._arrays[step.y]
        if step.bodies:
            return self._control(step, before)
        if step.kind == "mix":
            return graph.launch(_program(mix), 1, _SIZE, x, y, step.number, after=before)
        if step.kind == "wide":
            return graph.launch(_program(mix), _SIZE, 1, x, y, step.number, after=before)
        if step.kind == "copy":
            return graph.copy(x, y, after=before)
        if step.kind == "part":
            return graph.copy(x[1::3], y[::3], after=before)
        if step.kind == "fill":
            return graph.copy(x, step.number, after=before)
        return graph.call(_add, x, y, step.number, after=before)

    def _control(self, step: Step, before: list[Any] | None) -> Any:
        graph, flag = self.graph, self._flags[self._used : self._used + 1]
        self._used += 1
        bodies = step.bodies
        if step.kind == "while":
            bodies = bodies[:1]
        elif step.kind == "if":
            bodies = bodies[:2]

        def body(steps: list[Step]) -> Any:
            def build() -> None:
                self.add(steps, is_outermost=False)
                if step.kind == "while":
                    graph.launch(_program(lower), 1, 1, flag)

            return build

        program, x = _program(choose), self._arrays[step.x]
        first = graph.launch(program, 1, 1, flag, x, step.number + 1, after=before)
        after = None if before is None else [first]
        return graph.control(
            step.kind, flag, [body(steps) for steps in bodies], limit=9, after=after
        )


def _touched(step: Step) -> set[int]:
    inner = (array for body in step.bodies for each in body for array in _touched(each))
    return {step.x, step.y, *inner}


def _add(x: np.ndarray, y: np.ndarray, number: int) -> None:
    x[:] = (x + y[::-1] * number) % 1009


def _run(steps: list[Step], arrays: list[np.ndarray]) -> None:
    for step in steps:
        x, y = arrays[step.x], arrays[step.y]
        if step.bodies:
            value = int(x[0] % (step.number + 1))
            if step.kind == "while":
                for _ in range(value):
                    _run(step.bodies[0], arrays)
            else:
                number = value if step.kind == "switch" else int(value == 0)
                bodies = step.bodies if step.kind == "switch" else step.bodies[:2]
                if number < len(bodies):
                    _run(bodies[number], arrays)
        elif step.kind in ("mix", "wide"):
            x[:] = (x * step.number + y + np.arange(_SIZE)) % 1009
        elif step.kind == "copy":
            x[:] = y
        elif step.kind == "part":
            x[1::3] = y[::3].copy()
        elif step.kind == "fill":
            x[:] = step.number
        else:
            _add(x, y, step.number)


@pytest.fixture
def _several_threads(monkeypatch):
    """Run every region on three threads, however short."""
    monkeypatch.setattr(regions, "_MIN_GAIN_NS", -(1 << 60))
    monkeypatch.setattr(regions, "_MEASURED_RUNS", 0)
    before = get_num_threads()
    set_num_threads(3)
    yield
    set_num_threads(before)


@pytest.mark.usefixtures("_several_threads")
@given(_steps(2))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_graphs(steps):
    start = [np.arange(_SIZE) * (number + 1) % 101 for number in range(_ARRAYS)]
    arrays, expected = [each.copy() for each in start], [each.copy() for each in start]
    builder = _Builder(arrays, np.zeros(200, np.int64))
    builder.add(steps)
    graph = builder.graph
    programs = [graph.program(), graph.program(deterministic=True)]
    streams = [nbrt.Stream("cpu:0").queue for _ in range(2)]
    for replays in range(3):
        _run(steps, expected)
        _run(steps, expected)
        for program in programs:
            program.replay(streams[replays % 2], ReplayValues())
            streams[replays % 2].synchronize()
        np.testing.assert_array_equal(arrays, expected)
    # With other memory, in flight together.
    others = [[each.copy() for each in start] for _ in range(2)]
    for queue, other in zip(streams, others, strict=True):
        addresses = {
            graph.number_of(array): replaced.ctypes.data
            for array, replaced in zip(arrays, other, strict=True)
        }
        programs[0].replay(queue, ReplayValues(addresses=addresses, owners=tuple(other)))
    for queue in streams:
        queue.synchronize()
    again = [each.copy() for each in start]
    _run(steps, again)
    for other in others:
        np.testing.assert_array_equal(other, again)
    np.testing.assert_array_equal(arrays, expected)
