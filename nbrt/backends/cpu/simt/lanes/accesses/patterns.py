"""Lane patterns: values that are one scalar plus a constant for each lane.

`t ^ 4` exchanges lanes within a vector: if lane 0 of `t` is a multiple of the number of lanes, it
is the scalar `t & -lanes` plus the constants 4, 5, 6, 7, 0, 1, ... The same holds for other bit
operations, shifts, sums, multiples and addresses of such values, as long as the constants do not
carry into the scalar. An access to memory whose address is a pattern is a load or a store of a
*window*, and a permutation of its elements.

What makes this exact: the *low bits* of a scalar are known (`LowBits`), from constants, from the
layout of threads in groups, and from tests at run time (`versions`). If the scalar is a multiple of
a power of two ``P`` and the constants are in ``[0, P)``, then bit operations and comparisons act on
scalar and constants separately, and no lane has another sign than the scalar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.analysis.divergence import address_indices
from nbrt.backends.cpu.simt.lanes.vectors.writer import UNKNOWN, LaneWriter, LowBits, Value
from nbrt.backends.cpu.simt.llvm.types import is_integer, width_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.lanes.analysis.divergence import Divergence
    from nbrt.backends.cpu.simt.llvm.model import Instruction, Operand

__all__ = ["Patterns", "low_bits_of"]

_BITWISE: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}
_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_KINDS = ("scalar", "step", "pattern")
_EXACT_MODULUS = 1 << 64
_MAX_FOLDED = 4096
"""Maximum constant that moves from a sum into the constants of the lanes."""
_MAX_SPAN = 256
"""Maximum power of two for values in parts, whose low bits are in vectors of bytes."""


def low_bits_of(opcode: str, left: LowBits, right: LowBits) -> LowBits:
    """Return the low bits of a sum, a product or a bit operation."""
    modulus = min(left.modulus, right.modulus)
    if opcode in ("and", "mul"):
        # Bits below the lowest set bit of either operand are 0.
        zero = left.aligned * right.aligned if opcode == "mul" else max(left.aligned, right.aligned)
        if zero >= modulus:
            return LowBits(min(zero, _EXACT_MODULUS), 0)
    operation = {**_BITWISE, **_ARITHMETIC}[opcode]
    return LowBits(modulus, operation(left.residue, right.residue) % modulus)


class Patterns:
    """Writes instructions whose results are patterns, and finds the low bits of scalars."""

    def __init__(self, writer: LaneWriter, divergence: Divergence) -> None:
        self._writer = writer
        self._divergence = divergence

    # -- low bits ------------------------------------------------------------------------------

    def low_bits(self, operand: Operand, value: Value) -> LowBits:
        """Return what is known of the low bits of a scalar, or of lane 0 or the scalar of lanes."""
        if value.number is not None:
            return LowBits(_EXACT_MODULUS, value.number % _EXACT_MODULUS)
        known = value.low_bits
        if value.kind in ("scalar", "step"):
            aligned = self._divergence.aligned(operand)
            if aligned > known.modulus:
                return LowBits(aligned, 0)
        return known

    def noted(self, item: Instruction, operands: list[Value], result: Value) -> Value:
        """Return a result with the low bits that follow from those of the operands."""
        opcode = item.opcode
        if opcode in ("zext", "sext", "trunc", "freeze") and result.kind in ("scalar", "step"):
            return result.with_low_bits(self.low_bits(item.operands[0], operands[0]))
        if opcode not in _BITWISE and opcode not in _ARITHMETIC:
            return result
        if len(operands) != 2 or result.kind not in ("scalar", "step"):
            return result
        left, right = map(self.low_bits, item.operands, operands)
        return result.with_low_bits(low_bits_of(opcode, left, right))

    def folded(self, item: Instruction, operands: list[Value]) -> Value | None:
        """Return the result of an operation on constants, which versions make of scalars."""
        operation = _BITWISE.get(item.opcode) or _ARITHMETIC.get(item.opcode)
        if operation is None or not is_integer(item.type):
            return None
        left, right = (value.number for value in operands)
        if left is None or right is None:
            return None
        return self._constant(item.type, operation(left, right))

    def _constant(self, kind: str, number: int) -> Value:
        bits = width_of(kind)
        half = 1 << (bits - 1)
        return Value(kind, "scalar", str((number + half) % (1 << bits) - half))

    # -- patterns ------------------------------------------------------------------------------

    def write(self, item: Instruction, operands: list[Value]) -> Value | None:
        """Write an instruction whose result is a pattern; return None for others."""
        if any(value.kind not in _KINDS for value in operands):
            return None
        opcode = item.opcode
        if opcode == "getelementptr":
            return self._address(item, operands)
        if not is_integer(item.type) or item.type == "i1":
            return None
        if opcode in _BITWISE and not (opcode == "or" and "disjoint" in item.flags):
            return self._bitwise(item, operands)
        if opcode in ("add", "sub", "or"):
            return self._sum(item, operands)
        if opcode in ("mul", "shl", "lshr", "ashr"):
            return self._scaled(item, operands)
        if opcode in ("zext", "sext", "trunc", "freeze"):
            return self._cast(item, operands[0])
        return None

    def offsets(self, value: Value) -> tuple[int, ...]:
        """Return what lanes add to the scalar of a value."""
        if value.kind == "pattern":
            return value.offsets
        return tuple(lane * value.step for lane in range(self._writer.width))

    def _made(
        self, kind: str, text: str, offsets: tuple[int, ...], known: LowBits = UNKNOWN
    ) -> Value:
        """Return a value in the simplest form."""
        step = offsets[1] - offsets[0] if len(offsets) > 1 else 0
        if offsets == tuple(lane * step for lane in range(len(offsets))):
            form = "step" if step else "scalar"
            return Value(kind, form, text, step).with_low_bits(known)
        return Value(kind, "pattern", text, offsets=offsets).with_low_bits(known)

    def _span(self, operand: Operand, value: Value) -> int:
        """Return a power of two that is above all constants and divides the scalar, or 0.

        The constants are below the sign bit of the type, so that they are the values of its bits.
        """
        offsets = self.offsets(value)
        span = 1 << max(offsets).bit_length()
        if value.type != "ptr" and 2 * span > 1 << width_of(value.type):
            return 0
        aligned = self.low_bits(operand, value).aligned
        return span if min(offsets) >= 0 and aligned >= span else 0

    def _sum(self, item: Instruction, operands: list[Value]) -> Value:
        sign = -1 if item.opcode == "sub" else 1
        left, right = operands
        bits = map(self.low_bits, item.operands, operands)
        known = low_bits_of("sub" if sign < 0 else "add", *bits)
        pairs = zip(self.offsets(left), self.offsets(right), strict=True)
        offsets = tuple(a + sign * b for a, b in pairs)
        for value, other, name in ((left, right, item.operands[0]), (right, left, None)):
            number = other.number
            if number is None or abs(number) > _MAX_FOLDED or (sign < 0 and name is None):
                continue
            # The scalar stays the same, so that windows of neighbouring patterns are the same.
            operand = name or item.operands[1]
            moved = tuple(offset + sign * number for offset in self.offsets(value))
            return self._made(item.type, value.text, moved, self.low_bits(operand, value))
        opcode = "sub" if sign < 0 else "add"
        text = self._writer.op(f"{opcode} {item.type} {left.text}, {right.text}")
        return self._made(item.type, text, offsets, known)

    def _scaled(self, item: Instruction, operands: list[Value]) -> Value | None:
        value, factor = operands[0], operands[1].number
        name = item.operands[0]
        if item.opcode == "mul" and factor is None:
            value, factor, name = operands[1], operands[0].number, item.operands[1]
        if factor is None:
            return None
        low, offsets = self.low_bits(name, value), self.offsets(value)
        if item.opcode in ("mul", "shl"):
            times = factor if item.opcode == "mul" else 1 << factor
            exact = LowBits(_EXACT_MODULUS, times % _EXACT_MODULUS)
            known, offsets = low_bits_of("mul", low, exact), tuple(o * times for o in offsets)
        else:
            if not self._span(name, value):
                return None
            # No carry: the scalar is a multiple of the span, or of 2 ** factor.
            known = LowBits(max(low.aligned >> factor, 1), 0)
            offsets = tuple(offset >> factor for offset in offsets)
        text = self._writer.op(f"{item.opcode} {item.type} {value.text}, {factor}")
        return self._made(item.type, text, offsets, known)

    def _cast(self, item: Instruction, value: Value) -> Value | None:
        source = item.operands[0]
        low = self.low_bits(source, value)
        if item.opcode in ("zext", "sext") and not self._span(source, value):
            return None
        text = self._writer.op(
            f"freeze {item.type} {value.text}"
            if item.opcode == "freeze"
            else f"{item.opcode} {source.type} {value.text} to {item.type}"
        )
        return self._made(item.type, text, self.offsets(value), low)

    def _bitwise(self, item: Instruction, operands: list[Value]) -> Value | None:
        (name, value), (other_name, other) = zip(item.operands, operands, strict=True)
        if value.kind == "scalar":
            (name, value), (other_name, other) = (other_name, other), (name, value)
        if other.kind != "scalar" or not (span := self._span(name, value)):
            return None
        known = self.low_bits(other_name, other)
        if known.modulus < span:
            return self._in_parts(item, value, other, span)
        low = known.residue % span
        operation = _BITWISE[item.opcode]
        offsets = tuple(operation(offset, low) for offset in self.offsets(value))
        text = self._high_part(item, value, other, low, span)
        own = self.low_bits(name, value)
        high = LowBits(known.modulus, known.residue - low)
        return self._made(item.type, text, offsets, low_bits_of(item.opcode, own, high))

    def _in_parts(self, item: Instruction, value: Value, other: Value, span: int) -> Value | None:
        """Write a bit operation with a scalar of unknown low bits: low bits apart, as bytes."""
        if span > _MAX_SPAN or width_of(item.type) <= 8:
            return None  # bytes are vectors of bytes already
        writer, whole = self._writer, self._writer.vector_type("i8")
        high = self._high_part(item, value, other, 1, span)
        narrow = writer.op(f"trunc {item.type} {other.text} to i8")
        narrow = writer.op(f"and i8 {narrow}, {_signed(span - 1)}")
        lanes = writer.constants("i8", self.offsets(value))
        low = writer.op(f"{item.opcode} {whole} {lanes}, {writer.splat('i8', narrow)}")
        return Value(item.type, "parts", f"{high} {low}", span)

    def _high_part(self, item: Instruction, value: Value, other: Value, low: int, span: int) -> str:
        """Write a bit operation on the scalars without their low bits."""
        number = other.number
        if number is not None:
            high = number - number % span
            if high == 0:
                return "0" if item.opcode == "and" else value.text
            text = self._constant(item.type, high).text
        elif low and item.opcode != "and":
            text = self._writer.op(f"and {item.type} {other.text}, {-span}")
        else:
            text = other.text
        return self._writer.op(f"{item.opcode} {item.type} {value.text}, {text}")

    def _address(self, item: Instruction, operands: list[Value]) -> Value | None:
        indices = address_indices(item)
        if indices is None or item.type != "ptr":
            return None
        sizes = {index.text: 0 for index, _ in indices}
        for index, size in indices:
            sizes[index.text] += size
        values = {o.text: v for o, v in zip(item.operands[1:], operands[1:], strict=True)}
        offsets = self.offsets(operands[0])
        for name, size in sizes.items():
            value = values[name]
            if value.kind != "scalar" and value.type != "i64":
                return None
            pairs = zip(offsets, self.offsets(value), strict=True)
            offsets = tuple(a + size * b for a, b in pairs)
        parts = (f"{o.type} {v.text}" for o, v in zip(item.operands, operands, strict=True))
        text = self._writer.op(f"getelementptr {item.detail}, {', '.join(parts)}")
        return self._made("ptr", text, offsets)

    # -- comparisons -----------------------------------------------------------------------------

    def compare(self, item: Instruction, operands: list[Value]) -> Value | None:
        """Compare patterns, or values with steps; return None for others."""
        left, right = operands
        kinds = {left.kind, right.kind}
        if kinds == {"scalar"}:
            text = f"icmp {item.detail} {left.type} {left.text}, {right.text}"
            return Value("i1", "scalar", self._writer.op(text))
        if kinds == {"parts", "scalar"}:
            return self._compare_parts(item, *sorted(operands, key=lambda value: value.kind))
        if not is_integer(left.type) or not kinds <= set(_KINDS):
            return None
        if "pattern" not in kinds and kinds != {"step"}:
            return None
        first, second = self.offsets(left), self.offsets(right)
        relation = item.detail if item.detail in ("eq", "ne") else item.detail[1:]
        is_apart = 0 not in map(self._span, item.operands, operands)
        if left.text == right.text and (is_apart or relation in ("eq", "ne")):
            if relation in ("eq", "ne"):
                modulus = 1 << width_of(left.type)
                first, second = (tuple(o % modulus for o in side) for side in (first, second))
            return self._of_lanes(relation, first, second)
        if not is_apart or max(*first, *second) >= self._common(item, operands):
            return None
        kind = left.type
        if first == second:
            text = self._writer.op(f"icmp {item.detail} {kind} {left.text}, {right.text}")
            return Value("i1", "scalar", text)
        return self._lexicographic(item, operands, self._of_lanes(relation, first, second))

    def _compare_parts(self, item: Instruction, value: Value, other: Value) -> Value | None:
        """Compare a value in parts and a scalar for equality."""
        if item.detail not in ("eq", "ne"):
            return None
        writer, kind, span = self._writer, value.type, value.step
        high, low = value.text.split(" ")
        other_high = writer.op(f"and {kind} {other.text}, {-span}")
        narrow = writer.op(f"trunc {kind} {other.text} to i8")
        narrow = writer.op(f"and i8 {narrow}, {_signed(span - 1)}")
        whole, masks = writer.vector_type("i8"), writer.vector_type("i1")
        same = writer.op(f"icmp eq {kind} {high}, {other_high}")
        lanes = writer.op(f"icmp {item.detail} {whole} {low}, {writer.splat('i8', narrow)}")
        otherwise = "zeroinitializer" if item.detail == "eq" else "splat (i1 true)"
        text = writer.op(f"select i1 {same}, {masks} {lanes}, {masks} {otherwise}")
        return Value("i1", "vector", text)

    def _common(self, item: Instruction, operands: list[Value]) -> int:
        """Return a power of two that divides both scalars."""
        return min(
            self.low_bits(name, value).aligned
            for name, value in zip(item.operands, operands, strict=True)
        )

    def _of_lanes(self, relation: str, first: tuple[int, ...], second: tuple[int, ...]) -> Value:
        """Return the comparison of the constants of the lanes."""
        test = _RELATIONS[relation]
        lanes = [test(a, b) for a, b in zip(first, second, strict=True)]
        if len(set(lanes)) == 1:
            return Value("i1", "scalar", "true" if lanes[0] else "false")
        text = ", ".join(f"i1 {'true' if lane else 'false'}" for lane in lanes)
        return Value("i1", "vector", f"<{text}>")

    def _lexicographic(self, item: Instruction, operands: list[Value], equal: Value) -> Value:
        """Compare scalars that are multiples of a power of two above all constants.

        If they differ, they decide; `equal` is the result if they are equal.
        """
        writer, kind = self._writer, operands[0].type
        left, right = (value.text for value in operands)
        predicate = item.detail.removesuffix("e") + ("t" if item.detail[-1] == "e" else "")
        if item.detail in ("eq", "ne"):
            predicate = "ne"
        differ = writer.op(f"icmp {predicate} {kind} {left}, {right}")
        if item.detail == "eq":
            differ = "false"
        same = writer.op(f"icmp eq {kind} {left}, {right}")
        if equal.kind == "scalar":
            return Value(
                "i1", "scalar", writer.op(f"select i1 {same}, i1 {equal.text}, i1 {differ}")
            )
        whole = writer.vector_type("i1")
        other = writer.splat("i1", differ)
        text = writer.op(f"select i1 {same}, {whole} {equal.text}, {whole} {other}")
        return Value("i1", "vector", text)


def _signed(byte: int) -> int:
    return (byte + 128) % 256 - 128
