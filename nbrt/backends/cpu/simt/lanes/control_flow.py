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

from nbrt.backends.cpu.simt.lanes.merges import Edge, Jumps, Merges
from nbrt.backends.cpu.simt.lanes.regions import with_aliases
from nbrt.backends.cpu.simt.lanes.subregions import Subregion, SubregionTests, addresses_in
from nbrt.backends.cpu.simt.lanes.versions import Versions, versions_of
from nbrt.backends.cpu.simt.lanes.writer import FULL, Mask, Value
from nbrt.backends.cpu.simt.llvm.graph import Level
from nbrt.backends.cpu.simt.llvm.model import CannotLowerError, Operand

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.lanes.instructions import Instructions
    from nbrt.backends.cpu.simt.lanes.regions import BarrierRegion, SplitThread
    from nbrt.backends.cpu.simt.lanes.spill_slots import SpillSlots
    from nbrt.backends.cpu.simt.lanes.versions import VersionPoint
    from nbrt.backends.cpu.simt.llvm.model import BasicBlock, Instruction

__all__ = ["ControlFlow"]

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
        self._bodies: dict[str, Level] = {}
        self._copies = 0
        self._tests = SubregionTests(self._blocks, instructions)
        lanes = self._writer.width
        self._versions: Versions | None = Versions(self._blocks, self._divergence, lanes)

    def write(self, mask: Mask, phis: dict[str, Value]) -> list[Edge]:
        """Write the region for the lanes of a mask; return the edges that leave it."""
        level = self._region.level
        return self._guarded(Subregion(level, level.root, set(level.order)), mask, phis, FULL)

    def _guarded(
        self,
        part: Subregion,
        mask: Mask,
        phis: dict[str, Value],
        outer: Mask,
        accessed: frozenset[str] = frozenset(),
    ) -> list[Edge]:
        """Write a subregion for the lanes of a mask, behind a jump that skips it if there are none.

        `phis` are the values of the phis of the entry, `outer` is the mask around the subregion,
        `accessed` are addresses that some of its lanes have accessed.
        """
        if mask is None or self._tests.is_cheap(part, accessed):
            return self._subregion(part, mask, phis)
        writer = self._writer
        some, after = writer.name("some"), writer.name("join")
        any_lane = writer.any(mask)
        twice = outer is None and self._copies < _MAX_COPIES and self._tests.uses_memory(part)
        all_lanes = writer.all(mask) if twice else ""
        jumps: Jumps = [(writer.label, [])]
        writer.choose(any_lane, some, after)
        writer.start(some)
        if twice:
            full, partial = writer.name("full"), writer.name("part")
            writer.choose(all_lanes, full, partial)
            self._copies += 1
            writer.start(full)
            jumps.append(self._finalized(self._subregion(part, FULL, phis)))
            self._copies -= 1
            writer.go(after)
            writer.start(partial)
        jumps.append(self._finalized(self._subregion(part, mask, phis)))
        writer.go(after)
        writer.start(after)
        edges = self._merges.merged(jumps, mask)
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
            accessed = addresses_in(self._blocks, level, node)
            for leaving in self._guarded(inside, edge.mask, edge.incoming, mask, accessed):
                pending.setdefault(leaving.target, []).append(self._merges.masked(leaving))
        edges = [self._merges.blended(merging) for merging in pending.values()]
        if level.ipdom[node] in part.nodes:  # all lanes reconverge
            edges = [replace(edge, mask=mask) for edge in edges]
            assert len(edges) == 1
        self._writer.go(leave(edges))
        return region

    # -- loops -----------------------------------------------------------------------------------

    def _loop(self, level: Level, header: str, mask: Mask, initial: dict[str, Value]) -> list[Edge]:
        """Write a loop; return the edges that leave it."""
        if header not in self._bodies:
            blocks = level.loops[header].blocks
            self._bodies[header] = Level(header, blocks, self._thread.successors)
        body = self._bodies[header]
        if header not in self._divergence.divergent_loops:
            return self._uniform_loop(body, mask, initial)
        targets = list(dict.fromkeys(target for _, target in level.edges(header)))
        writer = self._writer
        state = len(writer.lines), writer.label, dict(self._values)
        if mask is None or mask.kind == "below":
            # Lanes often leave from the end of a group on, as at the end of an array.
            edges = self._divergent_loop(body, targets, mask, initial, "below")
            if edges is not None:
                return edges
            del writer.lines[state[0] :]
            writer.label = state[1]
            self._values.clear()
            self._values.update(state[2])
        edges = self._divergent_loop(body, targets, mask, initial, "vector")
        assert edges is not None
        return edges

    def _begin_loop(
        self, body: Level, initial: dict[str, Value]
    ) -> tuple[str, str, int, dict[str, Value]]:
        """Begin a loop: return the label before it, its label, the line of its phis, and them."""
        writer = self._writer
        before, head = writer.label, writer.name("loop")
        writer.go(head)
        writer.start(head)
        phis = {
            phi.name: self._merges.as_phi(phi, writer.name("phi"))
            for phi in self._thread.phis(body.root)
        }
        assert phis.keys() == initial.keys(), (phis, initial)
        return before, head, len(writer.lines), phis

    def _phi_lines(
        self,
        body: Level,
        phis: dict[str, Value],
        initial: dict[str, Value],
        following: dict[str, Value],
        labels: tuple[str, str],
    ) -> list[str]:
        lines = []
        for phi in self._thread.phis(body.root):
            own = phis[phi.name]
            kind = self._writer.vector_type(phi.type) if own.kind == "vector" else phi.type
            texts = initial[phi.name].text, following[phi.name].text
            lines.append(_phi_line(own.text, kind, texts, labels))
        return lines

    def _uniform_loop(self, body: Level, mask: Mask, initial: dict[str, Value]) -> list[Edge]:
        """Write a loop that all lanes leave together."""
        writer = self._writer
        before, head, at, phis = self._begin_loop(body, initial)
        edges = self._subregion(Subregion(body, body.root, set(body.order)), mask, phis)
        back = [edge for edge in edges if edge.target == body.root]
        out = [edge for edge in edges if edge.target != body.root]
        if not back:
            return out
        again = back[0].taken
        if back[0].mask is not mask:
            again = writer.any(self._merges.finalized(back[0]).mask)
        after = writer.name("after")
        lines = self._phi_lines(body, phis, initial, back[0].incoming, (before, writer.label))
        writer.choose(again, head, after)
        writer.lines[at:at] = lines
        writer.start(after)
        return [replace(out[0], taken="true", mask=mask)] if len(out) == 1 else out

    def _divergent_loop(
        self,
        body: Level,
        targets: list[str],
        mask: Mask,
        initial: dict[str, Value],
        form: str,
    ) -> list[Edge] | None:
        """Write a loop that runs until the last lane has left it.

        Returns None if the mask of the lanes that stay in the loop does not keep the given form.
        """
        writer = self._writer
        mask_type = "i64" if form == "below" else writer.vector_type("i1")
        if form == "vector":
            start = writer.mask(mask)
        else:
            start = mask.text if mask is not None else str(writer.width)
        before, head, at, phis = self._begin_loop(body, initial)
        inside = Value("i1", form, writer.name("mask"))
        left = [self._left(target) for target in targets]
        edges = {
            edge.target: self._merges.finalized(edge)
            for edge in self._loop_body(body, inside, phis, mask)
        }
        back = edges.get(body.root)
        if back is None:
            raise CannotLowerError("a loop that does not loop")
        if form == "below" and (back.mask is None or back.mask.kind != "below"):
            return None
        out = [self._with_leaving(edge, edges.get(edge.target)) for edge in left]
        following = back.mask.text if form == "below" and back.mask else writer.mask(back.mask)
        again, after = writer.any(back.mask), writer.name("after")
        labels = before, writer.label
        lines = self._phi_lines(body, phis, initial, back.incoming, labels)
        lines.append(_phi_line(inside.text, mask_type, (start, following), labels))
        for old, new in zip(left, out, strict=True):
            lines += self._left_lines(old, new, labels)
        writer.choose(again, head, after)
        writer.lines[at:at] = lines
        writer.start(after)
        return [replace(out[0], mask=mask)] if len(out) == 1 else out

    def _loop_body(
        self, body: Level, inside: Value, phis: dict[str, Value], outer: Mask
    ) -> list[Edge]:
        part = Subregion(body, body.root, set(body.order))
        if outer is None:
            return self._guarded(part, inside, phis, outer)
        return self._subregion(part, inside, phis)

    def _left(self, target: str) -> Edge:
        """Return the edge of the lanes that have left for a target in earlier iterations."""
        writer = self._writer
        kept = {
            phi.name: Value(phi.type, "vector", writer.name("kept"))
            for phi in self._thread.phis(target)
        }
        return Edge(target, "true", Value("i1", "vector", writer.name("gone")), kept)

    def _with_leaving(self, left: Edge, leaving: Edge | None) -> Edge:
        """Add the lanes that leave in this iteration to those that have left before."""
        if leaving is None:
            return left
        writer = self._writer
        incoming = {
            name: Value(
                kept.type,
                "vector",
                writer.blend(kept.type, leaving.mask, leaving.incoming[name].text, kept.text),
            )
            for name, kept in left.incoming.items()
        }
        masks = f"{writer.mask(left.mask)}, {writer.mask(leaving.mask)}"
        mask = Value("i1", "vector", writer.op(f"or {writer.vector_type('i1')} {masks}"))
        return replace(left, mask=mask, incoming=incoming)

    def _left_lines(self, old: Edge, new: Edge, labels: tuple[str, str]) -> list[str]:
        """Return the phis of an edge of lanes that have left a loop."""
        writer = self._writer
        texts = "zeroinitializer", writer.mask(new.mask)
        lines = [_phi_line(writer.mask(old.mask), writer.vector_type("i1"), texts, labels)]
        for name, kept in old.incoming.items():
            texts = "poison", new.incoming[name].text
            lines.append(_phi_line(kept.text, writer.vector_type(kept.type), texts, labels))
        return lines


def _phi_line(name: str, kind: str, texts: tuple[str, str], labels: tuple[str, str]) -> str:
    pairs = ", ".join(f"[ {text}, {label} ]" for text, label in zip(texts, labels, strict=True))
    return f"  {name} = phi {kind} {pairs}"
