"""Graphs as plain data, as DOT, and as pictures."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import pytest

from helpers.graph_nodes import branch, copy, fill, launch, loop, node, view
from nbrt._internal.callsite import CallSite
from nbrt.graphs.dot import dot_text, edge_data, node_data
from nbrt.graphs.picture import graph_html


def scale(x: object, factor: float) -> None:
    """Stand for a kernel."""


def a_graph() -> list[object]:
    body = branch(launch(0, scale, [view(0), 2.0]), copy(1, view(1), view(0), 0))
    cases = branch(fill(0, view(0), 0.0)), branch(fill(0, view(0), 1.0)), branch()
    return [
        fill(0, view(0), 0.0, site=CallSite.here()),
        launch(1, scale, [view(0), 2.0], 0, grid=(4, 2, 1)),
        copy(2, view(1), view(0), 0, stream=2, label='a "quoted" <name>'),
        loop(3, view(2, (1,), "bool"), body, 0, 1, 2),
        node(4, "switch", 3, flag=view(2, (1,), "int32"), branches=cases),
        node(5, "if", 4, flag=view(2, (1,), "bool"), branches=cases[:2], is_enabled=False),
    ]


def test_data_is_plain_and_complete() -> None:
    data = json.loads(json.dumps(node_data(a_graph())))
    assert [each["path"] for each in data] == [
        "0", "1", "2", "3", "3.body.0", "3.body.1", "4", "4.case0.0", "4.case1.0", "5",
        "5.then.0", "5.else.0",
    ]  # fmt: skip
    one = data[1]
    assert (one["grid"], one["block"], one["name"]) == ([4, 2, 1], [32, 1, 1], "scale")
    assert one["arrays"] == [
        {"buffer": 0, "offset": 0, "shape": [4], "strides": [4], "dtype": "float32"}
    ]
    assert data[0]["stack"][0]["name"] == "a_graph"
    assert data[3]["limit"] == 100
    assert data[3]["arrays"][0]["dtype"] == "bool"
    assert [each["path"] for each in data if not each["is_enabled"]] == ["5"]
    assert data[5]["after"] == ["3.body.0"]


def test_edges_are_pairs_of_paths() -> None:
    edges = edge_data(a_graph())
    assert ("0", "3") in edges
    assert ("3.body.0", "3.body.1") in edges
    assert len(edges) == 2 + 3 + 1 + 1 + 1


def test_dot_has_clusters_and_reduced_edges() -> None:
    text = dot_text(a_graph())
    assert text.startswith('digraph "graph" {')
    assert text.count("{") == text.count("}")
    assert set(re.findall(r'subgraph "cluster_([^"]+)"', text)) == {
        "3.body", "4.case0", "4.case1", "4.case2", "5.then", "5.else",
    }  # fmt: skip
    edges = re.findall(r'"([\w.]+)" -> "([\w.]+)";', text)
    # 0 -> 3 follows from 0 -> 1 -> 3.
    assert ("0", "3") not in edges
    assert {("0", "1"), ("0", "2"), ("1", "3"), ("2", "3"), ("3.body.0", "3.body.1")} <= set(edges)
    assert r"a \"quoted\" <name>" in text


def svg_of(page: str) -> ET.Element:
    found = re.search(r"<svg.*</svg>", page, re.DOTALL)
    assert found is not None
    return ET.fromstring(found[0])


def test_picture_is_well_formed_and_shows_every_node() -> None:
    page = graph_html(a_graph(), title="a <title>", times={"1": 12.5})
    assert "a &lt;title&gt;" in page
    svg = svg_of(page)
    titles = [each.text or "" for each in svg.iter() if each.tag.endswith("title")]
    assert len(titles) == len(node_data(a_graph()))
    texts = "".join(svg.itertext())
    assert "12.5 µs" in texts
    assert "[(4, 2), 32]" in texts
    assert "<pre>" in page


def rectangles(page: str) -> dict[str, tuple[float, float, float, float]]:
    found = {}
    for each in svg_of(page).iter():
        if each.tag.endswith("rect"):
            path = re.match(r"node ([\w.]+):", "".join(each.itertext()))
            assert path is not None
            x, y, width, height = (float(each.attrib[k]) for k in ("x", "y", "width", "height"))
            found[path[1]] = x, y, x + width, y + height
    return found


def test_boxes_do_not_overlap_and_bodies_are_inside() -> None:
    boxes = rectangles(graph_html(a_graph()))
    for path, (left, top, right, bottom) in boxes.items():
        outer, _, _ = path.rpartition(".")
        for other, (x, y, to_x, to_y) in boxes.items():
            if other != path and other.rpartition(".")[0] == outer:
                assert right <= x or to_x <= left or bottom <= y or to_y <= top, (path, other)
        if outer:
            x, y, to_x, to_y = boxes[outer.rpartition(".")[0]]
            assert x < left < right < to_x
            assert y < top < bottom < to_y


def test_an_edge_leads_downwards() -> None:
    nodes = a_graph()
    boxes = rectangles(graph_html(nodes))
    for before, after in edge_data(nodes):
        assert boxes[before][3] < boxes[after][1]


@pytest.mark.parametrize("count", [0, 1, 500])
def test_pictures_of_short_and_long_graphs(count: int) -> None:
    page = graph_html([node(i, "call", *range(max(0, i - 1), i)) for i in range(count)])
    if not count:
        assert "no nodes" in page
        return
    assert len(rectangles(page)) == min(count, 80)
    assert ("420 nodes more" in page) == (count == 500)
