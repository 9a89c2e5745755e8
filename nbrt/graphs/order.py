"""`GraphOrder`: which nodes of a graph precede which, from its edges.

The nodes are divided into chains, in which each node precedes the next. A node stores its place in
its chain, and for the other chains the last node that precedes it. In a chain without joins all
nodes share this clock, so that time and memory grow with the nodes and the joins, not with the
pairs of nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from nbrt.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nbrt.backends.graphs import GraphNode

__all__ = ["GraphOrder", "order_of"]

_Clock: TypeAlias = dict[int, int]
"""Chain -> position in it of the last node that precedes."""


class GraphOrder:
    """The order of the nodes of one list: of a graph, or of a body of control flow.

    Parameters
    ----------
    dependencies : sequence of sequence of int
        For each node, earlier nodes that must be done before.

    Attributes
    ----------
    dependencies : list of tuple of int
        As given, without repetitions.
    chains : list of list of int
        The nodes of each chain. Every node is in one chain.

    Raises
    ------
    GraphError
        If a node depends on itself, on a later one, or on one that does not exist.

    Examples
    --------
    >>> fork = GraphOrder([(), (0,), (0,), (1, 2)])
    >>> fork.precedes(0, 3), fork.is_ordered(1, 2)
    (True, False)
    >>> fork.chains
    [[0, 1, 3], [2]]
    """

    def __init__(self, dependencies: Sequence[Sequence[int]]) -> None:
        self.dependencies = [tuple(dict.fromkeys(each)) for each in dependencies]
        self.chains: list[list[int]] = []
        self._chain: list[int] = []
        self._position: list[int] = []
        self._clocks: list[_Clock] = []
        self._forks: dict[int, tuple[_Clock, list[int]]] = {}
        for node, before in enumerate(self.dependencies):
            if before and not 0 <= min(before) <= max(before) < node:
                raise GraphError(
                    f"expected node {node} to depend on earlier nodes only, got {before}; list the "
                    f"nodes in an order that respects their dependencies"
                )
            self._append(node, before)
        self._forks.clear()

    def __len__(self) -> int:
        return len(self.dependencies)

    def _append(self, node: int, before: tuple[int, ...]) -> None:
        """Append a node to the chain of a dependency, to another that precedes it, or to none."""
        clock, free = self._past(before)
        for last in before:
            if self._is_last(self._chain[last], self._position[last]):
                chain = self._chain[last]
                # The clock of a node needs no entry for the chain of the node.
                clock = self._clocks[last] if len(before) == 1 else clock
                break
        else:
            while free and not self._is_last(free[-1], clock[free[-1]]):
                free.pop()
            chain = free.pop() if free else len(self.chains)
            if chain == len(self.chains):
                self.chains.append([])
        self._chain.append(chain)
        self._position.append(len(self.chains[chain]))
        self._clocks.append(clock)
        self.chains[chain].append(node)

    def _is_last(self, chain: int, position: int) -> bool:
        return len(self.chains[chain]) == position + 1

    def _past(self, before: tuple[int, ...]) -> tuple[_Clock, list[int]]:
        """Return the clock behind some nodes, and the chains in it; one node's are shared."""
        if len(before) == 1 and before[0] in self._forks:
            return self._forks[before[0]]
        if len(before) == 1 and self._is_last(self._chain[before[0]], self._position[before[0]]):
            return {}, []  # not needed: the node extends the chain
        clock = self._merged(before)
        for node in before:
            chain = self._chain[node]
            clock[chain] = max(clock.get(chain, -1), self._position[node])
        past = clock, list(clock)
        if len(before) == 1:
            self._forks[before[0]] = past
        return past

    def _merged(self, nodes: Sequence[int]) -> _Clock:
        """Return the latest positions in the clocks of some nodes."""
        clocks = list({id(self._clocks[node]): self._clocks[node] for node in nodes}.values())
        merged = dict(clocks[0]) if clocks else {}
        for clock in clocks[1:]:
            for chain, position in clock.items():
                if merged.get(chain, -1) < position:
                    merged[chain] = position
        return merged

    def precedes(self, first: int, second: int) -> bool:
        """Return whether `first` is done before `second` starts, in every run of the graph."""
        chain, position = self._chain[first], self._position[first]
        if self._chain[second] == chain:
            return position < self._position[second]
        return self._clocks[second].get(chain, -1) >= position

    def is_ordered(self, first: int, second: int) -> bool:
        """Return whether one of two nodes precedes the other."""
        return self.precedes(first, second) or self.precedes(second, first)

    def chain_of(self, node: int) -> int:
        """Return the number of the chain that a node is in."""
        return self._chain[node]

    @property
    def edges(self) -> list[tuple[int, int]]:
        """The dependencies, each as the earlier and the later node."""
        return [(first, node) for node, before in enumerate(self.dependencies) for first in before]

    @property
    def successors(self) -> list[list[int]]:
        """For each node, the nodes that depend on it."""
        after: list[list[int]] = [[] for _ in self.dependencies]
        for first, node in self.edges:
            after[first].append(node)
        return after

    @property
    def depths(self) -> list[int]:
        """For each node, the largest number of nodes that must be done one after another before."""
        depths: list[int] = []
        for before in self.dependencies:
            depths.append(1 + max((depths[each] for each in before), default=-1))
        return depths

    def reduced(self) -> list[tuple[int, ...]]:
        """Return the dependencies that do not follow from others: the transitive reduction.

        Examples
        --------
        >>> GraphOrder([(), (0,), (0, 1)]).reduced()
        [(), (0,), (1,)]
        """
        return [
            before if len(before) < 2 else tuple(self._direct(before))
            for before in self.dependencies
        ]

    def _direct(self, before: tuple[int, ...]) -> Iterator[int]:
        implied = self._merged(before)
        for node in before:
            chain, position = self._chain[node], self._position[node]
            implied[chain] = max(implied.get(chain, -1), position - 1)
        for node in before:
            if implied[self._chain[node]] < self._position[node]:
                yield node

    def by_depth(self) -> list[int]:
        """Return the nodes in a topological order that starts branches as early as possible."""
        depths = self.depths
        return sorted(range(len(self)), key=depths.__getitem__)

    def by_branch(self) -> list[int]:
        """Return the nodes in a topological order that ends a branch before it starts another."""
        after = self.successors
        missing = [len(before) for before in self.dependencies]
        ready = [node for node, count in reversed(list(enumerate(missing))) if not count]
        order: list[int] = []
        while ready:
            node = ready.pop()
            order.append(node)
            for each in reversed(after[node]):
                missing[each] -= 1
                if not missing[each]:
                    ready.append(each)
        return order


def order_of(nodes: Sequence[GraphNode]) -> GraphOrder:
    """Return the order of the nodes of a graph or of a branch."""
    return GraphOrder([node.dependencies for node in nodes])
