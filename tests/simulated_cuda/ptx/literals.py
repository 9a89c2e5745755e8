"""LLVM constants of PTX literals."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulated_cuda.ptx.syntax import Immediate

__all__ = ["float_constant", "integer_constant"]


def integer_constant(literal: Immediate, width: int) -> str:
    """Return a literal as an integer of so many bits; of a float, its bits."""
    value = literal.value
    if literal.kind == "f64" and width == 32:
        value = _single_bits(value)
    return str(value & ((1 << width) - 1))


def float_constant(literal: Immediate, kind: str) -> str:
    """Return a literal as an LLVM float or double; an integer literal is taken as its bits."""
    value = literal.value
    if kind == "float":
        if literal.kind == "f64":
            value = _single_bits(value)
        return f"bitcast (i32 {value & 0xFFFFFFFF} to float)"
    if literal.kind == "f32":
        number = struct.unpack("<f", value.to_bytes(4, "little"))[0]
        value = int.from_bytes(struct.pack("<d", number), "little")
    return f"bitcast (i64 {value & 0xFFFFFFFFFFFFFFFF} to double)"


def _single_bits(double_bits: int) -> int:
    number = struct.unpack("<d", double_bits.to_bytes(8, "little"))[0]
    try:
        return int.from_bytes(struct.pack("<f", number), "little")
    except OverflowError:
        return 0xFF800000 if number < 0 else 0x7F800000
