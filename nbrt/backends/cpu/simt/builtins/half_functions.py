"""The functions of ``cuda.fp16``, under the names of CUDA's header.

Arithmetic rounds once, as on the device. Functions such as ``hsin`` compute in float64 and round to
float16: within CUDA's error bounds, and not always with the same last bit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import signature

from nbrt.backends.cpu.simt.builtins.half import from_double, half_bits, to_integer
from nbrt.backends.cpu.simt.builtins.pointer_updates import update_atomically
from nbrt.backends.cpu.simt.builtins.registry import (
    Emit,
    Values,
    by_intrinsic,
    call_intrinsic,
    define,
    register,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["REPLACEMENTS"]

_HALF, _SINGLE, _DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_f16 = types.float16

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
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

REPLACEMENTS: dict[str, Callable[..., Any]] = {}


def _add(name: str, result: Any, arguments: Sequence[Any], emit: Emit) -> None:
    REPLACEMENTS[f"fp16.{name}"] = register(name, [signature(result, *arguments)], emit)


def _directed(builder: ir.IRBuilder, value: ir.Value, rounding: str) -> ir.Value:
    """Round a double to a half: take the nearest, and step back if it is beyond the value."""
    nearest = from_double(builder, value)
    if rounding == "rn":
        return nearest
    wide, bits = builder.fpext(nearest, _DOUBLE), half_bits(builder, nearest)
    one = ir.Constant(bits.type, 1)
    if rounding == "rz":
        beyond = builder.fcmp_ordered(
            ">",
            call_intrinsic(builder, "llvm.fabs", wide),
            call_intrinsic(builder, "llvm.fabs", value),
        )
        stepped = builder.sub(bits, one)
    else:
        beyond = builder.fcmp_ordered(">" if rounding == "rd" else "<", wide, value)
        negative = builder.icmp_signed("<", bits, ir.Constant(bits.type, 0))
        away = negative if rounding == "rd" else builder.not_(negative)
        stepped = builder.select(away, builder.add(bits, one), builder.sub(bits, one))
    return builder.select(beyond, half_bits(builder, stepped), nearest)


def _add_conversions() -> None:
    for rounding, intrinsic in _ROUNDINGS.items():

        def from_single(builder: ir.IRBuilder, args: Values, rounding: str = rounding) -> ir.Value:
            return _directed(builder, builder.fpext(args[0], _DOUBLE), rounding)

        _add(f"__float2half_{rounding}", _f16, [types.float32], from_single)
        for name, typ in _INTEGERS.items():

            def to_half(
                builder: ir.IRBuilder,
                args: Values,
                rounding: str = rounding,
                signed: bool = typ.signed,
            ) -> ir.Value:
                wide = (builder.sitofp if signed else builder.uitofp)(args[0], _DOUBLE)
                return _directed(builder, wide, rounding)

            def from_half(
                builder: ir.IRBuilder,
                args: Values,
                intrinsic: str = intrinsic,
                typ: Any = typ,
            ) -> ir.Value:
                return to_integer(builder, args[0], intrinsic, typ.bitwidth, signed=typ.signed)

            if typ.bitwidth > 8:
                _add(f"__{name}2half_{rounding}", _f16, [typ], to_half)
            if typ.bitwidth > 8 or rounding == "rz":
                _add(f"__half2{name}_{rounding}", typ, [_f16], from_half)
    REPLACEMENTS["fp16.__float2half"] = REPLACEMENTS["fp16.__float2half_rn"]
    _add("__double2half", _f16, [types.float64], lambda builder, args: from_double(builder, *args))
    _add("__half2float", types.float32, [_f16], lambda b, args: b.fpext(args[0], _SINGLE))
    for name, typ in (("short", types.int16), ("ushort", types.uint16)):
        _add(f"__{name}_as_half", _f16, [typ], lambda b, args: half_bits(b, args[0]))
        _add(f"__half_as_{name}", typ, [_f16], lambda b, args: half_bits(b, args[0]))


# -- arithmetic --------------------------------------------------------------------------------


def _fused(builder: ir.IRBuilder, args: Values) -> ir.Value:
    # The product is exact in double. If the sum is not, one operand alone decides the result.
    a, b, c = (builder.fpext(arg, _DOUBLE) for arg in args)
    return from_double(builder, builder.fadd(builder.fmul(a, b), c))


def _clamped(emit: Emit, *, above: bool) -> Emit:
    """Return the saturating form (to [0, 1], NaN to 0), or the rectified form (negative to 0)."""

    def clamped(builder: ir.IRBuilder, args: Values) -> ir.Value:
        value = emit(builder, args)
        zero, one = ir.Constant(_HALF, 0.0), ir.Constant(_HALF, 1.0)
        positive = (builder.fcmp_ordered if above else builder.fcmp_unordered)(">", value, zero)
        value = builder.select(positive, value, zero)
        if not above:
            return value
        return builder.select(builder.fcmp_ordered("<", value, one), value, one)

    return clamped


def _extreme(sign: str, *, keeps_nan: bool) -> Emit:
    def extreme(builder: ir.IRBuilder, args: Values) -> ir.Value:
        # The order of the bits distinguishes the two zeros: -0 is less than +0.
        a, b = args
        smaller = _orders_before(builder, a, b)
        chosen = builder.select(smaller, a, b) if sign == "min" else builder.select(smaller, b, a)
        nan_a, nan_b = (builder.fcmp_unordered("uno", value, value) for value in args)
        if keeps_nan:
            return builder.select(nan_a, a, builder.select(nan_b, b, chosen))
        return builder.select(nan_a, b, builder.select(nan_b, a, chosen))

    return extreme


def _orders_before(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    ranks = []
    for value in (a, b):
        bits = half_bits(builder, value)
        sign = builder.ashr(bits, ir.Constant(bits.type, 15))
        magnitude = builder.and_(bits, ir.Constant(bits.type, 0x7FFF))
        ranks.append(builder.xor(magnitude, sign))
    return builder.icmp_signed("<", *ranks)


def _add_arithmetic() -> None:
    operations: dict[str, Emit] = {
        "add": lambda builder, args: builder.fadd(*args),
        "sub": lambda builder, args: builder.fsub(*args),
        "mul": lambda builder, args: builder.fmul(*args),
        "div": lambda builder, args: builder.fdiv(*args),
        "fma": _fused,
    }
    for name, emit in operations.items():
        arguments = [_f16] * (3 if name == "fma" else 2)
        _add(f"__h{name}", _f16, arguments, emit)
        if name != "div":
            _add(f"__h{name}_sat", _f16, arguments, _clamped(emit, above=True))
        if name in ("add", "sub", "mul"):
            REPLACEMENTS[f"fp16.__h{name}_rn"] = REPLACEMENTS[f"fp16.__h{name}"]
    _add("__hfma_relu", _f16, [_f16] * 3, _clamped(_fused, above=False))
    _add("__hneg", _f16, [_f16], lambda builder, args: builder.fneg(args[0]))
    _add("__habs", _f16, [_f16], by_intrinsic("llvm.fabs"))
    for name in ("max", "min"):
        _add(f"__h{name}", _f16, [_f16] * 2, _extreme(name, keeps_nan=False))
        _add(f"__h{name}_nan", _f16, [_f16] * 2, _extreme(name, keeps_nan=True))


def _compared(sign: str, *, ordered: bool) -> Emit:
    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        compare = builder.fcmp_ordered if ordered else builder.fcmp_unordered
        return compare(sign, *args)

    return emit


def _add_comparisons() -> None:
    pair = [_f16, _f16]
    for name, sign in _COMPARISONS.items():
        _add(f"__h{name}", types.boolean, pair, _compared(sign, ordered=True))
        _add(f"__h{name}u", types.boolean, pair, _compared(sign, ordered=False))
    _add("__hisnan", types.boolean, [_f16], lambda b, args: b.fcmp_unordered("uno", *args, *args))
    _add("__hisinf", types.int32, [_f16], _infinite)


def _infinite(builder: ir.IRBuilder, args: Values) -> ir.Value:
    """Return 1 for plus infinity, -1 for minus infinity, else 0."""
    bits, result = half_bits(builder, args[0]), ir.IntType(32)
    plus = builder.icmp_unsigned("==", bits, ir.Constant(bits.type, 0x7C00))
    minus = builder.icmp_unsigned("==", bits, ir.Constant(bits.type, 0xFC00))
    return builder.sub(builder.zext(plus, result), builder.zext(minus, result))


# -- functions ---------------------------------------------------------------------------------


def _through_double(name: str, compute: Callable[..., Any]) -> None:
    """Define a function of a half by Python code that computes in double."""

    def lower(context: Any, builder: ir.IRBuilder, _sig: Any, args: Values) -> ir.Value:
        kind = signature(types.float64, types.float64)
        wide = builder.fpext(args[0], _DOUBLE)
        return from_double(builder, context.compile_internal(builder, compute, kind, [wide]))

    REPLACEMENTS[f"fp16.{name}"] = define(name, [signature(_f16, _f16)], lower)


def _reciprocal_root(builder: ir.IRBuilder, args: Values) -> ir.Value:
    root = call_intrinsic(builder, "llvm.sqrt", builder.fpext(args[0], _DOUBLE))
    return from_double(builder, builder.fdiv(ir.Constant(_DOUBLE, 1.0), root))


def _add_functions() -> None:
    for name in ("ceil", "floor", "rint", "trunc"):
        _add(f"h{name}", _f16, [_f16], by_intrinsic(f"llvm.{name}"))
    _through_double("hsqrt", lambda x: math.sqrt(x))
    _add("hrcp", _f16, [_f16], lambda b, args: b.fdiv(ir.Constant(_HALF, 1.0), args[0]))
    _add("hrsqrt", _f16, [_f16], _reciprocal_root)
    _through_double("hexp", lambda x: math.exp(x))
    _through_double("hexp2", lambda x: 2.0**x)
    _through_double("hexp10", lambda x: 10.0**x)
    _through_double("hlog", lambda x: math.log(x))
    _through_double("hlog2", lambda x: math.log2(x))
    _through_double("hlog10", lambda x: math.log10(x))
    _through_double("hsin", lambda x: math.sin(x))
    _through_double("hcos", lambda x: math.cos(x))
    _through_double("htanh", lambda x: math.tanh(x))
    REPLACEMENTS["fp16.htanh_approx"] = REPLACEMENTS["fp16.htanh"]


# -- pointers ----------------------------------------------------------------------------------


def _atomic_add(builder: ir.IRBuilder, args: Values) -> ir.Value:
    """Add to a half in memory as one atomic operation; return the value before."""

    def added(inner: ir.IRBuilder, bits: Values) -> ir.Value:
        return half_bits(inner, inner.fadd(*(half_bits(inner, each) for each in bits)))

    value = half_bits(builder, args[1])
    old = update_atomically(builder, "nbrt_atomic_add_half", args[0], value, added)
    return half_bits(builder, old)


_add("atomicAdd", _f16, [types.CPointer(_f16), _f16], _atomic_add)
_add_conversions()
_add_arithmetic()
_add_comparisons()
_add_functions()
