"""Fundamental types of PTX and their LLVM types."""

from __future__ import annotations

__all__ = [
    "BITS",
    "FLOAT_TYPES",
    "NARROW_FORMATS",
    "PACKED_TYPES",
    "SPACES",
    "is_signed",
    "llvm_type",
]

BITS = {
    "pred": 1,
    **{f"{kind}{width}": width for kind in "bus" for width in (8, 16, 32, 64)},
    "b128": 128,
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "tf32": 32,
    "f64": 64,
    "f16x2": 32,
    "bf16x2": 32,
    "u16x2": 32,
    "s16x2": 32,
    "e4m3x2": 16,
    "e5m2x2": 16,
}
"""Width of each type in bits."""

FLOAT_TYPES = {"f32": "float", "f64": "double"}
"""The types with native arithmetic; f16 and bf16 are computed in double and rounded once."""

PACKED_TYPES = {"f16x2": "f16", "bf16x2": "bf16", "u16x2": "u16", "s16x2": "s16"}
"""Types of two elements, the first one in the low half."""

NARROW_FORMATS = {
    "f16": (10, 15, 0x7C00, 15),
    "bf16": (7, 127, 0x7F80, 15),
    "tf32": (10, 127, 0x3FC00, 18),
    "f32": (23, 127, 0x7F800000, 31),
    "e4m3": (3, 7, 0x7F, 7),
    "e5m2": (2, 15, 0x7C, 7),
}
"""The formats that a double is rounded to: bits of the mantissa, bias of the exponent, bits above
those of the largest number, place of the sign."""

SPACES = frozenset({"param", "global", "shared", "local", "const"})


def is_signed(name: str) -> bool:
    """Return whether a type is a signed integer."""
    return name[0] == "s"


def llvm_type(name: str) -> str:
    """Return the LLVM type of a value or register of a PTX type."""
    return FLOAT_TYPES.get(name) or f"i{BITS[name]}"
