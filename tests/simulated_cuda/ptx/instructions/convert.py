"""Conversions between types.

Float to integer: values outside the range of the result are clamped. NaN gives 0, but if the source
is .f64 or the result has 64 bits it gives the number with only the highest bit set (PTX ISA, cvt).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.floats import (
    canonical,
    flush,
    join_halves,
    narrow,
    saturate,
    widen,
)
from simulated_cuda.ptx.instructions.registry import translates
from simulated_cuda.ptx.types import BITS, FLOAT_TYPES, is_signed

if TYPE_CHECKING:
    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__: list[str] = []

_INTEGER_ROUNDING = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_ROUNDING = ("rn", "rz", "rm", "rp", "rna")
_NARROW = ("f16", "bf16", "tf32")
_BYTES = {"e4m3x2": "e4m3", "e5m2x2": "e5m2"}
_FLOATS = (*FLOAT_TYPES, *_NARROW, "f16x2", "bf16x2", *_BYTES)
_TYPES = (*(f"{sign}{width}" for sign in "us" for width in (8, 16, 32, 64)), *_FLOATS)


@translates(
    "cvt",
    modifiers=(*_INTEGER_ROUNDING, *_ROUNDING, "ftz", "sat", "relu", "satfinite"),
    types=_TYPES,
    needs=2,
)
def _convert(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    target, source = form.types
    if source in _BYTES:
        _from_bytes(f, operands, form)
    elif target in _BYTES:
        _to_bytes(f, operands, form)
    elif target in ("f16x2", "bf16x2"):
        _convert_pair(f, operands, form)
    elif target in _FLOATS and source in _FLOATS:
        _float_to_float(f, operands, form, target, source)
    elif source in _FLOATS:
        _float_to_integer(f, operands, form, target, source)
    elif target in _FLOATS:
        _integer_to_float(f, operands, form, target, source)
    else:
        _integer_to_integer(f, operands, form, target, source)


# ---- integers ------------------------------------------------------------------------------------


def _integer_to_integer(
    f: FunctionBuilder, operands: list[Operand], form: Form, target: str, source: str
) -> None:
    value = f.read(operands[1], source)
    width, wanted = BITS[source], BITS[target]
    if "sat" not in form.flags:
        result = f.resize(value, width, wanted, signed=is_signed(source))
        f.write(operands[0], result, target)
        return
    common = max(width, wanted) + 1
    value = f.resize(value, width, common, signed=is_signed(source))
    low, high = _range(target)
    value = f.intrinsic("smax", f"i{common}", value, str(low))
    value = f.intrinsic("smin", f"i{common}", value, str(high))
    f.write(operands[0], f.value(f"trunc i{common} {value} to i{wanted}"), target)


def _range(kind: str) -> tuple[int, int]:
    width = BITS[kind]
    if is_signed(kind):
        return -(1 << (width - 1)), (1 << (width - 1)) - 1
    return 0, (1 << width) - 1


def _integer_to_float(
    f: FunctionBuilder, operands: list[Operand], form: Form, target: str, source: str
) -> None:
    value, width = f.read(operands[1], source), BITS[source]
    operation = "sitofp" if is_signed(source) else "uitofp"
    mode = form.choose(_ROUNDING, "rn")
    if target in FLOAT_TYPES:
        kind = FLOAT_TYPES[target]
        exact = width < 32 or (width == 32 and target == "f64")
        if mode == "rn" or exact:
            result = f.value(f"{operation} i{width} {value} to {kind}")
        else:
            result = f.help(f"sim.{operation}.{target}.i{width}.{mode}", kind, (f"i{width}", value))
        if "sat" in form.flags:
            result = saturate(f, result, kind)
        f.write(operands[0], result, target)
        return
    if width == 64:
        value = _round_to_odd(f, value, operation)
    number = f.value(f"{operation} i{width} {value} to double")
    if "sat" in form.flags:
        number = saturate(f, number, "double")
    f.write(operands[0], narrow(f, number, target, mode), f"b{BITS[target]}")


def _round_to_odd(f: FunctionBuilder, value: str, operation: str) -> str:
    """Reduce a 64-bit integer beyond 2**53 to one that a double holds, rounded to odd."""
    low = f.value(f"and i64 {value}, 2047")
    high = f.value(f"and i64 {value}, -2048")
    inexact = f.value(f"icmp ne i64 {low}, 0")
    sticky = f.value(f"select i1 {inexact}, i64 2048, i64 0")
    odd = f.value(f"or i64 {high}, {sticky}")
    size = f.intrinsic("smax", "i64", value, f.value(f"sub i64 0, {value}"))
    small = f.value(f"icmp ult i64 {size if operation == 'sitofp' else value}, {1 << 53}")
    return f.value(f"select i1 {small}, i64 {value}, i64 {odd}")


# ---- floats to integers --------------------------------------------------------------------------


def _read_float(f: FunctionBuilder, operand: Operand, source: str) -> tuple[str, str]:
    """Return the value of a source operand and its LLVM type."""
    if source in FLOAT_TYPES:
        return f.read(operand, source), FLOAT_TYPES[source]
    if source == "tf32":
        return f.read(operand, "f32"), "float"
    return widen(f, f.read_bits(operand, 16), source), "double"


def _float_to_integer(
    f: FunctionBuilder, operands: list[Operand], form: Form, target: str, source: str
) -> None:
    value, kind = _read_float(f, operands[1], source)
    if "ftz" in form.flags and source == "f32":
        value = flush(f, value)
    rounding = _INTEGER_ROUNDING[form.choose(_INTEGER_ROUNDING, "rzi")]
    whole = f.intrinsic(rounding, kind, value)
    width = BITS[target]
    sign = "s" if is_signed(target) else "u"
    name = f"llvm.fpto{sign}i.sat.i{width}.{'f32' if kind == 'float' else 'f64'}"
    result = f.call(name, f"i{width}", (kind, whole))
    if source == "f64" or width == 64:
        is_nan = f.value(f"fcmp uno {kind} {value}, {value}")
        result = f.value(f"select i1 {is_nan}, i{width} {1 << (width - 1)}, i{width} {result}")
    f.write(operands[0], result, target)


# ---- floats to floats ----------------------------------------------------------------------------


def _float_to_float(
    f: FunctionBuilder, operands: list[Operand], form: Form, target: str, source: str
) -> None:
    value, kind = _read_float(f, operands[1], source)
    if "ftz" in form.flags and source == "f32":
        value = flush(f, value)
    if whole := form.choose(_INTEGER_ROUNDING):
        value = f.intrinsic(_INTEGER_ROUNDING[whole], kind, value)
    if target in _NARROW:
        f.write(operands[0], _to_narrow(f, value, kind, form, target), f"b{BITS[target]}")
        return
    wanted = FLOAT_TYPES[target]
    if kind == "float" and wanted == "double":
        value = f.value(f"fpext float {value} to double")
    elif kind == "double" and wanted == "float":
        mode = form.choose(_ROUNDING, "rn")
        if mode == "rn":
            value = f.value(f"fptrunc double {value} to float")
        else:
            value = f.value(f"bitcast i32 {narrow(f, value, 'f32', mode)} to float")
    if "ftz" in form.flags and target == "f32":
        value = flush(f, value)
    if "sat" in form.flags:
        value = saturate(f, value, wanted)
    elif target != source or form.flags & set(_INTEGER_ROUNDING):
        value = canonical(f, value, wanted)
    f.write(operands[0], value, target)


def _to_narrow(f: FunctionBuilder, value: str, kind: str, form: Form, target: str) -> str:
    if kind == "float":
        value = f.value(f"fpext float {value} to double")
    if "relu" in form.flags:
        value = f.help("sim.relu", "double", ("double", value))
    if "sat" in form.flags:
        value = saturate(f, value, "double")
    mode = form.choose(_ROUNDING, "rn")
    return narrow(f, value, target, mode, finite="satfinite" in form.flags)


def _convert_pair(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Convert two .f32: the first operand goes to the high half."""
    target, source = form.types
    if source != "f32":
        raise f.error("unsupported types")
    kind = {"f16x2": "f16", "bf16x2": "bf16"}[target]
    high, low = (
        _to_narrow(f, f.read(operand, "f32"), "float", form, kind) for operand in operands[1:3]
    )
    f.write(operands[0], join_halves(f, low, high), "b32")


