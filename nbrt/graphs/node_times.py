"""`NodeTimes`: the seconds of the nodes of a graph, shown as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.graphs.picture import graph_html
from nbrt.graphs.table import nodes_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.graphs import GraphNode

__all__ = ["NodeTimes"]


class NodeTimes(list[float]):
    """The seconds of each node in one replay, in which they ran one after the other.

    It prints as the table of nodes with a column of times; a notebook shows them in the picture.

    Parameters
    ----------
    nodes : sequence of GraphNode
        The nodes of the graph.
    seconds : sequence of float
        Their times.
    """

    __slots__ = ("_nodes",)

    def __init__(self, nodes: Sequence[GraphNode], seconds: Sequence[float]) -> None:
        super().__init__(seconds)
        self._nodes = list(nodes)

    def _microseconds(self) -> dict[str, float]:
        return {str(node.index): 1e6 * time for node, time in zip(self._nodes, self, strict=False)}

    def _title(self) -> str:
        return f"{len(self)} nodes in {1e6 * sum(self):.4g} µs"

    def __repr__(self) -> str:
        return f"{self._title()}\n{nodes_table(self._nodes, times=self._microseconds())}"

    def _repr_html_(self) -> str:
        return graph_html(self._nodes, title=self._title(), times=self._microseconds())
