"""Functions of ``cuda.libdevice`` over integers and bits, and its conversions.

libdevice types every integer as signed; the name of a function states whether it is unsigned.
Conversions to integers saturate, and a NaN becomes 0, as on a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import signature

from nbrt.backends.cpu.simt.builtins.arithmetic import find_first_set
from nbrt.backends.cpu.simt.builtins.half import half_bits
from nbrt.backends.cpu.simt.builtins.registry import (
    Emit,
    Values,
    by_intrinsic,
    real_to_integer,
    register,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["REPLACEMENTS"]

_i32, _i64 = types.int32, types.int64
_INTEGERS = {"int": (_i32, True), "uint": (_i32, False), "ll": (_i64, True), "ull": (_i64, False)}
_REALS = {"float": (types.float32, ir.FloatType()), "double": (types.float64, ir.DoubleType())}
_ROUNDINGS = {"rn": "llvm.rint", "rd": "llvm.floor", "ru": "llvm.ceil", "rz": "llvm.trunc"}

REPLACEMENTS: dict[str, Callable[..., Any]] = {}


def _add(name: str, result: Any, arguments: Sequence[Any], emit: Emit) -> None:
    REPLACEMENTS[f"libdevice.{name}"] = register(name, [signature(result, *arguments)], emit)


def _resized(builder: ir.IRBuilder, value: ir.Value, width: int, *, signed: bool) -> ir.Value:
    if value.type.width == width:
        return value
    if value.type.width > width:
        return builder.trunc(value, ir.IntType(width))
    return (builder.sext if signed else builder.zext)(value, ir.IntType(width))


def _flag(value: bool) -> ir.Value:
    return ir.Constant(ir.IntType(1), value)


# -- integers ----------------------------------------------------------------------------------


def _widened(
    operation: Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value], shift: int, *, signed: bool
) -> Emit:
    """Compute in twice the width, and shift the result right."""

    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        width = args[0].type.width
        wide = operation(
            builder, [_resized(builder, arg, 2 * width, signed=signed) for arg in args]
        )
        distance = ir.Constant(wide.type, shift)
        return builder.trunc(builder.lshr(wide, distance), args[0].type)

    return emit


def _sum(extra: int) -> Emit:
    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        return builder.add(builder.add(*args), ir.Constant(args[0].type, extra))

    return emit


def _product(builder: ir.IRBuilder, args: Values) -> ir.Value:
    return builder.mul(*args)


def _low_product(*, signed: bool) -> Emit:
    """Multiply the low 24 bits of each operand."""

    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        eight = ir.Constant(args[0].type, 8)
        shift = builder.ashr if signed else builder.lshr
        return builder.mul(*(shift(builder.shl(arg, eight), eight) for arg in args))

    return emit


def _difference_added(*, signed: bool) -> Emit:
    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        a, b, c = args
        compare = builder.icmp_signed if signed else builder.icmp_unsigned
        less = compare("<", a, b)
        return builder.add(c, builder.select(less, builder.sub(b, a), builder.sub(a, b)))

    return emit


def _byte_perm(builder: ir.IRBuilder, args: Values) -> ir.Value:
    """Pick four of eight bytes by the low three bits of each nibble of the third argument."""
    low, high, selector = (builder.zext(arg, ir.IntType(64)) for arg in args)
    pool = builder.or_(low, builder.shl(high, ir.Constant(low.type, 32)))
    result = ir.Constant(pool.type, 0)
    for position in range(4):
        nibble = builder.lshr(selector, ir.Constant(pool.type, 4 * position))
        start = builder.shl(
            builder.and_(nibble, ir.Constant(pool.type, 7)), ir.Constant(pool.type, 3)
        )
        byte = builder.and_(builder.lshr(pool, start), ir.Constant(pool.type, 255))
        result = builder.or_(result, builder.shl(byte, ir.Constant(pool.type, 8 * position)))
    return builder.trunc(result, ir.IntType(32))


def _counted(name: str) -> Emit:
    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        count = builder.ctpop(args[0]) if name == "popc" else builder.ctlz(args[0], _flag(False))
        return _resized(builder, count, 32, signed=False)

    return emit


def _absolute(builder: ir.IRBuilder, args: Values) -> ir.Value:
    kind = ir.FunctionType(args[0].type, [args[0].type, ir.IntType(1)])
    name = f"llvm.abs.i{args[0].type.width}"
    return builder.call(builder.module.declare_intrinsic(name, (), kind), [args[0], _flag(False)])


def _add_integers() -> None:
    for suffix, prefix, typ in (("", "", _i32), ("ll", "ll", _i64)):
        _add(f"{prefix}abs", typ, [typ], _absolute)
        _add(f"brev{suffix}", typ, [typ], by_intrinsic("llvm.bitreverse"))
        _add(f"clz{suffix}", _i32, [typ], _counted("clz"))
        _add(f"popc{suffix}", _i32, [typ], _counted("popc"))
        _add(f"ffs{suffix}", _i32, [typ], find_first_set)
        for name in ("max", "min"):
            _add(f"{prefix}{name}", typ, [typ] * 2, by_intrinsic(f"llvm.s{name}"))
            _add(f"u{prefix}{name}", typ, [typ] * 2, by_intrinsic(f"llvm.u{name}"))
    for prefix, signed in (("", True), ("u", False)):
        _add(f"{prefix}hadd", _i32, [_i32] * 2, _widened(_sum(0), 1, signed=signed))
        _add(f"{prefix}rhadd", _i32, [_i32] * 2, _widened(_sum(1), 1, signed=signed))
        _add(f"{prefix}mulhi", _i32, [_i32] * 2, _widened(_product, 32, signed=signed))
        _add(f"{prefix}mul64hi", _i64, [_i64] * 2, _widened(_product, 64, signed=signed))
        _add(f"{prefix}mul24", _i32, [_i32] * 2, _low_product(signed=signed))
        _add(f"{prefix}sad", _i32, [_i32] * 3, _difference_added(signed=signed))
    _add("byte_perm", _i32, [_i32] * 3, _byte_perm)


# -- conversions -------------------------------------------------------------------------------


def _to_integer(rounding: str, width: int, *, signed: bool) -> Emit:
    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        return real_to_integer(builder, args[0], rounding, width, signed=signed)

    return emit


def _from_integer(real: ir.Type, *, signed: bool) -> Emit:
    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        return (builder.sitofp if signed else builder.uitofp)(args[0], real)

    return emit


def _half(part: int) -> Emit:
    """Return the low (0) or high (1) 32 bits of a double."""

    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        bits = builder.bitcast(args[0], ir.IntType(64))
        return builder.trunc(builder.lshr(bits, ir.Constant(bits.type, 32 * part)), ir.IntType(32))

    return emit


def _joined(builder: ir.IRBuilder, args: Values) -> ir.Value:
    high, low = (builder.zext(arg, ir.IntType(64)) for arg in args)
    bits = builder.or_(builder.shl(high, ir.Constant(high.type, 32)), low)
    return builder.bitcast(bits, ir.DoubleType())


def _as(typ: ir.Type) -> Emit:
    return lambda builder, args: builder.bitcast(args[0], typ)


def _add_conversions() -> None:
    for real, (typ, llvm) in _REALS.items():
        for name, (integer, signed) in _INTEGERS.items():
            for rounding, intrinsic in _ROUNDINGS.items():
                emit = _to_integer(intrinsic, integer.bitwidth, signed=signed)
                _add(f"{real}2{name}_{rounding}", integer, [typ], emit)
            _add(f"{name}2{real}_rn", typ, [integer], _from_integer(llvm, signed=signed))
    f32, f64 = types.float32, types.float64
    _add("double2float_rn", f32, [f64], lambda b, args: b.fptrunc(args[0], ir.FloatType()))
    _add("double2hiint", _i32, [f64], _half(1))
    _add("double2loint", _i32, [f64], _half(0))
    _add("hiloint2double", f64, [_i32, _i32], _joined)
    _add("double_as_longlong", _i64, [f64], _as(ir.IntType(64)))
    _add("longlong_as_double", f64, [_i64], _as(ir.DoubleType()))
    _add("float_as_int", _i32, [f32], _as(ir.IntType(32)))
    _add("int_as_float", f32, [_i32], _as(ir.FloatType()))
    _add("float2half_rn", types.int16, [f32], _single_to_half_bits)
    _add("half2float", f32, [types.int16], _half_bits_to_single)


def _single_to_half_bits(builder: ir.IRBuilder, args: Values) -> ir.Value:
    return half_bits(builder, builder.fptrunc(args[0], ir.HalfType()))


def _half_bits_to_single(builder: ir.IRBuilder, args: Values) -> ir.Value:
    return builder.fpext(half_bits(builder, args[0]), ir.FloatType())


_add_integers()
_add_conversions()
