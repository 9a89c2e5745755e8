"""The type ``float16``: Numba's CPU target knows its name and has no code for it.

Values are LLVM's ``half``. Arithmetic goes through ``float`` and is rounded once more, which for
``+ - * /`` and the square root of so short a format gives the correctly rounded result. Typing is
numba-cuda's: an operator with one ``float16`` operand works in ``float16`` where the other operand
converts to it safely.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import boxing, types
from numba.core.datamodel.models import FloatModel, PrimitiveModel
from numba.core.imputils import lower_constant
from numba.core.pythonapi import NativeValue, _unboxers
from numba.core.registry import cpu_target
from numba.core.typeconv import Conversion
from numba.core.typing.templates import AbstractTemplate, signature
from numba.extending import lower_builtin, lower_cast, register_model

from nbrt.backends.cpu.simt.builtins.registry import call_intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["from_double", "half_bits", "to_integer"]

_HALF, _SINGLE, _DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_BITS = ir.IntType(16)


class _FloatModel(FloatModel):
    """Numba's model of floating-point types, with ``float16`` added."""

    def __init__(self, manager: Any, fe_type: Any) -> None:
        if fe_type == types.float16:
            PrimitiveModel.__init__(self, manager, fe_type, _HALF)
        else:
            super().__init__(manager, fe_type)


register_model(types.Float)(_FloatModel)

# -- conversions -------------------------------------------------------------------------------


def half_bits(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Return the bits of a half as an integer, or a half made of such bits."""
    return builder.bitcast(value, _BITS if value.type == _HALF else _HALF)


def from_double(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Round a double to the nearest half, once.

    LLVM would call a function of the C compiler's library that may not be there. Rounding to float
    first is safe if that rounds to odd: the last bit then remembers that something was cut off.
    """
    nearest = builder.fptrunc(value, _SINGLE)
    back = builder.fpext(nearest, _DOUBLE)
    bits = builder.bitcast(nearest, ir.IntType(32))
    sizes = (call_intrinsic(builder, "llvm.fabs", real) for real in (back, value))
    too_large = builder.fcmp_ordered(">", *sizes)
    cut = builder.sub(bits, builder.zext(too_large, bits.type))
    odd = builder.or_(cut, ir.Constant(bits.type, 1))
    inexact = builder.fcmp_ordered("!=", back, value)
    chosen = builder.select(inexact, odd, bits)
    return builder.fptrunc(builder.bitcast(chosen, _SINGLE), _HALF)


def to_integer(
    builder: ir.IRBuilder, value: ir.Value, rounding: str, width: int, *, signed: bool
) -> ir.Value:
    """Convert a half to an integer as the GPU does: NaN to 0, what is out of range to the end."""
    single = builder.fpext(value, _SINGLE)
    rounded = call_intrinsic(builder, rounding, single)
    integer = ir.IntType(width)
    name = f"llvm.fpto{'s' if signed else 'u'}i.sat.i{width}.f32"
    kind = ir.FunctionType(integer, [_SINGLE])
    return builder.call(builder.module.declare_intrinsic(name, (), kind), [rounded])


@lower_cast(types.float16, types.Float)
def _to_float(
    context: Any, builder: ir.IRBuilder, _from: Any, to: Any, value: ir.Value
) -> ir.Value:
    return builder.fpext(value, context.get_value_type(to))


@lower_cast(types.Float, types.float16)
def _from_float(
    _context: Any, builder: ir.IRBuilder, _from: Any, _to: Any, value: ir.Value
) -> ir.Value:
    if value.type == _DOUBLE:
        return from_double(builder, value)
    return builder.fptrunc(value, _HALF)


@lower_cast(types.float16, types.Integer)
def _to_integer(
    _context: Any, builder: ir.IRBuilder, _from: Any, to: Any, value: ir.Value
) -> ir.Value:
    # To the nearest, unlike float32: that is the instruction numba-cuda chooses.
    return to_integer(builder, value, "llvm.rint", to.bitwidth, signed=to.signed)


@lower_cast(types.Integer, types.float16)
@lower_cast(types.IntegerLiteral, types.float16)
def _from_integer(
    context: Any, builder: ir.IRBuilder, source: Any, _to: Any, value: ir.Value
) -> ir.Value:
    # Exact in float32 as far as float16 reaches.
    if isinstance(source, types.IntegerLiteral):
        value = context.cast(builder, value, source, source.literal_type)
        source = source.literal_type
    convert = builder.sitofp if source.signed else builder.uitofp
    return builder.fptrunc(convert(value, _SINGLE), _HALF)


@lower_constant(types.float16)
def _constant(_context: Any, _builder: ir.IRBuilder, _typ: Any, value: Any) -> ir.Value:
    return ir.Constant(_HALF, float(value))


def _unbox(typ: Any, obj: Any, c: Any) -> Any:
    if typ != types.float16:
        return boxing.unbox_float(typ, obj, c)
    wide = boxing.unbox_float(types.float64, obj, c)
    return NativeValue(from_double(c.builder, wide.value), is_error=wide.is_error)


# In place of Numba's own, which knows the two other sizes only: its registry has no second entry.
_unboxers.functions[types.Float] = _unbox

# -- typing of operators -----------------------------------------------------------------------

_UNARY: tuple[Callable[..., Any], ...] = (abs, operator.neg, operator.pos)
_BINARY: tuple[Callable[..., Any], ...] = (
    *(operator.add, operator.sub, operator.mul, operator.truediv),
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv),
)
_COMPARISONS: tuple[Callable[..., Any], ...] = (
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
)
_SAFE = (Conversion.exact, Conversion.promote, Conversion.safe)


