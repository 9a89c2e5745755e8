"""`graph_html`: a picture of a graph for notebooks, as HTML with an SVG, in light and dark themes.

Nodes are in rows by the longest path that leads to them, and in lanes by branch of the graph. The
bodies of control flow are drawn inside of its box.
"""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbrt.graphs.node_text import (
    branch_name,
    bytes_of,
    dims_text,
    line_of,
    plan_of,
    size_text,
    view_text,
    views_of,
    walk,
)
from nbrt.graphs.order import order_of
from nbrt.graphs.table import nodes_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nbrt.backends.graphs import GraphNode
    from nbrt.graphs.order import GraphOrder

__all__ = ["graph_html"]

_MAX_NODES = 80
_MAX_LABEL = 24
_BOX_WIDTH, _BOX_HEIGHT = 172.0, 36.0
_GAP, _ROW_GAP, _PAD, _HEAD = 18.0, 22.0, 10.0, 40.0

# Pale, for dark text in any theme.
_FILLS = {
    "launch": "#bfd9f2", "copy": "#f7d4b5", "fill": "#f5e6a8", "draw": "#c6e4bf",
    "call": "#f2c4c4", "collective": "#d8cdec", "graph": "#bfe0e2",
    "if": "#e3e3e3", "while": "#e3e3e3", "switch": "#e3e3e3",
}  # fmt: skip
_OTHER_FILL = "#dddddd"


@dataclass(slots=True)
class _Box:
    """A node with its place, relative to the list that it is in."""

    node: GraphNode
    path: str
    x: float
    y: float
    width: float
    height: float
    bodies: list[tuple[str, _Layout]] = field(default_factory=list)


@dataclass(slots=True)
class _Layout:
    """The boxes and the edges of one list of nodes."""

    boxes: list[_Box]
    edges: list[tuple[int, int]]
    width: float
    height: float


def graph_html(
    nodes: Sequence[GraphNode],
    *,
    title: str = "",
    times: Mapping[str, float] | None = None,
) -> str:
    """Return a picture of a graph and, folded, the table of its nodes.

    Parameters
    ----------
    nodes : sequence of GraphNode
        The nodes of the graph. Of a long list, the first ones are drawn.
    title : str
        A line above the picture.
    times : mapping of str to float, optional
        Microseconds of nodes, by path, shown in the boxes.
    """
    head = f"<div>{html.escape(title)}</div>" if title else ""
    if not nodes:
        return f"{head}<div>no nodes</div>"
    drawn = _first_nodes(nodes)
    layout = _layout(drawn, "")
    parts: list[str] = []
    _draw(layout, 1.0, 1.0, times or {}, parts)
    width, height = layout.width + 2, layout.height + 2
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="11" '
        f'style="max-width:none">{"".join(parts)}</svg>'
    )
    hidden = len(nodes) - len(drawn)
    rest = f"<div>… and {hidden} nodes more</div>" if hidden else ""
    table = html.escape(nodes_table(nodes, times=times, width=110))
    return (
        f'{head}<div style="overflow:auto;max-height:640px">{svg}</div>{rest}'
        f"<details><summary>Table of nodes</summary><pre>{table}</pre></details>"
    )


def _first_nodes(nodes: Sequence[GraphNode]) -> list[GraphNode]:
    """Return the first nodes, as many as fit in a picture, with the nodes of their branches."""
    kept: list[GraphNode] = []
    count = 0
    for node in nodes:
        count += 1 + sum(1 for branch in node.branches for _ in walk(branch.nodes))
        if kept and count > _MAX_NODES:
            break
        kept.append(node)
    return kept


# -- places ----------------------------------------------------------------------------------------


def _layout(nodes: Sequence[GraphNode], prefix: str) -> _Layout:
    """Return the places of nodes: rows by depth, lanes by chain."""
    order = order_of(nodes)
    depths, lanes = order.depths, _lanes(order)
    boxes = [_box(node, f"{prefix}{node.index}") for node in nodes]
    lane_widths = [0.0] * (max(lanes, default=-1) + 1)
    row_heights = [0.0] * (max(depths, default=-1) + 1)
    for box, lane, depth in zip(boxes, lanes, depths, strict=True):
        lane_widths[lane] = max(lane_widths[lane], box.width)
        row_heights[depth] = max(row_heights[depth], box.height)
    for box, lane, depth in zip(boxes, lanes, depths, strict=True):
        left = sum(lane_widths[:lane]) + _GAP * lane
        box.x = left + (lane_widths[lane] - box.width) / 2
        box.y = sum(row_heights[:depth]) + _ROW_GAP * depth
    edges = [
        (before, number) for number, each in enumerate(order.reduced()) for before in each
    ]  # fmt: skip
    width = sum(lane_widths) + _GAP * max(0, len(lane_widths) - 1)
    height = sum(row_heights) + _ROW_GAP * max(0, len(row_heights) - 1)
    return _Layout(boxes, edges, width, height)


