"""The functions of ``cuda.bf16``, under the names of CUDA's header ``cuda_bf16.h``.

Arithmetic rounds once, as on the device. Functions such as ``hsin`` compute in float64 and round:
within CUDA's error bounds, and not always with the same last bit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import signature

from nbrt.backends.cpu.simt.builtins.bfloat16 import (
    NAN,
    bfloat16,
    from_double,
    from_integer,
    from_single,
    through_single,
    to_integer,
    to_single,
)
from nbrt.backends.cpu.simt.builtins.registry import (
    Emit,
    Lower,
    Values,
    by_intrinsic,
    call_intrinsic,
    define,
    register,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["COMPARISONS", "REPLACEMENTS", "SCALARS", "TRANSCENDENTAL", "is_nan"]

_BITS = ir.IntType(16)
_SINGLE, _DOUBLE = ir.FloatType(), ir.DoubleType()

_INTEGERS = {
    "char": types.int8,
    "uchar": types.uint8,
    "short": types.int16,
    "ushort": types.uint16,
    "int": types.int32,
    "uint": types.uint32,
    "ll": types.int64,
    "ull": types.uint64,
}
_ROUNDINGS = {"rn": "llvm.rint", "rd": "llvm.floor", "ru": "llvm.ceil", "rz": "llvm.trunc"}
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

REPLACEMENTS: dict[str, Callable[..., Any]] = {}

SCALARS: dict[str, tuple[int, Emit]] = {}
"""Name of a function of bfloat16 values with a bfloat16 result -> its arguments and its code."""

COMPARISONS: dict[str, Emit] = {}
"""Name of a comparison -> its code."""


TRANSCENDENTAL: dict[str, Lower] = {}
"""Name of a function that Python code computes in double -> its code."""


def _add(name: str, result: Any, arguments: Sequence[Any], emit: Emit) -> None:
    REPLACEMENTS[f"bf16.{name}"] = register(name, [signature(result, *arguments)], emit)


def _add_scalar(name: str, count: int, emit: Emit) -> None:
    SCALARS[name] = count, emit
    _add(name, bfloat16, [bfloat16] * count, emit)


# -- conversions -------------------------------------------------------------------------------


def _add_conversions() -> None:
    for rounding, intrinsic in _ROUNDINGS.items():

        def of_single(builder: ir.IRBuilder, args: Values, rounding: str = rounding) -> ir.Value:
            return from_single(builder, args[0], rounding)

        _add(f"__float2bfloat16_{rounding}", bfloat16, [types.float32], of_single)
        for name, typ in _INTEGERS.items():

            def of_integer(
                builder: ir.IRBuilder, args: Values, rounding: str = rounding, typ: Any = typ
            ) -> ir.Value:
                return from_integer(builder, args[0], rounding, signed=typ.signed)

            def as_integer(
                builder: ir.IRBuilder, args: Values, intrinsic: str = intrinsic, typ: Any = typ
            ) -> ir.Value:
                return to_integer(builder, args[0], intrinsic, typ.bitwidth, signed=typ.signed)

            if typ.bitwidth > 8:
                _add(f"__{name}2bfloat16_{rounding}", bfloat16, [typ], of_integer)
            if typ.bitwidth > 8 or rounding == "rz":
                _add(f"__bfloat162{name}_{rounding}", typ, [bfloat16], as_integer)
    REPLACEMENTS["bf16.__float2bfloat16"] = REPLACEMENTS["bf16.__float2bfloat16_rn"]
    _add("__double2bfloat16", bfloat16, [types.float64], lambda b, args: from_double(b, args[0]))
    _add("__bfloat162float", types.float32, [bfloat16], lambda b, args: to_single(b, args[0]))
    for name, typ in (("short", types.int16), ("ushort", types.uint16)):
        _add(f"__{name}_as_bfloat16", bfloat16, [typ], lambda _builder, args: args[0])
        _add(f"__bfloat16_as_{name}", typ, [bfloat16], lambda _builder, args: args[0])


# -- arithmetic --------------------------------------------------------------------------------


def _fused(builder: ir.IRBuilder, args: Values) -> ir.Value:
    """Multiply and add with one rounding.

    The product is exact in double. If the sum is not, the double with an odd last bit on the side
    of the exact sum records that, as the error of the sum is a double.
    """
    a, b, c = (builder.fpext(to_single(builder, arg), _DOUBLE) for arg in args)
    product = builder.fmul(a, b)
    total = builder.fadd(product, c)
    share = builder.fsub(total, product)
    error = builder.fadd(builder.fsub(product, builder.fsub(total, share)), builder.fsub(c, share))
    wide = ir.IntType(64)
    bits, one = builder.bitcast(total, wide), ir.Constant(wide, 1)
    is_even = builder.icmp_unsigned("==", builder.and_(bits, one), ir.Constant(wide, 0))
    zero = ir.Constant(_DOUBLE, 0.0)
    # False for a sum that is exact, infinite or no number.
    inexact = builder.fcmp_ordered("!=", error, zero)
    outward = builder.icmp_unsigned(
        "==",
        builder.fcmp_ordered(">", error, zero),
        builder.fcmp_ordered(">", total, zero),
    )
    moved = builder.select(outward, builder.add(bits, one), builder.sub(bits, one))
    odd = builder.select(builder.and_(is_even, inexact), moved, bits)
    return from_double(builder, builder.bitcast(odd, _DOUBLE))


def _constant(value: float) -> ir.Value:
    return ir.Constant(_SINGLE, value)


def _clamped(emit: Emit) -> Emit:
    """Return the saturating form: to [0, 1], and NaN to 0."""

    def clamped(builder: ir.IRBuilder, args: Values) -> ir.Value:
        value = to_single(builder, emit(builder, args))
        value = builder.select(
            builder.fcmp_ordered(">", value, _constant(0.0)), value, _constant(0.0)
        )
        value = builder.select(
            builder.fcmp_ordered("<", value, _constant(1.0)), value, _constant(1.0)
        )
        return from_single(builder, value)

    return clamped


def _rectified(builder: ir.IRBuilder, args: Values) -> ir.Value:
    value = _fused(builder, args)
    negative = builder.fcmp_ordered("<=", to_single(builder, value), _constant(0.0))
    return builder.select(negative, ir.Constant(_BITS, 0), value)


def _extreme(name: str, *, keeps_nan: bool) -> Emit:
    def extreme(builder: ir.IRBuilder, args: Values) -> ir.Value:
        # The order of the bits distinguishes the two zeros: -0 is less than +0.
        a, b = args
        smaller = builder.icmp_signed("<", _rank(builder, a), _rank(builder, b))
        chosen = builder.select(smaller, *((a, b) if name == "min" else (b, a)))
        nan_a, nan_b = (is_nan(builder, value) for value in args)
        nan = ir.Constant(_BITS, NAN)
        if keeps_nan:
            return builder.select(builder.or_(nan_a, nan_b), nan, chosen)
        chosen = builder.select(nan_a, b, builder.select(nan_b, a, chosen))
        return builder.select(builder.and_(nan_a, nan_b), nan, chosen)

    return extreme


def _rank(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    sign = builder.ashr(value, ir.Constant(_BITS, 15))
    return builder.xor(builder.and_(value, ir.Constant(_BITS, 0x7FFF)), sign)


def is_nan(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Return whether a bfloat16 is NaN."""
    size = builder.and_(value, ir.Constant(_BITS, 0x7FFF))
    return builder.icmp_unsigned(">", size, ir.Constant(_BITS, 0x7F80))


