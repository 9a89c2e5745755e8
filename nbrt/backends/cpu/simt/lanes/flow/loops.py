"""Loops of a region: those that all lanes leave together, and those that lanes leave one by one.

A loop that lanes leave at different times runs until the last lane has left it, and keeps the
values of the others. If all lanes enter it, a first loop without masks runs until the first lane
leaves: loops over an array often end for all lanes together, or have one last iteration for some.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol

from nbrt.backends.cpu.simt.lanes.analysis.whole_iterations import COUNTER
from nbrt.backends.cpu.simt.lanes.flow.merges import Edge, Jumps, Merges
from nbrt.backends.cpu.simt.lanes.vectors.writer import FULL, Mask, Value
from nbrt.backends.cpu.simt.llvm.model import CannotLowerError

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.analysis.regions import SplitThread
    from nbrt.backends.cpu.simt.lanes.flow.strips import Strip
    from nbrt.backends.cpu.simt.lanes.instructions import Instructions
    from nbrt.backends.cpu.simt.llvm.graph import Level

__all__ = ["BodyForm", "Loops", "WriteBody"]

BodyForm = Literal["plain", "guarded", "copy", "block"]
"""The form of a body.

``guarded``: behind a jump that skips it if no lane enters; ``copy``: one of two; ``block``: a body
of one block, without jumps.
"""


class WriteBody(Protocol):
    """Writes the body of a loop for the lanes of a mask; see `ControlFlow.write_body`."""

    def __call__(
        self, body: Level, mask: Mask, phis: dict[str, Value], outer: Mask, form: BodyForm
    ) -> list[Edge]:
        """Return the edges that leave the body."""
        ...


class Loops:
    """Writes the loops of a region."""

    def __init__(
        self,
        instructions: Instructions,
        merges: Merges,
        thread: SplitThread,
        write_body: WriteBody,
    ) -> None:
        self._instructions = instructions
        self._writer = instructions.writer
        self._values = instructions.values
        self._merges = merges
        self._thread = thread
        self._write_body = write_body

    def divergent(
        self,
        body: Level,
        targets: list[str],
        mask: Mask,
        initial: dict[str, Value],
        *,
        twice: bool,
    ) -> list[Edge]:
        """Write a loop that lanes may leave at different times; return the edges that leave it.

        `initial` are the values of its phis. With `twice`, all lanes enter it, and the iterations
        before the first lane leaves have no masks.
        """
        if twice:
            return self._full_iterations(body, targets, initial)
        return self._masked_loop(body, targets, mask, initial, {})

    def _full_iterations(
        self, body: Level, targets: list[str], initial: dict[str, Value]
    ) -> list[Edge]:
        """Write a loop that all lanes enter: without masks until the first lane leaves it.

        All lanes run the same iterations in either form, so only the masks of the iterations
        differ. The second loop begins with the state in which the first one ends.
        """
        writer = self._writer
        writer.notes["a loop has no masks until the first thread leaves it"] = None
        before, head, at, phis = self._begin_loop(body, initial)
        edges = self._write_body(body, FULL, phis, FULL, "copy")
        left = {edge.target: self._merges.finalized(edge) for edge in edges}
        back = left.pop(body.root, None)
        if back is None:
            raise CannotLowerError("a loop that does not loop")
        again, left_all = writer.all(back.mask), writer.name("left")
        lines = self._phi_lines(body, phis, initial, back.incoming, (before, writer.label))
        writer.choose(again, head, left_all)
        writer.lines[at:at] = lines
        writer.start(left_all)
        some, after = writer.name("some"), writer.name("join")
        jumps: Jumps = [(writer.label, list(left.values()))]
        writer.choose(writer.any(back.mask), some, after)
        writer.start(some)
        for target, edge in left.items():
            left[target] = replace(edge, mask=Value("i1", "vector", writer.mask(edge.mask)))
        rest = self._masked_loop(body, targets, back.mask, back.incoming, left)
        rest = [self._merges.finalized(edge) for edge in rest]
        jumps.append((writer.label, rest))
        writer.go(after)
        writer.start(after)
        if len(targets) == 1:
            jumps = [(label, [replace(e, mask=FULL) for e in edges]) for label, edges in jumps]
        return self._merges.merged(jumps, FULL)

    def _masked_loop(
        self,
        body: Level,
        targets: list[str],
        mask: Mask,
        initial: dict[str, Value],
        left: dict[str, Edge],
    ) -> list[Edge]:
        """Write a loop for the lanes of a mask; `left` are the edges of lanes that left before."""
        writer = self._writer
        state = len(writer.lines), writer.label, dict(self._values)
        if mask is None or mask.kind == "below":
            # Lanes often leave from the end of a group on, as at the end of an array.
            edges = self._divergent_loop(body, targets, mask, initial, left, "below")
            if edges is not None:
                return edges
            del writer.lines[state[0] :]
            writer.label = state[1]
            self._values.clear()
            self._values.update(state[2])
        edges = self._divergent_loop(body, targets, mask, initial, left, "vector")
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

    def in_strips(
        self, body: Level, strip: Strip, mask: Mask, initial: dict[str, Value]
    ) -> list[Edge]:
        """Write a loop in strips of iterations, as long as there are enough, and the rest of it."""
        writer, thread = self._writer, self._thread
        note = f"rows are loaded as vectors and transposed: {strip.length} iterations of a loop"
        writer.notes[note] = None
        again, rest, after = writer.name("strip"), writer.name("rest"), writer.name("after")
        enough = strip.remains(self._instructions, initial[strip.counter])
        before = writer.label
        writer.choose(enough, again, rest)
        writer.start(again)
        phis = {
            phi.name: self._merges.as_phi(phi, writer.name("phi")) for phi in thread.phis(body.root)
        }
        at, current, taken = len(writer.lines), phis, ""
        loaded = strip.load(self._instructions, phis[strip.counter], mask)
        for turn in range(strip.length):
            for name, values in loaded.items():
                self._instructions.loaded[name] = values[turn]
            edges = self._write_body(body, mask, current, mask, "block")
            back, out = sorted(edges, key=lambda edge: edge.target != body.root)
            current, taken = back.incoming, back.taken
        for name in loaded:
            del self._instructions.loaded[name]
        more, left = writer.name("more"), writer.name("left")
        writer.choose(taken, more, left)
        writer.start(more)
        enough = strip.remains(self._instructions, current[strip.counter])
        lines = self._phi_lines(body, phis, initial, current, (before, more))
        writer.choose(enough, again, rest)
        writer.lines[at:at] = lines
        writer.start(left)
        jumps: Jumps = [(left, [replace(out, taken="true", mask=mask)])]
        writer.go(after)
        writer.start(rest)
        remaining = {
            phi.name: self._merges.merged_value(
                phi, [(before, initial[phi.name]), (more, current[phi.name])]
            )
            for phi in thread.phis(body.root)
        }
        edges = self.uniform(body, mask, remaining)
        jumps.append((writer.label, [replace(edge, taken="true", mask=mask) for edge in edges]))
        writer.go(after)
        writer.start(after)
        return self._merges.merged(jumps, mask)

    def uniform(self, body: Level, mask: Mask, initial: dict[str, Value]) -> list[Edge]:
        """Write a loop that all lanes leave together."""
        writer = self._writer
        before, head, at, phis = self._begin_loop(body, initial)
        edges = self._write_body(body, mask, phis, mask, "plain")
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
        if self._fills_registers(body):
            writer.keep_rolled()
        writer.lines[at:at] = lines
        writer.start(after)
        return [replace(out[0], taken="true", mask=mask)] if len(out) == 1 else out

    def _fills_registers(self, body: Level) -> bool:
        """Return whether the vectors that a loop carries leave no registers for a second copy."""
        phis = self._thread.phis(body.root)
        if self._writer.width == 1:
            return any(phi.type.startswith("<") for phi in phis)
        return any(phi.name.startswith(COUNTER) for phi in phis)

    def _divergent_loop(
        self,
        body: Level,
        targets: list[str],
        mask: Mask,
        initial: dict[str, Value],
        before_loop: dict[str, Edge],
        form: str,
    ) -> list[Edge] | None:
        """Write a loop that runs until the last lane has left it.

        `before_loop` are the edges of lanes that left in iterations before it. Returns None if the
        mask of the lanes that stay in the loop does not keep the given form.
        """
        writer = self._writer
        mask_type = "i64" if form == "below" else writer.vector_type("i1")
        if form == "vector":
            start = writer.mask(mask)
        else:
            start = mask.text if mask is not None else str(writer.width)
        before, head, at, phis = self._begin_loop(body, initial)
        inside = Value("i1", form, writer.name("mask"))
        body_form: BodyForm = "guarded" if mask is None else "plain"
        left = [self._left(target) for target in targets]
        edges = {
            edge.target: self._merges.finalized(edge)
            for edge in self._write_body(body, inside, phis, mask, body_form)
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
            lines += self._left_lines(before_loop.get(old.target), old, new, labels)
        writer.choose(again, head, after)
        writer.lines[at:at] = lines
        writer.start(after)
        return [replace(out[0], mask=mask)] if len(out) == 1 else out

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

    def _left_lines(
        self, first: Edge | None, old: Edge, new: Edge, labels: tuple[str, str]
    ) -> list[str]:
        """Return the phis of an edge of lanes that have left a loop, `first` before it."""
        writer = self._writer
        gone = writer.mask(first.mask) if first else "zeroinitializer"
        texts = gone, writer.mask(new.mask)
        lines = [_phi_line(writer.mask(old.mask), writer.vector_type("i1"), texts, labels)]
        for name, kept in old.incoming.items():
            texts = first.incoming[name].text if first else "poison", new.incoming[name].text
            lines.append(_phi_line(kept.text, writer.vector_type(kept.type), texts, labels))
        return lines


def _phi_line(name: str, kind: str, texts: tuple[str, str], labels: tuple[str, str]) -> str:
    pairs = ", ".join(f"[ {text}, {label} ]" for text, label in zip(texts, labels, strict=True))
    return f"  {name} = phi {kind} {pairs}"
