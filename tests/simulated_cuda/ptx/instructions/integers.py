"""Integer arithmetic, and the choice between the integer and the floating-point form of an opcode.

Division by zero is unspecified in the ISA; here the quotient has all bits set and the remainder is
the dividend, as GPUs compute them. The quotient of the least number and -1 wraps around.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.carry import add_with_carry, multiply_add_with_carry
from simulated_cuda.ptx.instructions.floats import (
    absolute,
    add,
    divide,
    extreme,
    fused_multiply_add,
    multiply,
    negate,
    subtract,
)
from simulated_cuda.ptx.instructions.registry import FLOATS, INTEGERS, PACKED, translates
from simulated_cuda.ptx.syntax import Immediate
from simulated_cuda.ptx.types import BITS, PACKED_TYPES, is_signed

if TYPE_CHECKING:
    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__: list[str] = []

_ALL = (*INTEGERS, *FLOATS, *PACKED, "u16x2", "s16x2")
_ROUNDING = ("rn", "rz", "rm", "rp", "ftz", "sat")


def _is_integer(form: Form) -> bool:
    return form.type[0] in "us"


def _packed(f: FunctionBuilder, operands: list[Operand], kind: str, operation: str) -> None:
    """Apply an operation to the two halves of 32-bit operands."""
    vectors = [
        f.value(f"bitcast i32 {f.read_bits(operand, 32)} to <2 x i16>") for operand in operands[1:]
    ]
    if operation in ("add", "sub"):
        result = f.value(f"{operation} <2 x i16> {vectors[0]}, {vectors[1]}")
    else:
        sign = "s" if is_signed(PACKED_TYPES[kind]) else "u"
        name = f"llvm.{sign}{operation}.v2i16"
        result = f.call(name, "<2 x i16>", *(("<2 x i16>", vector) for vector in vectors))
    f.write(operands[0], f.value(f"bitcast <2 x i16> {result} to i32"), "b32")


@translates("add", "sub", modifiers=(*_ROUNDING, "cc"), types=_ALL)
def _add(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    kind = form.type
    if "cc" in form.flags:
        add_with_carry(f, operands, form)
        return
    if kind in ("u16x2", "s16x2"):
        _packed(f, operands, kind, form.opcode)
        return
    if not _is_integer(form):
        (add if form.opcode == "add" else subtract)(f, operands, form)
        return
    a, b = f.read(operands[1], kind), f.read(operands[2], kind)
    width = BITS[kind]
    if "sat" in form.flags:
        if kind != "s32":
            raise f.error("saturation is defined for .s32 only")
        result = f.intrinsic(f"s{form.opcode}.sat", f"i{width}", a, b)
    else:
        result = f.value(f"{form.opcode} i{width} {a}, {b}")
    f.write(operands[0], result, kind)


@translates("mul", modifiers=(*_ROUNDING, "lo", "hi", "wide"), types=_ALL)
def _multiply(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    if not _is_integer(form):
        multiply(f, operands, form)
        return
    value, kind = product(f, operands[1], operands[2], form)
    f.write(operands[0], value, kind)


def product(f: FunctionBuilder, first: Operand, second: Operand, form: Form) -> tuple[str, str]:
    """Return the low half, high half or whole of a product, and its type."""
    kind = form.type
    width = BITS[kind]
    a, b = f.read(first, kind), f.read(second, kind)
    if "wide" not in form.flags and "hi" not in form.flags:
        return f.value(f"mul i{width} {a}, {b}"), kind
    signed = is_signed(kind)
    a = f.resize(a, width, 2 * width, signed=signed)
    b = f.resize(b, width, 2 * width, signed=signed)
    whole = f.value(f"mul i{2 * width} {a}, {b}")
    if "wide" in form.flags:
        return whole, f"{kind[0]}{2 * width}"
    high = f.value(f"lshr i{2 * width} {whole}, {width}")
    return f.value(f"trunc i{2 * width} {high} to i{width}"), kind


@translates(
    "mad", modifiers=(*_ROUNDING, "lo", "hi", "wide", "cc"), types=(*INTEGERS, "f32", "f64")
)
def _multiply_add(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    if "cc" in form.flags:
        multiply_add_with_carry(f, operands, form)
        return
    if not _is_integer(form):
        fused_multiply_add(f, operands, form)
        return
    value, kind = product(f, operands[1], operands[2], form)
    addend = f.read(operands[3], kind)
    if "sat" in form.flags:
        if "hi" not in form.flags or kind != "s32":
            raise f.error("saturation is defined for mad.hi.s32 only")
        result = f.intrinsic("sadd.sat", f"i{BITS[kind]}", value, addend)
    else:
        result = f.value(f"add i{BITS[kind]} {value}, {addend}")
    f.write(operands[0], result, kind)


@translates("mul24", "mad24", modifiers=("lo", "hi", "sat"), types=("s32", "u32"))
def _multiply_24(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    signed = is_signed(form.type)
    factors = []
    for operand in operands[1:3]:
        bits = f.value(f"trunc i32 {f.read_bits(operand, 32)} to i24")
        factors.append(f.resize(bits, 24, 48, signed=signed))
    whole = f.value(f"mul i48 {factors[0]}, {factors[1]}")
    if "hi" in form.flags:
        whole = f.value(f"lshr i48 {whole}, 16")
    result = f.value(f"trunc i48 {whole} to i32")
    if form.opcode == "mad24":
        addend = f.read_bits(operands[3], 32)
        if "sat" in form.flags:
            result = f.intrinsic("sadd.sat", "i32", result, addend)
        else:
            result = f.value(f"add i32 {result}, {addend}")
    f.write(operands[0], result, form.type)


@translates("div", modifiers=(*_ROUNDING, "approx", "full"), types=(*INTEGERS, *FLOATS))
def _divide(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    if _is_integer(form):
        f.write(operands[0], _quotient(f, operands, form.type, "div"), form.type)
    else:
        divide(f, operands, form)


@translates("rem", types=INTEGERS)
def _remainder(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    f.write(operands[0], _quotient(f, operands, form.type, "rem"), form.type)


def _quotient(f: FunctionBuilder, operands: list[Operand], kind: str, operation: str) -> str:
    width, signed = BITS[kind], is_signed(kind)
    a, b = f.read(operands[1], kind), f.read(operands[2], kind)
    instruction = f"{'s' if signed else 'u'}{operation} i{width}"
    divisor = operands[2]
    if isinstance(divisor, Immediate) and divisor.value not in (0, -1):
        return f.value(f"{instruction} {a}, {b}")
    is_zero = f.value(f"icmp eq i{width} {b}, 0")
    unsafe = is_zero
    if signed:
        is_minus_one = f.value(f"icmp eq i{width} {b}, -1")
        unsafe = f.value(f"or i1 {is_zero}, {is_minus_one}")
    safe = f.value(f"select i1 {unsafe}, i{width} 1, i{width} {b}")
    result = f.value(f"{instruction} {a}, {safe}")
    if operation == "div":
        if signed:
            negative = f.value(f"sub i{width} 0, {a}")
            result = f.value(f"select i1 {is_minus_one}, i{width} {negative}, i{width} {result}")
        return f.value(f"select i1 {is_zero}, i{width} -1, i{width} {result}")
    return f.value(f"select i1 {is_zero}, i{width} {a}, i{width} {result}")


@translates("sad", types=INTEGERS)
def _sum_of_differences(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    kind, width = form.type, BITS[form.type]
    a, b, c = (f.read(operand, kind) for operand in operands[1:4])
    sign = "s" if is_signed(kind) else "u"
    larger = f.intrinsic(f"{sign}max", f"i{width}", a, b)
    smaller = f.intrinsic(f"{sign}min", f"i{width}", a, b)
    difference = f.value(f"sub i{width} {larger}, {smaller}")
    f.write(operands[0], f.value(f"add i{width} {c}, {difference}"), kind)


@translates("abs", modifiers=("ftz",), types=("s16", "s32", "s64", *FLOATS, *PACKED))
def _absolute(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    if not _is_integer(form):
        absolute(f, operands, form)
        return
    kind = f"i{BITS[form.type]}"
    value = f.read(operands[1], form.type)
    result = f.value(f"call {kind} @llvm.abs.{kind}({kind} {value}, i1 false)")
    f.module.declare(f"llvm.abs.{kind}", f"declare {kind} @llvm.abs.{kind}({kind}, i1)")
    f.write(operands[0], result, form.type)


@translates("neg", modifiers=("ftz",), types=("s16", "s32", "s64", *FLOATS, *PACKED))
def _negate(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    if not _is_integer(form):
        negate(f, operands, form)
        return
    value = f.read(operands[1], form.type)
    f.write(operands[0], f.value(f"sub i{BITS[form.type]} 0, {value}"), form.type)


@translates("min", "max", modifiers=("ftz", "NaN", "xorsign", "abs", "relu"), types=_ALL)
def _extreme(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    kind = form.type
    if not _is_integer(form):
        extreme(f, operands, form)
        return
    if form.flags & {"NaN", "xorsign", "abs", "ftz"}:
        raise f.error("unsupported modifier of an integer")
    if kind in ("u16x2", "s16x2"):
        if "relu" in form.flags:
            raise f.error("unsupported modifier .relu")
        _packed(f, operands, kind, form.opcode)
        return
    sign = "s" if is_signed(kind) else "u"
    name, width = f"{sign}{form.opcode}", f"i{BITS[kind]}"
    result = f.intrinsic(name, width, f.read(operands[1], kind), f.read(operands[2], kind))
    for operand in operands[3:]:
        result = f.intrinsic(name, width, result, f.read(operand, kind))
    if "relu" in form.flags:
        result = f.intrinsic("smax", width, result, "0")
    f.write(operands[0], result, kind)
