"""Control flow: orders, dominators and loops of a part of a function.

A `Level` is what the lanes are written by: the body of a loop, or everything that is reached from
where threads start together. Loops inside it count as one node, named by their header, so a level
has no cycles, and every way out of it leads to one `END`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.llvm.errors import NotReducibleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["END", "Level", "Loop", "dominators", "find_loops", "reverse_postorder"]

END = "<end>"
"""Where every way out of a level leads."""


def reverse_postorder(root: str, successors: Callable[[str], Iterable[str]]) -> list[str]:
    """Order what is reached from a node so that, loops aside, predecessors come first."""
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


def dominators(order: list[str], predecessors: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Give each node's immediate dominator; the root's is itself (Cooper, Harvey, Kennedy)."""
    place = {node: i for i, node in enumerate(order)}
    above = {order[0]: order[0]}

    def meet(left: str, right: str) -> str:
        while left != right:
            if place[left] > place[right]:
                left = above[left]
            else:
                right = above[right]
        return left

    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [other for other in predecessors[node] if other in above]
            best = known[0]
            for other in known[1:]:
                best = meet(best, other)
            if above.get(node) != best:
                above[node] = best
                changed = True
    return above


def dominates(above: Mapping[str, str], upper: str, lower: str) -> bool:
    """Tell whether every way to `lower` leads through `upper`."""
    while lower != upper and above[lower] != lower:
        lower = above[lower]
    return lower == upper


class Loop:
    """A natural loop: its header and all its blocks."""

    def __init__(self, header: str) -> None:
        self.header = header
        self.blocks = {header}


def find_loops(
    root: str, nodes: set[str], successors: Callable[[str], Iterable[str]]
) -> dict[str, Loop]:
    """Find the natural loops among nodes, by header.

    Raises
    ------
    NotReducibleError
        If a cycle has two ways in.
    """

    def inside(node: str) -> list[str]:
        return [item for item in successors(node) if item in nodes]

    order = reverse_postorder(root, inside)
    place = {node: i for i, node in enumerate(order)}
    predecessors: dict[str, list[str]] = {node: [] for node in order}
    for node in order:
        for item in inside(node):
            predecessors[item].append(node)
    above = dominators(order, predecessors)
    loops: dict[str, Loop] = {}
    for node in order:
        for header in inside(node):
            if place[header] > place[node]:
                continue
            if not dominates(above, header, node):
                raise NotReducibleError(header)
            loop = loops.setdefault(header, Loop(header))
            pending = [node]
            while pending:
                item = pending.pop()
                if item not in loop.blocks:
                    loop.blocks.add(item)
                    pending.extend(predecessors[item])
    return loops


class Level:
    """One level of a piece of control flow.

    Parameters
    ----------
    root : str
        Where it begins: for the body of a loop, the header.
    blocks : set of str
        All its blocks, those of inner loops included.
    successors : callable
        Gives the successors of a block, inside and outside.
    """

    def __init__(
        self, root: str, blocks: set[str], successors: Callable[[str], Iterable[str]]
    ) -> None:
        self.root = root
        self.blocks = blocks
        self._successors = successors

        def forward(node: str) -> list[str]:
            # A way back to the root is a way out.
            return [item for item in successors(node) if item != root]

        found = find_loops(root, blocks, forward)
        outer = [
            loop
            for header, loop in found.items()
            if not any(header in other.blocks for other in found.values() if other is not loop)
        ]
        self.loops = {loop.header: loop for loop in outer}
        self._owner = {block: loop.header for loop in outer for block in loop.blocks}

    def node_of(self, block: str) -> str:
        """Give the node that a block of this level belongs to: itself, or its loop's header."""
        return self._owner.get(block, block)

    def ways(self, node: str) -> list[tuple[str, str]]:
        """Give the edges that leave a node, as (block inside, block outside), each once."""
        blocks = self.loops[node].blocks if node in self.loops else {node}
        ways = []
        for block in sorted(blocks):
            for target in self._successors(block):
                leaves = target not in blocks or target == self.root
                if leaves and (block, target) not in ways:
                    ways.append((block, target))
        return ways

    def targets(self, node: str) -> list[str]:
        """Give where a node leads: nodes of this level, or `END`."""
        found = []
        for _, target in self.ways(node):
            is_inside = target in self.blocks and target != self.root
            found.append(self.node_of(target) if is_inside else END)
        if not found:
            found.append(END)
        return list(dict.fromkeys(found))

    @cached_property
    def order(self) -> list[str]:
        """Nodes, every one after its predecessors."""
        return reverse_postorder(
            self.root, lambda node: [item for item in self.targets(node) if item != END]
        )

    @cached_property
    def predecessors(self) -> dict[str, list[str]]:
        """Nodes that lead to each node and to `END`."""
        found: dict[str, list[str]] = {node: [] for node in [*self.order, END]}
        for node in self.order:
            for target in self.targets(node):
                found[target].append(node)
        return found

    @cached_property
    def above(self) -> dict[str, str]:
        """Immediate dominators."""
        return dominators(self.order, self.predecessors)

    @cached_property
    def below(self) -> dict[str, str]:
        """Immediate postdominators, `END` at the bottom."""
        backwards = [END, *reversed(self.order)]
        return dominators(backwards, {node: self.targets(node) for node in self.order})

    def zone(self, node: str) -> list[str]:
        """Give the nodes between a node and where all ways from it meet again, in order."""
        meet = self.below[node]
        seen: set[str] = set()
        pending = [node]
        while pending:
            for target in self.targets(pending.pop()):
                if target not in seen and target not in (meet, END):
                    seen.add(target)
                    pending.append(target)
        return [item for item in self.order if item in seen]

    def parts(self, node: str) -> list[tuple[str, set[str]]]:
        """Cut the zone of a node into pieces with one way in: (first node, all its nodes)."""
        zone = self.zone(node)
        inside = set(zone)
        roots: dict[str, str] = {}
        for item in zone:
            over = self.above[item]
            roots[item] = roots[over] if over in inside else item
        return [
            (root, {item for item in zone if roots[item] == root})
            for root in zone
            if roots[root] == root
        ]

    def blocks_of(self, nodes: Iterable[str]) -> set[str]:
        """Give the blocks of some nodes."""
        found: set[str] = set()
        for node in nodes:
            found |= self.loops[node].blocks if node in self.loops else {node}
        return found
