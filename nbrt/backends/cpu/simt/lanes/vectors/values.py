"""Values and conditions in the lanes of a group, in the form that costs least."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from nbrt.backends.cpu.simt.llvm.types import width_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FULL", "UNKNOWN", "Element", "Lane", "Linear", "LowBits", "Mask", "Value"]

_INTEGER = re.compile(r"-?\d+$")

Lane = int | str
"""The number of a lane: known, or the name of an ``i64``."""


class LowBits(NamedTuple):
    """Knowledge about a scalar: it is `residue` modulo a power of two, `modulus`."""

    modulus: int = 1
    residue: int = 0

    @property
    def aligned(self) -> int:
        """A power of two that divides the scalar."""
        return self.residue & -self.residue or self.modulus


UNKNOWN = LowBits()


@dataclass(frozen=True, slots=True)
class Value:
    """A value in all lanes of a group.

    ``kind`` is the meaning of ``text``: ``scalar``, the value of every lane; ``step``, the value of
    lane 0, where neighbouring lanes are `step` apart; ``rows``, several rows, each with the value
    of its first lane and this step; ``pattern``, a scalar to which each lane adds one of `offsets`;
    ``vector``, a vector; ``parts``, a scalar that is a multiple of `step` and a
    vector of bytes below it, the sums of which are the lanes. Conditions have four more forms,
    which need no vector: ``below`` and ``from``, true in the lanes below or from an ``i64`` in
    [0, width]; ``one``, true in the lane with an ``i64`` as its number, if it exists; and ``bits``,
    an integer with one bit for each lane.
    """

    type: str
    kind: str
    text: str
    step: int = 0
    texts: tuple[str, ...] = ()
    """For the kind ``rows``: the value of the first lane of each row."""
    write_lane: Callable[[Lane], str] | None = field(default=None, compare=False)
    """Writes the value of one lane of a vector, if that costs less than extracting it."""
    offsets: tuple[int, ...] = ()
    low_bits: LowBits = UNKNOWN
    """What is known of the low bits of a scalar, or of the scalar of a step or pattern."""
    linear: Linear | None = None
    """The same value without a vector, under a condition."""
    extended: tuple[str, Value] | None = None
    """For an extended integer: the conversion, ``sext`` or ``zext``, and the value before it."""
    element: Element | None = None
    """For addresses of elements of one array: the array and the indices, under a condition."""

    @property
    def number(self) -> int | None:
        """The value of an integer constant."""
        is_constant = self.kind == "scalar" and _INTEGER.match(self.text)
        return int(self.text) if is_constant else None

    def with_low_bits(self, known: LowBits) -> Value:
        """Return the value with what is known of its low bits, as far as its type has them."""
        if known.modulus <= self.low_bits.modulus or self.type[0] != "i":
            return self
        modulus = min(known.modulus, 1 << width_of(self.type))
        return replace(self, low_bits=LowBits(modulus, known.residue % modulus))


@dataclass(frozen=True, slots=True)
class Linear:
    """A scalar or strided value that equals a vector if a condition, an ``i1``, holds."""

    condition: str
    value: Value


@dataclass(frozen=True, slots=True)
class Element:
    """The addresses of elements of one array, if a condition, an ``i1``, holds."""

    condition: str
    base: str
    type: str
    """Type of which the indices count elements."""

    index: Value
    """The indices, of up to 64 bits."""

    extension: str
    """Conversion of an index to 64 bits: an opcode, or empty."""


Mask = Value | None
"""The active lanes; None means all lanes."""

FULL: Mask = None
