"""Calls of the function of resident blocks, for kernels whose threads spin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import cgutils

from nbrt.backends.cpu.simt.codegen.block_calls import (
    check_static_shared,
    emit_shared_check,
    emit_status,
    link_block_function,
)
from nbrt.backends.cpu.simt.codegen.block_loops import hidden_argument, note_failure, record_field
from nbrt.backends.cpu.simt.stop_codes import DEADLOCKED, WAIT_INTERRUPTED
from nbrt.errors import KernelDeadlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cpu.simt.codegen.lowering import Lowered

__all__ = ["MAX_RESIDENT_BLOCKS", "MAX_RESIDENT_THREADS", "ResidentCall", "emit_resident_blocks"]

MAX_RESIDENT_BLOCKS = 2**14
"""Resident blocks of an OS thread; a multiprocessor of a GPU holds 32."""

MAX_RESIDENT_THREADS = 2**20
"""Resident threads of an OS thread; a multiprocessor of a GPU holds 2048."""

_I8P = ir.IntType(8).as_pointer()
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_I64P = _I64.as_pointer()


def resident_limit(block: tuple[int, int, int]) -> int:
    """Return the maximum number of resident blocks of a shape in an OS thread."""
    threads = block[0] * block[1] * block[2]
    return min(MAX_RESIDENT_BLOCKS, max(1, MAX_RESIDENT_THREADS // threads))


class ResidentCall:
    """Emits a call of the function of resident blocks.

    Parameters
    ----------
    context, builder
        Numba's target context, and where the code goes.
    name : str
        Name of the kernel, for messages.
    body : numba CompileResult
        The code of one thread.
    chosen : Lowered
        The function.
    record : llvmlite value
        Address of the `LaunchRecord`.
    """

    def __init__(
        self,
        context: Any,
        builder: ir.IRBuilder,
        name: str,
        body: Any,
        chosen: Lowered,
        record: ir.Value,
    ) -> None:
        self._context, self._builder = context, builder
        self._name, self._body, self._chosen = name, body, chosen
        self._record = record
        link_block_function(context, chosen)

    def emit(
        self,
        grid: Sequence[ir.Value],
        arguments: Sequence[ir.Value],
        claims: Sequence[ir.Value],
        advice: str,
    ) -> None:
        """Emit the call and raise its error.

        Parameters
        ----------
        grid : sequence of llvmlite values
            Blocks of the grid along x, y and z.
        arguments : sequence of llvmlite values
            The kernel's own.
        claims : sequence of llvmlite values
            Arguments of `coroutine_resident`, from the address of the next block on.
        advice : str
            End of the message of a deadlock.
        """
        context, builder = self._context, self._builder
        signature, convention = self._body.signature, context.call_conv
        plain = convention.get_function_type(signature.return_type, signature.args)
        more = [_I8P, _I64, _I64P, _I8P, *(value.type for value in claims)]
        kind = ir.FunctionType(_I32, [*plain.args, *more])
        callee = cgutils.get_or_insert_function(builder.module, kind, self._chosen.symbol)
        result = cgutils.alloca_once(builder, plain.args[0].pointee)
        raised = cgutils.alloca_once_value(builder, ir.Constant(plain.args[1].pointee, None))
        where = cgutils.alloca_once(builder, ir.ArrayType(_I32, 7))
        packer = context.get_arg_packer(signature.args)
        hidden = hidden_argument(context, builder, signature.args[0], grid)
        flat = packer.as_arguments(builder, [hidden, *arguments])
        shared = builder.load(record_field(builder, self._record, "shared"))
        stop = record_field(builder, self._record, "stop")
        place = builder.bitcast(where, _I8P)
        values = [result, raised, *flat, ir.Constant(_I8P, None), shared, stop, place, *claims]
        code = builder.call(callee, values)
        with cgutils.if_unlikely(builder, builder.icmp_signed("==", code, _I32(WAIT_INTERRUPTED))):
            convention.return_user_exc(builder, KeyboardInterrupt, ())
        status = emit_status(context, builder, code, raised)
        with cgutils.if_unlikely(builder, status.is_error):
            at = builder.bitcast(where, _I32.as_pointer())
            *thread_block, site = (builder.load(builder.gep(at, [_I64(n)])) for n in range(7))
            note_failure(builder, self._record, thread_block[:3], thread_block[3:])
            with builder.if_then(builder.icmp_signed("==", code, _I32(DEADLOCKED))):
                self._emit_deadlock(site, advice)
            convention.return_status_propagate(builder, status)

    def _emit_deadlock(self, site: ir.Value, advice: str) -> None:
        """Raise `KernelDeadlockError` for the site at which the noted thread waits."""
        builder, convention = self._builder, self._context.call_conv
        for number, place in enumerate(self._chosen.sites, start=1):
            with builder.if_then(builder.icmp_signed("==", site, _I32(number))):
                message = deadlock_message(self._name, place, advice)
                convention.return_user_exc(builder, KernelDeadlockError, (message,))
        message = deadlock_message(self._name, "", advice)
        convention.return_user_exc(builder, KernelDeadlockError, (message,))


def deadlock_message(kernel: str, place: str, advice: str) -> str:
    """Return the text of the error of a launch that does not make progress."""
    where = f" at {place}" if place else ""
    return (
        f"expected the threads of kernel {kernel} to make progress, got threads that wait{where} "
        f"while no other thread of the launch changes memory; {advice}"
    )


def emit_resident_blocks(
    context: Any,
    builder: ir.IRBuilder,
    name: str,
    body: Any,
    chosen: Lowered,
    record: ir.Value,
    arguments: Sequence[ir.Value],
) -> None:
    """Emit the launch of a kernel whose threads spin; the parameters are those of `ResidentCall`.

    `arguments` are the kernel's own.
    """
    check_static_shared(body, chosen.static_shared)
    grid = [
        builder.load(record_field(builder, record, at)) for at in ("grid_x", "grid_y", "grid_z")
    ]
    shared = builder.load(record_field(builder, record, "shared"))
    emit_shared_check(context, builder, chosen.static_shared, shared)
    limit = resident_limit(body.signature.args[0].block)
    claims = _claims(builder, record, grid, limit, chosen.whole_grid)
    advice = (
        "check that some thread writes what they wait for, that every thread of the block "
        f"comes to its barriers, and that they need no more than {limit} resident blocks of "
        f"this shape; to wait longer for other streams or the host, raise NBRT_DEADLOCK_TIMEOUT"
    )
    ResidentCall(context, builder, name, body, chosen, record).emit(grid, arguments, claims, advice)


def _claims(
    builder: ir.IRBuilder, record: ir.Value, grid: list[ir.Value], resident: int, whole_grid: bool
) -> list[ir.Value]:
    """Return the arguments that blocks are claimed from: the record, or a copy for all blocks."""
    count = builder.mul(builder.mul(grid[0], grid[1]), grid[2])
    next_slot = cgutils.alloca_once_value(builder, _I64(0))
    activity_slot = cgutils.alloca_once_value(builder, _I64(0))
    chunk = builder.load(record_field(builder, record, "chunk"))
    whole = builder.icmp_signed("==", chunk, _I64(0))
    following = builder.select(whole, next_slot, record_field(builder, record, "next"))
    activity = builder.select(whole, activity_slot, record_field(builder, record, "activity"))
    limit: ir.Value = _I64(resident)
    if whole_grid:
        # The first OS thread runs all blocks.
        claimed = builder.atomic_rmw("add", following, count, "monotonic")
        is_first = builder.icmp_signed("==", claimed, _I64(0))
        builder.store(builder.select(is_first, _I64(0), count), next_slot)
        following, limit = next_slot, count
    wait = builder.inttoptr(builder.load(record_field(builder, record, "wait")), _I8P)
    return [following, count, ir.Constant(_I64P, None), activity, limit, wait]
