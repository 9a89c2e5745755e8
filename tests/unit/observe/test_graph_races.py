"""Races of graphs before they run: planted ones are found, ordered ones are not."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

import nbrt
from helpers.graph_nodes import branch, copy, fill, launch, loop, node, view
from helpers.memory_races import add, double
from nbrt._internal.callsite import CallSite
from nbrt.backends.draw import Draw
from nbrt.backends.graphs import GraphBuffer, GraphNode, NodeSource
from nbrt.observe.races.graph_races import find_graph_races

if TYPE_CHECKING:
    from nbrt.observe.races.reports import MemoryRaceReport

DEVICE = nbrt.Device("cpu", 0)
X, Y, Z = view(0), view(1), view(2)


@nbrt.kernel
def count(total, x):
    cuda.atomic.add(total, 0, x[cuda.grid(1)])


def buffers(count: int = 3) -> list[GraphBuffer]:
    return [GraphBuffer(each, 4096 * (each + 1), 4096) for each in range(count)]


def races(*nodes: GraphNode, over: list[GraphBuffer] | None = None) -> list[MemoryRaceReport]:
    return find_graph_races(list(nodes), over or buffers(), DEVICE)


def pairs(*nodes: GraphNode, **options: Any) -> list[str]:
    return [report.message.split(",")[0] for report in races(*nodes, **options)]


def test_a_report_names_calls_streams_and_the_missing_event() -> None:
    first, second = nbrt.Stream("cpu:0"), nbrt.Stream("cpu:0")
    one = fill(0, X, 1.0, stream=first.id, site=CallSite.here())
    two = launch(1, add, (Y, X), stream=second.id, site=CallSite.here())
    (report,) = races(one, two)
    assert (report.kind, report.device) == ("unordered_use", DEVICE)
    assert (report.address, report.nbytes) == (4096, 16)
    assert (report.touched.what, report.touched.stream) == ("launch of add", repr(second))
    assert (report.other.what, report.other.stream) == ("earlier fill", repr(first))
    assert "two = launch(1" in report.touched.stack
    assert "one = fill(0" in report.other.stack
    assert report.message == (
        "launch of add reads 16 bytes at 0x1000, which an earlier fill writes on another stream, "
        "and no edge of the graph orders the two"
    )
    line = test_a_report_names_calls_streams_and_the_missing_event.__code__.co_firstlineno
    assert report.advice == (
        f"add the missing event: event = first.record_event() behind node 0 "
        f"(test_graph_races.py:{line + 2}), and second.wait_event(event) before node 1 "
        f"(test_graph_races.py:{line + 3}), where first is {first!r} and second is {second!r}"
    )


def test_an_edge_or_a_chain_of_edges_orders() -> None:
    assert races(fill(0, X, 1.0), launch(1, add, (Y, X), 0, stream=2)) == []
    assert races(fill(0, X, 1.0), node(1, "wait", 0, stream=3), copy(2, Y, X, 1, stream=2)) == []


def test_the_modes_of_arguments_decide() -> None:
    root = node(0, "record")
    read, other_read = launch(1, add, (Y, X), 0), launch(2, add, (Z, X), 0, stream=2)
    assert races(root, read, other_read) == []
    assert len(races(root, read, launch(2, double, (X,), 0, stream=2))) == 1
    counts = [launch(each, count, (Y, X), 0, stream=each) for each in (1, 2)]
    assert races(root, *counts) == []
    assert len(races(root, counts[0], launch(2, add, (X, Y), 0, stream=2))) == 1
    calls = [node(each, "call", 0, source=NodeSource(print, (X,)), stream=each) for each in (1, 2)]
    assert races(root, *calls) == []
    assert len(races(root, calls[0], copy(2, X, Y, 0, stream=2))) == 1


def test_a_kernel_without_source_may_write() -> None:
    exec("def hidden(x): pass", namespace := {})
    hidden = [launch(each, namespace["hidden"], (X,), stream=each) for each in (0, 1)]
    (report,) = races(*hidden)
    assert report.advice.endswith("a kernel whose source is unknown counts as writing its arrays")


def test_only_common_bytes_count() -> None:
    even, odd = (view(0, (8,))._replace(strides=(8,), offset=4 * each) for each in (0, 1))
    assert races(fill(0, even, 0), fill(1, odd, 0, stream=2)) == []
    assert races(fill(0, view(0, (4,)), 0), fill(1, view(0, (4,), offset=16), 0, stream=2)) == []
    assert len(races(fill(0, even, 0), fill(1, view(0, (3,)), 0, stream=2))) == 1
    assert races(fill(0, view(0, (0,)), 0), fill(1, X, 0, stream=2)) == []


def test_buffers_may_overlap() -> None:
    nodes = fill(0, X, 0), fill(1, Y, 0, stream=2)
    overlapping = [GraphBuffer(0, 4096, 64), GraphBuffer(1, 4104, 64)]
    assert len(races(*nodes, over=overlapping)) == 1
    private = [GraphBuffer(each, 4096 * each, 64, is_private=True) for each in range(2)]
    assert races(*nodes, over=private) == []
    (report,) = races(fill(0, X, 0), copy(1, X, Y, stream=2), over=private)
    assert "16 bytes of buffer 0, which" in report.message


def test_draws_share_the_state_of_their_generator() -> None:
    draws = [
        node(
            each, "draw", stream=each,
            source=NodeSource(
                print, (view(each), Draw("uniform", "float32", 4, device_state=view(2)))
            ),
        )
        for each in (0, 1)
    ]  # fmt: skip
    assert races(*draws) == []
    draws[1].source = draws[0].source
    assert len(races(*draws)) == 1


def test_a_body_is_ordered_with_its_node() -> None:
    body = branch(fill(0, X, 0), copy(1, Y, X, 0))
    while_ = loop(1, Z, body, 0)
    assert races(fill(0, Z, 1), while_, copy(2, X, Y, 1)) == []
    (report,) = races(fill(0, Z, 1), while_, copy(2, Y, Z, 0, stream=2))
    assert "node 1 in a branch of node 1" in report.advice


def test_races_inside_of_a_body_are_found() -> None:
    body = branch(fill(0, X, 0), fill(1, X, 1, stream=2))
    assert pairs(fill(0, Z, 1), loop(1, Z, body, 0)) == ["fill writes 16 bytes at 0x1000"]


def test_branches_of_a_condition_do_not_run_together() -> None:
    branches = branch(fill(0, X, 0)), branch(fill(0, X, 1))
    condition = node(0, "if", flag=Z, branches=branches)
    assert races(condition, fill(1, X, 2, 0)) == []
    (report,) = races(condition, fill(1, Z, 2, stream=2))
    assert "which an earlier if reads on another stream" in report.message


def test_each_pair_of_calls_is_reported_once() -> None:
    site = CallSite.here()
    row = [fill(each, X, 0, *range(max(0, each - 1), each), site=site) for each in range(5)]
    other = fill(5, X, 0, stream=2, site=CallSite.here())
    assert len(races(*row, other)) == 1


def test_nodes_of_one_stream_without_an_edge_are_told_to_name_each_other() -> None:
    (report,) = races(fill(0, X, 0), fill(1, X, 1))
    assert report.touched is report.other is None
    assert report.advice == "name one in `after=` of the other: node 0 and node 1"


@pytest.mark.parametrize("streams", [1, 2])
def test_many_slices_take_linear_time(streams: int) -> None:
    size = 20_000
    nodes = []
    for each in range(size):
        after = [each - streams] if each >= streams else []
        element = view(0, (1,), offset=4 * each)
        nodes.append(fill(each, element, 0, *after, stream=each % streams))
    assert races(*nodes, over=[GraphBuffer(0, 4096, 4 * size)]) == []


@settings(max_examples=200)
@given(st.data())
def test_races_are_the_unordered_pairs_that_share_bytes(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 9))
    nodes, touched = [], []
    for index in range(size):
        before = data.draw(st.sets(st.integers(0, index - 1), max_size=2)) if index else set()
        parts = [
            view(data.draw(st.integers(0, 1)), (data.draw(st.integers(1, 4)),), "uint8",
                 data.draw(st.integers(0, 4)))
            for _ in range(2)
        ]  # fmt: skip
        nodes.append(copy(index, *parts, *sorted(before), stream=index))
        touched.append([{(v.buffer, v.offset + i) for i in range(v.shape[0])} for v in parts])
    before = []
    for each in nodes:
        before.append({*each.dependencies}.union(*(before[d] for d in each.dependencies)))
    expected = {
        (a, b)
        for a, b in itertools.combinations(range(size), 2)
        if a not in before[b]
        and (touched[a][0] & (touched[b][0] | touched[b][1]) or touched[a][1] & touched[b][0])
    }
    found = set()
    for report in races(*nodes):
        first, second = re.findall(r"node (\d+)", report.advice)
        found.add((int(first), int(second)))
    assert found <= expected
    # A race with the latest node of a chain stands for those with earlier ones.
    assert {later for _, later in found} == {later for _, later in expected}
