"""Control flow of a thread, written for groups of lanes that may part and meet again.

Where all lanes go the same way, branches stay branches. Where they part, the pieces of code up to
their meeting point are written one after the other, each under a mask of the lanes that go there
and behind a jump past it for when there are none; phis where lanes meet become blends. A loop that
lanes leave at different times goes on until the last has left, and keeps what the others left with.
A piece with memory accesses is written twice: for all lanes, which needs no masks, and for some.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.loops import Loops
from nbrt.backends.cpu.simt.lanes.merges import Arrival, Arrivals, Ends
from nbrt.backends.cpu.simt.lanes.values import FULL, Lanes, Mask, Value
from nbrt.backends.cpu.simt.llvm.errors import CannotLowerError
from nbrt.backends.cpu.simt.llvm.model import Operand

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.lanes.divergence import Shapes
    from nbrt.backends.cpu.simt.lanes.instructions import Instructions
    from nbrt.backends.cpu.simt.lanes.writer import Writer
    from nbrt.backends.cpu.simt.llvm.graph import Level
    from nbrt.backends.cpu.simt.llvm.model import Block, Instruction

__all__ = ["Flow"]

_CHEAP = frozenset(
    [
        "add",
        "sub",
        "mul",
        "shl",
        "lshr",
        "ashr",
        "and",
        "or",
        "xor",
        "fadd",
        "fsub",
        "fmul",
        "fneg",
        "icmp",
        "fcmp",
        "select",
        "zext",
        "sext",
        "trunc",
        "getelementptr",
        "freeze",
        "phi",
        "br",
    ]
)
_CHEAP_LENGTH = 8
_MAX_COPIES = 3
"""Deepest nest of pieces written twice."""


class Flow:
    """Writes the blocks of a thread function for one group.

    Parameters
    ----------
    writer, lanes, shapes : Writer, Lanes, Shapes
        Where the code goes, operations on values, what is known of them.
    instructions : Instructions
        Writes what is in the blocks.
    values : dict
        Values that are known where the code is being written.
    blocks : dict
        The blocks, by label.
    phis : callable
        Gives the phis of a place, also of one that is not a block.
    successors : callable
        Gives the successors of a block.
    aliases : dict
        For a block: other names of values where it leads from.
    on_value : callable
        Called with each value once it is known.
    """

    def __init__(
        self,
        writer: Writer,
        lanes: Lanes,
        shapes: Shapes,
        instructions: Instructions,
        values: dict[str, Value],
        blocks: dict[str, Block],
        phis: Callable[[str], list[Instruction]],
        successors: Callable[[str], list[str]],
        aliases: dict[str, dict[str, str]],
        on_value: Callable[[str, Mask], None],
    ) -> None:
        self._writer = writer
        self._lanes = lanes
        self._shapes = shapes
        self._instructions = instructions
        self._values = values
        self._blocks = blocks
        self._phis = phis
        self._successors = successors
        self._aliases = aliases
        self._on_value = on_value
        self._arrivals = Arrivals(writer, lanes, shapes, phis)
        self._loops = Loops(writer, lanes, shapes, values, self._arrivals, phis, successors, self)
        self._copies = 0

    # -- pieces ----------------------------------------------------------------------------------

    def guarded(
        self,
        level: Level,
        root: str,
        nodes: set[str],
        mask: Mask,
        phis: dict[str, Value],
        outer: Mask,
    ) -> list[Arrival]:
        """Write a piece for the lanes of a mask, to be jumped over if there are none.

        Parameters
        ----------
        level : Level
            What the piece belongs to.
        root : str
            Its first node.
        nodes : set of str
            All its nodes.
        mask : Mask
            The lanes that go there.
        phis : dict
            Values for the phis of its first node.
        outer : Mask
            The lanes that take part around the piece.
        """
        if mask is None or self._is_cheap(level, nodes):
            return self.piece(level, root, nodes, mask, phis)
        writer = self._writer
        some, after = writer.name("some"), writer.name("join")
        any_lane = self._lanes.any(mask)
        twice = outer is None and self._copies < _MAX_COPIES and self._uses_memory(level, nodes)
        all_lanes = self._lanes.all(mask) if twice else ""
        ends: Ends = [(writer.label, [])]
        writer.choose(any_lane, some, after)
        writer.start(some)
        if twice:
            full, part = writer.name("full"), writer.name("part")
            writer.choose(all_lanes, full, part)
            self._copies += 1
            writer.start(full)
            ends.append(self._arrivals.ended(self.piece(level, root, nodes, FULL, phis)))
            self._copies -= 1
            writer.go(after)
            writer.start(part)
        ends.append(self._arrivals.ended(self.piece(level, root, nodes, mask, phis)))
        writer.go(after)
        writer.start(after)
        return [
            self._arrivals.whole(arrival, mask, ends)
            for arrival in self._arrivals.merged(ends, mask)
        ]

    def _brought(self, block: str, target: str) -> dict[str, Value]:
        """Give what a way out of a block brings for the phis where it leads."""
        found = {}
        for phi in self._phis(target):
            operand = phi.operands[phi.labels.index(block)]
            alias = self._aliases.get(block, {}).get(operand.text)
            if alias is not None:
                operand = Operand(operand.type, alias)
            value = self._instructions.value(operand)
            if self._shapes.of.get(phi.name) is None:
                value = Value(phi.type, "vector", self._lanes.vector(value))
            found[phi.name] = value
        return found

    # -- a level -----------------------------------------------------------------------------------

    def piece(
        self, level: Level, root: str, nodes: set[str], mask: Mask, phis: dict[str, Value]
    ) -> list[Arrival]:
        """Write nodes with one way in; all that arrives at their ends comes together behind."""
        writer = self._writer
        labels: dict[str, str] = {}
        edges: dict[str, list[tuple[str, dict[str, Value]]]] = {root: []}
        ends: Ends = []
        end_label = writer.name("end")
        skipped: set[str] = set()

        def label_of(node: str) -> str:
            return labels.setdefault(node, writer.name("block"))

        def leave(ways: list[Arrival]) -> str:
            """Record a jump to where the ways of all lanes lead; gives the label to jump to."""
            target = ways[0].target
            node = level.node_of(target) if target in level.blocks else ""
            inside = node in nodes and target != level.root and len(ways) == 1
            if inside:
                edges.setdefault(node, []).append((writer.label, ways[0].values))
                return label_of(node)
            ways = [way if way.mask is mask else self._arrivals.settled(way) for way in ways]
            ends.append((writer.label, ways))
            return end_label

        for node in level.order:
            if node not in nodes or node in skipped or node not in edges:
                continue
            if node != root:
                writer.start(label_of(node))
                phis = self._phis_at(node, edges[node])
            if node in level.loops:
                ways = self._loops.write(level, node, mask, phis)
            else:
                self._values.update(phis)
                self._told(phis, mask)
                block = self._blocks[node]
                self._body(block, mask)
                ways = self._ways(block, mask)
            if self._shapes.splits(level, node):
                skipped |= self._zone(level, node, nodes, mask, ways, leave)
            else:
                self._jump(ways, leave)
        return self._joined(ends, end_label, mask)

    def _phis_at(self, node: str, edges: list[tuple[str, dict[str, Value]]]) -> dict[str, Value]:
        return {
            phi.name: self._arrivals.merged_value(phi, [(label, v[phi.name]) for label, v in edges])
            for phi in self._phis(node)
        }

    def _joined(self, ends: Ends, label: str, mask: Mask) -> list[Arrival]:
        """Bring together the jumps to the end of a piece."""
        writer = self._writer
        if not ends:  # only code that never ends, or is never reached
            writer.start(label)
            return []
        writer.start(label)
        if len(ends) == 1:
            return ends[0][1]
        return self._arrivals.merged(ends, mask)

    def _body(self, block: Block, mask: Mask) -> None:
        for item in block.instructions:
            if item.opcode == "phi" or item.is_terminator:
                continue
            self._instructions.write(item, mask)
            if item.name:
                self._on_value(item.name, mask)

    def _told(self, phis: dict[str, Value], mask: Mask) -> None:
        for name in phis:
            self._on_value(name, mask)

    def _ways(self, block: Block, mask: Mask) -> list[Arrival]:
        """Give the ways out of a block."""
        targets = self._successors(block.label)
        if len(targets) == 1:
            return [Arrival(targets[0], "true", mask, self._brought(block.label, targets[0]))]
        branch = block.terminator
        if branch.opcode != "br":
            raise CannotLowerError(f"the instruction {branch.opcode} has no form for lanes")
        condition = self._instructions.value(branch.operands[0])
        yes, no = (self._brought(block.label, target) for target in targets)
        if condition.kind == "scalar":
            opposite = self._lanes.inverse(condition).text
            return [
                Arrival(targets[0], condition.text, mask, yes),
                Arrival(targets[1], opposite, mask, no),
            ]
        both = self._lanes.both
        return [
            Arrival(targets[0], "true", both(mask, condition), yes),
            Arrival(targets[1], "true", both(mask, self._lanes.inverse(condition)), no),
        ]

    def _jump(self, ways: list[Arrival], leave: Callable[[list[Arrival]], str]) -> None:
        """Jump where all lanes go."""
        writer = self._writer
        if not ways:
            writer.do("unreachable")
            return
        *others, last = ways
        for way in others:
            label = leave([replace(way, taken="true")])
            rest = writer.name("else")
            writer.choose(way.taken, label, rest)
            writer.start(rest)
        label = leave([replace(last, taken="true")])
        writer.go(label)

    # -- where lanes part --------------------------------------------------------------------------

    def _zone(
        self,
        level: Level,
        node: str,
        nodes: set[str],
        mask: Mask,
        ways: list[Arrival],
        leave: Callable[[list[Arrival]], str],
    ) -> set[str]:
        """Write the pieces between a node where lanes part and where they meet; gives these."""
        pending: dict[str, list[Arrival]] = {}
        for way in ways:
            pending.setdefault(way.target, []).append(self._arrivals.masked(way))
        zone = set(level.zone(node)) & nodes
        for root, part in level.parts(node):
            part = part & nodes
            if not part or root not in pending:
                continue
            arrived = self._arrivals.blended(pending.pop(root))
            for way in self.guarded(level, root, part, arrived.mask, arrived.values, mask):
                pending.setdefault(way.target, []).append(self._arrivals.masked(way))
        meet = level.below[node]
        arrivals = [self._arrivals.blended(arrived) for arrived in pending.values()]
        if meet in nodes:
            # All lanes that came in go on from here.
            arrivals = [replace(arrival, mask=mask) for arrival in arrivals]
            assert len(arrivals) == 1
        self._writer.go(leave(arrivals))
        return zone

    def _is_cheap(self, level: Level, nodes: set[str]) -> bool:
        """Whether it costs less to compute a piece than to jump past it."""
        if any(node in level.loops for node in nodes):
            return False
        items = [item for node in nodes for item in self._blocks[node].instructions]
        return len(items) <= _CHEAP_LENGTH and all(item.opcode in _CHEAP for item in items)

    def _uses_memory(self, level: Level, nodes: set[str]) -> bool:
        return any(
            item.opcode in ("load", "store", "atomicrmw", "call")
            for block in level.blocks_of(nodes)
            for item in self._blocks[block].instructions
        )
