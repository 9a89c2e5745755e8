"""Control flow graphs: orders, dominators, loops, and the levels of a loop nest."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.llvm.model import NotReducibleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "END",
    "Level",
    "LoopInfo",
    "dominates",
    "dominator_tree",
    "dominators",
    "find_loops",
    "reachable",
]

END = "<end>"
"""The common successor of all edges that leave a level."""


def reachable(roots: Iterable[str], successors: Callable[[str], Iterable[str]]) -> set[str]:
    """Return the nodes that one or more edges lead to from the roots."""
    seen: set[str] = set()
    pending = list(roots)
    while pending:
        new = set(successors(pending.pop())) - seen
        seen |= new
        pending += new
    return seen


def _reverse_postorder(root: str, successors: Callable[[str], Iterable[str]]) -> list[str]:
    """Order the nodes behind a root: apart from loops, each node follows its predecessors."""
    order: list[str] = []
    seen = {root}
    stack = [(root, iter(list(successors(root))))]
    while stack:
        node, rest = stack[-1]
        following = next((item for item in rest if item not in seen), None)
        if following is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(list(successors(following)))))
    return order[::-1]


def _predecessors(
    order: list[str], successors: Callable[[str], Iterable[str]]
) -> dict[str, list[str]]:
    predecessors: dict[str, list[str]] = {node: [] for node in order}
    for node in order:
        for item in successors(node):
            predecessors[item].append(node)
    return predecessors


def dominators(order: list[str], predecessors: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the immediate dominator of each node; the root is its own (Cooper, Harvey, Kennedy).

    `order` is a reverse postorder.
    """
    position = {node: i for i, node in enumerate(order)}
    idom = {order[0]: order[0]}

    def intersect(left: str, right: str) -> str:
        while left != right:
            if position[left] > position[right]:
                left = idom[left]
            else:
                right = idom[right]
        return left

    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            first, *others = (other for other in predecessors[node] if other in idom)
            for other in others:
                first = intersect(first, other)
            if idom.get(node) != first:
                idom[node] = first
                changed = True
    return idom


def dominator_tree(root: str, successors: Callable[[str], Iterable[str]]) -> dict[str, str]:
    """Return the immediate dominator of each node that is reachable from a root."""
    order = _reverse_postorder(root, successors)
    return dominators(order, _predecessors(order, successors))


def dominates(idom: Mapping[str, str], upper: str, lower: str) -> bool:
    """Return whether every path to `lower` contains `upper`."""
    while lower != upper and idom[lower] != lower:
        lower = idom[lower]
    return lower == upper


@dataclass
class LoopInfo:
    """A loop: its header, the sources of its back edges, and all its blocks."""

    header: str
    latches: list[str] = field(default_factory=list)
    blocks: set[str] = field(default_factory=set)


def find_loops(
    root: str,
    nodes: Iterable[str],
    successors: Callable[[str], Iterable[str]],
    *,
    reducible: bool = True,
) -> dict[str, LoopInfo]:
    """Return the loops among nodes by header.

    Parameters
    ----------
    root : str
        Entry of the graph.
    nodes : iterable of str
        Nodes to look at; edges to other nodes are ignored.
    successors : callable
        Returns the successors of a node.
    reducible : bool
        Whether a cycle with several entries is an error. If not, the entry that a depth-first
        search reaches first is its header.

    Raises
    ------
    NotReducibleError
        If a cycle has several entries.
    """
    known = set(nodes)

    def inside(node: str) -> list[str]:
        return [item for item in successors(node) if item in known]

    order = _reverse_postorder(root, inside)
    position = {node: i for i, node in enumerate(order)}
    predecessors = _predecessors(order, inside)
    idom = dominators(order, predecessors) if reducible else {}
    loops: dict[str, LoopInfo] = {}
    for node in order:
        for header in inside(node):
            if position[header] > position[node]:
                continue
            if reducible and not dominates(idom, header, node):
                raise NotReducibleError(header)
            loop = loops.setdefault(header, LoopInfo(header, blocks={header}))
            loop.latches.append(node)
            pending = [node]
            while pending:
                item = pending.pop()
                if item not in loop.blocks:
                    loop.blocks.add(item)
                    pending.extend(predecessors[item])
    return loops


