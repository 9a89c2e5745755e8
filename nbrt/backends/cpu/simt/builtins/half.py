"""The type ``float16``, which Numba's CPU target declares without code.

Values are LLVM's ``half``. Arithmetic computes in ``float`` and rounds again; for ``+ - * /`` and
the square root of so short a format, the result is correctly rounded. Typing is numba-cuda's: an
operator with one ``float16`` operand computes in ``float16`` if the other converts to it safely.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import boxing, types
from numba.core.datamodel.models import FloatModel, PrimitiveModel
from numba.core.imputils import Registry
from numba.core.pythonapi import NativeValue, _unboxers
from numba.core.typeconv import Conversion
from numba.core.typing.templates import AbstractTemplate, signature
from numba.extending import register_model

from nbrt.backends.cpu.simt.builtins.registry import (
    Emit,
    Values,
    by_intrinsic,
    call_intrinsic,
    lowering,
    real_to_integer,
)
from nbrt.backends.cpu.simt.target import simt_target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["from_double", "half_bits", "to_integer", "to_odd_single"]

_HALF, _SINGLE, _DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_BITS = ir.IntType(16)

# Not Numba's own registry: numba-cuda takes the code of other packages from there, and would mix
# it with its own, in which a float16 is an integer.
_registry = Registry("nbrt.float16")


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
    """Return the bits of a half as an integer, or the half with such bits."""
    return builder.bitcast(value, _BITS if value.type == _HALF else _HALF)


def from_double(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Round a double to the nearest half, once.

    LLVM would call a function of the C compiler's library, which may be missing.
    """
    return builder.fptrunc(to_odd_single(builder, value), _HALF)


def to_odd_single(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Round a double to a float, and if it is inexact to the one with an odd last bit.

    A shorter format may be rounded from the result: the last bit records what was lost.
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
    return builder.bitcast(chosen, _SINGLE)


def to_integer(
    builder: ir.IRBuilder, value: ir.Value, rounding: str, width: int, *, signed: bool
) -> ir.Value:
    """Convert a half to an integer as a GPU does: saturating, and NaN to 0."""
    return real_to_integer(builder, builder.fpext(value, _SINGLE), rounding, width, signed=signed)


@_registry.lower_cast(types.float16, types.Float)
def _to_float(
    context: Any, builder: ir.IRBuilder, _from: Any, to: Any, value: ir.Value
) -> ir.Value:
    return builder.fpext(value, context.get_value_type(to))


@_registry.lower_cast(types.Float, types.float16)
def _from_float(
    _context: Any, builder: ir.IRBuilder, _from: Any, _to: Any, value: ir.Value
) -> ir.Value:
    if value.type == _DOUBLE:
        return from_double(builder, value)
    return builder.fptrunc(value, _HALF)


@_registry.lower_cast(types.float16, types.Integer)
def _to_integer(
    _context: Any, builder: ir.IRBuilder, _from: Any, to: Any, value: ir.Value
) -> ir.Value:
    # To the nearest, unlike float32: numba-cuda uses this instruction.
    return to_integer(builder, value, "llvm.rint", to.bitwidth, signed=to.signed)


@_registry.lower_cast(types.Integer, types.float16)
@_registry.lower_cast(types.IntegerLiteral, types.float16)
def _from_integer(
    context: Any, builder: ir.IRBuilder, source: Any, _to: Any, value: ir.Value
) -> ir.Value:
    # float32 is exact in the range of float16.
    if isinstance(source, types.IntegerLiteral):
        value = context.cast(builder, value, source, source.literal_type)
        source = source.literal_type
    convert = builder.sitofp if source.signed else builder.uitofp
    return builder.fptrunc(convert(value, _SINGLE), _HALF)


@_registry.lower_constant(types.float16)
def _constant(_context: Any, _builder: ir.IRBuilder, _typ: Any, value: Any) -> ir.Value:
    return ir.Constant(_HALF, float(value))


def _unbox(typ: Any, obj: Any, c: Any) -> Any:
    if typ != types.float16:
        return boxing.unbox_float(typ, obj, c)
    wide = boxing.unbox_float(types.float64, obj, c)
    return NativeValue(from_double(c.builder, wide.value), is_error=wide.is_error)


# Replaces Numba's function for float32 and float64, as its registry has one entry for all floats.
_unboxers.functions[types.Float] = _unbox

# -- operators ---------------------------------------------------------------------------------

_HALVES = (types.float16, types.float16)
_SAFE = (Conversion.exact, Conversion.promote, Conversion.safe)


def _type_operator(function: Callable[..., Any], result: Any, count: int) -> None:
    """Put the typing of an operator first: Numba's own would take a float16 for a float32."""

    class Template(AbstractTemplate):
        key = function

        def generic(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
            if kws or len(args) != count or types.float16 not in args:
                return None
            if any(self.context.can_convert(arg, types.float16) not in _SAFE for arg in args):
                return None
            return signature(result, *_HALVES[:count])

    context = simt_target.typing_context
    known = context._lookup_global(function)
    context._remove_global(function)
    context._insert_global(function, types.Function((Template, *known.templates)))


_UNARY: dict[Callable[..., Any], Emit] = {
    float: lambda _builder, args: args[0],
    abs: by_intrinsic("llvm.fabs"),
    operator.neg: lambda builder, args: builder.fneg(args[0]),
    operator.pos: lambda _builder, args: args[0],
}
_BINARY: tuple[Callable[..., Any], ...] = (
    *(operator.add, operator.sub, operator.mul, operator.truediv),
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv),
)
_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def _divide(builder: ir.IRBuilder, args: Values) -> ir.Value:
    return builder.fdiv(*args)


def _is_nonzero(builder: ir.IRBuilder, args: Values) -> ir.Value:
    return builder.fcmp_unordered("!=", args[0], ir.Constant(_HALF, 0.0))


simt_target.typing_context.refresh()
for _function, _emit in _UNARY.items():
    _type_operator(_function, types.float16, 1)
    _registry.lower(_function, types.float16)(lowering(_emit))
for _function in _BINARY:
    _type_operator(_function, types.float16, 2)
for _function in _COMPARISONS:
    _type_operator(_function, types.boolean, 2)
for _function in (operator.truediv, operator.itruediv):
    _registry.lower(_function, *_HALVES)(lowering(_divide))
_registry.lower(bool, types.float16)(lowering(_is_nonzero))
simt_target.target_context.install_registry(_registry)
