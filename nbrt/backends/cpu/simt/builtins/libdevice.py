"""Functions of ``cuda.libdevice`` over real numbers.

A function and its ``f`` form share a formula, which Numba compiles for double and for float. The
``fast_`` forms are equal to the exact ones. Arithmetic with directed rounding is not implemented.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import signature
from numba.extending import register_jitable

from nbrt.backends.cpu.simt.builtins.inverse_erf import erfcinv, erfcx, erfinv, normcdfinv
from nbrt.backends.cpu.simt.builtins.python import split_whole
from nbrt.backends.cpu.simt.builtins.registry import (
    Emit,
    Values,
    by_intrinsic,
    call_external,
    define,
    register,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["REPLACEMENTS"]

_REALS = (("", types.float64), ("f", types.float32))
_i32 = types.int32

REPLACEMENTS: dict[str, Callable[..., Any]] = {}


# -- registration ------------------------------------------------------------------------------


def _formula(name: str, compute: Callable[..., Any], result: Any, arguments: Sequence[Any]) -> None:
    """Define a function by Python code, compiled for its argument types."""
    kind = signature(result, *arguments)

    def lower(context: Any, builder: ir.IRBuilder, _sig: Any, args: Values) -> ir.Value:
        return context.compile_internal(builder, compute, kind, args)

    REPLACEMENTS[f"libdevice.{name}"] = define(name, [kind], lower)


def _emitted(name: str, emit: Emit, result: Any, arguments: Sequence[Any]) -> None:
    REPLACEMENTS[f"libdevice.{name}"] = register(name, [signature(result, *arguments)], emit)


def _external(symbol: str) -> Emit:
    """Emit a call of a function of the C library; the result has the type of the last argument."""

    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        suffix = "f" if args[-1].type == ir.FloatType() else ""
        return call_external(builder, symbol + suffix, args[-1].type, args)

    return emit


# -- formulas ----------------------------------------------------------------------------------


@register_jitable
def _sinpi(x: Any) -> Any:
    r = x % 2.0
    if r > 1.5:
        return math.sin(math.pi * (r - 2))
    if r > 0.5:
        return math.sin(math.pi * (1 - r))
    return math.sin(math.pi * r)


@register_jitable
def _cospi(x: Any) -> Any:
    from_odd = abs(x % 2.0 - 1)
    return math.sin(math.pi * (from_odd - 0.5))


def _logb(x: Any) -> Any:
    if x == 0:
        return -math.inf
    if math.isinf(x) or math.isnan(x):
        return abs(x)
    return float(math.frexp(x)[1] - 1)


def _ilogb(x: Any) -> Any:
    if x == 0 or math.isnan(x):
        return -(2**31)
    if math.isinf(x):
        return 2**31 - 1
    return math.frexp(x)[1] - 1


_ONE_REAL: dict[str, Callable[..., Any]] = {
    "acos": lambda x: math.acos(x),
    "acosh": lambda x: math.acosh(x),
    "asin": lambda x: math.asin(x),
    "asinh": lambda x: math.asinh(x),
    "atan": lambda x: math.atan(x),
    "atanh": lambda x: math.atanh(x),
    "cos": lambda x: math.cos(x),
    "cosh": lambda x: math.cosh(x),
    "cospi": lambda x: _cospi(x),
    "erf": lambda x: math.erf(x),
    "erfc": lambda x: math.erfc(x),
    "erfcinv": lambda x: erfcinv(np.float64(x)),
    "erfcx": lambda x: erfcx(np.float64(x)),
    "erfinv": lambda x: erfinv(np.float64(x)),
    "exp": lambda x: math.exp(x),
    "exp10": lambda x: 10.0**x,
    "exp2": lambda x: math.exp2(x),
    "expm1": lambda x: math.expm1(x),
    "fabs": lambda x: math.fabs(x),
    "lgamma": lambda x: math.lgamma(x),
    "log": lambda x: math.log(x),
    "log10": lambda x: math.log10(x),
    "log1p": lambda x: math.log1p(x),
    "log2": lambda x: math.log2(x),
    "logb": _logb,
    "normcdf": lambda x: 0.5 * math.erfc(x * -math.sqrt(0.5)),
    "normcdfinv": lambda x: normcdfinv(np.float64(x)),
    "sin": lambda x: math.sin(x),
    "sinh": lambda x: math.sinh(x),
    "sinpi": lambda x: _sinpi(x),
    "sqrt": lambda x: math.sqrt(x),
    "tan": lambda x: math.tan(x),
    "tanh": lambda x: math.tanh(x),
    "tgamma": lambda x: math.gamma(x),
}
_ONE_REAL_EMITTED: dict[str, Emit] = {
    **{
        name: by_intrinsic(f"llvm.{name}")
        for name in ("ceil", "floor", "nearbyint", "rint", "round")
    },
    "trunc": by_intrinsic("llvm.trunc"),
    **{name: _external(name) for name in ("cbrt", "j0", "j1", "y0", "y1")},
    "rsqrt": lambda builder, args: _reciprocal(builder, by_intrinsic("llvm.sqrt")(builder, args)),
    "rcbrt": lambda builder, args: _reciprocal(builder, _external("cbrt")(builder, args)),
}
_TWO_REALS: dict[str, Callable[..., Any]] = {
    "atan2": lambda x, y: math.atan2(x, y),
    "copysign": lambda x, y: math.copysign(x, y),
    "fdim": lambda x, y: 0.0 if x <= y else x - y,
    "hypot": lambda x, y: math.hypot(x, y),
    "nextafter": lambda x, y: math.nextafter(x, y),
    "pow": lambda x, y: math.pow(x, y),
}
_TWO_REALS_EMITTED: dict[str, Emit] = {
    "fmax": by_intrinsic("llvm.maxnum"),
    "fmin": by_intrinsic("llvm.minnum"),
    "fmod": lambda builder, args: builder.frem(*args),
    "remainder": _external("remainder"),
}
_PAIRS: dict[str, Callable[..., Any]] = {
    "modf": split_whole,
    "sincos": lambda x: (math.sin(x), math.cos(x)),
    "sincospi": lambda x: (_sinpi(x), _cospi(x)),
}
_FAST = ("cosf", "exp10f", "expf", "log10f", "log2f", "logf", "powf", "sinf", "tanf", "sincosf")


def _reciprocal(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    return builder.fdiv(ir.Constant(value.type, 1.0), value)


def _remquo(builder: ir.IRBuilder, args: Values) -> ir.Value:
    quotient = cgutils.alloca_once(builder, ir.IntType(32))
    rest = _external_with_result("remquo", builder, args, quotient)
    return cgutils.pack_struct(builder, (rest, builder.load(quotient)))


def _external_with_result(
    symbol: str, builder: ir.IRBuilder, args: Values, pointer: ir.Value
) -> ir.Value:
    real = args[0].type
    suffix = "f" if real == ir.FloatType() else ""
    return call_external(builder, symbol + suffix, real, (*args, pointer))


def _test(sign: str, against: float) -> Emit:
    """Compare the magnitude of a real with a constant; a NaN compares as true with ``uno``."""

    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        size = by_intrinsic("llvm.fabs")(builder, args)
        compare = builder.fcmp_unordered if sign == "uno" else builder.fcmp_ordered
        return builder.zext(compare(sign, size, ir.Constant(size.type, against)), ir.IntType(32))

    return emit


def _sign_bit(builder: ir.IRBuilder, args: Values) -> ir.Value:
    width = 32 if args[0].type == ir.FloatType() else 64
    bits = builder.bitcast(args[0], ir.IntType(width))
    sign = builder.icmp_signed("<", bits, ir.Constant(bits.type, 0))
    return builder.zext(sign, ir.IntType(32))


def _add_reals() -> None:
    for suffix, real in _REALS:
        for name, compute in _ONE_REAL.items():
            _formula(name + suffix, compute, real, [real])
        for name, emit in _ONE_REAL_EMITTED.items():
            _emitted(name + suffix, emit, real, [real])
        for name, compute in _TWO_REALS.items():
            _formula(name + suffix, compute, real, [real, real])
        for name, emit in _TWO_REALS_EMITTED.items():
            _emitted(name + suffix, emit, real, [real, real])
        for name, compute in _PAIRS.items():
            _formula(name + suffix, compute, types.UniTuple(real, 2), [real])
        for name in ("jn", "yn"):
            _emitted(name + suffix, _external(name), real, [_i32, real])
        for name in ("ldexp", "scalbn"):
            _formula(name + suffix, lambda x, n: math.ldexp(x, n), real, [real, _i32])
        _formula(
            f"powi{suffix}", lambda x, n: math.pow(np.float64(x), np.float64(n)), real, [real, _i32]
        )
        _formula(f"frexp{suffix}", lambda x: math.frexp(x), types.Tuple((real, _i32)), [real])
        _formula(f"ilogb{suffix}", _ilogb, _i32, [real])
        _emitted(f"remquo{suffix}", _remquo, types.Tuple((real, _i32)), [real, real])
        fused = by_intrinsic("llvm.fma")
        _emitted(f"fma{suffix}", fused, real, [real] * 3)
        _emitted(f"fma{suffix}_rn", fused, real, [real] * 3)
        kind = suffix or "d"
        _emitted(f"isinf{kind}", _test("==", math.inf), _i32, [real])
        _emitted(f"isnan{kind}", _test("uno", 0.0), _i32, [real])
        _emitted(f"signbit{kind}", _sign_bit, _i32, [real])
        _emitted("finitef" if suffix else "isfinited", _test("<", math.inf), _i32, [real])
        for name, operation in _ARITHMETIC.items():
            if f"{kind}{name}" != "dsub":  # libdevice has no dsub_rn
                _emitted(f"{kind}{name}_rn", operation, real, [real, real])
        _emitted(f"{kind}rcp_rn", lambda b, args: _reciprocal(b, args[0]), real, [real])
        _emitted(f"{kind}sqrt_rn", by_intrinsic("llvm.sqrt"), real, [real])
        for name in ("llrint", "llround"):
            _emitted(name + suffix, _to_long(name), types.int64, [real])


_ARITHMETIC: dict[str, Emit] = {
    "add": lambda builder, args: builder.fadd(*args),
    "div": lambda builder, args: builder.fdiv(*args),
    "mul": lambda builder, args: builder.fmul(*args),
    "sub": lambda builder, args: builder.fsub(*args),
}


def _to_long(name: str) -> Emit:
    intrinsic = by_intrinsic("llvm.rint" if name == "llrint" else "llvm.round")
    return lambda builder, args: builder.fptosi(intrinsic(builder, args), ir.IntType(64))


def _add_single_only() -> None:
    real = types.float32
    for name in _FAST:
        REPLACEMENTS[f"libdevice.fast_{name}"] = REPLACEMENTS[f"libdevice.{name}"]
    _emitted("fast_fdividef", _ARITHMETIC["div"], real, [real, real])
    REPLACEMENTS["libdevice.frsqrt_rn"] = REPLACEMENTS["libdevice.rsqrtf"]
    _formula("saturatef", lambda x: (x if x < 1.0 else 1.0) if x > 0.0 else 0.0, real, [real])


_add_reals()
_add_single_only()