def _lanes(order: GraphOrder) -> list[int]:
    """Return the lane of each node; chains share a lane if none of their rows overlap."""
    depths = order.depths
    ends: list[int] = []
    lanes = [0] * len(order)
    for chain in sorted(order.chains, key=lambda chain: (depths[chain[0]], chain[0])):
        first, last = depths[chain[0]], depths[chain[-1]]
        lane = next((number for number, end in enumerate(ends) if end < first), len(ends))
        if lane == len(ends):
            ends.append(last)
        else:
            ends[lane] = last
        for node in chain:
            lanes[node] = lane
    return lanes


def _box(node: GraphNode, path: str) -> _Box:
    box = _Box(node, path, 0.0, 0.0, _BOX_WIDTH, _BOX_HEIGHT)
    if not node.branches:
        return box
    for number, branch in enumerate(node.branches):
        name = branch_name(node, number)
        box.bodies.append((name, _layout(branch.nodes, f"{path}.{name}.")))
    inner = sum(max(body.width, 50.0) for _, body in box.bodies) + _GAP * (len(box.bodies) - 1)
    box.width = max(_BOX_WIDTH, inner + 2 * _PAD)
    box.height = _HEAD + 16 + max(body.height for _, body in box.bodies) + _PAD
    return box


# -- shapes ----------------------------------------------------------------------------------------


def _draw(
    layout: _Layout, left: float, top: float, times: Mapping[str, float], parts: list[str]
) -> None:
    for before, after in layout.edges:
        parts.append(_edge(layout.boxes[before], layout.boxes[after], left, top))
    for box in layout.boxes:
        x, y = left + box.x, top + box.y
        parts.append(_rectangle(box, x, y))
        parts.append(_label(box, x, y, times.get(box.path)))
        across = x + _PAD
        for name, body in box.bodies:
            parts.append(_text(across, y + _HEAD + 6, name, "start", "#333", weight="bold"))
            _draw(body, across, y + _HEAD + 14, times, parts)
            across += max(body.width, 50.0) + _GAP


def _edge(first: _Box, last: _Box, left: float, top: float) -> str:
    x, y = left + first.x + first.width / 2, top + first.y + first.height
    to_x, to_y = left + last.x + last.width / 2, top + last.y
    bend = max(10.0, min(40.0, (to_y - y) / 2))
    return (
        f'<path d="M{x:.1f} {y:.1f} C{x:.1f} {y + bend:.1f} {to_x:.1f} {to_y - bend:.1f} '
        f'{to_x:.1f} {to_y:.1f}" fill="none" stroke="#8a8a8a" stroke-width="1.5"/>'
        f'<path d="M{to_x - 3.5:.1f} {to_y - 6:.1f} L{to_x + 3.5:.1f} {to_y - 6:.1f} '
        f'L{to_x:.1f} {to_y:.1f} Z" fill="#8a8a8a"/>'
    )


def _rectangle(box: _Box, x: float, y: float) -> str:
    node = box.node
    # A disabled node is pale and has a dashed frame.
    off = "" if node.is_enabled else ' fill-opacity="0.35" stroke-dasharray="4 3"'
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="5" '
        f'fill="{_FILLS.get(node.kind, _OTHER_FILL)}" stroke="#777"{off}>'
        f"<title>{html.escape(_tooltip(box))}</title></rect>"
    )


def _label(box: _Box, x: float, y: float, time: float | None) -> str:
    node = box.node
    name = node.label or (f"at most {node.limit} turns" if node.limit else "")
    first = _shortened(f"{box.path}: {node.kind} {name}".rstrip())
    plan = plan_of(node)
    details = []
    if getattr(plan, "grid", None) is not None:
        details.append(f"[{dims_text(plan.grid)}, {dims_text(plan.block)}]")
    elif nbytes := bytes_of(node):
        details.append(size_text(nbytes))
    if time is not None:
        details.append(f"{time:.3g} µs")
    # A disabled box lets the page through, which may be dark.
    color = "#111" if node.is_enabled else "currentColor"
    middle = x + box.width / 2
    return _text(middle, y + 15, first, "middle", color, weight="bold") + _text(
        middle, y + 29, _shortened(", ".join([*details, f"stream {node.stream}"])), "middle", color
    )


def _text(x: float, y: float, text: str, anchor: str, color: str, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" '
        f'font-weight="{weight}" pointer-events="none">{html.escape(text)}</text>'
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_LABEL + 4 else f"{text[: _MAX_LABEL + 3]}…"


def _tooltip(box: _Box) -> str:
    node = box.node
    args = tuple(each.args for each in node.work) if node.source is None else node.source.args
    arrays = dict.fromkeys(f"buffer {view.buffer}: {view_text(view)}" for view in views_of(args))
    lines = [f"node {box.path}: {node.kind} {node.label}".rstrip(), *arrays]
    lines.append(line_of(node.site))
    return "\n".join(filter(None, lines))
