"""Control flow of graphs on CPU devices: in native code, nested, with limits."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numba import cuda

from helpers.cpu_graphs import Graph
from nbrt.backends.graphs import ReplayValues
from nbrt.errors import KernelError


def add(x, value):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += value


def is_below(flag, x, limit):
    flag[0] = x[0] < limit


def countdown(flag):
    flag[0] -= 1


def collect(out, state):
    out[int(out[0])] = state[1]
    out[0] += 1


@pytest.mark.parametrize("value", [0, 1, -1, 64])
@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_a_condition_runs_one_branch(dtype, value):
    if value < 0 and dtype[0] != "i":
        pytest.skip("the flag has no sign")
    graph = Graph()
    # Other elements of the flag's array must not count.
    flag, x = np.full(3, 1 - bool(value)).astype(dtype), np.zeros(1)
    flag[1] = value
    graph.control(
        "if",
        flag[1:2],
        [lambda: graph.launch(add, 1, 1, x, 1.0), lambda: graph.launch(add, 1, 1, x, 100.0)],
    )
    graph.launch(add, 1, 1, x, 0.5)
    graph.replay(graph.program())
    assert x[0] == (1.5 if value else 100.5)


def test_a_condition_without_a_second_branch():
    graph = Graph()
    flag, x = np.zeros(1, bool), np.zeros(1)
    graph.control("if", flag, [lambda: graph.launch(add, 1, 1, x, 1.0)])
    graph.launch(add, 1, 1, x, 10.0)
    program = graph.program()
    graph.replay(program)
    assert x[0] == 10
    flag[0] = True
    graph.replay(program)
    assert x[0] == 21


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u4", "i8", "u8", "?"])
@pytest.mark.parametrize("value", [-1, 0, 1, 2, 3, 100])
def test_a_switch_runs_the_branch_of_its_number(dtype, value):
    graph = Graph()
    flag, x = np.array([value]).astype(dtype), np.zeros(1)
    adds = [lambda a=a: graph.launch(add, 1, 1, x, a) for a in (1.0, 10.0, 100.0)]
    graph.control("switch", flag, adds)
    graph.launch(add, 1, 1, x, 0.5)
    graph.replay(graph.program())
    chosen = int(flag[0])
    assert x[0] == 0.5 + ((1, 10, 100)[chosen] if 0 <= chosen < 3 else 0)


@pytest.mark.parametrize("turns", [0, 1, 5, 1000])
def test_a_loop_ends_with_its_flag(turns):
    graph = Graph()
    flag, x = np.array([turns]), np.zeros(1)

    def body():
        graph.launch(add, 1, 1, x, 1.0)
        graph.launch(countdown, 1, 1, flag)

    graph.control("while", flag, [body], limit=1000)
    graph.launch(add, 1, 1, x, 0.5)
    program = graph.program()
    for replays in (1, 2):
        flag[0] = turns
        graph.replay(program)
        assert x[0] == replays * (turns + 0.5)


def test_a_loop_beyond_its_limit_fails():
    graph = Graph()
    flag, x, after = np.ones(1, np.int32), np.zeros(1), np.zeros(1)
    graph.control(
        "while", flag, [lambda: graph.launch(add, 1, 1, x, 1.0)], limit=7, label="converge"
    )
    graph.launch(add, 1, 1, after, 1.0)
    program = graph.program()
    with pytest.raises(KernelError, match="at most 7 turns of the loop 'converge'") as caught:
        graph.replay(program)
    assert "in node 0 of the graph, while 'converge'" in caught.value.__notes__[0]
    assert (x[0], after[0]) == (7, 0)
    flag[0] = 0
    graph.replay(program)
    assert (x[0], after[0]) == (7, 1)


def test_loops_nest_and_branch():
    """Count the steps of Collatz sequences: a loop with a loop with a condition."""
    graph = Graph()
    numbers = np.arange(1, 30)
    position, outer = np.zeros(1, int), np.ones(1, bool)
    n, inner, is_odd, steps = np.zeros(1, int), np.zeros(1, bool), np.zeros(1, bool), np.zeros(30)

    def begin(n, numbers, position, inner):
        n[0] = numbers[position[0]]
        inner[0] = n[0] != 1

    def look(n, is_odd):
        is_odd[0] = n[0] % 2 == 1

    def triple(n):
        n[0] = 3 * n[0] + 1

    def halve(n):
        n[0] //= 2

    def step(n, inner, steps, position):
        steps[position[0]] += 1
        inner[0] = n[0] != 1

    def advance(position, outer, numbers):
        position[0] += 1
        outer[0] = position[0] < numbers.size

    def inner_body():
        graph.launch(look, 1, 1, n, is_odd)
        graph.control(
            "if",
            is_odd,
            [lambda: graph.launch(triple, 1, 1, n), lambda: graph.launch(halve, 1, 1, n)],
        )
        graph.launch(step, 1, 1, n, inner, steps, position)

    def outer_body():
        graph.launch(begin, 1, 1, n, numbers, position, inner)
        graph.control("while", inner, [inner_body], limit=200)
        graph.launch(advance, 1, 1, position, outer, numbers)

    graph.control("while", outer, [outer_body], limit=29)
    graph.replay(graph.program())

    def collatz(n):
        return 0 if n == 1 else 1 + collatz(3 * n + 1 if n % 2 else n // 2)

    assert steps[:29].tolist() == [collatz(n) for n in numbers.tolist()]


def test_each_turn_advances_the_generator():
    graph = Graph()
    flag, state, out = np.array([3]), np.zeros(2, np.uint64), np.array([1.0, *[0.0] * 7])

    def body():
        graph.launch(collect, 1, 1, out, state)
        graph.launch(countdown, 1, 1, flag)

    graph.control("while", flag, [body], limit=10, advances=[(state, 12)])
    graph.launch(collect, 1, 1, out, state)
    program = graph.program()
    for offset in (100, 2**40):
        flag[0], out[0] = 3, 1
        graph.replay(program, ReplayValues(states=[(graph.number_of(state), 5, offset)]))
        assert out[1:5].tolist() == [offset, offset + 12, offset + 24, offset + 36]


def test_functions_and_errors_in_a_body():
    graph = Graph()
    flag, x, seen = np.array([5]), np.zeros(1), []

    def check(array):
        seen.append(float(array[0]))
        if array[0] == 3:
            raise ValueError("three")

    def body():
        graph.launch(add, 1, 1, x, 1.0)
        graph.call(check, x)
        graph.launch(countdown, 1, 1, flag)

    graph.launch(add, 1, 1, x, 0.0)
    graph.control("while", flag, [body], limit=10)
    with pytest.raises(ValueError, match="three") as caught:
        graph.replay(graph.program())
    assert seen == [1, 2, 3]
    assert "in node 1.0.1 of the graph, call" in caught.value.__notes__[0]


def test_nodes_of_a_body_and_whole_loops_are_disabled():
    graph = Graph()
    flag, x = np.array([3]), np.zeros(1)
    inside = []

    def body():
        inside.append(graph.launch(add, 1, 1, x, 1.0))
        inside.append(graph.launch(add, 1, 1, x, 10.0))
        graph.launch(countdown, 1, 1, flag)

    loop = graph.control("while", flag, [body], limit=10)
    graph.launch(add, 1, 1, x, 0.5)
    program = graph.program()
    for is_loop, is_first, expected in (
        (True, True, 33.5), (True, False, 30.5), (False, False, 0.5), (False, True, 0.5),
        (True, True, 33.5),
    ):  # fmt: skip
        loop.is_enabled, inside[0].is_enabled = is_loop, is_first
        flag[0], x[0] = 3, 0
        graph.replay(program)
        assert x[0] == expected


def test_a_replaced_flag():
    graph = Graph()
    flag, other, x = np.zeros(1, int), np.array([4]), np.zeros(1)

    def body():
        graph.launch(add, 1, 1, x, 1.0)
        graph.launch(countdown, 1, 1, flag)

    graph.control("while", flag, [body], limit=10)
    program = graph.program()
    graph.replay(program, ReplayValues(addresses={graph.number_of(flag): other.ctypes.data}))
    assert (x[0], flag[0], other[0]) == (4, 0, 0)


def test_a_loop_leaves_the_gil_to_other_threads():
    """The GIL is free during a loop: another thread ends it."""
    graph = Graph()
    flag, x = np.ones(1, np.int32), np.zeros(1)
    graph.control("while", flag, [lambda: graph.launch(add, 1, 1, x, 1.0)], limit=2**62)
    program = graph.program()
    begun = threading.Event()

    def end():
        begun.wait()
        while x[0] < 1000:
            pass
        flag[0] = 0

    thread = threading.Thread(target=end)
    thread.start()
    begun.set()
    graph.replay(program)
    thread.join()
    assert x[0] >= 1000
