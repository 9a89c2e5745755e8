"""Registration of the dialect's builtins with Numba's CPU target.

A builtin with fixed typing cases uses `register`; others are ``@intrinsic`` functions. The dialect
pass puts either in place of the name.
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
    "by_intrinsic",
    "call_external",
    "call_intrinsic",
    "define",
    "nothing",
    "register",
    "stand_in",
]

Emit = Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value]
Lower = Callable[[Any, ir.IRBuilder, Any, Sequence[ir.Value]], ir.Value]


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


def register(name: str, signatures: Sequence[Any], emit: Emit) -> Callable[..., Any]:
    """Register a builtin with fixed typing cases whose code depends on LLVM types only."""

    def lower(
        _context: Any, builder: ir.IRBuilder, _sig: Any, args: Sequence[ir.Value]
    ) -> ir.Value:
        return emit(builder, args)

    return define(name, signatures, lower)


def call_intrinsic(builder: ir.IRBuilder, name: str, *args: ir.Value) -> ir.Value:
    """Call an LLVM intrinsic whose arguments and result are all of one type."""
    typ = args[0].type
    kind = ir.FunctionType(typ, [typ] * len(args))
    return builder.call(builder.module.declare_intrinsic(name, [typ], kind), args)


def by_intrinsic(name: str) -> Emit:
    """Emit a call of an LLVM intrinsic whose arguments and result are all of one type."""
    return lambda builder, args: call_intrinsic(builder, name, *args)


def call_external(
    builder: ir.IRBuilder, symbol: str, result: ir.Type, args: Sequence[ir.Value] = ()
) -> ir.Value:
    """Call a function that another module, or a lowering of the block, defines."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    function = cgutils.get_or_insert_function(builder.module, kind, symbol)
    return builder.call(function, args)


def nothing() -> ir.Value:
    """Return the value of a builtin that returns None."""
    return ir.Constant(ir.IntType(8).as_pointer(), None)
