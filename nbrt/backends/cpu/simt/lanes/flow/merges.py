"""Edges along which lanes leave a piece of code, and their merges."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.vectors.writer import FULL, LaneWriter, Mask, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.backends.cpu.simt.lanes.analysis.divergence import Divergence
    from nbrt.backends.cpu.simt.lanes.analysis.regions import SplitThread
    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["Edge", "Jumps", "Merges"]


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge along which lanes leave a piece of code."""

    target: str
    taken: str
    """Whether the lanes take it, as an ``i1``, if all lanes branch together; else ``true``."""
    mask: Mask
    """The lanes that take it."""
    incoming: dict[str, Value]
    """Values for the phis of the target."""


Jumps = list[tuple[str, list[Edge]]]
"""Jumps to one block: the label of the source, and the edges that the lanes take then."""

_NO_EDGES: Mapping[str, Edge] = {}


class Merges:
    """Writes merges of edges: phis where control flow meets, blends where lanes meet."""

    def __init__(self, writer: LaneWriter, divergence: Divergence, thread: SplitThread) -> None:
        self._writer = writer
        self._divergence = divergence
        self._thread = thread

    def restored(self, edge: Edge, mask: Mask, jumps: Jumps) -> Edge:
        """Return an edge with the mask of a guarded subregion if all its lanes took the edge."""
        masks = [e.mask for _, edges in jumps for e in edges if e.target == edge.target]
        if len(masks) == len(jumps) - 1 and masks[-1] is mask and masks[0] in (mask, FULL):
            return replace(edge, taken="true", mask=mask)
        return edge

    def finalized(self, edge: Edge) -> Edge:
        """Fold the condition of an edge into its mask, in a form that a phi can merge."""
        writer, mask = self._writer, edge.mask
        if edge.taken != "true":
            vector = writer.vector_type("i1")
            text = writer.mask(mask)
            chosen = writer.op(f"select i1 {edge.taken}, {vector} {text}, {vector} zeroinitializer")
            mask = Value("i1", "vector", chosen)
        elif mask is not None and mask.kind not in ("below", "vector"):
            mask = Value("i1", "vector", writer.vector(mask))
        return replace(edge, taken="true", mask=mask)

    def masked(self, edge: Edge) -> Edge:
        """Fold the condition of an edge, if it has one, into its mask."""
        return self.finalized(edge) if edge.taken != "true" else edge

    def with_others(self, edges: list[Edge], others: Mapping[str, Edge]) -> list[Edge]:
        """Return edges with the values of the lanes that have taken other edges to their targets.

        Their masks remain without these lanes.
        """
        found = []
        for edge in edges:
            other = others.get(edge.target)
            if other is None or not edge.incoming:
                found.append(edge)
                continue
            edge = self.masked(edge)
            found.append(replace(edge, incoming=self._blended_values(other, edge)))
        return found

    def united(self, edge: Edge, others: Mapping[str, Edge]) -> Edge:
        """Return an edge that has the values of other lanes, with these lanes in its mask."""
        other = others.get(edge.target)
        if other is None:
            return edge
        return replace(edge, mask=self._writer.either(other.mask, edge.mask))

    def merged(
        self, jumps: Jumps, whole: Mask, others: Mapping[str, Edge] = _NO_EDGES
    ) -> list[Edge]:
        """Merge the edges of jumps to the current block; `whole` is the mask around all of them.

        A jump without an edge to the target of one of `others` brings the values of that edge.
        """
        targets = dict.fromkeys(edge.target for _, edges in jumps for edge in edges)
        return [self._merged_at(target, jumps, whole, others.get(target)) for target in targets]

    def _merged_at(self, target: str, jumps: Jumps, whole: Mask, other: Edge | None) -> Edge:
        edges = [
            (label, next((edge for edge in edges if edge.target == target), None))
            for label, edges in jumps
        ]
        taken, mask = self._merged_mask(edges, whole)
        sources = [(label, edge or other) for label, edge in edges]
        incoming = {
            phi.name: self.merged_value(
                phi, [(label, e.incoming[phi.name] if e else None) for label, e in sources]
            )
            for phi in self._thread.phis(target)
        }
        return Edge(target, taken, mask, incoming)

    def _merged_mask(self, edges: list[tuple[str, Edge | None]], whole: Mask) -> tuple[str, Mask]:
        writer = self._writer
        masks = [edge.mask for _, edge in edges if edge is not None]
        if all(mask is masks[0] for mask in masks) and masks[0] in (FULL, whole):
            flags = [(edge.taken if edge else "false", label) for label, edge in edges]
            return writer.phi("i1", flags), masks[0]
        if all(mask is None or mask.kind == "below" for mask in masks):
            full = str(writer.width)
            numbers = [
                ("0" if edge is None else full if edge.mask is None else edge.mask.text, label)
                for label, edge in edges
            ]
            return "true", Value("i1", "below", writer.phi("i64", numbers))
        return "true", self._mixed_mask(edges, whole)

    def _mixed_mask(self, edges: list[tuple[str, Edge | None]], whole: Mask) -> Value:
        """Merge masks in several forms: vectors, numbers of lanes, and the mask around them."""
        writer = self._writer
        vectors, numbers, wholes = [], [], []
        for label, edge in edges:
            mask = edge.mask if edge else None
            vector, number = "zeroinitializer" if edge is None else "splat (i1 true)", "0"
            is_whole = mask is not None and mask.kind not in ("below", "vector")
            assert not is_whole or mask is whole, mask
            if mask is not None:
                vector = mask.text if mask.kind == "vector" else "zeroinitializer"
                number = mask.text if mask.kind == "below" else "0"
            vectors.append((vector, label))
            numbers.append((number, label))
            wholes.append((str(is_whole).lower(), label))
        merged: Mask = Value("i1", "vector", writer.phi(writer.vector_type("i1"), vectors))
        below = Value("i1", "below", writer.phi("i64", numbers))
        takes_whole = Value("i1", "scalar", writer.phi("i1", wholes))
        if below.text != "0":
            merged = writer.either(merged, below)
        if takes_whole.text != "false":
            merged = writer.either(merged, writer.both(takes_whole, whole))
        assert merged is not None
        return merged

    def merged_value(self, phi: Instruction, values: list[tuple[str, Value | None]]) -> Value:
        """Write a phi in the current block for values by the labels of their sources."""
        varying = self._divergence.strides.get(phi.name) is None
        kind = self._writer.vector_type(phi.type) if varying else phi.type
        incoming = [(value.text if value else "poison", label) for label, value in values]
        return self.as_phi(phi, self._writer.phi(kind, incoming))

    def as_phi(self, phi: Instruction, text: str) -> Value:
        """Return the value of a phi, in the form that its stride requires."""
        stride = self._divergence.strides.get(phi.name)
        if stride is None:
            return Value(phi.type, "vector", text)
        return Value(phi.type, "step" if stride else "scalar", text, stride)

    def blended(self, edges: list[Edge]) -> Edge:
        """Merge the lanes of edges to one target that were written one after the other."""
        first, *others = edges
        for other in others:
            mask = self._writer.either(first.mask, other.mask)
            first = Edge(first.target, "true", mask, self._blended_values(first, other))
        return first

    def _blended_values(self, first: Edge, other: Edge) -> dict[str, Value]:
        """Blend the values of two edges: those of the lanes of `other`, and of the rest."""
        incoming = {}
        for phi in self._thread.phis(first.target):
            ours, theirs = first.incoming[phi.name], other.incoming[phi.name]
            if self._divergence.strides.get(phi.name) is not None:
                incoming[phi.name] = ours
                continue
            text = self._writer.blend(phi.type, other.mask, theirs.text, ours.text)
            incoming[phi.name] = Value(phi.type, "vector", text)
        return incoming