def _is_infinite(builder: ir.IRBuilder, args: Values) -> ir.Value:
    """Return 1 for plus infinity, -1 for minus infinity, else 0."""
    result = ir.IntType(32)
    plus, minus = (
        builder.zext(builder.icmp_unsigned("==", args[0], ir.Constant(_BITS, bits)), result)
        for bits in (0x7F80, 0xFF80)
    )
    return builder.sub(plus, minus)


def _add_arithmetic() -> None:
    operations: dict[str, Emit] = {
        "add": through_single(lambda builder, args: builder.fadd(*args)),
        "sub": through_single(lambda builder, args: builder.fsub(*args)),
        "mul": through_single(lambda builder, args: builder.fmul(*args)),
        "div": through_single(lambda builder, args: builder.fdiv(*args)),
        "fma": _fused,
    }
    for name, emit in operations.items():
        count = 3 if name == "fma" else 2
        _add_scalar(f"__h{name}", count, emit)
        if name != "div":
            _add_scalar(f"__h{name}_sat", count, _clamped(emit))
        if name in ("add", "sub", "mul"):
            _add_scalar(f"__h{name}_rn", count, emit)
    _add_scalar("__hfma_relu", 3, _rectified)
    _add_scalar("__hneg", 1, lambda b, args: b.xor(args[0], ir.Constant(_BITS, 0x8000)))
    _add_scalar("__habs", 1, lambda b, args: b.and_(args[0], ir.Constant(_BITS, 0x7FFF)))
    for name in ("max", "min"):
        _add_scalar(f"__h{name}", 2, _extreme(name, keeps_nan=False))
        _add_scalar(f"__h{name}_nan", 2, _extreme(name, keeps_nan=True))


