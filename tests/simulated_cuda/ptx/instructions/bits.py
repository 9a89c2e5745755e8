"""Bitwise operations, shifts, bit fields, counts and permutations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.registry import translates
from simulated_cuda.ptx.syntax import Immediate
from simulated_cuda.ptx.types import BITS, is_signed

if TYPE_CHECKING:
    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__: list[str] = []

_UNTYPED = ("b16", "b32", "b64")
_PERMUTATIONS = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}
"""Modes of prmt: the selectors of the default mode that each control value stands for."""


@translates("and", "or", "xor", types=("pred", *_UNTYPED))
def _logic(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    kind = form.type
    a, b = f.read(operands[1], kind), f.read(operands[2], kind)
    f.write(operands[0], f.value(f"{form.opcode} i{BITS[kind]} {a}, {b}"), kind)


@translates("not", types=("pred", *_UNTYPED))
def _not(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    value = f.read(operands[1], form.type)
    f.write(operands[0], f.value(f"xor i{BITS[form.type]} {value}, -1"), form.type)


@translates("cnot", types=_UNTYPED)
def _logical_not(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    width = BITS[form.type]
    is_zero = f.value(f"icmp eq i{width} {f.read(operands[1], form.type)}, 0")
    f.write(operands[0], f.value(f"zext i1 {is_zero} to i{width}"), form.type)


@translates("shl", "shr", types=(*_UNTYPED, "s16", "s32", "s64", "u16", "u32", "u64"))
def _shift(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Shift; the ISA clamps the amount to the width."""
    kind, width = form.type, BITS[form.type]
    signed = is_signed(kind) and form.opcode == "shr"
    operation = "shl" if form.opcode == "shl" else "ashr" if signed else "lshr"
    value = f.read(operands[1], kind)
    amount = operands[2]
    if isinstance(amount, Immediate):
        count = amount.value & 0xFFFFFFFF
        if count >= width and not signed:
            f.write(operands[0], "0", kind)
        else:
            result = f.value(f"{operation} i{width} {value}, {min(count, width - 1)}")
            f.write(operands[0], result, kind)
        return
    count = f.read_bits(amount, 32)
    clamped = f.intrinsic("umin", "i32", count, str(width - 1))
    shifted = f.value(f"{operation} i{width} {value}, {f.resize(clamped, 32, width, signed=False)}")
    if not signed:
        fits = f.value(f"icmp ult i32 {count}, {width}")
        shifted = f.value(f"select i1 {fits}, i{width} {shifted}, i{width} 0")
    f.write(operands[0], shifted, kind)


