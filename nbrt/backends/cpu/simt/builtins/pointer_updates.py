"""Atomic updates of 16-bit values behind pointers, by compare-and-swap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.builtins.registry import Emit

__all__ = ["update_atomically"]

_ORDERING = "monotonic"


def update_atomically(
    builder: ir.IRBuilder, symbol: str, pointer: ir.Value, value: ir.Value, compute: Emit
) -> ir.Value:
    """Replace the 16 bits at an address by a function of them and a value; return the old bits.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
        Where to call the update.
    symbol : str
        Name of the function that does it, which a module defines once.
    pointer : llvmlite.ir.Value
        The address.
    value : llvmlite.ir.Value
        An integer of 16 bits.
    compute : callable
        Emits the new bits from the old ones and `value`.
    """
    bits = ir.IntType(16)
    function = builder.module.globals.get(symbol)
    if function is None:
        function = _define(builder.module, symbol, compute)
    return builder.call(function, (builder.bitcast(pointer, bits.as_pointer()), value))


def _define(module: ir.Module, symbol: str, compute: Emit) -> ir.Function:
    """Define the update; it is not inlined, so that a thread's code has no loop for it."""
    bits = ir.IntType(16)
    kind = ir.FunctionType(bits, (bits.as_pointer(), bits))
    function = ir.Function(module, kind, name=symbol)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    pointer, value = function.args
    entry, attempt, done = (
        function.append_basic_block(name) for name in ("entry", "attempt", "done")
    )
    builder = ir.IRBuilder(entry)
    first = builder.load_atomic(pointer, _ORDERING, bits.width // 8)
    builder.branch(attempt)
    builder.position_at_end(attempt)
    old = builder.phi(bits)
    swap = builder.cmpxchg(pointer, old, compute(builder, [old, value]), _ORDERING, _ORDERING)
    old.add_incoming(first, entry)
    old.add_incoming(builder.extract_value(swap, 0), attempt)
    builder.cbranch(builder.extract_value(swap, 1), done, attempt)
    builder.position_at_end(done)
    builder.ret(old)
    return function
