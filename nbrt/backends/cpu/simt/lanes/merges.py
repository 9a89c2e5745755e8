"""Lanes that come to the end of a piece of code, and what becomes of them where they meet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.values import FULL, Lanes, Mask, Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.lanes.divergence import Shapes
    from nbrt.backends.cpu.simt.lanes.writer import Writer
    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["Arrival", "Arrivals", "Ends"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """Lanes that have come to the end of a piece of code, on their way to one place."""

    target: str
    taken: str
    """Whether any lane came this way, as an ``i1``, where all lanes choose alike."""
    mask: Mask
    values: dict[str, Value]
    """What they bring for the phis there."""


Ends = list[tuple[str, list[Arrival]]]
"""Jumps to one place: the block that each is in, and what arrives over it."""


class Arrivals:
    """Brings lanes together that come to one place on different ways.

    Parameters
    ----------
    writer, lanes, shapes : Writer, Lanes, Shapes
        Where the code goes, operations on values, what is known of them.
    phis : callable
        Gives the phis of a place, also of one that is not a block.
    """

    def __init__(
        self,
        writer: Writer,
        lanes: Lanes,
        shapes: Shapes,
        phis: Callable[[str], list[Instruction]],
    ) -> None:
        self._writer = writer
        self._lanes = lanes
        self._shapes = shapes
        self._phis = phis

    def whole(self, arrival: Arrival, mask: Mask, ends: Ends) -> Arrival:
        """Where all lanes that entered a guarded piece left it alike, its mask is theirs."""
        masks = [a.mask for _, found in ends for a in found if a.target == arrival.target]
        if len(masks) == len(ends) - 1 and masks[-1] is mask and masks[0] in (mask, FULL):
            return replace(arrival, taken="true", mask=mask)
        return arrival

    def ended(self, arrivals: list[Arrival]) -> tuple[str, list[Arrival]]:
        """Put arrivals into a form that can meet others: masks that say all there is to say."""
        plain = [self.settled(arrival) for arrival in arrivals]
        return self._writer.label, plain

    def settled(self, arrival: Arrival) -> Arrival:
        """Fold the flag of an arrival into its mask, in a form that can be a phi's operand."""
        writer, lanes = self._writer, self._lanes
        mask = arrival.mask
        if arrival.taken != "true":
            vector = writer.vector("i1")
            text = lanes.mask(mask)
            chosen = writer.op(
                f"select i1 {arrival.taken}, {vector} {text}, {vector} zeroinitializer"
            )
            mask = Value("i1", "vector", chosen)
        elif mask is not None and mask.kind not in ("below", "vector"):
            mask = Value("i1", "vector", lanes.vector(mask))
        return replace(arrival, taken="true", mask=mask)

    def merged(self, ends: Ends, whole: Mask) -> list[Arrival]:
        """Merge what arrives over several jumps into the block that is being written.

        `whole` is the mask of the piece that all of this belongs to.
        """
        targets = dict.fromkeys(a.target for _, arrivals in ends for a in arrivals)
        return [self._merged_at(target, ends, whole) for target in targets]

    def _merged_at(self, target: str, ends: Ends, whole: Mask) -> Arrival:
        found = [
            (label, next((a for a in arrivals if a.target == target), None))
            for label, arrivals in ends
        ]
        taken, mask = self._merged_mask(found, whole)
        values = {
            phi.name: self.merged_value(
                phi, [(label, a.values[phi.name] if a else None) for label, a in found]
            )
            for phi in self._phis(target)
        }
        return Arrival(target, taken, mask, values)

    def _merged_mask(
        self, found: list[tuple[str, Arrival | None]], whole: Mask
    ) -> tuple[str, Mask]:
        writer = self._writer
        masks = [a.mask for _, a in found if a is not None]
        if all(mask is masks[0] for mask in masks) and masks[0] in (FULL, whole):
            # The same lanes, if any: which jump it was says whether.
            flags = [(a.taken if a else "false", label) for label, a in found]
            return writer.phi("i1", flags), masks[0]
        if all(mask is None or mask.kind == "below" for mask in masks):
            numbers = [
                ("0" if a is None else str(writer.width) if a.mask is None else a.mask.text, label)
                for label, a in found
            ]
            return "true", Value("i1", "below", writer.phi("i64", numbers))
        return "true", self._mixed_mask(found)

    def _mixed_mask(self, found: list[tuple[str, Arrival | None]]) -> Value:
        """Merge masks of which some are vectors and others are numbers of lanes."""
        writer, everyone = self._writer, "splat (i1 true)"
        vectors, numbers = [], []
        for label, arrival in found:
            mask = arrival.mask if arrival else None
            is_number = mask is not None and mask.kind == "below"
            vector = "zeroinitializer" if arrival is None or is_number else everyone
            vectors.append((mask.text if mask is not None and not is_number else vector, label))
            numbers.append((mask.text if mask is not None and is_number else "0", label))
        merged = Value("i1", "vector", writer.phi(writer.vector("i1"), vectors))
        below = Value("i1", "below", writer.phi("i64", numbers))
        if below.text == "0":
            return merged
        either = self._lanes.either(merged, below)
        assert either is not None
        return either

    def merged_value(self, phi: Instruction, found: list[tuple[str, Value | None]]) -> Value:
        """Write a phi for a phi's values of several jumps."""
        shape = self._shapes.of.get(phi.name)
        kind = self._writer.vector(phi.type) if shape is None else phi.type
        ways = [(value.text if value else "poison", label) for label, value in found]
        text = self._writer.phi(kind, ways)
        return self.as_shaped(phi, text)

    def as_shaped(self, phi: Instruction, text: str) -> Value:
        """Give a phi's value, by its shape."""
        shape = self._shapes.of.get(phi.name)
        if shape is None:
            return Value(phi.type, "vector", text)
        return Value(phi.type, "step" if shape else "scalar", text, shape)

    def masked(self, arrival: Arrival) -> Arrival:
        """Fold the flag of an arrival, if it has one, into its mask."""
        return self.settled(arrival) if arrival.taken != "true" else arrival

    def blended(self, arrivals: list[Arrival]) -> Arrival:
        """Merge lanes that came to one place on different ways, one after the other."""
        first, *others = arrivals
        for other in others:
            values = {}
            for phi in self._phis(first.target):
                ours, theirs = first.values[phi.name], other.values[phi.name]
                if self._shapes.of.get(phi.name) is not None:
                    values[phi.name] = ours
                    continue
                text = self._lanes.blend(phi.type, other.mask, theirs.text, ours.text)
                values[phi.name] = Value(phi.type, "vector", text)
            mask = self._lanes.either(first.mask, other.mask)
            first = Arrival(first.target, "true", mask, values)
        return first
