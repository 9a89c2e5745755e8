"""Control flow of a region, for a group of lanes that may diverge and reconverge.

A branch that all lanes take together stays a branch. If lanes diverge, the subregions up to the
immediate postdominator are written one after the other, each under a mask and behind a jump that
skips it if no lane enters; phis at merge points become blends. A loop that lanes leave at different
times runs until the last lane has left it, and keeps the values of the others. A subregion with
memory accesses is written twice: for all lanes, without masks, and for some.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.analysis.regions import with_aliases
from nbrt.backends.cpu.simt.lanes.flow.loops import BodyForm, Loops
from nbrt.backends.cpu.simt.lanes.flow.merges import Edge, Jumps, Merges
from nbrt.backends.cpu.simt.lanes.flow.single_lanes import SingleLanes
from nbrt.backends.cpu.simt.lanes.flow.strips import Strip, find_strip
from nbrt.backends.cpu.simt.lanes.flow.subregions import Subregion, SubregionTests, addresses_in
from nbrt.backends.cpu.simt.lanes.flow.versions import Versions, versions_of
from nbrt.backends.cpu.simt.lanes.vectors.writer import FULL, Mask, Value
from nbrt.backends.cpu.simt.llvm.graph import Level
from nbrt.backends.cpu.simt.llvm.model import CannotLowerError, Operand

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nbrt.backends.cpu.simt.lanes.analysis.regions import BarrierRegion, SplitThread
    from nbrt.backends.cpu.simt.lanes.flow.versions import VersionPoint
    from nbrt.backends.cpu.simt.lanes.instructions import Instructions
    from nbrt.backends.cpu.simt.lanes.spill_slots import SpillSlots
    from nbrt.backends.cpu.simt.llvm.model import BasicBlock, Instruction

__all__ = ["ControlFlow"]

_NO_EDGES: Mapping[str, Edge] = {}
_MAX_COPIES = 3
"""Maximum depth of subregions that are written twice."""


class ControlFlow:
    """Writes the blocks of a region for one group.

    `instructions` holds the values known so far; `slots` keeps values for other regions.
    """

    def __init__(
        self,
        thread: SplitThread,
        region: BarrierRegion,
        instructions: Instructions,
        slots: SpillSlots,
    ) -> None:
        self._thread = thread
        self._region = region
        self._instructions = instructions
        self._slots = slots
        self._writer = instructions.writer
        self._divergence = instructions.divergence
        self._values = instructions.values
        self._merges = Merges(self._writer, self._divergence, thread)
        self._blocks = {
            label: with_aliases(thread.function.blocks[label], region.aliases.get(label, {}))
            for label in region.level.blocks
        }
        self._single_lanes = SingleLanes(thread, self._blocks, region.aliases, instructions, slots)
        self._bodies: dict[str, Level] = {}
        self._copies = 0
        self._loops = Loops(instructions, self._merges, thread, self.write_body)
        self._tests = SubregionTests(self._blocks, instructions)
        lanes = self._writer.width
        self._versions: Versions | None = None
        if self._writer.width > 1:
            self._versions = Versions(self._blocks, self._divergence, lanes)

    def write(self, mask: Mask, phis: dict[str, Value]) -> list[Edge]:
        """Write the region for the lanes of a mask; return the edges that leave it."""
        level = self._region.level
        return self._guarded(_whole(level), mask, phis, FULL)

    def _guarded(
        self,
        part: Subregion,
        mask: Mask,
        phis: dict[str, Value],
        outer: Mask,
        accessed: frozenset[str] = frozenset(),
        others: Mapping[str, Edge] = _NO_EDGES,
    ) -> list[Edge]:
        """Write a subregion for the lanes of a mask, behind a jump that skips it if there are none.

        `phis` are the values of the phis of the entry, `outer` is the mask around the subregion,
        `accessed` are addresses that some of its lanes have accessed. `others` are, by target, the
        edges that the other lanes of `outer` have taken before. The edges that leave the subregion
        have the values of these lanes, too: there is nothing to blend where all lanes enter it.
        """
        if mask is None or self._tests.is_cheap(part, accessed):
            return self._merges.with_others(self._subregion(part, mask, phis), others)
        writer = self._writer
        some, after = writer.name("some"), writer.name("join")
        any_lane = writer.any(mask)
        blocks = part.level.blocks_of(part.nodes)
        lanes = self._single_lanes.lanes(mask, part.entry, blocks)
        twice = not lanes and self._is_written_twice(part, outer)
        all_lanes = writer.all(mask) if twice else "false"
        jumps: Jumps = [(writer.label, [])]
        writer.choose(any_lane, some, after)
        writer.start(some)
        if all_lanes != "false":
            full, partial = writer.name("full"), writer.name("part")
            writer.choose(all_lanes, full, partial)
            self._copies += 1
            writer.start(full)
            jumps.append(self._finalized(self._subregion(part, FULL, phis)))
            self._copies -= 1
            writer.go(after)
            writer.start(partial)
        if lanes:
            edges = self._single_lanes.write(part.entry, blocks, mask, phis, lanes)
        else:
            edges = self._subregion(part, mask, phis)
        jumps.append(self._finalized(self._merges.with_others(edges, others)))
        writer.go(after)
        writer.start(after)
        edges = self._merges.merged(jumps, mask, others)
        return [self._merges.restored(edge, mask, jumps) for edge in edges]

    def _finalized(self, edges: list[Edge]) -> tuple[str, list[Edge]]:
        finalized = [self._merges.finalized(edge) for edge in edges]
        return self._writer.label, finalized

    def _subregion(self, part: Subregion, mask: Mask, phis: dict[str, Value]) -> list[Edge]:
        """Write a subregion; return the edges that leave it, merged behind it."""
        level, entry, nodes, _ = part
        writer = self._writer
        labels: dict[str, str] = {}
        incoming: dict[str, list[tuple[str, dict[str, Value]]]] = {entry: []}
        jumps: Jumps = []
        end_label = writer.name("end")
        skipped: set[str] = set()

        def label_of(node: str) -> str:
            return labels.setdefault(node, writer.name("block"))

        def leave(edges: list[Edge]) -> str:
            """Record a jump along edges, and return the label to jump to."""
            target = edges[0].target
            node = level.node_of(target) if target in level.blocks else ""
            if node in nodes and target != level.root and len(edges) == 1:
                incoming.setdefault(node, []).append((writer.label, edges[0].incoming))
                return label_of(node)
            edges = [e if e.mask is mask else self._merges.finalized(e) for e in edges]
            jumps.append((writer.label, edges))
            return end_label

        for node in level.order:
            if node not in nodes or node in skipped or node not in incoming:
                continue
            if node != entry:
                writer.start(label_of(node))
                phis = self._merged_phis(node, incoming[node])
            point = None
            if self._versions is not None:
                point = self._versions.find(level, node, nodes, writer.notes)
            if point is not None:
                skipped |= point.nodes
                self._jump(self._versioned(level, node, point, mask, phis), leave)
                continue
            begin = part.begin if node == entry else 0
            edges = self._node(level, node, mask, phis, begin)
            if self._divergence.splits(level, node):
                skipped |= self._divergent_region(part, node, mask, edges, leave)
            else:
                self._jump(edges, leave)
        writer.start(end_label)
        if not jumps:  # the code never ends, or is unreachable
            return []
        return jumps[0][1] if len(jumps) == 1 else self._merges.merged(jumps, mask)

    def _merged_phis(
        self, node: str, incoming: list[tuple[str, dict[str, Value]]]
    ) -> dict[str, Value]:
        return {
            phi.name: self._merges.merged_value(
                phi, [(label, values[phi.name]) for label, values in incoming]
            )
            for phi in self._thread.phis(node)
        }

    def _versioned(
        self, level: Level, node: str, point: VersionPoint, mask: Mask, phis: dict[str, Value]
    ) -> list[Edge]:
        """Write nodes in versions; return the edges that leave them."""
        writer, versions = self._writer, self._versions
        self._start(phis, mask)
        block = self._blocks[node]
        self._write(block.instructions[: point.begin], mask)
        part = Subregion(level, node, set(point.nodes), point.begin)
        root, values = point.root, dict(self._values)
        self._versions = None
        after = writer.name("versions.end")
        jumps: Jumps = []
        known = self._values[root.text]
        writer.notes[point.note] = None
        for test, version in versions_of(writer, known, point):
            notes = dict(writer.notes)
            following = writer.name("version")
            if test:
                taken = writer.name("version")
                writer.choose(test, taken, following)
                writer.start(taken)
            self._values[root.text] = version
            edges = self._subregion(part, mask, {})
            if len(edges) == 1:
                edges = [replace(edges[0], taken="true", mask=mask)]
            if any(edge.mask is not mask for edge in edges):
                raise CannotLowerError("lanes leave a version of code at different places")
            jumps.append((writer.label, edges))
            writer.go(after)
            self._values.clear()
            self._values.update(values)
            if test:
                writer.start(following)
            writer.notes = notes  # the note of the place says how other values are accessed
        self._versions = versions
        writer.start(after)
        return self._merges.merged(jumps, mask)

    def _start(self, phis: dict[str, Value], mask: Mask) -> None:
        self._values.update(phis)
        for name in phis:
            self._keep(name, mask)

    def _node(
        self, level: Level, node: str, mask: Mask, phis: dict[str, Value], begin: int = 0
    ) -> list[Edge]:
        """Write a block or a loop; return the edges that leave it."""
        if node in level.loops:
            return self._loop(level, node, mask, phis)
        self._start(phis, mask)
        block = self._blocks[node]
        self._write(block.instructions[begin:], mask)
        return self._edges(block, mask)

    def _write(self, items: list[Instruction], mask: Mask) -> None:
        for item in items:
            if item.opcode == "phi" or item.is_terminator:
                continue
            self._instructions.write(item, mask)
            if item.name:
                self._keep(item.name, mask)

    def _keep(self, name: str, mask: Mask) -> None:
        self._slots.keep(name, self._values[name], mask)

    def _edges(self, block: BasicBlock, mask: Mask) -> list[Edge]:
        """Return the edges that leave a block."""
        targets = self._thread.successors(block.label)
        if len(targets) == 1:
            return [Edge(targets[0], "true", mask, self._incoming(block.label, targets[0]))]
        branch = block.terminator
        if branch.opcode != "br":
            raise CannotLowerError(f"the instruction {branch.opcode} has no form for lanes")
        condition = self._instructions.value(branch.operands[0])
        yes, no = (self._incoming(block.label, target) for target in targets)
        writer = self._writer
        if condition.kind == "scalar":
            opposite = writer.inverse(condition).text
            return [
                Edge(targets[0], condition.text, mask, yes),
                Edge(targets[1], opposite, mask, no),
            ]
        return [
            Edge(targets[0], "true", writer.both(mask, condition), yes),
            Edge(targets[1], "true", writer.both(mask, writer.inverse(condition)), no),
        ]

    def _incoming(self, block: str, target: str) -> dict[str, Value]:
        """Return the values for the phis of a target on the edge from a block."""
        incoming = {}
        for phi in self._thread.phis(target):
            operand = phi.operands[phi.labels.index(block)]
            alias = self._region.aliases.get(block, {}).get(operand.text)
            if alias is not None:
                operand = Operand(operand.type, alias)
            value = self._instructions.value(operand)
            if self._divergence.strides.get(phi.name) is None:
                value = Value(phi.type, "vector", self._writer.vector(value))
            incoming[phi.name] = value
        return incoming

    def _jump(self, edges: list[Edge], leave: Callable[[list[Edge]], str]) -> None:
        """Write a branch that all lanes take together."""
        writer = self._writer
        if not edges:
            writer.do("unreachable")
            return
        *others, last = edges
        for edge in others:
            label = leave([replace(edge, taken="true")])
            rest = writer.name("else")
            writer.choose(edge.taken, label, rest)
            writer.start(rest)
        writer.go(leave([replace(last, taken="true")]))

    def _divergent_region(
        self,
        part: Subregion,
        node: str,
        mask: Mask,
        edges: list[Edge],
        leave: Callable[[list[Edge]], str],
    ) -> set[str]:
        """Write the region between a node where lanes diverge and its merge; return its nodes."""
        level = part.level
        pending: dict[str, list[Edge]] = {}
        for edge in edges:
            pending.setdefault(edge.target, []).append(self._merges.masked(edge))
        region = set(level.region(node)) & part.nodes
        for entry, nodes in level.subregions(node):
            inside = Subregion(level, entry, nodes & part.nodes)
            if not inside.nodes or entry not in pending:
                continue
            edge = self._merges.blended(pending.pop(entry))
            others = {target: self._merges.blended(before) for target, before in pending.items()}
            accessed = addresses_in(self._blocks, level, node)
            for leaving in self._guarded(inside, edge.mask, edge.incoming, mask, accessed, others):
                both = self._merges.united(self._merges.masked(leaving), others)
                pending[leaving.target] = [both]
        edges = [self._merges.blended(merging) for merging in pending.values()]
        if level.ipdom[node] in part.nodes:  # all lanes reconverge
            edges = [replace(edge, mask=mask) for edge in edges]
            assert len(edges) == 1
        self._writer.go(leave(edges))
        return region

    def _is_written_twice(self, part: Subregion, outer: Mask) -> bool:
        """Return whether a subregion is written for all lanes and for some."""
        return outer is None and self._copies < _MAX_COPIES and self._tests.uses_memory(part)

    # -- loops -----------------------------------------------------------------------------------

    def _loop(self, level: Level, header: str, mask: Mask, initial: dict[str, Value]) -> list[Edge]:
        """Write a loop; return the edges that leave it."""
        if header not in self._bodies:
            blocks = level.loops[header].blocks
            self._bodies[header] = Level(header, blocks, self._thread.successors)
        body = self._bodies[header]
        if header not in self._divergence.divergent_loops:
            has_lanes = self._writer.width > 1
            if has_lanes and len(body.order) == 1 and (strip := self._strip(self._blocks[header])):
                return self._loops.in_strips(body, strip, mask, initial)
            return self._loops.uniform(body, mask, initial)
        targets = list(dict.fromkeys(target for _, target in level.edges(header)))
        twice = mask is None and self._is_written_twice(_whole(body), mask)
        return self._loops.divergent(body, targets, mask, initial, twice=twice)

    def _strip(self, block: BasicBlock) -> Strip | None:
        """Return the strips of a loop of one block, if it has any."""
        return find_strip(block, self._divergence, self._writer.width)

    def write_body(
        self, body: Level, mask: Mask, phis: dict[str, Value], outer: Mask, form: BodyForm
    ) -> list[Edge]:
        """Write the body of a loop for the lanes of a mask; return the edges that leave it.

        `outer` is the mask around the loop.
        """
        if form == "block":
            return self._node(body, body.root, mask, phis)
        part = _whole(body)
        if form == "guarded":
            return self._guarded(part, mask, phis, outer)
        self._copies += form == "copy"
        edges = self._subregion(part, mask, phis)
        self._copies -= form == "copy"
        return edges


def _whole(level: Level) -> Subregion:
    return Subregion(level, level.root, set(level.order))
