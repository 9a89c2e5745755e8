"""Floating-point arithmetic.

Rounding to nearest is the native instruction; the other modes are helpers that set the rounding
mode of the processor around one instruction. Nothing is contracted. f16 and bf16 are computed in
double, where every sum and product is exact or rounded so finely (or to odd) that the one final
rounding decides. Results that are NaN are canonical in .f32 (0x7fffffff), f16 and bf16 (0x7fff);
the ISA leaves the payload of .f64 open, and it is the processor's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.instructions.registry import PACKED, translates
from simulated_cuda.ptx.syntax import Name
from simulated_cuda.ptx.types import FLOAT_TYPES, NARROW_FORMATS, PACKED_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.instructions.registry import Form
    from simulated_cuda.ptx.syntax import Operand

__all__ = [
    "absolute",
    "add",
    "canonical",
    "divide",
    "extreme",
    "flush",
    "fused_multiply_add",
    "map_narrow",
    "multiply",
    "narrow",
    "negate",
    "read_float",
    "subtract",
    "widen",
    "write_float",
]

CANONICAL_NAN = "bitcast (i32 2147483647 to float)"
_ROUNDING = ("rn", "rz", "rm", "rp")
ROUNDING_MODES = {"rn": 0, "rz": 1, "rm": 2, "rp": 3, "rna": 4}
"""Numbers of the rounding modes of the helper sim.narrow."""


# ---- operands and results ------------------------------------------------------------------------


def flush(f: FunctionBuilder, value: str) -> str:
    """Return a float with subnormals replaced by zeros of the same sign."""
    return f.help("sim.flush", "float", ("float", value))


def read_float(f: FunctionBuilder, operand: Operand, form: Form) -> str:
    """Return a .f32 or .f64 operand, flushed if the instruction says so."""
    value = f.read(operand, form.type)
    return flush(f, value) if "ftz" in form.flags and form.type == "f32" else value


def canonical(f: FunctionBuilder, value: str, kind: str = "float") -> str:
    """Return a value with any NaN replaced by the canonical NaN of .f32."""
    if kind != "float":
        return value
    is_nan = f.value(f"fcmp uno float {value}, {value}")
    return f.value(f"select i1 {is_nan}, float {CANONICAL_NAN}, float {value}")


def saturate(f: FunctionBuilder, value: str, kind: str) -> str:
    """Return a value clamped to [0, 1]; NaN becomes 0."""
    above = f.value(f"fcmp ogt {kind} {value}, 0.0")
    value = f.value(f"select i1 {above}, {kind} {value}, {kind} 0.0")
    below = f.value(f"fcmp olt {kind} {value}, 1.0")
    return f.value(f"select i1 {below}, {kind} {value}, {kind} 1.0")


def write_float(f: FunctionBuilder, operand: Operand, value: str, form: Form) -> None:
    """Store a result of .f32 or .f64 with .ftz, .sat and the canonical NaN."""
    kind = FLOAT_TYPES[form.type]
    if "ftz" in form.flags and form.type == "f32":
        value = flush(f, value)
    if "sat" in form.flags:
        value = saturate(f, value, kind)
    elif form.type == "f32" and isinstance(operand, Name) and operand.text in f.observed:
        value = canonical(f, value)
    f.write(operand, value, form.type)


def rounded(f: FunctionBuilder, operation: str, form: Form, *values: str) -> str:
    """Compute add, sub, mul, div, fma or sqrt with the rounding mode of the instruction."""
    kind = FLOAT_TYPES[form.type]
    mode = form.choose(_ROUNDING, "rn")
    if mode == "rn":
        if operation in ("fma", "sqrt"):
            return f.intrinsic(operation, kind, *values)
        return f.value(f"f{operation} {kind} {values[0]}, {values[1]}")
    arguments = ((kind, value) for value in values)
    return f.help(f"sim.{operation}.{form.type}.{mode}", kind, *arguments)


# ---- f16 and bf16 --------------------------------------------------------------------------------


def widen(f: FunctionBuilder, bits: str, kind: str) -> str:
    """Return the i16 of an f16 or bf16 as a double."""
    return f.help(f"sim.widen.{kind}", "double", ("i16", bits))


def narrow(
    f: FunctionBuilder, value: str, kind: str, mode: str = "rn", finite: bool = False
) -> str:
    """Round a double to f16, bf16, tf32 or f32 and return its bits, as i16 or i32."""
    arguments = (
        ("double", value),
        *(("i64", str(number)) for number in NARROW_FORMATS[kind]),
        ("i32", str(ROUNDING_MODES[mode])),
        ("i1", str(finite).lower()),
    )
    bits = f.help("sim.narrow", "i32", *arguments)
    if kind == "tf32":
        return f.value(f"shl i32 {bits}, 13")
    return bits if kind == "f32" else f.value(f"trunc i32 {bits} to i16")


def map_narrow(
    f: FunctionBuilder,
    operands: list[Operand],
    form: Form,
    compute: Callable[..., str],
) -> None:
    """Apply a function of doubles to each element of f16, bf16 or packed operands.

    `compute` gets the operands as doubles and returns a double, which is rounded to nearest.
    """

    def element(*bits: str) -> str:
        values = [widen(f, value, kind) for value in bits]
        if flushes:
            values = [f.help("sim.flush.f16", "double", ("double", value)) for value in values]
        result = compute(*values)
        if "relu" in form.flags:
            result = f.help("sim.relu", "double", ("double", result))
        if "sat" in form.flags:
            result = saturate(f, result, "double")
        if not flushes:
            return narrow(f, result, kind)
        rounded_result = widen(f, narrow(f, result, kind), kind)
        return narrow(f, f.help("sim.flush.f16", "double", ("double", rounded_result)), kind)

    kind = PACKED_TYPES.get(form.type, form.type)
    flushes = "ftz" in form.flags and kind == "f16"
    if "ftz" in form.flags and kind != "f16":
        raise f.error("unsupported modifier .ftz of this type")
    map_elements(f, operands, form, element)


def map_elements(
    f: FunctionBuilder, operands: list[Operand], form: Form, element: Callable[..., str]
) -> None:
    """Apply a function of i16 to each half of packed operands, or to operands of 16 bits."""
    if form.type not in PACKED_TYPES:
        result = element(*(f.read_bits(operand, 16) for operand in operands[1:]))
        f.write(operands[0], result, "b16")
        return
    values = [f.read_bits(operand, 32) for operand in operands[1:]]
    low = element(*(f.value(f"trunc i32 {value} to i16") for value in values))
    shifted = [f.value(f"lshr i32 {value}, 16") for value in values]
    high = element(*(f.value(f"trunc i32 {value} to i16") for value in shifted))
    f.write(operands[0], join_halves(f, low, high), "b32")


def join_halves(f: FunctionBuilder, low: str, high: str) -> str:
    """Return an i32 of two i16."""
    wide = f.value(f"shl i32 {f.value(f'zext i16 {high} to i32')}, 16")
    return f.value(f"or i32 {wide}, {f.value(f'zext i16 {low} to i32')}")


# ---- arithmetic ----------------------------------------------------------------------------------


def _binary(operation: str) -> Callable[[FunctionBuilder, list[Operand], Form], None]:
    def translate(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
        if form.type in PACKED:
            map_narrow(f, operands, form, lambda a, b: f.value(f"f{operation} double {a}, {b}"))
            return
        a, b = (read_float(f, operand, form) for operand in operands[1:3])
        write_float(f, operands[0], rounded(f, operation, form, a, b), form)

    return translate


add, subtract, multiply = _binary("add"), _binary("sub"), _binary("mul")


@translates("fma", modifiers=(*_ROUNDING, "ftz", "sat", "relu"), types=("f32", "f64", *PACKED))
def fused_multiply_add(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Translate fma, and mad of floats, which is the same."""
    if form.type in PACKED:
        map_narrow(f, operands, form, lambda *v: f.help("sim.fma.odd", "double", *_doubles(v)))
        return
    values = [read_float(f, operand, form) for operand in operands[1:4]]
    write_float(f, operands[0], rounded(f, "fma", form, *values), form)


