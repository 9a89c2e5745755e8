"""Launches of graphs that run on several cores of a CPU device."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numba import cuda

from helpers.cpu_graphs import Graph
from nbrt.backends.cpu import block_scheduler, helpers, launch
from nbrt.backends.cpu.block_scheduler import get_num_threads, set_num_threads
from nbrt.backends.cpu.graphs import execution
from nbrt.backends.cpu.graphs.layout import Operation
from nbrt.backends.graphs import ReplayValues

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.cpu.graphs.program import CpuGraphProgram

BLOCKS = 24


def add(x, value):
    x[cuda.grid(1)] += value


def refuse(x, first, last):
    block = cuda.blockIdx.x
    if first <= block <= last and cuda.threadIdx.x == 1:
        raise ValueError("refused")
    x[cuda.grid(1)] += 1


def shift(x):
    """Write the values of the block, one place on, through a barrier."""
    row = cuda.shared.array(8, np.float64)
    i = cuda.threadIdx.x
    row[i] = x[cuda.grid(1)]
    cuda.syncthreads()
    x[cuda.grid(1)] = row[(i + 1) % 8]


@pytest.fixture(autouse=True)
def _every_launch_is_long(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launch, "MIN_SHARED_NS", 0)
    monkeypatch.setattr(block_scheduler, "_MIN_CHUNK_NS", 1)
    monkeypatch.setattr(execution, "MIN_SHARED_NS", 0)
    before = get_num_threads()
    set_num_threads(4)
    yield
    set_num_threads(before)


def _operations(program: CpuGraphProgram) -> list[Operation]:
    assert program._execution is not None
    found = program._execution.assembly.instructions["operation"]
    return [Operation(each) for each in found]


def _shared(graph: Graph) -> CpuGraphProgram:
    """Return a program whose launches have run once, and are shared by threads from now on."""
    program = graph.program()
    graph.replay(program)
    assert set(_operations(program)) == {Operation.SHARED}
    return program


def test_blocks_run_once_in_each_replay() -> None:
    graph, x, y = Graph(), np.zeros(BLOCKS * 8), np.arange(BLOCKS * 8.0)
    graph.launch(add, BLOCKS, 8, x, 1.0)
    graph.launch(shift, BLOCKS, 8, y)
    graph.launch(add, (BLOCKS, 1, 1), 8, x, 0.5)
    program = _shared(graph)
    for _ in range(200):
        graph.replay(program)
    assert (x == 201 * 1.5).all()
    rows = np.arange(BLOCKS * 8.0).reshape(-1, 8)
    np.testing.assert_array_equal(y.reshape(-1, 8), np.roll(rows, -201, axis=1))


def test_replacements_hold_for_all_threads() -> None:
    graph, x, other = Graph(), np.zeros(BLOCKS * 8), np.zeros(BLOCKS * 8)
    node = graph.launch(add, BLOCKS, 8, x, 1.0)
    program = _shared(graph)
    number = graph.number_of(x)
    values = ReplayValues(scalars={(node.index, 0, 1): 3.0})
    values.addresses[number], values.owners[number] = other.ctypes.data, other
    graph.replay(program, values)
    graph.replay(program)
    assert (x == 2).all()
    assert (other == 3).all()


@pytest.mark.parametrize("failing", [(0, 0), (5, 5), (BLOCKS - 1, BLOCKS - 1), (0, BLOCKS - 1)])
def test_an_exception_of_any_block_is_raised_with_its_place(failing: tuple[int, int]) -> None:
    graph, x = Graph(), np.zeros(BLOCKS * 8)
    node = graph.launch(refuse, BLOCKS, 8, x, BLOCKS, BLOCKS)
    program = _shared(graph)
    first, last = failing
    bad = {(node.index, 0, 1): first, (node.index, 0, 2): last}
    for _ in range(20):
        with pytest.raises(ValueError, match="refused") as caught:
            graph.replay(program, ReplayValues(scalars=dict(bad)))
        where, of_graph = caught.value.__notes__
        assert where.endswith(", thread (1, 0, 0)")
        assert "in node 0 of the graph, launch 'refuse'" in of_graph
        assert not helpers._helpers.errors
    x[:] = 0
    graph.replay(program)
    assert (x == 1).all()


def test_replays_in_several_threads_share_the_helpers() -> None:
    graphs = [(Graph(), np.zeros(BLOCKS * 8)) for _ in range(6)]
    programs = []
    for graph, x in graphs:
        graph.launch(add, BLOCKS, 8, x, 1.0)
        programs.append(_shared(graph))

    def replay(graph: Graph, program: CpuGraphProgram) -> None:
        for _ in range(100):
            graph.replay(program)

    threads = [
        threading.Thread(target=replay, args=(graph, program))
        for (graph, _), program in zip(graphs, programs, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((x == 101).all() for _, x in graphs)


def test_one_thread_runs_a_launch_that_several_shared() -> None:
    graph, x = Graph(), np.zeros(BLOCKS * 8)
    graph.launch(add, BLOCKS, 8, x, 1.0)
    program = _shared(graph)
    set_num_threads(1)
    for _ in range(3):
        graph.replay(program)
    assert (x == 4).all()
    assert Operation.SHARED not in _operations(program)


def test_a_launch_that_has_become_short_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, x = Graph(), np.zeros(BLOCKS * 8)
    graph.launch(add, BLOCKS, 8, x, 1.0)
    program = _shared(graph)
    for module in (launch, execution):
        monkeypatch.setattr(module, "MIN_SHARED_NS", 1 << 60)
    found = []
    for _ in range(3):
        graph.replay(program)
        found += _operations(program)
    assert found == [Operation.CALL, Operation.TIMED, Operation.TIMED]
    assert (x == 4).all()
