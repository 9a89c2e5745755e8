"""Registration of the dialect's builtins with Numba's CPU target.

A builtin with fixed typing cases uses `register`; others are ``@intrinsic`` functions. The dialect
pass replaces the name of a builtin by either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import ConcreteTemplate, infer_global
from numba.extending import lower_builtin

__all__ = [
    "Emit",
    "Lower",
    "Values",
    "by_intrinsic",
    "call_external",
    "call_intrinsic",
    "call_numba",
    "define",
    "lowering",
    "nothing",
    "real_to_integer",
    "register",
    "stand_in",
]

Values = Sequence[ir.Value]
"""LLVM values of the arguments of a call."""

Emit = Callable[[ir.IRBuilder, Values], ir.Value]
"""Emits a builtin whose code depends on the LLVM types of its arguments only."""

Lower = Callable[[Any, ir.IRBuilder, Any, Values], ir.Value]
"""Emits a builtin, as ``numba.extending.lower_builtin`` takes it."""


def stand_in(name: str) -> Callable[..., Any]:
    """Return a function object that is the key of a builtin in Numba's registries."""

    def function(*args: Any) -> NoReturn:
        raise TypeError(f"{name} stands for a CUDA builtin and is callable in kernels only")

    function.__name__ = function.__qualname__ = name
    return function


def define(name: str, signatures: Sequence[Any], lower: Lower) -> Callable[..., Any]:
    """Register a builtin with fixed typing cases and one lowering."""
    function = stand_in(name)
    members = {"key": function, "cases": list(signatures)}
    template = type(f"Simt_{name}", (ConcreteTemplate,), members)
    infer_global(function, types.Function(template))
    for case in signatures:
        lower_builtin(function, *case.args)(lower)
    return function


def lowering(emit: Emit) -> Lower:
    """Return the lowering of a builtin whose code depends on LLVM types only."""
    return lambda _context, builder, _sig, args: emit(builder, args)


def register(name: str, signatures: Sequence[Any], emit: Emit) -> Callable[..., Any]:
    """Register a builtin with fixed typing cases whose code depends on LLVM types only."""
    return define(name, signatures, lowering(emit))


def call_intrinsic(builder: ir.IRBuilder, name: str, *args: ir.Value) -> ir.Value:
    """Call an LLVM intrinsic whose arguments and result are all of one type."""
    typ = args[0].type
    kind = ir.FunctionType(typ, [typ] * len(args))
    return builder.call(builder.module.declare_intrinsic(name, [typ], kind), args)


def real_to_integer(
    builder: ir.IRBuilder, value: ir.Value, rounding: str, width: int, *, signed: bool
) -> ir.Value:
    """Convert a float or double to an integer as a GPU does: saturating, and NaN to 0.

    `rounding` is the LLVM intrinsic that rounds to an integer.
    """
    name = f"llvm.fpto{'s' if signed else 'u'}i.sat.i{width}.{value.type.intrinsic_name}"
    kind = ir.FunctionType(ir.IntType(width), [value.type])
    function = builder.module.declare_intrinsic(name, (), kind)
    return builder.call(function, [call_intrinsic(builder, rounding, value)])


def by_intrinsic(name: str) -> Emit:
    """Emit a call of an LLVM intrinsic whose arguments and result are all of one type."""
    return lambda builder, args: call_intrinsic(builder, name, *args)


def call_external(
    builder: ir.IRBuilder, symbol: str, result: ir.Type, args: Values = ()
) -> ir.Value:
    """Call a function that another module or a lowering of the block defines."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    function = cgutils.get_or_insert_function(builder.module, kind, symbol)
    return builder.call(function, args)


def call_numba(
    context: Any, builder: ir.IRBuilder, function: Any, sig: Any, args: Values
) -> ir.Value:
    """Call Numba's code for a function of Python or NumPy."""
    code = context.get_function(context.typing_context.resolve_value_type(function), sig)
    context.add_linking_libs(getattr(code, "libs", ()))
    return code(builder, args)


def nothing() -> ir.Value:
    """Return the value of a builtin that returns None."""
    return ir.Constant(ir.IntType(8).as_pointer(), None)
