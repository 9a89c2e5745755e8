"""Python's functions where the CUDA target means something else than Numba's CPU target.

``math.floor`` of a float is a float there, ``max`` of two floats ignores a NaN, and some functions
of ``math`` exist there only. Typing cases are those of numba-cuda.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, overload

from nbrt.backends.cpu.simt.builtins.registry import (
    call_external,
    call_intrinsic,
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
# The order decides what a boolean becomes.
_ONE_REAL = [
    *(signature(_f64, t) for t in (types.int64, types.uint64)),
    *(signature(t, t) for t in (*_REALS, _f16)),
]


def _rounded(name: str) -> Callable[..., Any]:
    """Make ``floor``, ``ceil`` or ``trunc``: a real stays one, an integer becomes a double."""

    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]) -> ir.Value:
        value = context.cast(builder, args[0], sig.args[0], sig.return_type)
        if isinstance(sig.args[0], types.Integer):
            return value
        return call_intrinsic(builder, f"llvm.{name}", value)

    return define(name, _ONE_REAL, lower)


def _from_numba(
    name: str, cases: Sequence[Any], computed: Callable[[Any], Any]
) -> Callable[..., Any]:
    """Take Numba's code for a function of ``math``, under other typing cases.

    `computed` gives, for each case, the signature under which Numba knows it.
    """
    function = getattr(math, name)

    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]) -> ir.Value:
        known = computed(sig)
        given = [
            context.cast(builder, arg, typ, wanted)
            for arg, typ, wanted in zip(args, sig.args, known.args, strict=True)
        ]
        result = context.get_function(function, known)(builder, given)
        return context.cast(builder, result, known.return_type, sig.return_type)

    return define(name, cases, lower)


def _same(sig: Any) -> Any:
    return sig


def _half_or_numba(name: str) -> Callable[..., Any]:
    """Make a function of ``math`` that knows float16 as well, computed as float32."""
    function = getattr(math, name)

    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]) -> ir.Value:
        if sig.args[0] != _f16:
            return context.get_function(function, sig)(builder, args)
        wide = context.cast(builder, args[0], _f16, _f32)
        result = context.get_function(function, signature(_f32, _f32))(builder, [wide])
        return context.cast(builder, result, _f32, _f16)

    return define(name, _ONE_REAL, lower)


def _fmod(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    return builder.frem(*args)


def _remainder(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    real = args[0].type
    symbol = "remainderf" if real == ir.FloatType() else "remainder"
    return call_external(builder, symbol, real, args)


def split_whole(x: Any) -> Any:
    """Do what ``math.modf`` does."""
    whole = math.copysign(float(math.floor(abs(x))), x) if abs(x) < 2.0**53 else x
    rest = 0.0 if math.isinf(x) else x - whole
    return math.copysign(rest, x), whole


def _modf(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]) -> ir.Value:
    return context.compile_internal(builder, split_whole, sig, args)


def _extremum(name: str) -> Callable[..., Any]:
    """Make ``max`` or ``min``: of exactly two floats the one that is a number, else Python's."""
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
    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]) -> ir.Value:
        if _are_two_reals(sig.args):
            return call_intrinsic(builder, f"llvm.{name}num", *args)
        known = context.get_function(context.typing_context.resolve_value_type(python), sig)
        context.add_linking_libs(getattr(known, "libs", ()))
        return known(builder, args)

    return function


def _are_two_reals(args: Sequence[Any]) -> bool:
    return len(args) == 2 and all(arg in _REALS for arg in args)


def _gcd() -> Callable[..., Any]:
    """Make ``gcd`` of integers, under NumPy's typing on both targets; Numba's takes floats too."""
    function = stand_in("gcd")

    def implementing(x: Any, y: Any) -> Callable[..., Any] | None:
        whole = (types.Integer, types.Boolean)
        known = isinstance(x, whole) and isinstance(y, whole)
        return gcd if known else None

    overload(function)(implementing)
    return function


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
