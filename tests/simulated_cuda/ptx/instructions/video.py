"""Packed dot products, and the scalar video instructions that compilers still produce."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.registry import translates
from simulated_cuda.ptx.types import is_signed

if TYPE_CHECKING:
    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__: list[str] = []


def _lane(f: FunctionBuilder, value: str, shift: int, width: int, *, signed: bool) -> str:
    moved = f.value(f"lshr i32 {value}, {shift}") if shift else value
    return f.resize(f.value(f"trunc i32 {moved} to i{width}"), width, 32, signed=signed)


@translates("dp4a", types=("u32", "s32"), needs=2)
def _dot_4(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Add the products of four bytes to the third operand."""
    a, b, result = (f.read_bits(operand, 32) for operand in operands[1:4])
    for shift in (0, 8, 16, 24):
        x = _lane(f, a, shift, 8, signed=is_signed(form.types[0]))
        y = _lane(f, b, shift, 8, signed=is_signed(form.types[1]))
        result = f.value(f"add i32 {result}, {f.value(f'mul i32 {x}, {y}')}")
    f.write(operands[0], result, "b32")


@translates("dp2a", modifiers=("lo", "hi"), types=("u32", "s32"), needs=2)
def _dot_2(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Add the products of two halves of a and two bytes of b to the third operand."""
    a, b, result = (f.read_bits(operand, 32) for operand in operands[1:4])
    offset = 16 if "hi" in form.flags else 0
    for index in range(2):
        x = _lane(f, a, 16 * index, 16, signed=is_signed(form.types[0]))
        y = _lane(f, b, offset + 8 * index, 8, signed=is_signed(form.types[1]))
        result = f.value(f"add i32 {result}, {f.value(f'mul i32 {x}, {y}')}")
    f.write(operands[0], result, "b32")