def _doubles(values: tuple[str, ...]) -> list[tuple[str, str]]:
    return [("double", value) for value in values]


def divide(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Translate div. The stand-in of div.full and div.approx is the exact quotient.

    div.approx gives 0 for a divisor between 2**126 and 2**128, as the ISA says.
    """
    a, b = (read_float(f, operand, form) for operand in operands[1:3])
    if not form.flags & {"approx", "full"}:
        write_float(f, operands[0], rounded(f, "div", form, a, b), form)
        return
    if form.type != "f32":
        raise f.error("unsupported type")
    f.approximates = True
    if "approx" in form.flags:
        result = f.help("sim.div.approx", "float", ("float", a), ("float", b))
    else:
        result = f.value(f"fdiv float {a}, {b}")
    write_float(f, operands[0], result, form)


@translates("sqrt", modifiers=(*_ROUNDING, "ftz", "approx"), types=("f32", "f64"))
def _square_root(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    f.approximates |= "approx" in form.flags
    value = read_float(f, operands[1], form)
    root = rounded(f, "sqrt", form, value)
    if form.type == "f32":
        root = _canonical_root(f, value, root)
    write_float(f, operands[0], root, form)


def _canonical_root(f: FunctionBuilder, value: str, root: str) -> str:
    """Replace a root that is NaN: LLVM would drop a choice that a comparison of floats decides."""
    bits = f.value(f"bitcast float {value} to i32")
    negative_or_nan = f.value(f"icmp ugt i32 {bits}, {0x7F800000}")
    not_zero = f.value(f"icmp ne i32 {bits}, {1 << 31}")
    is_nan = f.value(f"and i1 {negative_or_nan}, {not_zero}")
    return f.value(f"select i1 {is_nan}, float {CANONICAL_NAN}, float {root}")


@translates("rcp", modifiers=(*_ROUNDING, "ftz", "approx"), types=("f32", "f64"))
def _reciprocal(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    value = read_float(f, operands[1], form)
    if "approx" in form.flags:
        f.approximates = True
        if form.type == "f64":
            f.write(operands[0], f.help("sim.rcp.approx.f64", "double", ("double", value)), "f64")
            return
    write_float(f, operands[0], rounded(f, "div", form, "1.0", value), form)


# ---- signs and extremes --------------------------------------------------------------------------


def absolute(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Translate abs of floats: clear the sign, also of a NaN."""
    if form.type in PACKED:
        mask = 0x7FFF7FFF if form.type in PACKED_TYPES else 0x7FFF
        _change_sign(f, operands, form, f"and i{{}} {{}}, {mask}")
        return
    value = read_float(f, operands[1], form)
    f.write(operands[0], f.intrinsic("fabs", FLOAT_TYPES[form.type], value), form.type)


def negate(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Translate neg of floats: flip the sign, also of a NaN."""
    if form.type in PACKED:
        mask = 0x80008000 if form.type in PACKED_TYPES else 0x8000
        _change_sign(f, operands, form, f"xor i{{}} {{}}, {mask}")
        return
    value = read_float(f, operands[1], form)
    f.write(operands[0], f.value(f"fneg {FLOAT_TYPES[form.type]} {value}"), form.type)


def _change_sign(f: FunctionBuilder, operands: list[Operand], form: Form, text: str) -> None:
    if "ftz" in form.flags:
        raise f.error("unsupported modifier .ftz of this type")
    width = 32 if form.type in PACKED_TYPES else 16
    value = f.read_bits(operands[1], width)
    f.write(operands[0], f.value(text.format(width, value)), f"b{width}")


@translates("copysign", types=("f32", "f64"))
def _copy_sign(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Copy the sign of the first operand to the second."""
    sign, value = (f.read(operand, form.type) for operand in operands[1:3])
    f.write(operands[0], f.intrinsic("copysign", FLOAT_TYPES[form.type], value, sign), form.type)


def extreme(f: FunctionBuilder, operands: list[Operand], form: Form) -> None:
    """Translate min and max: -0 is less than +0, and a NaN loses, or wins with .NaN."""
    name = f"{form.opcode}imum" + ("" if "NaN" in form.flags else "num")
    kind = "double" if form.type in PACKED else FLOAT_TYPES[form.type]

    def compute(*values: str) -> str:
        if "xorsign" in form.flags:
            return _xorsign(f, name, kind, *values)
        if "abs" in form.flags:
            values = tuple(f.intrinsic("fabs", kind, value) for value in values)
        result = values[0]
        for value in values[1:]:
            result = f.intrinsic(name, kind, result, value)
        return result

    if form.type in PACKED:
        map_narrow(f, operands, form, compute)
        return
    if "relu" in form.flags:
        raise f.error("unsupported modifier .relu")
    values = [read_float(f, operand, form) for operand in operands[1:]]
    write_float(f, operands[0], compute(*values), form)


def _xorsign(f: FunctionBuilder, name: str, kind: str, a: str, b: str) -> str:
    """Return the extreme of the magnitudes with the product of the signs."""
    width = 64 if kind == "double" else 32
    signs = f.value(
        f"xor i{width} {f.value(f'bitcast {kind} {a} to i{width}')}, "
        f"{f.value(f'bitcast {kind} {b} to i{width}')}"
    )
    sign = f.value(f"bitcast i{width} {signs} to {kind}")
    magnitudes = [f.intrinsic("fabs", kind, value) for value in (a, b)]
    return f.intrinsic("copysign", kind, f.intrinsic(name, kind, *magnitudes), sign)