def _to_bytes(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Convert two numbers to 8 bits each: the first operand, or the high half, goes up."""
    target, source = form.types
    if "satfinite" not in form.flags:
        raise f.error("conversions to 8 bits need .satfinite")
    if source == "f32":
        values = [f.value(f"fpext float {f.read(o, 'f32')} to double") for o in operands[1:3]]
    elif source == "f16x2":
        bits = f.read_bits(operands[1], 32)
        halves = [f.value(f"lshr i32 {bits}, 16"), bits]
        values = [widen(f, f.value(f"trunc i32 {half} to i16"), "f16") for half in halves]
    else:
        raise f.error("unsupported types")
    if "relu" in form.flags:
        values = [f.help("sim.relu", "double", ("double", value)) for value in values]
    high, low = (narrow(f, value, _BYTES[target], finite=True) for value in values)
    f.write(operands[0], f.value(f"or i16 {f.value(f'shl i16 {high}, 8')}, {low}"), "b16")


def _from_bytes(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Convert two numbers of 8 bits to f16."""
    target, source = form.types
    if target != "f16x2":
        raise f.error("unsupported types")
    bits = f.read_bits(operands[1], 16)
    halves = []
    for part in (f.value(f"and i16 {bits}, 255"), f.value(f"lshr i16 {bits}, 8")):
        value = widen(f, part, _BYTES[source])
        if "relu" in form.flags:
            value = f.help("sim.relu", "double", ("double", value))
        halves.append(narrow(f, value, "f16"))
    f.write(operands[0], join_halves(f, *halves), "b32")
