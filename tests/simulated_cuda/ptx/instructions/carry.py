"""Extended-precision integer arithmetic: the carry flag CC.CF of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.registry import translates
from simulated_cuda.ptx.types import BITS, is_signed

if TYPE_CHECKING:
    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__ = ["add_with_carry", "multiply_add_with_carry"]

_TYPES = ("s32", "u32", "s64", "u64")


def add_with_carry(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Translate add.cc, addc, sub.cc and subc; a borrow is a carry of a subtraction."""
    if form.type not in _TYPES:
        raise f.error("unsupported type")
    a, b = f.read(operands[1], form.type), f.read(operands[2], form.type)
    operation = form.opcode[:3]
    _combine(f, operands[0], form, operation, a, b, uses_carry=form.opcode in ("addc", "subc"))


@translates("addc", "subc", modifiers=("cc",), types=_TYPES)
def _add(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    add_with_carry(f, operands, form)


def multiply_add_with_carry(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Translate mad.lo.cc, mad.hi.cc and madc: a half of the product plus the third operand."""
    kind = form.type
    if kind not in _TYPES or not form.flags & {"lo", "hi"}:
        raise f.error("unsupported form")
    width = BITS[kind]
    a, b, c = (f.read(operand, kind) for operand in operands[1:4])
    if "hi" in form.flags:
        signed = is_signed(kind)
        a = f.resize(a, width, 2 * width, signed=signed)
        b = f.resize(b, width, 2 * width, signed=signed)
        whole = f.value(f"mul i{2 * width} {a}, {b}")
        shifted = f.value(f"lshr i{2 * width} {whole}, {width}")
        half = f.value(f"trunc i{2 * width} {shifted} to i{width}")
    else:
        half = f.value(f"mul i{width} {a}, {b}")
    _combine(f, operands[0], form, "add", half, c, uses_carry=form.opcode == "madc")


@translates("madc", modifiers=("lo", "hi", "cc"), types=_TYPES)
def _multiply_add(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    multiply_add_with_carry(f, operands, form)


def _combine(
    f: FunctionBuilder,
    destination: Operand,
    form: Form,
    operation: str,
    a: str,
    b: str,
    *,
    uses_carry: bool,
) -> None:
    width = BITS[form.type]
    wide = f"i{width + 1}"
    result = f.value(
        f"{operation} {wide} {f.resize(a, width, width + 1, signed=False)}, "
        f"{f.resize(b, width, width + 1, signed=False)}"
    )
    flag = f.carry_flag()
    if uses_carry:
        carry = f.value(f"load i1, ptr {flag}")
        result = f.value(f"{operation} {wide} {result}, {f.value(f'zext i1 {carry} to {wide}')}")
    if "cc" in form.flags:
        high = f.value(f"lshr {wide} {result}, {width}")
        f.emit(f"store i1 {f.value(f'trunc {wide} {high} to i1')}, ptr {flag}")
    f.write(destination, f.value(f"trunc {wide} {result} to i{width}"), form.type)
