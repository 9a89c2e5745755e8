"""Values across lanes: how each is kept, and the masks that say which lanes take part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.llvm.types import width_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.lanes.writer import Writer

__all__ = ["FULL", "Lanes", "Mask", "Value"]


@dataclass(frozen=True, slots=True)
class Value:
    """A value in all lanes of a group.

    ``kind`` says what ``text`` is: ``scalar``, the value in every lane; ``step``, that of lane 0,
    where lanes are `step` apart; ``vector``, a vector. Conditions have three forms more, which cost
    no vector: ``below`` and ``from``, true in the lanes below or from an ``i64`` in [0, width] on;
    ``one``, true in the lane whose number is an ``i64``, if that is a lane at all; and ``bits``, an
    integer of as many bits as there are lanes.
    """

    type: str
    kind: str
    text: str
    step: int = 0
    one: Callable[[int], str] | None = field(default=None, compare=False)
    """Writes the value of one lane of a vector, where that costs less than taking it out."""


Mask = Value | None
"""Which lanes take part; None means all of them."""

FULL: Mask = None


class Lanes:
    """Operations on values and masks.

    Parameters
    ----------
    writer : Writer
        Where the code goes.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.width = writer.width
        self._bits = f"i{self.width}"
        self._mask_type = writer.vector("i1")

    # -- values ------------------------------------------------------------------------------

    def vector(self, value: Value) -> str:
        """Write a value as a vector."""
        writer = self._writer
        if value.kind == "vector":
            return value.text
        if value.kind == "scalar":
            return writer.splat(value.type, value.text)
        if value.kind == "step":
            return self._counted(value)
        if value.kind == "bits":
            return writer.op(f"bitcast {self._bits} {value.text} to {self._mask_type}")
        numbers = writer.vector("i8")
        lanes = writer.counting("i8", 1)
        if value.kind == "one":
            inside = writer.op(f"icmp ult i64 {value.text}, {self.width}")
            chosen = writer.op(f"select i1 {inside}, i64 {value.text}, i64 127")
            limit, predicate = writer.op(f"trunc i64 {chosen} to i8"), "eq"
        else:
            limit = writer.op(f"trunc i64 {value.text} to i8")
            predicate = "ult" if value.kind == "below" else "uge"
        return writer.op(f"icmp {predicate} {numbers} {lanes}, {writer.splat('i8', limit)}")

    def _counted(self, value: Value) -> str:
        writer = self._writer
        if value.type == "ptr":
            offsets = f"{writer.vector('i64')} {writer.counting('i64', value.step)}"
            return writer.op(f"getelementptr i8, ptr {value.text}, {offsets}")
        steps = writer.counting(value.type, value.step)
        base = writer.splat(value.type, value.text)
        return writer.op(f"add {writer.vector(value.type)} {base}, {steps}")

    def lane(self, value: Value, lane: int) -> str:
        """Write the value of one lane."""
        writer = self._writer
        if value.kind == "scalar":
            return value.text
        if value.kind == "step":
            offset = lane * value.step
            if offset == 0:
                return value.text
            if value.type == "ptr":
                return writer.op(f"getelementptr i8, ptr {value.text}, i64 {offset}")
            wrapped = offset & ((1 << width_of(value.type)) - 1)
            return writer.op(f"add {value.type} {value.text}, {wrapped}")
        if value.one is not None:
            return value.one(lane)
        vector = self.vector(value)
        return writer.op(f"extractelement {writer.vector(value.type)} {vector}, i64 {lane}")

    # -- masks -------------------------------------------------------------------------------

    def any(self, mask: Mask) -> str:
        """Write whether a mask has a lane."""
        writer, width = self._writer, self.width
        if mask is None:
            return "true"
        if mask.kind == "scalar":
            return mask.text
        if mask.kind == "below":
            return writer.op(f"icmp ne i64 {mask.text}, 0")
        if mask.kind == "from":
            return writer.op(f"icmp ne i64 {mask.text}, {width}")
        if mask.kind == "one":
            return writer.op(f"icmp ult i64 {mask.text}, {width}")
        return writer.op(f"icmp ne {self._bits} {self.bits(mask)}, 0")

    def all(self, mask: Mask) -> str:
        """Write whether a mask has every lane."""
        writer = self._writer
        if mask is None:
            return "true"
        if mask.kind == "scalar":
            return mask.text
        if mask.kind == "below":
            return writer.op(f"icmp eq i64 {mask.text}, {self.width}")
        if mask.kind == "from":
            return writer.op(f"icmp eq i64 {mask.text}, 0")
        return writer.op(f"icmp eq {self._bits} {self.bits(mask)}, -1")

    def bits(self, mask: Mask) -> str:
        """Write a mask as an integer of as many bits as there are lanes."""
        writer = self._writer
        if mask is None:
            return "-1"
        if mask.kind == "bits":
            return mask.text
        if mask.kind in ("below", "from"):
            ones = writer.op(f"shl i64 -1, {mask.text}")
            if mask.kind == "below":
                ones = writer.op(f"xor i64 {ones}, -1")
            return writer.op(f"trunc i64 {ones} to {self._bits}")
        if mask.kind == "one":
            inside = writer.op(f"icmp ult i64 {mask.text}, {self.width}")
            chosen = writer.op(f"select i1 {inside}, i64 {mask.text}, i64 63")
            one = writer.op(f"shl i64 1, {chosen}")
            return writer.op(f"trunc i64 {one} to {self._bits}")
        return writer.op(f"bitcast {self._mask_type} {self.vector(mask)} to {self._bits}")

    def mask(self, mask: Mask) -> str:
        """Write a mask as a vector."""
        return "splat (i1 true)" if mask is None else self.vector(mask)

    def from_bits(self, bits: str) -> Value:
        """Make a mask of an integer."""
        return Value("i1", "bits", bits)

    def both(self, mask: Mask, other: Mask) -> Mask:
        """Intersect two masks."""
        if mask is None or other is None:
            return other if mask is None else mask
        for kind, pick in (("below", "umin"), ("from", "umax")):
            if mask.kind == other.kind == kind:
                arguments = [f"i64 {mask.text}", f"i64 {other.text}"]
                return Value("i1", kind, self._writer.call("i64", f"llvm.{pick}.i64", arguments))
        return self._combined("and", mask, other)

    def either(self, mask: Mask, other: Mask) -> Mask:
        """Unite two masks."""
        if mask is None or other is None:
            return None
        return self._combined("or", mask, other)

    def _combined(self, opcode: str, mask: Value, other: Value) -> Value:
        first, second = self.vector(mask), self.vector(other)
        return Value(
            "i1", "vector", self._writer.op(f"{opcode} {self._mask_type} {first}, {second}")
        )

    def inverse(self, mask: Value) -> Value:
        """Give the lanes that a mask leaves out."""
        opposite = {"below": "from", "from": "below"}.get(mask.kind)
        if opposite is not None:
            return Value("i1", opposite, mask.text)
        if mask.kind == "scalar":
            return Value("i1", "scalar", self._writer.op(f"xor i1 {mask.text}, true"))
        text = self._writer.op(f"xor {self._mask_type} {self.vector(mask)}, splat (i1 true)")
        return Value("i1", "vector", text)

    def blend(self, kind: str, mask: Mask, chosen: str, other: str) -> str:
        """Write a vector that takes the lanes of a mask from one and the rest from another."""
        if mask is None or other == "poison" or chosen == other:
            return chosen
        vector = self._writer.vector(kind)
        return self._writer.op(
            f"select {self._mask_type} {self.mask(mask)}, {vector} {chosen}, {vector} {other}"
        )
