"""Loops of a thread, written for groups of lanes that may leave them at different times."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from nbrt.backends.cpu.simt.lanes.merges import Arrival, Arrivals
from nbrt.backends.cpu.simt.lanes.values import Lanes, Mask, Value
from nbrt.backends.cpu.simt.llvm.errors import CannotLowerError
from nbrt.backends.cpu.simt.llvm.graph import Level

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.lanes.divergence import Shapes
    from nbrt.backends.cpu.simt.lanes.writer import Writer
    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["Loops", "Pieces"]


class Pieces(Protocol):
    """Writes pieces of code, such as the body of a loop."""

    def piece(
        self, level: Level, root: str, nodes: set[str], mask: Mask, phis: dict[str, Value]
    ) -> list[Arrival]:
        """Write nodes with one way in."""

    def guarded(
        self,
        level: Level,
        root: str,
        nodes: set[str],
        mask: Mask,
        phis: dict[str, Value],
        outer: Mask,
    ) -> list[Arrival]:
        """Write a piece for the lanes of a mask, to be jumped over if there are none."""


class Loops:
    """Writes loops.

    Parameters
    ----------
    writer, lanes, shapes : Writer, Lanes, Shapes
        Where the code goes, operations on values, what is known of them.
    values : dict
        Values that are known where the code is being written.
    arrivals : Arrivals
        Brings lanes together.
    phis : callable
        Gives the phis of a place, also of one that is not a block.
    successors : callable
        Gives the successors of a block.
    pieces : Pieces
        Writes the bodies.
    """

    def __init__(
        self,
        writer: Writer,
        lanes: Lanes,
        shapes: Shapes,
        values: dict[str, Value],
        arrivals: Arrivals,
        phis: Callable[[str], list[Instruction]],
        successors: Callable[[str], list[str]],
        pieces: Pieces,
    ) -> None:
        self._writer = writer
        self._lanes = lanes
        self._shapes = shapes
        self._values = values
        self._arrivals = arrivals
        self._phis = phis
        self._successors = successors
        self._pieces = pieces
        self._bodies: dict[str, Level] = {}

    def write(
        self, level: Level, header: str, mask: Mask, initial: dict[str, Value]
    ) -> list[Arrival]:
        """Write a loop; gives where lanes go from it."""
        if header not in self._bodies:
            self._bodies[header] = Level(header, level.loops[header].blocks, self._successors)
        body = self._bodies[header]
        targets = list(dict.fromkeys(target for _, target in level.ways(header)))
        if header not in self._shapes.parting:
            return self._common_loop(body, mask, initial)
        state = len(self._writer.lines), self._writer.label, dict(self._values)
        if mask is None or mask.kind == "below":
            # Lanes often leave from the end of a group on, as at the end of an array.
            found = self._parting_loop(body, targets, mask, initial, "below")
            if found is not None:
                return found
            del self._writer.lines[state[0] :]
            self._writer.label = state[1]
            self._values.clear()
            self._values.update(state[2])
        found = self._parting_loop(body, targets, mask, initial, "vector")
        assert found is not None
        return found

    def _begin(
        self, body: Level, initial: dict[str, Value]
    ) -> tuple[str, str, int, dict[str, Value]]:
        """Begin a loop: gives the label before it, its own, the place for phis, and the phis."""
        writer = self._writer
        before, head = writer.label, writer.name("loop")
        writer.go(head)
        writer.start(head)
        phis = {
            phi.name: self._arrivals.as_shaped(phi, writer.name("phi"))
            for phi in self._phis(body.root)
        }
        assert phis.keys() == initial.keys(), (phis, initial)
        return before, head, len(writer.lines), phis

    def _phi_line(self, name: str, kind: str, ways: list[tuple[str, str]]) -> str:
        pairs = ", ".join(f"[ {value}, {label} ]" for value, label in ways)
        return f"  {name} = phi {kind} {pairs}"

    def _carried(
        self,
        body: Level,
        initial: dict[str, Value],
        phis: dict[str, Value],
        following: dict[str, Value],
        labels: tuple[str, str],
    ) -> list[str]:
        lines = []
        for phi in self._phis(body.root):
            own = phis[phi.name]
            kind = self._writer.vector(phi.type) if own.kind == "vector" else phi.type
            ways = [(initial[phi.name].text, labels[0]), (following[phi.name].text, labels[1])]
            lines.append(self._phi_line(own.text, kind, ways))
        return lines

    def _common_loop(self, body: Level, mask: Mask, initial: dict[str, Value]) -> list[Arrival]:
        """Write a loop that all lanes leave together."""
        writer = self._writer
        before, head, at, phis = self._begin(body, initial)
        arrivals = self._pieces.piece(body, body.root, set(body.order), mask, phis)
        back = [a for a in arrivals if a.target == body.root]
        out = [a for a in arrivals if a.target != body.root]
        if not back:
            return out
        again = back[0].taken
        if back[0].mask is not mask:
            again = self._lanes.any(self._arrivals.settled(back[0]).mask)
        after = writer.name("after")
        carried = self._carried(body, initial, phis, back[0].values, (before, writer.label))
        writer.choose(again, head, after)
        writer.lines[at:at] = carried
        writer.start(after)
        if len(out) == 1:
            return [replace(out[0], taken="true", mask=mask)]
        return out

    def _parting_loop(
        self,
        body: Level,
        targets: list[str],
        mask: Mask,
        initial: dict[str, Value],
        form: str,
    ) -> list[Arrival] | None:
        """Write a loop that goes on until the last lane has left it.

        Gives None if the mask of those that go on does not stay in the given form.
        """
        writer, lanes = self._writer, self._lanes
        mask_type = "i64" if form == "below" else writer.vector("i1")
        if form == "vector":
            start = lanes.mask(mask)
        else:
            start = mask.text if mask is not None else str(writer.width)
        before, head, at, phis = self._begin(body, initial)
        inside = Value("i1", form, writer.name("mask"))
        gone = [self._gone(target) for target in targets]
        arrivals = {
            arrival.target: self._arrivals.settled(arrival)
            for arrival in self._loop_body(body, inside, phis, mask)
        }
        back = arrivals.get(body.root)
        if back is None:
            raise CannotLowerError("a loop that does not loop")
        going = back.mask
        if form == "below" and (going is None or going.kind != "below"):
            return None
        out = [self._with_leavers(left, arrivals.get(left.target)) for left in gone]
        following = going.text if form == "below" and going else lanes.mask(going)
        again, after = lanes.any(going), writer.name("after")
        ways = (before, writer.label)
        lines = self._carried(body, initial, phis, back.values, ways)
        lines.append(
            self._phi_line(inside.text, mask_type, [(start, before), (following, ways[1])])
        )
        for left, grown in zip(gone, out, strict=True):
            lines += self._gone_lines(left, grown, ways)
        writer.choose(again, head, after)
        writer.lines[at:at] = lines
        writer.start(after)
        if len(out) == 1:
            return [replace(out[0], mask=mask)]
        return out

    def _gone(self, target: str) -> Arrival:
        """Name what is known of the lanes that have left for a place when a turn begins."""
        writer = self._writer
        kept = {
            phi.name: Value(phi.type, "vector", writer.name("kept")) for phi in self._phis(target)
        }
        return Arrival(target, "true", Value("i1", "vector", writer.name("gone")), kept)

    def _with_leavers(self, left: Arrival, leaving: Arrival | None) -> Arrival:
        """Add the lanes that leave for a place in this turn to those that have left before."""
        if leaving is None:
            return left
        writer, lanes = self._writer, self._lanes
        values = {
            name: Value(
                kept.type,
                "vector",
                lanes.blend(kept.type, leaving.mask, leaving.values[name].text, kept.text),
            )
            for name, kept in left.values.items()
        }
        everyone = f"{lanes.mask(left.mask)}, {lanes.mask(leaving.mask)}"
        mask = Value("i1", "vector", writer.op(f"or {writer.vector('i1')} {everyone}"))
        return replace(left, mask=mask, values=values)

    def _gone_lines(self, left: Arrival, grown: Arrival, labels: tuple[str, str]) -> list[str]:
        """Write the phis of what is known of the lanes that have left for a place."""
        lanes, vector = self._lanes, self._writer.vector
        pair = [("zeroinitializer", labels[0]), (lanes.mask(grown.mask), labels[1])]
        lines = [self._phi_line(lanes.mask(left.mask), vector("i1"), pair)]
        for name, kept in left.values.items():
            pair = [("poison", labels[0]), (grown.values[name].text, labels[1])]
            lines.append(self._phi_line(kept.text, vector(kept.type), pair))
        return lines

    def _loop_body(
        self, body: Level, inside: Value, phis: dict[str, Value], outer: Mask
    ) -> list[Arrival]:
        nodes = set(body.order)
        if outer is None:
            return self._pieces.guarded(body, body.root, nodes, inside, phis, outer)
        return self._pieces.piece(body, body.root, nodes, inside, phis)
