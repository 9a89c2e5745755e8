"""`collectives_of`: the work of a graph that waits for other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.graphs import CallerChecked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nbrt.backends.graphs import GraphNode

__all__ = ["collectives_of"]


def collectives_of(nodes: Sequence[GraphNode]) -> Iterator[CallerChecked]:
    """Yield the functions of nodes that wait for other ranks, also of nodes of branches."""
    for node in nodes:
        for work in node.work:
            if isinstance(work.function, CallerChecked):
                yield work.function
        for branch in node.branches:
            yield from collectives_of(branch.nodes)
