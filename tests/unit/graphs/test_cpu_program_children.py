"""Graphs inside of graphs on CPU devices."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numba import cuda

from helpers.cpu_graphs import Graph
from nbrt.backends.cpu.block_scheduler import get_num_threads, set_num_threads
from nbrt.backends.cpu.graphs import regions
from nbrt.backends.cpu.graphs.flat_nodes import flat_nodes
from nbrt.backends.graphs import Branch, GraphNode, ReplayValues


def add(x, value):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += value


def double(x):
    x[0] *= 2


def countdown(flag):
    flag[0] -= 1


def _node(index, *before, inner=None):
    branches = () if inner is None else (Branch(inner),)
    kind = "launch" if inner is None else "graph"
    return GraphNode(index, kind, "", 0, 0, (), before, branches=branches)


def test_the_dependencies_of_child_graphs():
    inner = [_node(0), _node(1), _node(2, 0), _node(3, inner=[])]
    found = flat_nodes([_node(0), _node(1, 0, inner=inner), _node(2, 1), _node(3, inner=[])])
    assert [(node.path, node.outer, node.dependencies) for node in found] == [
        ("0", 0, ()),
        ("1.0.0", 1, (0,)),
        ("1.0.1", 1, (0,)),
        ("1.0.2", 1, (1,)),
        ("2", 2, (2, 3, 0)),
    ]


def test_the_dependencies_of_an_empty_child_graph():
    found = flat_nodes([_node(0), _node(1, 0, inner=[]), _node(2, 1)])
    assert [node.dependencies for node in found] == [(), (0,)]


def test_a_child_graph_runs_in_its_place():
    graph, x = Graph(), np.ones(1)

    def child():
        graph.launch(double, 1, 1, x)
        graph.child(lambda: graph.launch(add, 1, 1, x, 100.0))
        graph.launch(double, 1, 1, x)

    graph.launch(add, 1, 1, x, 1.0)
    graph.child(child)
    graph.launch(add, 1, 1, x, 0.5)
    graph.replay(graph.program())
    assert x[0] == (2 * 2 + 100) * 2 + 0.5


def test_a_child_graph_in_a_loop():
    graph, x, flag = Graph(), np.ones(1), np.full(1, 3)

    def body():
        graph.child(lambda: graph.launch(double, 1, 1, x))
        graph.launch(countdown, 1, 1, flag)

    graph.control("while", flag, [body], limit=5)
    graph.replay(graph.program())
    assert x[0] == 8


def test_child_graphs_are_disabled_with_their_nodes():
    graph, x, inside = Graph(), np.zeros(1), []

    def child():
        inside.append(graph.launch(add, 1, 1, x, 1.0))
        inside.append(graph.launch(add, 1, 1, x, 10.0))

    node = graph.child(child)
    graph.launch(add, 1, 1, x, 100.0)
    program = graph.program()
    for is_child, is_first, expected in (
        (True, True, 111), (False, True, 100), (False, False, 100), (True, False, 110),
        (True, True, 111),
    ):  # fmt: skip
        node.is_enabled, inside[0].is_enabled = is_child, is_first
        x[0] = 0
        graph.replay(program)
        assert x[0] == expected


def test_an_error_in_a_child_graph_names_its_node():
    graph = Graph()

    def fail():
        raise ValueError("inside")

    graph.call(int)
    graph.child(lambda: graph.call(fail))
    with pytest.raises(ValueError, match="inside") as caught:
        graph.replay(graph.program())
    assert "in node 1.0.0 of the graph, call" in caught.value.__notes__[0]


def test_the_time_of_a_child_graph_is_that_of_its_nodes():
    graph, times = Graph(), []
    graph.call(int)
    graph.child(lambda: [graph.call(int), graph.call(int)])
    graph.call(int)
    graph.replay(graph.program(), ReplayValues(times=times))
    assert len(times) == 3
    assert min(times) > 0


def test_branches_of_a_child_graph_run_at_once(monkeypatch):
    monkeypatch.setattr(regions, "_MIN_GAIN_NS", -(1 << 60))
    monkeypatch.setattr(regions, "_MEASURED_RUNS", 0)
    before = get_num_threads()
    set_num_threads(2)
    graph, meeting = Graph(), threading.Barrier(2, timeout=300)
    first = graph.call(int)
    graph.child(lambda: [graph.call(meeting.wait, after=[]) for _ in range(2)], after=[first])
    try:
        graph.replay(graph.program())
    finally:
        set_num_threads(before)
    assert not meeting.broken
