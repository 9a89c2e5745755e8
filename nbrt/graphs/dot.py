"""Graphs as plain data and as DOT text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.graphs.node_text import (
    branch_name,
    bytes_of,
    dims_text,
    launch_text,
    line_of,
    plan_of,
    view_text,
    views_of,
    walk,
)
from nbrt.graphs.order import order_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nbrt.backends.graphs import GraphNode

__all__ = ["dot_text", "edge_data", "node_data"]

_COLORS = {
    "launch": "#cfe2f3", "copy": "#fce5cd", "fill": "#fff2cc", "draw": "#d9ead3",
    "call": "#f4cccc", "collective": "#d9d2e9", "graph": "#d0e0e3",
}  # fmt: skip


def node_data(nodes: Sequence[GraphNode]) -> list[dict[str, Any]]:
    """Return the nodes of a graph as values of JSON, those of branches included.

    Parameters
    ----------
    nodes : sequence of GraphNode
        The nodes of the graph.

    Returns
    -------
    data : list of dict
        With the keys ``path``, ``kind``, ``name``, ``stream``, ``device``, ``after`` (paths),
        ``bytes``, ``is_enabled``, ``arrays`` (buffer, offset, shape, strides, dtype), ``stack``
        (as of torch's memory snapshots), and for a launch ``grid``, ``block`` and ``shared``, for a
        loop ``limit``.
    """
    data = []
    for path, _, node, prefix in walk(nodes):
        entry: dict[str, Any] = {
            "path": path,
            "kind": node.kind,
            "name": node.label,
            "stream": node.stream,
            "device": node.device,
            "after": [f"{prefix}{each}" for each in node.dependencies],
            "bytes": bytes_of(node),
            "is_enabled": node.is_enabled,
            "arrays": _array_data(node),
            "stack": [] if node.site is None else [dict(each) for each in node.site.frames()],
        }
        plan = plan_of(node)
        if getattr(plan, "grid", None) is not None:
            entry |= {"grid": list(plan.grid), "block": list(plan.block)}
            entry["shared"] = getattr(plan, "shared", 0)
        if node.kind == "while":
            entry["limit"] = node.limit
        data.append(entry)
    return data


def _array_data(node: GraphNode) -> list[dict[str, Any]]:
    args: Any = node.source.args if node.source is not None else [each.args for each in node.work]
    found = list(views_of(tuple(args)))
    if node.flag is not None:
        found.append(node.flag)
    return [
        {
            "buffer": view.buffer,
            "offset": view.offset,
            "shape": list(view.shape),
            "strides": list(view.strides),
            "dtype": str(view.dtype),
        }
        for view in dict.fromkeys(found)
    ]


def edge_data(nodes: Sequence[GraphNode]) -> list[tuple[str, str]]:
    """Return the dependencies as pairs of paths, the earlier node first.

    A branch of control flow has edges among its own nodes only.
    """
    return [
        (f"{prefix}{before}", path)
        for path, _, node, prefix in walk(nodes)
        for before in node.dependencies
    ]


def dot_text(nodes: Sequence[GraphNode], *, name: str = "graph") -> str:
    """Return a graph in the DOT language of Graphviz.

    Branches of control flow are clusters. Edges that follow from others are left out.

    Parameters
    ----------
    nodes : sequence of GraphNode
        The nodes of the graph.
    name : str
        The name of the graph.
    """
    lines = [
        f"digraph {_quoted(name)} {{",
        '  node [shape=box, style="filled,rounded", fillcolor="#eeeeee", fontname="sans-serif"];',
        "  compound=true;",
        *_body(nodes, "", "  "),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _body(nodes: Sequence[GraphNode], prefix: str, indent: str) -> Iterator[str]:
    for node in nodes:
        path = f"{prefix}{node.index}"
        style = "" if node.is_enabled else ', style="dashed,rounded"'
        color = f', fillcolor="{_COLORS[node.kind]}"' if node.kind in _COLORS else ""
        shape = ", shape=diamond" if node.branches else ""
        label, tip = _quoted(_label(path, node)), _quoted(_tooltip(node))
        yield f'{indent}"{path}" [label={label}, tooltip={tip}{color}{shape}{style}];'
        for number, branch in enumerate(node.branches):
            kind = branch_name(node, number)
            yield f'{indent}subgraph "cluster_{path}.{kind}" {{'
            yield f"{indent}  label={_quoted(f'{path} {kind}')};"
            yield from _body(branch.nodes, f"{path}.{kind}.", f"{indent}  ")
            yield f"{indent}}}"
            if branch.nodes:
                first = f"{path}.{kind}.{branch.nodes[0].index}"
                yield (
                    f'{indent}"{path}" -> "{first}" [style=dashed, lhead="cluster_{path}.{kind}"];'
                )
    for node, before in zip(nodes, order_of(nodes).reduced(), strict=True):
        for each in before:
            yield f'{indent}"{prefix}{each}" -> "{prefix}{node.index}";'


def _label(path: str, node: GraphNode) -> str:
    plan = plan_of(node)
    lines = [f"{path}: {node.kind}" + (f" {node.label}" if node.label else "")]
    if getattr(plan, "grid", None) is not None:
        lines.append(f"[{dims_text(plan.grid)}, {dims_text(plan.block)}]")
    return "\n".join(lines)


def _tooltip(node: GraphNode) -> str:
    arrays = (view_text(view) for each in node.work for view in views_of(each.args))
    parts = [f"stream {node.stream}", launch_text(node), *dict.fromkeys(arrays), line_of(node.site)]
    return "\n".join(filter(None, parts))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