@translates("shf", modifiers=("l", "r", "clamp", "wrap"), types=("b32",))
def _funnel_shift(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    low, high, count = (f.read_bits(operand, 32) for operand in operands[1:4])
    if "wrap" in form.flags:
        name = "fshl" if "l" in form.flags else "fshr"
        f.write(operands[0], f.intrinsic(name, "i32", high, low, count), "b32")
        return
    count = f.value(f"zext i32 {f.intrinsic('umin', 'i32', count, '32')} to i64")
    wide = f.value(f"zext i32 {high} to i64")
    wide = f.value(f"shl i64 {wide}, 32")
    wide = f.value(f"or i64 {wide}, {f.value(f'zext i32 {low} to i64')}")
    if "l" in form.flags:
        shifted = f.value(f"lshr i64 {f.value(f'shl i64 {wide}, {count}')}, 32")
    else:
        shifted = f.value(f"lshr i64 {wide}, {count}")
    f.write(operands[0], f.value(f"trunc i64 {shifted} to i32"), "b32")


@translates("lop3", types=("b32",), modifiers=("or", "and"))
def _three_input_logic(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    if form.flags & {"or", "and"}:
        raise f.error("lop3 with a predicate is not supported")
    table = operands[4]
    if not isinstance(table, Immediate):
        raise f.error("the table must be a constant")
    values = [f.read_bits(operand, 32) for operand in operands[1:4]]
    inverse = [f.value(f"xor i32 {value}, -1") for value in values]
    result = "0"
    for row in range(8):
        if table.value >> row & 1:
            a, b, c = ((values if row >> (2 - k) & 1 else inverse)[k] for k in range(3))
            term = f.value(f"and i32 {f.value(f'and i32 {a}, {b}')}, {c}")
            result = f.value(f"or i32 {result}, {term}")
    f.write(operands[0], result, "b32")


@translates("popc", types=("b32", "b64"))
def _population_count(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    width = BITS[form.type]
    count = f.intrinsic("ctpop", f"i{width}", f.read(operands[1], form.type))
    f.write(operands[0], f.resize(count, width, 32, signed=False), "u32")


def _leading_zeros(f: FunctionBuilder, value: str, width: int) -> str:
    name = f"llvm.ctlz.i{width}"
    f.module.declare(name, f"declare i{width} @{name}(i{width}, i1)")
    count = f.value(f"call i{width} @{name}(i{width} {value}, i1 false)")
    return f.resize(count, width, 32, signed=False)


@translates("clz", types=("b32", "b64"))
def _count_leading_zeros(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    value = f.read(operands[1], form.type)
    f.write(operands[0], _leading_zeros(f, value, BITS[form.type]), "u32")


@translates("bfind", modifiers=("shiftamt",), types=("u32", "u64", "s32", "s64"))
def _find_bit(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Find the highest bit that is set, or that differs from the sign."""
    width = BITS[form.type]
    value = f.read(operands[1], form.type)
    if is_signed(form.type):
        sign = f.value(f"ashr i{width} {value}, {width - 1}")
        value = f.value(f"xor i{width} {value}, {sign}")
    zeros = _leading_zeros(f, value, width)
    result = zeros if "shiftamt" in form.flags else f.value(f"sub i32 {width - 1}, {zeros}")
    is_zero = f.value(f"icmp eq i{width} {value}, 0")
    f.write(operands[0], f.value(f"select i1 {is_zero}, i32 -1, i32 {result}"), "u32")


@translates("brev", types=("b32", "b64"))
def _reverse(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    kind = f"i{BITS[form.type]}"
    f.write(operands[0], f.intrinsic("bitreverse", kind, f.read(operands[1], form.type)), form.type)


@translates("bfe", types=("u32", "u64", "s32", "s64"))
def _extract(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    kind, width = form.type, BITS[form.type]
    value = f.read(operands[1], kind)
    position, length = (_low_byte(f, operand) for operand in operands[2:4])
    name = f"sim.bfe.{kind}"
    arguments = (f"i{width}", value), ("i32", position), ("i32", length)
    f.write(operands[0], f.help(name, f"i{width}", *arguments), kind)


@translates("bfi", types=("b32", "b64"))
def _insert(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    width = BITS[form.type]
    source, target = f.read(operands[1], form.type), f.read(operands[2], form.type)
    position, length = (_low_byte(f, operand) for operand in operands[3:5])
    arguments = (f"i{width}", source), (f"i{width}", target), ("i32", position), ("i32", length)
    f.write(operands[0], f.help(f"sim.bfi.b{width}", f"i{width}", *arguments), form.type)


def _low_byte(f: FunctionBuilder, operand: Operand) -> str:
    """Return the low 8 bits of an operand: bfe, bfi and bmsk use no others."""
    return f.value(f"and i32 {f.read_bits(operand, 32)}, 255")


@translates("bmsk", modifiers=("clamp", "wrap"), types=("b32",))
def _mask(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    position, length = (f.read_bits(operand, 32) for operand in operands[1:3])
    limit = "clamp" in form.flags
    arguments = ("i32", position), ("i32", length), ("i1", str(limit).lower())
    f.write(operands[0], f.help("sim.bmsk", "i32", *arguments), "b32")


@translates("szext", modifiers=("clamp", "wrap"), types=("u32", "s32"))
def _extend(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Extend the low bits of a number to 32 bits."""
    value, length = f.read_bits(operands[1], 32), f.read_bits(operands[2], 32)
    if "wrap" in form.flags:
        length = f.value(f"and i32 {length}, 31")
    else:
        length = f.intrinsic("umin", "i32", length, "32")
    arguments = ("i32", value), ("i32", "0"), ("i32", length)
    f.write(operands[0], f.help(f"sim.bfe.{form.type}", "i32", *arguments), form.type)


@translates("fns", types=("b32",))
def _find_nth_set(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    arguments = (("i32", f.read_bits(operand, 32)) for operand in operands[1:4])
    f.write(operands[0], f.help("sim.fns", "i32", *arguments), "b32")


@translates("prmt", modifiers=_PERMUTATIONS, types=("b32",))
def _permute(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    a, b, control = (f.read_bits(operand, 32) for operand in operands[1:4])
    mode = form.choose(_PERMUTATIONS)
    if mode:
        control = _control_word(f, control, mode)
    elif isinstance(operands[3], Immediate):
        f.write(operands[0], _constant_permutation(f, a, b, operands[3].value), "b32")
        return
    f.write(operands[0], f.help("sim.prmt", "i32", ("i32", a), ("i32", b), ("i32", control)), "b32")


def _control_word(f: FunctionBuilder, control: str, mode: str) -> str:
    words = _PERMUTATIONS[mode]
    low = f.value(f"and i32 {control}, 3")
    result = str(words[3])
    for index in (2, 1, 0):
        matches = f.value(f"icmp eq i32 {low}, {index}")
        result = f.value(f"select i1 {matches}, i32 {words[index]}, i32 {result}")
    return result


def _constant_permutation(f: FunctionBuilder, a: str, b: str, control: int) -> str:
    first = f.value(f"bitcast i32 {a} to <4 x i8>")
    second = f.value(f"bitcast i32 {b} to <4 x i8>")
    selectors = [control >> 4 * k & 15 for k in range(4)]
    indices = ", ".join(f"i32 {selector & 7}" for selector in selectors)
    chosen = f.value(f"shufflevector <4 x i8> {first}, <4 x i8> {second}, <4 x i32> <{indices}>")
    if any(selector & 8 for selector in selectors):
        signs = f.value(f"ashr <4 x i8> {chosen}, splat (i8 7)")
        flags = ", ".join(f"i1 {selector >> 3}" for selector in selectors)
        chosen = f.value(f"select <4 x i1> <{flags}>, <4 x i8> {signs}, <4 x i8> {chosen}")
    return f.value(f"bitcast <4 x i8> {chosen} to i32")
