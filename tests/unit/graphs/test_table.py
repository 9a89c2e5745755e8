"""The table of the nodes of a graph."""

from __future__ import annotations

from helpers.graph_nodes import branch, copy, fill, launch, loop, node, view
from nbrt._internal.callsite import CallSite
from nbrt.backends.graphs import GraphBuffer
from nbrt.graphs.node_times import NodeTimes
from nbrt.graphs.table import nodes_table, summary


def scale(x: object, factor: float) -> None:
    """Stand for a kernel."""


def a_graph() -> list[object]:
    body = branch(launch(0, scale, [view(0), 2.0]), copy(1, view(1), view(0), 0))
    return [
        fill(0, view(0), 0.0, label="", site=CallSite.here()),
        launch(1, scale, [view(0, (256, 256)), 2.0], 0, grid=(256, 1, 1), block=(16, 16, 1)),
        loop(2, view(2, (1,), "bool"), body, 1, limit=10),
        copy(3, view(1), view(0), 0, stream=12, is_enabled=False),
    ]


def test_table_has_a_line_for_each_node_also_of_branches() -> None:
    text = nodes_table(a_graph())
    head, *rows = text.splitlines()
    assert head.split() == [
        "node", "kind", "name", "grid", "x", "block", "stream", "after", "bytes", "line",
    ]  # fmt: skip
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "2.body.0", "2.body.1", "-3"]
    assert "256 x (16, 16)" in rows[1]
    assert "256.0 KiB" in rows[1]
    assert "test_table.py:" in rows[0]
    assert "at most 10 turns" in rows[2]
    assert rows[3].startswith("  2.body.0")
    assert rows[5].split()[2] == "12"


def test_columns_without_content_are_left_out() -> None:
    head = nodes_table([node(0, "call", label="append")]).splitlines()[0]
    assert head.split() == ["node", "kind", "name", "stream", "after"]


def test_lines_fit_the_width() -> None:
    many = tuple(range(30))
    nodes = [node(i, "call", label="f" * 50) for i in range(30)]
    nodes.append(node(30, "call", *many, label="g" * 80, site=CallSite.here()))
    lines = nodes_table(nodes, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    # The number of the line is not cut off.
    assert lines[-1].rpartition(":")[2].isdigit()
    assert "…" in lines[-1]


def test_a_long_graph_shows_both_ends() -> None:
    nodes = [node(i, "call", label=f"step{i}") for i in range(1000)]
    lines = nodes_table(nodes, most=10).splitlines()
    assert [line.split()[0] for line in lines] == [
        "node", "0", "1", "2", "3", "4", "...", "995", "996", "997", "998", "999",
    ]  # fmt: skip
    assert "990 nodes more" in lines[6]
    assert len(nodes_table(nodes, most=None).splitlines()) == 1001


def test_times_are_a_column() -> None:
    nodes = [node(0, "call", label="f"), node(1, "call", label="g")]
    head, first, last = nodes_table(nodes, times={"0": 1.25, "1": 2500.0}).splitlines()
    assert "time" in head
    assert "1.25 µs" in first
    assert "2.5 ms" in last


def test_an_empty_graph_has_a_text() -> None:
    assert nodes_table([]) == "no nodes"


def test_summary_counts_nodes_streams_and_bytes() -> None:
    buffers = [GraphBuffer(0, 64, 2048), GraphBuffer(1, 4096, 512, None, True)]
    assert summary(a_graph(), buffers) == (
        "6 nodes, 2 streams, 2.0 KiB of arrays, 512 B private, 1 disabled"
    )


def test_times_of_nodes_are_a_list_that_prints_as_a_table() -> None:
    times = NodeTimes([node(0, "call", label="f"), node(1, "call", label="g")], [1e-6, 2e-3])
    assert list(times) == [1e-6, 2e-3]
    assert repr(times).splitlines()[0] == "2 nodes in 2001 µs"
    assert "2 ms" in repr(times)
    assert "2001 µs" in times._repr_html_()
