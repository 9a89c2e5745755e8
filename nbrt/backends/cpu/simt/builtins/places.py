"""Markers of the source locations where threads may wait, for error messages."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from nbrt.backends.cpu.simt.builtins.registry import nothing
from nbrt.backends.cpu.simt.placeholders import place_marker

__all__ = ["mark_place", "number_of"]

_EMPTY = ir.FunctionType(ir.VoidType(), [])
_numbers: dict[str, int] = {}
_symbols: list[str] = []


def number_of(file: str, line: int) -> int:
    """Return the number of a source location, the argument of `mark_place`."""
    symbol = place_marker(file, line)
    if symbol not in _numbers:
        _symbols.append(symbol)
        _numbers[symbol] = len(_symbols) - 1
    return _numbers[symbol]


@intrinsic(prefer_literal=True)
def mark_place(_typingctx: Any, number: Any) -> Any:
    """Mark a source location.

    The marker is a function with an empty body, so LLVM removes it unless a lowering needs it.
    """

    def codegen(_context: Any, builder: ir.IRBuilder, _sig: Any, _args: Any) -> ir.Value:
        builder.call(_marker(builder.module, _symbols[number.literal_value]), [])
        return nothing()

    return types.none(number), codegen


def _marker(module: ir.Module, symbol: str) -> ir.Function:
    if symbol in module.globals:
        return module.globals[symbol]
    function = ir.Function(module, _EMPTY, name=symbol)
    function.linkage = "linkonce_odr"
    function.attributes.add("alwaysinline")
    ir.IRBuilder(function.append_basic_block("entry")).ret_void()
    return function
