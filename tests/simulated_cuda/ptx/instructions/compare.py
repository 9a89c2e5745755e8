"""Comparisons, selections and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.floats import flush, join_halves, widen
from simulated_cuda.ptx.instructions.registry import FLOATS, INTEGERS, PACKED, translates
from simulated_cuda.ptx.syntax import Name, Pair
from simulated_cuda.ptx.types import BITS, FLOAT_TYPES, PACKED_TYPES, is_signed, llvm_type

if TYPE_CHECKING:
    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__: list[str] = []

_INTEGER = {
    **{name: name for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "lo": "lt",
    "ls": "le",
    "hi": "gt",
    "hs": "ge",
}
_FLOAT = {
    **{name: f"o{name}" for name in ("eq", "lt", "le", "gt", "ge")},
    "ne": "one",
    **{f"{name}u": f"u{name}" for name in ("eq", "lt", "le", "gt", "ge")},
    "neu": "une",
    "num": "ord",
    "nan": "uno",
}
_BITS = ("b16", "b32", "b64")
_TYPES = (*_BITS, *INTEGERS, *FLOATS, *PACKED)
_MODIFIERS = (*_INTEGER, *_FLOAT, "and", "or", "xor", "ftz")
_CLASSES = {
    "nan": 0x003,
    "infinite": 0x204,
    "finite": 0x1F8,
    "number": 0x3FC,
    "notanumber": 0x003,
    "normal": 0x108,
    "subnormal": 0x090,
}
"""Masks of llvm.is.fpclass. Zero is neither normal nor subnormal for testp."""


def _compare(f: FunctionBuilder, form: Form, kind: str, a: str, b: str) -> str:
    """Return an i1; of f16 and bf16, a and b are doubles."""
    name = form.modifiers[0]
    if kind in FLOAT_TYPES or kind in PACKED:
        if name not in _FLOAT:
            raise f.error(f"unsupported comparison .{name}")
        return f.value(f"fcmp {_FLOAT[name]} {FLOAT_TYPES.get(kind, 'double')} {a}, {b}")
    condition = _INTEGER.get(name)
    if condition is None:
        raise f.error(f"unsupported comparison .{name}")
    if condition not in ("eq", "ne"):
        if kind[0] == "b":
            raise f.error("an order of untyped bits")
        condition = ("s" if is_signed(kind) else "u") + condition
    return f.value(f"icmp {condition} i{BITS[kind]} {a}, {b}")


def _comparisons(f: FunctionBuilder, operands: list[Operand], form: Form) -> list[str]:
    """Return the comparison, or the two comparisons of packed operands."""
    kind = form.type
    if kind in PACKED_TYPES:
        element = PACKED_TYPES[kind]
        results = []
        for shift in (0, 16):
            values = []
            for operand in operands[1:3]:
                bits = f.value(f"lshr i32 {f.read_bits(operand, 32)}, {shift}")
                values.append(widen(f, f.value(f"trunc i32 {bits} to i16"), element))
            results.append(_compare(f, form, element, *values))
        return results
    if kind in PACKED:
        a, b = (widen(f, f.read_bits(operand, 16), kind) for operand in operands[1:3])
    else:
        a, b = (f.read(operand, kind) for operand in operands[1:3])
    if "ftz" in form.flags:
        if kind != "f32":
            raise f.error("unsupported modifier .ftz of this type")
        a, b = flush(f, a), flush(f, b)
    return [_compare(f, form, kind, a, b)]


def _combine(f: FunctionBuilder, value: str, operands: list[Operand], form: Form) -> str:
    operation = form.choose(("and", "or", "xor"))
    if not operation:
        return value
    return f.value(f"{operation} i1 {value}, {f.read(operands[3], 'pred')}")


@translates("setp", modifiers=_MODIFIERS, types=_TYPES)
def _set_predicate(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    results = _comparisons(f, operands, form)
    destination = operands[0]
    first = destination.first if isinstance(destination, Pair) else destination
    values = [_combine(f, results[0], operands, form)]
    if len(results) == 2:
        values.append(_combine(f, results[1], operands, form))
    elif isinstance(destination, Pair):
        inverse = f.value(f"xor i1 {results[0]}, true")
        values.append(_combine(f, inverse, operands, form))
    if isinstance(first, Name):
        f.write(first, values[0], "pred")
    if isinstance(destination, Pair):
        f.write(destination.second, values[1], "pred")


@translates("set", modifiers=_MODIFIERS, types=_TYPES, needs=2)
def _set(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Set all bits, or 1.0, where the comparison holds."""
    kind = form.types[0]
    results = [_combine(f, value, operands, form) for value in _comparisons(f, operands, form)]
    one = {"f16": 0x3C00, "f16x2": 0x3C00, "bf16": 0x3F80, "bf16x2": 0x3F80}.get(kind)
    if len(results) == 2:
        number = -1 if one is None else one
        halves = [f.value(f"select i1 {value}, i16 {number}, i16 0") for value in results]
        f.write(operands[0], join_halves(f, *halves), "b32")
    elif kind in FLOAT_TYPES:
        f.write(operands[0], f.value(f"uitofp i1 {results[0]} to {FLOAT_TYPES[kind]}"), kind)
    else:
        width = BITS[kind]
        number = -1 if one is None else one
        result = f.value(f"select i1 {results[0]}, i{width} {number}, i{width} 0")
        f.write(operands[0], result, kind)


@translates("selp", types=(*_BITS, *INTEGERS, *FLOATS, "f16", "bf16", "f16x2"))
def _select(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    kind = llvm_type(form.type)
    a, b = (f.read(operand, form.type) for operand in operands[1:3])
    condition = f.read(operands[3], "pred")
    f.write(operands[0], f.value(f"select i1 {condition}, {kind} {a}, {kind} {b}"), form.type)


@translates("slct", modifiers=("ftz",), types=(*_BITS, *INTEGERS, *FLOATS), needs=2)
def _select_by_sign(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Select by the sign of the third operand; a NaN selects the second one."""
    kind = llvm_type(form.types[0])
    a, b = (f.read(operand, form.types[0]) for operand in operands[1:3])
    test = f.read(operands[3], form.types[1])
    if form.types[1] == "f32":
        if "ftz" in form.flags:
            test = flush(f, test)
        condition = f.value(f"fcmp oge float {test}, 0.0")
    else:
        condition = f.value(f"icmp sge i32 {test}, 0")
    result = f.value(f"select i1 {condition}, {kind} {a}, {kind} {b}")
    f.write(operands[0], result, form.types[0])


@translates("testp", modifiers=_CLASSES, types=FLOATS)
def _test(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    kind = FLOAT_TYPES[form.type]
    suffix = {"float": "f32", "double": "f64"}[kind]
    value = f.read(operands[1], form.type)
    mask = _CLASSES[form.modifiers[0]]
    name = f"llvm.is.fpclass.{suffix}"
    f.write(operands[0], f.call(name, "i1", (kind, value), ("i32", str(mask))), "pred")
