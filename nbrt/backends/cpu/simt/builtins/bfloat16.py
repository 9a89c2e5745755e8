"""The type ``bfloat16`` of numba-cuda: its values, conversions and operators.

Values are 16-bit integers with the upper half of the bits of a float32, because a vector unit has
instructions for those. Arithmetic computes in float32 and rounds again; for ``+ - * /`` and the
square root of so short a format, the result is correctly rounded. Typing is numba-cuda's.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel.models import PrimitiveModel
from numba.core.imputils import Registry
from numba.core.typing.builtins import (
    BinOp,
    BinOpTrueDiv,
    OrderedCmpOp,
    UnaryNegate,
    UnaryPositive,
    UnorderedCmpOp,
)
from numba.core.typing.templates import AbstractTemplate, signature
from numba.cuda.types import bfloat16
from numba.extending import register_model

from nbrt.backends.cpu.simt.builtins.half import to_odd_single
from nbrt.backends.cpu.simt.builtins.registry import Emit, Values, lowering, real_to_integer
from nbrt.backends.cpu.simt.target import simt_target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "NAN",
    "REPLACEMENTS",
    "bfloat16",
    "from_double",
    "from_integer",
    "from_single",
    "through_single",
    "to_integer",
    "to_single",
]

NAN = 0x7FFF
"""The bits of the NaN that the device returns."""

_BITS, _WIDE, _LONG = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_SINGLE, _DOUBLE = ir.FloatType(), ir.DoubleType()

_registry = Registry("nbrt.bfloat16")


@register_model(type(bfloat16))
class _Model(PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, _BITS)


# -- conversions -------------------------------------------------------------------------------


def to_single(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Return a bfloat16 as a float, which is exact."""
    bits = builder.shl(builder.zext(value, _WIDE), ir.Constant(_WIDE, 16))
    return builder.bitcast(bits, _SINGLE)


def from_single(builder: ir.IRBuilder, value: ir.Value, rounding: str = "rn") -> ir.Value:
    """Round a float to a bfloat16.

    `rounding` is to the nearest (``rn``), toward zero (``rz``), down (``rd``) or up (``ru``).
    """
    bits = builder.bitcast(value, _WIDE)
    sixteen, ones = ir.Constant(_WIDE, 16), ir.Constant(_WIDE, 0xFFFF)
    if rounding == "rn":
        last = builder.and_(builder.lshr(bits, sixteen), ir.Constant(_WIDE, 1))
        added = builder.add(last, ir.Constant(_WIDE, 0x7FFF))
    else:
        # Adding all ones rounds away from zero unless the value is exact.
        negative = builder.icmp_signed("<", bits, ir.Constant(_WIDE, 0))
        zero = ir.Constant(_WIDE, 0)
        away = {"rz": (zero, zero), "rd": (ones, zero), "ru": (zero, ones)}[rounding]
        added = builder.select(negative, *away)
    rounded = builder.trunc(builder.lshr(builder.add(bits, added), sixteen), _BITS)
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.select(is_nan, ir.Constant(_BITS, NAN), rounded)


def from_double(builder: ir.IRBuilder, value: ir.Value, rounding: str = "rn") -> ir.Value:
    """Round a double to a bfloat16, once."""
    return from_single(builder, to_odd_single(builder, value), rounding)


def from_integer(
    builder: ir.IRBuilder, value: ir.Value, rounding: str = "rn", *, signed: bool
) -> ir.Value:
    """Round an integer of up to 64 bits to a bfloat16, once."""
    if value.type.width <= 32:
        convert = builder.sitofp if signed else builder.uitofp
        return from_double(builder, convert(value, _DOUBLE), rounding)
    zero = ir.Constant(_LONG, 0)
    negative = builder.icmp_signed("<", value, zero) if signed else ir.Constant(ir.IntType(1), 0)
    size = builder.select(negative, builder.sub(zero, value), value)
    # A double holds 53 bits; the lowest of them records whether any bit is lost.
    is_long = builder.icmp_unsigned("!=", builder.lshr(size, ir.Constant(_LONG, 53)), zero)
    lost = builder.icmp_unsigned("!=", builder.and_(size, ir.Constant(_LONG, 0x7FF)), zero)
    short = builder.or_(builder.lshr(size, ir.Constant(_LONG, 11)), builder.zext(lost, _LONG))
    real = builder.uitofp(builder.select(is_long, short, size), _DOUBLE)
    real = builder.select(is_long, builder.fmul(real, ir.Constant(_DOUBLE, 2.0**11)), real)
    return from_double(builder, builder.select(negative, builder.fneg(real), real), rounding)


def to_integer(
    builder: ir.IRBuilder, value: ir.Value, rounding: str, width: int, *, signed: bool
) -> ir.Value:
    """Convert a bfloat16 to an integer as a GPU does: saturating, and NaN to 0."""
    single = to_single(builder, value)
    return real_to_integer(builder, single, rounding, width, signed=signed)


def through_single(emit: Emit) -> Emit:
    """Return the function of bfloat16 values that computes `emit` of floats and rounds it."""

    def rounded(builder: ir.IRBuilder, args: Values) -> ir.Value:
        return from_single(builder, emit(builder, [to_single(builder, arg) for arg in args]))

    return rounded