def _prefer(function: Callable[..., Any], template: Any) -> None:
    """Make a template the first that Numba asks: its own would take a float16 for a float32."""
    context = cpu_target.typing_context
    known = context._lookup_global(function)
    context._remove_global(function)
    context._insert_global(function, types.Function((template, *known.templates)))


def _type_unary(function: Callable[..., Any]) -> None:
    class Template(AbstractTemplate):
        key = function

        def generic(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
            if kws or tuple(args) != (types.float16,):
                return None
            return signature(types.float16, types.float16)

    _prefer(function, Template)


def _type_binary(function: Callable[..., Any], result: Any) -> None:
    class Template(AbstractTemplate):
        key = function

        def generic(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
            if kws or len(args) != 2 or types.float16 not in args:
                return None
            other = args[1] if args[0] == types.float16 else args[0]
            if self.context.can_convert(other, types.float16) not in _SAFE:
                return None
            return signature(result, types.float16, types.float16)

    _prefer(function, Template)


cpu_target.typing_context.refresh()
for _function in _UNARY:
    _type_unary(_function)
for _function in _BINARY:
    _type_binary(_function, types.float16)
for _function in _COMPARISONS:
    _type_binary(_function, types.boolean)
_type_unary(float)


@lower_builtin(float, types.float16)
@lower_builtin(operator.pos, types.float16)
def _same(_context: Any, _builder: ir.IRBuilder, _sig: Any, args: Sequence[ir.Value]) -> ir.Value:
    return args[0]


@lower_builtin(operator.neg, types.float16)
def _negative(
    _context: Any, builder: ir.IRBuilder, _sig: Any, args: Sequence[ir.Value]
) -> ir.Value:
    return builder.fneg(args[0])


@lower_builtin(abs, types.float16)
def _absolute(
    _context: Any, builder: ir.IRBuilder, _sig: Any, args: Sequence[ir.Value]
) -> ir.Value:
    return call_intrinsic(builder, "llvm.fabs", *args)


@lower_builtin(operator.truediv, types.float16, types.float16)
@lower_builtin(operator.itruediv, types.float16, types.float16)
def _quotient(
    _context: Any, builder: ir.IRBuilder, _sig: Any, args: Sequence[ir.Value]
) -> ir.Value:
    return builder.fdiv(*args)


@lower_builtin(bool, types.float16)
def _truth(_context: Any, builder: ir.IRBuilder, _sig: Any, args: Sequence[ir.Value]) -> ir.Value:
    return builder.fcmp_unordered("!=", args[0], ir.Constant(_HALF, 0.0))
