"""`FlatNode`: the nodes of a graph and of its child graphs in one list."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.graphs import GraphNode

__all__ = ["FlatNode", "flat_nodes"]


class FlatNode(NamedTuple):
    """A node that is no child graph.

    Attributes
    ----------
    node : GraphNode
        The node.
    path : str
        Its number in the graph; in a child graph behind the number of that, and 0.
    outer : int
        The number of the outermost node that contains it.
    dependencies : tuple of int
        The flat nodes that must be done before.
    parents : tuple of GraphNode
        The child graphs that contain it.
    """

    node: GraphNode
    path: str
    outer: int
    dependencies: tuple[int, ...]
    parents: tuple[GraphNode, ...] = ()


def flat_nodes(nodes: Sequence[GraphNode]) -> list[FlatNode]:
    """Return the nodes with those of child graphs in place of the child graphs.

    So the branches of child graphs run at once, too.
    """
    flat: list[FlatNode] = []
    _add(flat, nodes, (), "", (), None)
    return flat


def _add(
    flat: list[FlatNode],
    nodes: Sequence[GraphNode],
    before: tuple[int, ...],
    prefix: str,
    parents: tuple[GraphNode, ...],
    outer: int | None,
) -> tuple[int, ...]:
    """Add nodes behind others; return the last ones."""
    ends: list[tuple[int, ...]] = []
    is_last = [True] * len(nodes)
    for number, node in enumerate(nodes):
        for each in node.dependencies:
            is_last[each] = False
        waits = tuple(dict.fromkeys(end for each in node.dependencies for end in ends[each]))
        path, top = f"{prefix}{number}", number if outer is None else outer
        if node.kind == "graph" and len(node.branches) == 1 and not node.branches[0].advances:
            inner = node.branches[0].nodes
            ends.append(_add(flat, inner, waits or before, f"{path}.0.", (*parents, node), top))
        else:
            flat.append(FlatNode(node, path, top, waits or before, parents))
            ends.append((len(flat) - 1,))
    last = [end for number in range(len(nodes)) if is_last[number] for end in ends[number]]
    return tuple(dict.fromkeys(last)) or before
