"""The begin of an entry function: a launch with helpers is shared without the GIL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir
from numba.core import cgutils

from nbrt.backends.cpu.simt.stop_codes import (
    HELPER_FAILED,
    INTERRUPTED,
    PYTHON_EXCEPTION,
    RETURN_NONE,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cpu.simt.codegen.block_loops import EntryBuilder

__all__ = ["emit_sharing"]

_I8P = ir.IntType(8).as_pointer()
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


def emit_sharing(entry: EntryBuilder) -> None:
    """Emit the case of a launch with helpers.

    `LaunchRecord.share` then calls this entry function in all threads, with the arguments of this
    call, which stay in its frame until all threads have left.
    """
    builder = entry.builder
    function = builder.function
    with cgutils.if_unlikely(builder, builder.icmp_signed("!=", entry.load("helpers"), _I64(0))):
        _, error, _, *values = function.args
        stored = cgutils.alloca_once(builder, _structure(values))
        for position, value in enumerate(values):
            builder.store(value, cgutils.gep_inbounds(builder, stored, 0, position))
        kind = ir.FunctionType(_I32, [_I8P] * 5)
        share = builder.inttoptr(entry.load("share"), kind.as_pointer())
        passed = (entry.record, _caller(function), function, error, stored)
        code = builder.call(share, [builder.bitcast(value, _I8P) for value in passed])
        is_interrupted = builder.icmp_signed("==", code, _I32(INTERRUPTED))
        code = builder.select(is_interrupted, _I32(PYTHON_EXCEPTION), code)
        # The thread that launches looks at `helper_failed`.
        is_elsewhere = builder.icmp_signed("==", code, _I32(HELPER_FAILED))
        builder.ret(builder.select(is_elsewhere, _I32(RETURN_NONE), code))


def _structure(values: Sequence[ir.Value]) -> ir.LiteralStructType:
    return ir.LiteralStructType([value.type for value in values])


def _caller(function: ir.Function) -> ir.Function:
    """Return a function that calls an entry function with arguments from memory."""
    kind = ir.FunctionType(_I32, [_I8P, _I8P, _I64, _I8P])
    caller = ir.Function(function.module, kind, f"{function.name}.call")
    caller.linkage = "internal"
    caller.attributes.add("noinline")
    caller.attributes.add("optnone")  # it is called once in a launch
    builder = ir.IRBuilder(caller.append_basic_block())
    result, error, _, *values = function.args
    _, error_at, record, arguments = caller.args
    stored = builder.bitcast(arguments, _structure(values).as_pointer())
    loaded = [
        builder.load(cgutils.gep_inbounds(builder, stored, 0, position))
        for position in range(len(values))
    ]
    at = builder.alloca(result.type.pointee)
    code = builder.call(function, [at, builder.bitcast(error_at, error.type), record, *loaded])
    builder.ret(code)
    return caller
