"""Two intrinsics for guards: a fact told to LLVM, and a limit made from any real number."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import errors, types
from numba.extending import intrinsic

__all__ = ["assume", "limit"]

_FURTHEST = 2**62
"""Beyond every position there is, and far enough from overflow to add a position to."""


@intrinsic(prefer_literal=True)
def assume(_typingctx: Any, condition: Any, negated: Any) -> Any:
    """Tell LLVM that a condition (or its negation, if `negated` is 1) holds here."""
    is_negated = bool(negated.literal_value)

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        bit = context.cast(builder, args[0], sig.args[0], types.boolean)
        builder.assume(builder.not_(bit) if is_negated else bit)
        return context.get_dummy_value()

    return types.none(types.unliteral(condition), negated), codegen


@intrinsic(prefer_literal=True)
def limit(_typingctx: Any, value: Any, inclusive: Any, low_if_nan: Any) -> Any:
    """Give the integer L such that ``i < value`` (or ``i >= value``) is ``i < L`` (``i >= L``).

    With `inclusive`, for ``i <= value`` and ``i > value``. Positions are compared with floating
    point values as numbers. Comparing with NaN is always false, so what it means depends on the
    side that runs then: `low_if_nan` asks for a limit below all positions, else it is above all.
    """
    value = types.unliteral(value)
    if not isinstance(value, types.Integer | types.Float) or value == types.float16:
        raise errors.NumbaTypeError(f"no limit can be made from {value}")
    is_inclusive, is_low = bool(inclusive.literal_value), bool(low_if_nan.literal_value)

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        if isinstance(value, types.Integer):
            number = _clamped_integer(context, builder, args[0], sig.args[0])
            return builder.add(number, ir.IntType(64)(int(is_inclusive)))
        wide = context.cast(builder, args[0], sig.args[0], types.float64)
        return _limit_of_float(builder, wide, is_inclusive, is_low)

    return types.int64(value, inclusive, low_if_nan), codegen


def _clamped_integer(context: Any, builder: ir.IRBuilder, number: ir.Value, typ: Any) -> ir.Value:
    if typ.bitwidth < 64:
        return context.cast(builder, number, typ, types.int64)
    high = ir.IntType(64)(_FURTHEST)
    if not typ.signed:
        return builder.select(builder.icmp_unsigned(">", number, high), high, number)
    low = ir.IntType(64)(-_FURTHEST)
    number = builder.select(builder.icmp_signed(">", number, high), high, number)
    return builder.select(builder.icmp_signed("<", number, low), low, number)


def _limit_of_float(
    builder: ir.IRBuilder, number: ir.Value, is_inclusive: bool, is_low: bool
) -> ir.Value:
    double, i64 = ir.DoubleType(), ir.IntType(64)
    far = float(_FURTHEST)
    is_nan = builder.fcmp_unordered("uno", number, number)
    number = builder.select(builder.fcmp_ordered(">", number, double(far)), double(far), number)
    number = builder.select(builder.fcmp_ordered("<", number, double(-far)), double(-far), number)
    name = "llvm.floor" if is_inclusive else "llvm.ceil"
    rounding = builder.module.declare_intrinsic(name, [double])
    whole = builder.call(rounding, [builder.select(is_nan, double(0.0), number)])
    result = builder.add(builder.fptosi(whole, i64), i64(int(is_inclusive)))
    return builder.select(is_nan, i64(-_FURTHEST if is_low else _FURTHEST), result)
