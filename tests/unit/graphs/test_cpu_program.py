"""Programs of graphs on CPU devices, compared with eager launches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.cpu_graphs import Graph
from nbrt.backends.graphs import ReplayValues
from nbrt.config import override
from nbrt.errors import ArgumentTypeError, GraphError, KernelDeadlockError


def add(x, value):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += value


def axpy(out, a, x, y):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


def fail_above(x, limit):
    i = cuda.grid(1)
    if i < x.size:
        if x[i] > limit:
            raise ValueError("too large")
        x[i] += 1


def shift_rows(x):
    row = cuda.shared.array(0, np.float64)
    i = cuda.threadIdx.x
    row[i] = x[cuda.blockIdx.x, i]
    cuda.syncthreads()
    x[cuda.blockIdx.x, i] = row[(i + 1) % cuda.blockDim.x]


def sum_over_grid(x, total):
    i = cuda.grid(1)
    cuda.atomic.add(total, 0, x[i])
    cuda.cg.this_grid().sync()
    x[i] = total[0]


@pytest.mark.parametrize(("grid", "block"), [(1, 1), (1, 256), (7, 32), (300, 64)])
def test_launches_equal_eager_launches(grid, block):
    graph = Graph()
    x = np.arange(grid * block, dtype=np.float32)
    eager = x.copy()
    for value in (1.5, 2.0, -0.25):
        graph.launch(add, grid, block, x, np.float32(value))
    program = graph.program()
    for _ in range(3):
        graph.replay(program)
        for value in (1.5, 2.0, -0.25):
            nbrt.kernel(add)[grid, block](eager, np.float32(value))
        np.testing.assert_array_equal(x, eager)


def test_views_keep_offset_and_strides():
    graph = Graph()
    x = np.zeros((6, 8))
    graph.launch(add, 1, 8, x[::-2, 3], 1.0)
    graph.launch(add, 1, 8, x[1, ::-3], 10.0)
    graph.replay(graph.program())
    expected = np.zeros((6, 8))
    expected[::-2, 3] += 1
    expected[1, ::-3] += 10
    np.testing.assert_array_equal(x, expected)


def test_copies_and_fills_of_any_layout_equal_numpy():
    graph = Graph()
    record = np.dtype([("a", "i4"), ("b", "f8")])
    targets = [
        np.zeros((4, 5)), np.zeros((4, 5), order="F"), np.zeros((8, 5))[::2], np.zeros(3, "f4"),
        np.zeros(100_000, "u2"), np.zeros(5, record), np.zeros(0), np.zeros((), "c16"),
    ]  # fmt: skip
    sources = [
        np.arange(20.0).reshape(4, 5), np.arange(20.0).reshape(4, 5), np.arange(5.0),
        np.arange(3, dtype="f4"), 0x1234, (7, 2.5), 1.0, 3 - 4j,
    ]  # fmt: skip
    expected = [target.copy() for target in targets]
    for target, source in zip(targets, sources, strict=True):
        source = np.array(source, record) if isinstance(source, tuple) else source
        graph.copy(target, source)
    graph.replay(graph.program())
    for target, source, copy in zip(targets, sources, expected, strict=True):
        np.copyto(copy, np.array(source, copy.dtype) if isinstance(source, tuple) else source)
        np.testing.assert_array_equal(target, copy)


def test_an_overlapping_copy_equals_numpy():
    graph = Graph()
    x = np.arange(100)
    expected = x.copy()
    expected[10:] = x[:-10]
    graph.copy(x[10:], x[:-10])
    graph.replay(graph.program())
    np.testing.assert_array_equal(x, expected)


def test_functions_run_between_kernels():
    graph = Graph()
    x, seen = np.zeros(4), []
    graph.launch(add, 1, 4, x, 1.0)
    graph.call(lambda array: seen.append(array.copy()), x)
    graph.launch(add, 1, 4, x, 1.0)
    graph.call(lambda array: seen.append(array.copy()), x)
    program = graph.program()
    graph.replay(program)
    graph.replay(program)
    assert [array[0] for array in seen] == [1, 2, 3, 4]


def test_dynamic_shared_memory_and_barriers():
    graph = Graph()
    x = np.arange(12.0).reshape(3, 4)
    graph.launch(shift_rows, 3, 4, x, shared=32)
    graph.replay(graph.program())
    np.testing.assert_array_equal(x, np.roll(np.arange(12.0).reshape(3, 4), -1, axis=1))


def test_a_barrier_of_the_grid():
    graph = Graph()
    x, total = np.ones(64), np.zeros(1)
    graph.copy(total, 0.0)
    graph.launch(sum_over_grid, 4, 16, x, total)
    program = graph.program()
    graph.replay(program)
    np.testing.assert_array_equal(x, 64)
    graph.replay(program)
    np.testing.assert_array_equal(x, 64 * 64)


@pytest.mark.parametrize(("grid", "block"), [(1, 8), (4, 2)])
def test_the_error_of_a_kernel_names_node_thread_and_call(grid, block):
    graph = Graph()
    x = np.array([0, 0, 0, 0, 0, 9, 0, 0])
    after = np.zeros(1)
    graph.launch(add, grid, block, x, 0)
    graph.launch(fail_above, grid, block, x, 5)
    graph.launch(add, 1, 1, after, 1.0)
    program = graph.program()
    with pytest.raises(ValueError, match="too large") as caught:
        graph.replay(program)
    notes = "\n".join(caught.value.__notes__)
    thread, inside = divmod(5, block)
    assert f"block ({thread}, 0, 0), thread ({inside}, 0, 0)" in notes
    assert "in node 1 of the graph, launch 'fail_above'" in notes
    assert "test_cpu_program.py" in notes
    assert after[0] == 0
    x[5] = 0
    graph.replay(program)
    assert after[0] == 1


def test_the_error_of_a_function_ends_the_replay():
    graph = Graph()
    x = np.zeros(1)

    def fail():
        raise RuntimeError("from the function")

    graph.call(fail)
    graph.launch(add, 1, 1, x, 1.0)
    with pytest.raises(RuntimeError, match="from the function") as caught:
        graph.replay(graph.program())
    assert "in node 0 of the graph, call" in caught.value.__notes__[0]
    assert x[0] == 0


def test_a_deadlock_in_a_kernel_is_reported():
    def wait_for_a_flag(x):
        while x[0] == 0:
            pass

    graph = Graph()
    graph.launch(wait_for_a_flag, 1, 2, np.zeros(1, np.int32))
    program = graph.program()
    with override(deadlock_timeout=0), pytest.raises(KernelDeadlockError, match="block"):
        graph.replay(program)


class Pair(NamedTuple):
    x: object
    a: object


def use_pair(pair, *rest):
    i = cuda.grid(1)
    if i < pair.x.size:
        pair.x[i] += pair.a + rest[0][i] * rest[1]


def test_tuples_and_star_arguments():
    graph = Graph()
    x, y = np.zeros(4), np.arange(4.0)
    graph.launch(use_pair, 1, 4, Pair(x, 2.0), y, 3)
    graph.replay(graph.program())
    np.testing.assert_array_equal(x, 2 + 3 * y)


def with_default(x, a=2.0):
    x[0] += a


def test_default_arguments():
    graph = Graph()
    x = np.zeros(1)
    graph.launch(with_default, 1, 1, x)
    graph.launch(with_default, 1, 1, x, 10.0)
    graph.replay(graph.program())
    assert x[0] == 12


def test_the_kernel_stays_as_captured():
    graph = Graph()
    x = np.zeros(1)
    graph.launch(_adds_factor, 1, 1, x)
    program = graph.program()
    global _factor
    _factor = 100.0
    try:
        graph.replay(program)
    finally:
        _factor = 3.0
    assert x[0] == 3


_factor = 3.0


def _adds_factor(x):
    x[0] += _factor


# -- values of a replay ----------------------------------------------------------------------------


def test_a_replaced_buffer_holds_for_one_replay():
    graph = Graph()
    x, other = np.zeros(8), np.full(8, 100.0)
    graph.launch(add, 1, 8, x, 1.0)
    graph.launch(add, 2, 4, x, 1.0)
    graph.copy(x[:2], 7.0)
    graph.call(lambda array: np.add(array, 1, out=array), x)
    program = graph.program()
    values = ReplayValues(addresses={graph.number_of(x): other.ctypes.data}, owners=(other,))
    for _ in range(2):
        graph.replay(program, values)
    np.testing.assert_array_equal(x, 0)
    np.testing.assert_array_equal(other, [8, 8, *[106] * 6])
    graph.replay(program)
    np.testing.assert_array_equal(x, [8, 8, *[3] * 6])


def test_a_replaced_scalar_holds_for_one_replay():
    graph = Graph()
    x, seen = np.zeros(4), []
    graph.launch(add, 1, 4, x, 1.0)
    graph.launch(add, 2, 2, x, 10.0)
    graph.call(seen.append, "captured")
    graph.copy(x[:1], 5.0)
    program = graph.program()
    scalars = {(0, 0, 1): 2, (1, 0, 1): np.float32(20), (2, 0, 0): "replaced", (3, 0, 1): -1}
    graph.replay(program, ReplayValues(scalars=scalars))
    np.testing.assert_array_equal(x, [-1, 22, 22, 22])
    graph.replay(program)
    np.testing.assert_array_equal(x, [5, 33, 33, 33])
    assert seen == ["replaced", "captured"]


@pytest.mark.parametrize("value", ["text", 2.5, None, 2**70])
def test_a_scalar_of_another_type_is_refused_before_anything_runs(value):
    graph = Graph()
    x = np.zeros(4, np.int64)
    graph.launch(add, 1, 4, x, 1)
    program = graph.program()
    with pytest.raises(ArgumentTypeError, match="argument 1"):
        graph.replay(program, ReplayValues(scalars={(0, 0, 1): value}))
    np.testing.assert_array_equal(x, 0)


def test_a_scalar_of_an_unknown_work_is_refused():
    graph = Graph()
    graph.launch(add, 1, 4, np.zeros(4), 1.0)
    program = graph.program()
    for key in ((1, 0, 1), (0, 1, 1), (0, 0, 5)):
        with pytest.raises(GraphError):
            graph.replay(program, ReplayValues(scalars={key: 1.0}))


def test_states_are_written_before_the_first_node():
    graph = Graph()
    state, seen = np.zeros(2, np.uint64), []
    graph.call(lambda array: seen.append(array.tolist()), state)
    program = graph.program()
    number = graph.number_of(state)
    graph.replay(program, ReplayValues(states=[(number, 2**64 - 1, 8)]))
    other = np.zeros(2, np.uint64)
    graph.replay(
        program, ReplayValues(states=[(number, 3, 4)], addresses={number: other.ctypes.data})
    )
    assert seen == [[2**64 - 1, 8], [3, 4]]
    assert other.tolist() == [3, 4]


def test_disabled_nodes_are_skipped():
    graph = Graph()
    x = np.zeros(4)
    for value in (1.0, 10.0, 100.0):
        graph.launch(add, 1, 4, x, value)
    program = graph.program()
    expected = 0.0
    for enabled in ((1, 0, 1), (0, 0, 0), (1, 1, 1), (0, 1, 0)):
        for node, is_enabled in zip(graph.nodes, enabled, strict=True):
            node.is_enabled = bool(is_enabled)
        graph.replay(program)
        expected += np.dot(enabled, (1, 10, 100))
        np.testing.assert_array_equal(x, expected)


def test_a_disabled_node_without_work():
    graph, x = Graph(), np.zeros(1)
    graph.call(int)
    graph.nodes[0].work = ()
    graph.launch(add, 1, 1, x, 1.0)
    graph.call(int)
    graph.nodes[2].work = ()
    program = graph.program()
    for is_enabled in (False, True, False):
        graph.nodes[0].is_enabled = graph.nodes[2].is_enabled = is_enabled
        graph.replay(program)
    assert x[0] == 3


def test_a_closed_program_refuses_replays():
    graph = Graph()
    graph.launch(add, 1, 4, np.zeros(4), 1.0)
    program = graph.program()
    program.close()
    program.close()
    with pytest.raises(GraphError, match="reset"):
        graph.replay(program)


def test_an_empty_graph_replays():
    graph = Graph()
    graph.replay(graph.program())


def count_up(x, turns):
    total = 0.0
    for turn in range(turns):
        total += turn * x[0]
    x[0] = total


def test_the_times_of_the_nodes():
    graph, x, times = Graph(), np.zeros(1), []
    first = graph.call(int)
    short = graph.launch(count_up, 1, 1, x, 1, after=[first])
    long = graph.launch(count_up, 1, 1, np.zeros(1), 5_000_000, after=[first])
    graph.launch(add, 1, 1, x, 1.0, after=[short, long])
    program = graph.program()
    graph.replay(program, ReplayValues(times=times))
    assert x[0] == 1
    assert len(times) == 4
    assert all(seconds > 0 for seconds in times)
    assert times[2] > 1e-3  # fewer seconds would be fewer than a cycle a turn


def test_the_times_of_no_nodes():
    times = [1.0]
    Graph().replay(Graph().program(), ReplayValues(times=times))
    assert times == []


def test_replays_are_interpreted_while_the_setting_is_on(monkeypatch):
    from nbrt.backends.cpu import interpret

    seen = []
    real = interpret.interpret

    def count_calls(function, *args):
        seen.append(function.__name__)
        real(function, *args)

    monkeypatch.setattr(interpret, "interpret", count_calls)
    graph, x, flag = Graph(), np.zeros(8), np.ones(1, bool)

    def body():
        graph.launch(add, 1, 8, x, 1.0)
        graph.copy(flag, False)

    graph.control("while", flag, [body], limit=5)
    graph.launch(axpy, 2, 4, x, 2.0, x, x)
    program = graph.program()
    for number, is_on in enumerate((True, False, True)):
        flag[0], x[:] = True, 0
        with override(interpret=is_on):
            graph.replay(program)
        np.testing.assert_array_equal(x, 3)
        assert len(seen) == (2, 2, 4)[number]


def test_kernels_are_captured_while_they_are_interpreted():
    x = np.zeros(8)
    with nbrt.device("cpu:0"), override(interpret=True):
        with nbrt.graph() as graph:
            nbrt.kernel(add)[1, 8](x, 1.0)
        assert x[0] == 0
        graph.replay()
    np.testing.assert_array_equal(x, 1)
