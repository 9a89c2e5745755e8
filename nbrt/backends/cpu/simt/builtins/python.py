"""Python's functions that differ between the CUDA target and Numba's CPU target.

On the CUDA target ``math.floor`` of a float is a float, ``max`` of two floats ignores a NaN, and
more functions of ``math`` exist. Typing cases are those of numba-cuda.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, overload

from nbrt.backends.cpu.simt.builtins.registry import (
    Values,
    call_external,
    call_intrinsic,
    call_numba,
    define,
    register,
    stand_in,
)
from nbrt.backends.numpy_functions import gcd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["PYTHON", "split_whole"]

_f16, _f32, _f64, _i32 = types.float16, types.float32, types.float64, types.int32
_REALS = (_f32, _f64)
# The order decides the type that a boolean converts to.
_ONE_REAL = [
    *(signature(_f64, t) for t in (types.int64, types.uint64)),
    *(signature(t, t) for t in (*_REALS, _f16)),
]


def _rounded(name: str) -> Callable[..., Any]:
    """Return ``floor``, ``ceil`` or ``trunc``; they convert an integer to a double."""

    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
        value = context.cast(builder, args[0], sig.args[0], sig.return_type)
        if isinstance(sig.args[0], types.Integer):
            return value
        return call_intrinsic(builder, f"llvm.{name}", value)

    return define(name, _ONE_REAL, lower)


def _from_numba(
    name: str, cases: Sequence[Any], numba_case: Callable[[Any], Any]
) -> Callable[..., Any]:
    """Return a function of ``math`` with Numba's code under other typing cases.

    `numba_case` returns the signature of Numba's code for a case.
    """
    function = getattr(math, name)

    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
        known = numba_case(sig)
        values = [
            context.cast(builder, arg, typ, wanted)
            for arg, typ, wanted in zip(args, sig.args, known.args, strict=True)
        ]
        result = context.get_function(function, known)(builder, values)
        return context.cast(builder, result, known.return_type, sig.return_type)

    return define(name, cases, lower)


def _same(sig: Any) -> Any:
    return sig


def _half_or_numba(name: str) -> Callable[..., Any]:
    """Return a function of ``math`` that also takes float16, computed in float32."""
    function = getattr(math, name)

    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
        if sig.args[0] != _f16:
            return context.get_function(function, sig)(builder, args)
        wide = context.cast(builder, args[0], _f16, _f32)
        result = context.get_function(function, signature(_f32, _f32))(builder, [wide])
        return context.cast(builder, result, _f32, _f16)

    return define(name, _ONE_REAL, lower)


def _fmod(builder: ir.IRBuilder, args: Values) -> ir.Value:
    return builder.frem(*args)


def _remainder(builder: ir.IRBuilder, args: Values) -> ir.Value:
    real = args[0].type
    symbol = "remainderf" if real == ir.FloatType() else "remainder"
    return call_external(builder, symbol, real, args)


def split_whole(x: Any) -> Any:
    """Return the fractional and the integer part of a real, as ``math.modf`` does."""
    whole = math.copysign(float(math.floor(abs(x))), x) if abs(x) < 2.0**53 else x
    rest = 0.0 if math.isinf(x) else x - whole
    return math.copysign(rest, x), whole


def _modf(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
    return context.compile_internal(builder, split_whole, sig, args)


def _extremum(name: str) -> Callable[..., Any]:
    """Return ``max`` or ``min``: of two floats the one that is a number, else Python's."""
    python = {"max": max, "min": min}[name]
    function = stand_in(name)

    class Template(AbstractTemplate):
        key = function

        def generic(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
            if len(args) == 1 and isinstance(args[0], types.Number):
                return None
            if not _are_two_reals(args):
                return self.context.resolve_function_type(python, args, kws)
            result = _f64 if _f64 in args else _f32
            return signature(result, result, result)

    infer_global(function, types.Function(Template))

    @lower_builtin(function, types.VarArg(types.Any))
    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
        if _are_two_reals(sig.args):
            return call_intrinsic(builder, f"llvm.{name}num", *args)
        return call_numba(context, builder, python, sig, args)

    return function


def _are_two_reals(args: Sequence[Any]) -> bool:
    return len(args) == 2 and all(arg in _REALS for arg in args)


def _gcd() -> Callable[..., Any]:
    """Return ``gcd`` of integers, typed as NumPy's on both targets; Numba's also takes floats."""
    function = stand_in("gcd")

    def implementing(x: Any, y: Any) -> Callable[..., Any] | None:
        whole = (types.Integer, types.Boolean)
        known = isinstance(x, whole) and isinstance(y, whole)
        return gcd if known else None

    overload(function)(implementing)
    return function


def _rounded_to_digits() -> Callable[..., Any]:
    """Return ``round``; to a number of digits, a float32 is computed in double, as for CUDA."""
    function = stand_in("round")

    class Template(AbstractTemplate):
        key = function

        def generic(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
            if not kws and _is_single_with_digits(args):
                return signature(_f32, *args)
            return self.context.resolve_function_type(round, args, kws)

    infer_global(function, types.Function(Template))

    @lower_builtin(function, types.VarArg(types.Any))
    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Values) -> ir.Value:
        if not _is_single_with_digits(sig.args):
            return call_numba(context, builder, round, sig, args)
        wide = signature(_f64, _f64, sig.args[1])
        value = builder.fpext(args[0], ir.DoubleType())
        rounded = context.compile_internal(
            builder, lambda x, digits: round(x, digits), wide, (value, args[1])
        )
        return builder.fptrunc(rounded, ir.FloatType())

    return function


def _is_single_with_digits(args: Sequence[Any]) -> bool:
    return len(args) == 2 and args[0] == _f32 and isinstance(args[1], types.Integer)


_BINARY = [signature(t, t, t) for t in _REALS]
_WITH_EXPONENT = [signature(t, t, _i32) for t in _REALS]


def _in_double(sig: Any) -> Any:
    return signature(_f64, *([_f64] * len(sig.args)))


PYTHON: dict[Callable[..., Any], Callable[..., Any]] = {
    max: _extremum("max"),
    min: _extremum("min"),
    math.ceil: _rounded("ceil"),
    math.floor: _rounded("floor"),
    math.trunc: _rounded("trunc"),
    **{
        getattr(math, name): _half_or_numba(name)
        for name in ("cos", "exp", "exp2", "fabs", "log", "log10", "log2", "sin", "sqrt", "tanh")
    },
    round: _rounded_to_digits(),
    math.gcd: _gcd(),
    math.fmod: register("fmod", _BINARY, _fmod),
    math.remainder: register("remainder", _BINARY, _remainder),
    math.nextafter: _from_numba("nextafter", _BINARY, _same),
    math.frexp: _from_numba("frexp", [signature(types.Tuple((t, _i32)), t) for t in _REALS], _same),
    math.ldexp: _from_numba("ldexp", _WITH_EXPONENT, _same),
    math.modf: define("modf", [signature(types.UniTuple(t, 2), t) for t in (_f64, _f32)], _modf),
    math.pow: _from_numba(
        "pow",
        [*_BINARY, *_WITH_EXPONENT],
        lambda sig: sig if sig.args[0] == sig.args[1] else _in_double(sig),
    ),
}
"""Function of Python -> its replacement in kernels."""
