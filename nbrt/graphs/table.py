"""`nodes_table`: the nodes of a graph as text, a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.graphs.node_text import (
    bytes_of,
    launch_text,
    line_of,
    size_text,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nbrt.backends.graphs import GraphBuffer, GraphNode
    from nbrt.graphs.node_text import PlacedNode

__all__ = ["nodes_table", "summary"]

_WIDTH = 96
_MAX_NODES = 40
_HEADS = ("node", "kind", "name", "grid x block", "stream", "after", "bytes", "time", "line")
_RIGHT = frozenset({"stream", "bytes", "time"})
_MIN_WIDTHS = {"name": 8, "line": 8, "after": 5}
"""Columns that are shortened if the table is too wide, and the width that they keep."""


def summary(nodes: Sequence[GraphNode], buffers: Sequence[GraphBuffer]) -> str:
    """Return the numbers of nodes, streams and bytes of a graph in a line.

    Parameters
    ----------
    nodes : sequence of GraphNode
        The nodes of the graph; those of branches are counted as well.
    buffers : sequence of GraphBuffer
        The memory that they use.
    """
    placed = [each.node for each in walk(nodes)]
    streams = len({node.stream for node in placed})
    private = sum(buffer.nbytes for buffer in buffers if buffer.is_private)
    other = sum(buffer.nbytes for buffer in buffers if not buffer.is_private)
    disabled = sum(not node.is_enabled for node in placed)
    parts = [_counted(len(placed), "node"), _counted(streams, "stream")]
    if other:
        parts.append(f"{size_text(other)} of arrays")
    if private:
        parts.append(f"{size_text(private)} private")
    if disabled:
        parts.append(f"{disabled} disabled")
    return ", ".join(parts)


def _counted(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def nodes_table(
    nodes: Sequence[GraphNode],
    *,
    times: Mapping[str, float] | None = None,
    width: int = _WIDTH,
    most: int | None = _MAX_NODES,
) -> str:
    """Return a table of nodes; those of branches follow their control flow, indented.

    Parameters
    ----------
    nodes : sequence of GraphNode
        The nodes of the graph.
    times : mapping of str to float, optional
        Microseconds of nodes, by path; they become a column.
    width : int
        The characters of a line. Names and lines of code are shortened to fit.
    most : int or None
        The largest number of nodes to show; of more, the first and the last ones are shown.

    Returns
    -------
    table : str
        ``after`` lists the nodes that must be done before, ``bytes`` counts the arrays that the
        node uses, ``line`` is the call that was captured. A disabled node has a ``-`` before its
        number.
    """
    placed = list(walk(nodes))
    if not placed:
        return "no nodes"
    shown, hidden = _shown(placed, most)
    columns = [head for head in _HEADS if head != "time" or times is not None]
    rows = [_row(each, times) for each in shown]
    columns = [
        head
        for head in columns
        if head in ("node", "kind", "name", "after", "time") or any(row[head] for row in rows)
    ]
    widths = {head: max(len(head), *(len(row[head]) for row in rows)) for head in columns}
    _narrow(widths, width)
    lines = [_line({head: head for head in columns}, widths)]
    lines += [_line(row, widths) for row in rows]
    if hidden:
        half = 1 + len(shown) - len(shown) // 2
        lines.insert(half, f"... {_counted(hidden, 'node')} more")
    return "\n".join(lines)


def _shown(placed: list[PlacedNode], most: int | None) -> tuple[list[PlacedNode], int]:
    """Return the nodes to show, the first and the last ones, and the number of the others."""
    if most is None or len(placed) <= most:
        return placed, 0
    last = most // 2
    return placed[: most - last] + placed[len(placed) - last :], len(placed) - most


def _row(placed: PlacedNode, times: Mapping[str, float] | None) -> dict[str, str]:
    node = placed.node
    mark = "" if node.is_enabled else "-"
    time = None if times is None else times.get(placed.path)
    nbytes = bytes_of(node)
    name = node.label or ("" if node.limit == 0 else f"at most {node.limit} turns")
    return {
        "node": f"{'  ' * placed.depth}{mark}{placed.path}",
        "kind": node.kind,
        "name": name,
        "grid x block": launch_text(node),
        "stream": str(node.stream),
        "after": ", ".join(map(str, node.dependencies)),
        "bytes": size_text(nbytes) if nbytes else "",
        "time": "" if time is None else _time_text(time),
        "line": line_of(node.site),
    }


def _time_text(microseconds: float) -> str:
    if microseconds >= 1000:
        return f"{microseconds / 1000:.3g} ms"
    return f"{microseconds:.3g} µs"


def _narrow(widths: dict[str, int], width: int) -> None:
    """Shorten columns until the table fits, the widest one first."""
    while sum(widths.values()) + 2 * (len(widths) - 1) > width:
        able = [head for head, least in _MIN_WIDTHS.items() if widths.get(head, 0) > least]
        if not able:
            return
        widths[max(able, key=widths.__getitem__)] -= 1


def _line(row: Mapping[str, str], widths: Mapping[str, int]) -> str:
    cells = []
    for head, width in widths.items():
        text = row[head]
        if len(text) > width:
            # Of a call site, the end says more: the number of the line.
            text = (
                f"…{text[len(text) - width + 1 :]}" if head == "line" else f"{text[: width - 1]}…"
            )
        cells.append(f"{text:>{width}}" if head in _RIGHT else f"{text:<{width}}")
    return "  ".join(cells).rstrip()
