"""`BufferLives`: which buffers of a graph can share bytes, since their uses cannot meet.

Control flow is flattened: a node with branches becomes two nodes, before and after the nodes of its
branches. Only one branch of a condition runs, so the branches are put one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from nbrt.errors import GraphError
from nbrt.graphs.node_text import views_of
from nbrt.graphs.order import GraphOrder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nbrt.backends.graphs import Branch, GraphNode

__all__ = ["BufferLives", "Conflicts", "buffers_of"]


class Conflicts(NamedTuple):
    """The pairs of buffers that must not share bytes.

    Attributes
    ----------
    numbers : list of int
        The buffers.
    sets : list of int
        For each of them the buffers in conflict with it, as bits for positions in `numbers`.
    """

    numbers: list[int]
    sets: list[int]


class BufferLives:
    """The uses of some buffers, and their order.

    Two buffers can share bytes if all uses of one precede all uses of the other in every order that
    the edges allow. A buffer is in use during a whole node of control flow if one of its bodies
    uses it, because its bytes can pass from one turn to the next. `scopes` has the exceptions.

    Parameters
    ----------
    nodes : sequence of GraphNode
        In an order that respects the dependencies.
    numbers : sequence of int
        The buffers.
    scopes : mapping of int to Branch
        Buffers that were allocated and freed in one branch; they live in a single run of it.

    Attributes
    ----------
    order : GraphOrder
        The order of the flattened nodes.
    uses : dict of int to list of int
        The flattened nodes that use each buffer, in ascending order; no buffers without uses.
    labels : list of int
        For each flattened node, the number of its node in the outermost list.
    """

    def __init__(
        self,
        nodes: Sequence[GraphNode],
        numbers: Sequence[int],
        scopes: Mapping[int, Branch] | None = None,
    ) -> None:
        self.labels: list[int] = []
        self._dependencies: list[tuple[int, ...]] = []
        self._wanted = set(numbers)
        self._scopes = {number: id(branch) for number, branch in (scopes or {}).items()}
        self._uses: defaultdict[int, set[int]] = defaultdict(set)
        self._flatten(nodes, [0], (), -1)
        self.order = GraphOrder(self._dependencies)
        self.uses = {each: sorted(self._uses[each]) for each in numbers if each in self._uses}

    def _flatten(
        self, nodes: Sequence[GraphNode], scopes: list[int], roots: tuple[int, ...], top: int
    ) -> tuple[tuple[int, ...], set[int]]:
        """Append nodes; return those without successors, and the buffers that live beyond.

        `scopes` has the ids of the open branches, with 0 for the outermost list; `top` is the node
        of the outermost list, or -1.
        """
        ends: list[int] = []
        alive: set[int] = set()
        for index, node in enumerate(nodes):
            label = index if top < 0 else top
            used = buffers_of(node) & self._wanted
            self._check_scopes(used, scopes, node)
            before = tuple(ends[each] for each in node.dependencies) or roots
            begin = end = self._append(before, label)
            if node.branches:
                last: tuple[int, ...] = (begin,)
                for branch in node.branches:
                    inner_scopes = [*scopes, id(branch)]
                    last, inner = self._flatten(branch.nodes, inner_scopes, last, label)
                    used |= inner
                end = self._append(last, label)
            ends.append(end)
            for buffer in used:
                self._uses[buffer].update((begin, end))
            alive |= {each for each in used if self._scopes.get(each, 0) != scopes[-1]}
        followed = {each for node in nodes for each in node.dependencies}
        leaves = tuple(end for index, end in enumerate(ends) if index not in followed)
        return leaves or roots, alive

    def _check_scopes(self, used: set[int], scopes: list[int], node: GraphNode) -> None:
        for buffer in used:
            if self._scopes.get(buffer, 0) not in scopes:
                raise GraphError(
                    f"expected buffer {buffer} to be used in the branch that allocates it, got a "
                    f"use by node {node.index} ({node.kind} {node.label}) outside; allocate it "
                    f"before the branch"
                )

    def _append(self, before: tuple[int, ...], label: int) -> int:
        self._dependencies.append(before)
        self.labels.append(label)
        return len(self._dependencies) - 1

    def orders(self) -> list[list[int]]:
        """Return some topological orders of the flattened nodes."""
        return [list(range(len(self.order))), self.order.by_depth(), self.order.by_branch()]

    def conflicts(self) -> Conflicts:
        """Return which buffers must not share bytes."""
        firsts = {each: self._extremes(uses, first=True) for each, uses in self.uses.items()}
        lasts = {each: self._extremes(uses, first=False) for each, uses in self.uses.items()}
        counts = {each: max(len(firsts[each]), len(lasts[each])) for each in self.uses}
        numbers = sorted(self.uses, key=lambda each: -counts[each])
        bits = _BitLayers([counts[each] for each in numbers])
        first_nodes = [firsts[each] for each in numbers]
        last_nodes = [lasts[each] for each in numbers]
        forward, backward = range(len(self.order)), range(len(self.order) - 1, -1, -1)
        before = bits.propagate(forward, self.order.dependencies, last_nodes, first_nodes)
        after = bits.propagate(backward, self.order.successors, first_nodes, last_nodes)
        everything = (1 << len(numbers)) - 1
        return Conflicts(
            numbers,
            [
                everything & ~(before[index] | after[index] | 1 << index)
                for index in range(len(numbers))
            ],
        )

    def _extremes(self, uses: list[int], *, first: bool) -> list[int]:
        """Return the uses that no other use precedes, or that no other one follows."""
        of_chain: dict[int, int] = {}
        for node in reversed(uses) if first else uses:
            of_chain[self.order.chain_of(node)] = node
        found = list(of_chain.values())
        precedes = self.order.precedes
        return [
            node
            for node in found
            if not any(precedes(other, node) if first else precedes(node, other) for other in found)
        ]


class _BitLayers:
    """Bits for the extreme uses of buffers.

    Buffer `i` has bit `i` for the first of its extreme uses. Bits of the second uses of all buffers
    that have two follow, then those of the third, and so on.

    Parameters
    ----------
    counts : list of int
        The extreme uses of each buffer, in descending order.
    """

    def __init__(self, counts: list[int]) -> None:
        self._size = len(counts)
        self._layers: list[tuple[int, int]] = []
        """First bit, and number of buffers, from the second layer on."""
        begin, members = self._size, self._size
        for layer in range(1, max(counts, default=0)):
            while counts[members - 1] <= layer:
                members -= 1
            self._layers.append((begin, members))
            begin += members

    def propagate(
        self,
        nodes: range,
        inputs: Sequence[Sequence[int]],
        sources: list[list[int]],
        targets: list[list[int]],
    ) -> list[int]:
        """Return, for each buffer, the set of those whose sources all reach all its targets."""
        own = [0] * len(inputs)
        for buffer, uses in enumerate(sources):
            bits = [1 << bit for bit in self._bits_of(buffer)]
            for place, bit in enumerate(bits):
                own[uses[min(place, len(uses) - 1)]] |= bit
        wanted: list[list[int]] = [[] for _ in inputs]
        for buffer, uses in enumerate(targets):
            for node in uses:
                wanted[node].append(buffer)
        readers = [0] * len(inputs)
        for each in inputs:
            for node in each:
                readers[node] += 1
        found = [-1] * self._size
        reached = [0] * len(inputs)
        for node in nodes:
            all_bits = 0
            for each_input in inputs[node]:
                all_bits |= reached[each_input]
                readers[each_input] -= 1
                if not readers[each_input]:
                    reached[each_input] = 0  # a set for each node would fill the memory
            for buffer in wanted[node]:
                found[buffer] &= all_bits
            reached[node] = all_bits | own[node]
        return [self._complete(bits) for bits in found]

    def _bits_of(self, buffer: int) -> list[int]:
        return [buffer, *(begin + buffer for begin, members in self._layers if buffer < members)]

    def _complete(self, bits: int) -> int:
        """Return the set of buffers all of whose bits are set."""
        full = bits & ((1 << self._size) - 1)
        for begin, members in self._layers:
            mask = (1 << members) - 1
            full &= (bits >> begin & mask) | ~mask
        return full


def buffers_of(node: GraphNode) -> set[int]:
    """Return the buffers that a node uses itself, without those of its branches."""
    used = {view.buffer for work in node.work for view in views_of(work.args)}
    if node.source is not None:  # has all operands if the driver captures the work
        used.update(view.buffer for view in views_of((node.source.args, node.source.result)))
    if node.flag is not None:
        used.add(node.flag.buffer)
    if node.branches:
        used.update(each.buffer for branch in node.branches for each in branch.advances)
    return used