def _compared(sign: str, *, ordered: bool) -> Emit:
    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        compare = builder.fcmp_ordered if ordered else builder.fcmp_unordered
        return compare(sign, *(to_single(builder, arg) for arg in args))

    return emit


def _add_comparisons() -> None:
    for name, sign in _SIGNS.items():
        for suffix, ordered in (("", True), ("u", False)):
            emit = COMPARISONS[f"{name}{suffix}"] = _compared(sign, ordered=ordered)
            _add(f"__h{name}{suffix}", types.boolean, [bfloat16] * 2, emit)
    _add("__hisnan", types.boolean, [bfloat16], lambda b, args: is_nan(b, args[0]))
    _add("__hisinf", types.int32, [bfloat16], _is_infinite)


# -- functions ---------------------------------------------------------------------------------

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "hexp": lambda x: math.exp(x),
    "hexp2": lambda x: 2.0**x,
    "hexp10": lambda x: 10.0**x,
    "hlog": lambda x: math.log(x),
    "hlog2": lambda x: math.log2(x),
    "hlog10": lambda x: math.log10(x),
    "hsin": lambda x: math.sin(x),
    "hcos": lambda x: math.cos(x),
    "htanh": lambda x: math.tanh(x),
    "htanh_approx": lambda x: math.tanh(x),
}


def _reciprocal_root(builder: ir.IRBuilder, args: Values) -> ir.Value:
    wide = builder.fpext(to_single(builder, args[0]), _DOUBLE)
    root = call_intrinsic(builder, "llvm.sqrt", wide)
    return from_double(builder, builder.fdiv(ir.Constant(_DOUBLE, 1.0), root))


def _add_functions() -> None:
    for name in ("ceil", "floor", "rint", "trunc", "sqrt"):
        _add_scalar(f"h{name}", 1, through_single(by_intrinsic(f"llvm.{name}")))
    _add_scalar("hrcp", 1, through_single(lambda b, args: b.fdiv(_constant(1.0), args[0])))
    _add_scalar("hrsqrt", 1, _reciprocal_root)
    for name, compute in _FUNCTIONS.items():

        def lower(
            context: Any,
            builder: ir.IRBuilder,
            _sig: Any,
            args: Values,
            compute: Callable[[Any], Any] = compute,
        ) -> ir.Value:
            kind = signature(types.float64, types.float64)
            wide = builder.fpext(to_single(builder, args[0]), _DOUBLE)
            return from_double(builder, context.compile_internal(builder, compute, kind, [wide]))

        TRANSCENDENTAL[name] = lower
        REPLACEMENTS[f"bf16.{name}"] = define(name, [signature(bfloat16, bfloat16)], lower)


_add_conversions()
_add_arithmetic()
_add_comparisons()
_add_functions()