class Level:
    """One level of a loop nest: a loop body, or a region, with inner loops as single nodes.

    The node of an inner loop has the name of its header. A level has no cycles; edges that leave
    it, back edges to its root included, lead to `END`.

    Parameters
    ----------
    root : str
        Its entry: for a loop body, the header.
    blocks : set of str
        All its blocks, those of inner loops included.
    successors : callable
        Returns the successors of a block, inside and outside.
    """

    def __init__(
        self, root: str, blocks: set[str], successors: Callable[[str], Iterable[str]]
    ) -> None:
        self.root = root
        self.blocks = blocks
        self._successors = successors

        def forward(node: str) -> list[str]:
            return [item for item in successors(node) if item != root]

        loops = find_loops(root, blocks, forward)
        self.loops = {
            header: loop
            for header, loop in loops.items()
            if not any(header in other.blocks for other in loops.values() if other is not loop)
        }
        self._owner = {block: loop.header for loop in self.loops.values() for block in loop.blocks}

    def node_of(self, block: str) -> str:
        """Return the node that contains a block: the block itself, or the header of its loop."""
        return self._owner.get(block, block)

    def edges(self, node: str) -> list[tuple[str, str]]:
        """Return the edges that leave a node, as (block inside, block outside), each once."""
        blocks = self.blocks_of([node])
        edges = []
        for block in sorted(blocks):
            for target in self._successors(block):
                leaves = target not in blocks or target == self.root
                if leaves and (block, target) not in edges:
                    edges.append((block, target))
        return edges

    def targets(self, node: str) -> list[str]:
        """Return the successors of a node: nodes of this level, or `END`."""
        nodes = []
        for _, target in self.edges(node):
            is_inside = target in self.blocks and target != self.root
            nodes.append(self.node_of(target) if is_inside else END)
        return list(dict.fromkeys(nodes or [END]))

    def _inner_targets(self, node: str) -> list[str]:
        return [item for item in self.targets(node) if item != END]

    @cached_property
    def order(self) -> list[str]:
        """The nodes, each after its predecessors."""
        return _reverse_postorder(self.root, self._inner_targets)

    @cached_property
    def idom(self) -> dict[str, str]:
        """Immediate dominators."""
        return dominators(self.order, _predecessors(self.order, self._inner_targets))

    @cached_property
    def ipdom(self) -> dict[str, str]:
        """Immediate postdominators; the root of their tree is `END`."""
        backwards = [END, *reversed(self.order)]
        return dominators(backwards, {node: self.targets(node) for node in self.order})

    def region(self, node: str) -> list[str]:
        """Return the nodes between a node and its immediate postdominator, in order."""
        merge = self.ipdom[node]
        inside = reachable(
            [node], lambda item: [t for t in self._inner_targets(item) if t != merge]
        )
        return [item for item in self.order if item in inside]

    def subregions(self, node: str) -> list[tuple[str, set[str]]]:
        """Divide the region of a node into single-entry parts, as (entry, all nodes)."""
        region = self.region(node)
        inside = set(region)
        entries: dict[str, str] = {}
        for item in region:
            dominator = self.idom[item]
            entries[item] = entries[dominator] if dominator in inside else item
        return [
            (entry, {item for item in region if entries[item] == entry})
            for entry in region
            if entries[entry] == entry
        ]

    def blocks_of(self, nodes: Iterable[str]) -> set[str]:
        """Return the blocks of some nodes."""
        blocks: set[str] = set()
        for node in nodes:
            blocks |= self.loops[node].blocks if node in self.loops else {node}
        return blocks