@_registry.lower_cast(bfloat16, types.Float)
def _cast_to_float(
    context: Any, builder: ir.IRBuilder, _from: Any, to: Any, value: ir.Value
) -> ir.Value:
    return context.cast(builder, to_single(builder, value), types.float32, to)


@_registry.lower_cast(bfloat16, types.Integer)
def _cast_to_integer(
    _context: Any, builder: ir.IRBuilder, _from: Any, to: Any, value: ir.Value
) -> ir.Value:
    return to_integer(builder, value, "llvm.trunc", to.bitwidth, signed=to.signed)


@_registry.lower_cast(bfloat16, types.Boolean)
def _cast_to_boolean(
    _context: Any, builder: ir.IRBuilder, _from: Any, _to: Any, value: ir.Value
) -> ir.Value:
    return _is_nonzero(builder, [value])


@_registry.lower_cast(types.Float, bfloat16)
def _cast_from_float(
    context: Any, builder: ir.IRBuilder, source: Any, _to: Any, value: ir.Value
) -> ir.Value:
    if source == types.float64:
        return from_double(builder, value)
    return from_single(builder, context.cast(builder, value, source, types.float32))


@_registry.lower_cast(types.Integer, bfloat16)
@_registry.lower_cast(types.IntegerLiteral, bfloat16)
def _cast_from_integer(
    context: Any, builder: ir.IRBuilder, source: Any, _to: Any, value: ir.Value
) -> ir.Value:
    if isinstance(source, types.IntegerLiteral):
        value = context.cast(builder, value, source, source.literal_type)
        source = source.literal_type
    return from_integer(builder, value, signed=source.signed)


# -- operators ---------------------------------------------------------------------------------


def _type_operator(function: Callable[..., Any], base: Any, result: Any, count: int) -> None:
    """Put numba-cuda's typing of an operator with a bfloat16 first."""
    known = [*base.cases, signature(result, *[bfloat16] * count)]

    class Template(AbstractTemplate):
        key = function

        def generic(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
            if bfloat16 not in args:
                return None
            return self._select(known, args, kws)

    context = simt_target.typing_context
    typed = context._lookup_global(function)
    context._remove_global(function)
    context._insert_global(function, types.Function((Template, *typed.templates)))


def _is_nonzero(builder: ir.IRBuilder, args: Values) -> ir.Value:
    size = builder.and_(args[0], ir.Constant(_BITS, 0x7FFF))
    return builder.icmp_unsigned("!=", size, ir.Constant(_BITS, 0))


def _compared(sign: str) -> Emit:
    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        values = [to_single(builder, arg) for arg in args]
        return (builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered)(sign, *values)

    return emit


_BINARY: dict[str, tuple[Any, Emit]] = {
    "add": (BinOp, through_single(lambda builder, args: builder.fadd(*args))),
    "sub": (BinOp, through_single(lambda builder, args: builder.fsub(*args))),
    "mul": (BinOp, through_single(lambda builder, args: builder.fmul(*args))),
    "truediv": (BinOpTrueDiv, through_single(lambda builder, args: builder.fdiv(*args))),
}
_UNARY: dict[str, tuple[Any, Emit]] = {
    "neg": (UnaryNegate, lambda b, args: b.xor(args[0], ir.Constant(_BITS, 0x8000))),
    "pos": (UnaryPositive, lambda _builder, args: args[0]),
}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@_registry.lower("print_item", bfloat16)
def _print(context: Any, builder: ir.IRBuilder, _sig: Any, args: Values) -> ir.Value:
    """Print with six decimals, as CUDA does: Python has no other text for the format."""
    api = context.get_python_api(builder)
    real = api.float_from_double(builder.fpext(to_single(builder, args[0]), _DOUBLE))
    method, arguments = api.object_getattr_string(real, "__format__"), api.tuple_new(1)
    decimals = context.insert_const_string(builder.module, "f")
    api.tuple_setitem(arguments, 0, api.string_from_string(decimals))
    text = api.call(method, arguments)
    api.print_object(text)
    for each in (real, method, arguments, text):
        api.decref(each)
    return context.get_dummy_value()


def _add_operators() -> None:
    simt_target.typing_context.refresh()
    for name, (base, emit) in _BINARY.items():
        for function in (getattr(operator, name), getattr(operator, f"i{name}")):
            _type_operator(function, base, bfloat16, 2)
            _registry.lower(function, bfloat16, bfloat16)(lowering(emit))
    for name, (base, emit) in _UNARY.items():
        _type_operator(getattr(operator, name), base, bfloat16, 1)
        _registry.lower(getattr(operator, name), bfloat16)(lowering(emit))
    for name, sign in _COMPARISONS.items():
        base = UnorderedCmpOp if name in ("eq", "ne") else OrderedCmpOp
        _type_operator(getattr(operator, name), base, types.boolean, 2)
        _registry.lower(getattr(operator, name), bfloat16, bfloat16)(lowering(_compared(sign)))
    _registry.lower(bool, bfloat16)(lowering(_is_nonzero))
    simt_target.target_context.install_registry(_registry)


_add_operators()

REPLACEMENTS: dict[str, Any] = {"bfloat16": bfloat16}
