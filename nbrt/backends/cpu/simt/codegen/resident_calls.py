"""Calls of the function of resident blocks, for kernels whose threads spin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir
from numba.core import cgutils

from nbrt.backends.cpu.simt.codegen.block_calls import (
    call_block_function,
    check_static_shared,
    emit_shared_check,
)
from nbrt.backends.cpu.simt.stop_codes import DEADLOCKED
from nbrt.errors import KernelDeadlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cpu.simt.codegen.block_loops import EntryBuilder
    from nbrt.backends.cpu.simt.codegen.lowering import Lowered

__all__ = [
    "MAX_RESIDENT_BLOCKS",
    "MAX_RESIDENT_THREADS",
    "emit_resident_blocks",
    "emit_resident_call",
]

MAX_RESIDENT_BLOCKS = 2**14
"""Resident blocks of an OS thread; a multiprocessor of a GPU holds 32."""

MAX_RESIDENT_THREADS = 2**20
"""Resident threads of an OS thread; a multiprocessor of a GPU holds 2048."""

_I8P = ir.IntType(8).as_pointer()
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_I64P = _I64.as_pointer()
_ORIGIN = (_I32(0),) * 3


def resident_limit(block: tuple[int, int, int]) -> int:
    """Return the maximum number of resident blocks of a shape in an OS thread."""
    threads = block[0] * block[1] * block[2]
    return min(MAX_RESIDENT_BLOCKS, max(1, MAX_RESIDENT_THREADS // threads))


def emit_resident_call(
    entry: EntryBuilder, name: str, chosen: Lowered, claims: Sequence[ir.Value], advice: str
) -> None:
    """Emit a call of the function of resident blocks, and raise its error.

    Parameters
    ----------
    entry : EntryBuilder
        The entry function.
    name : str
        Name of the kernel, for messages.
    chosen : Lowered
        The function.
    claims : sequence of llvmlite values
        Arguments of `coroutine_resident`, from the address of the next block on.
    advice : str
        End of the message of a deadlock.
    """
    builder, convention = entry.builder, entry.context.call_conv
    shared = ir.Constant(_I8P, None), entry.load("shared")
    grid = entry.load_grid()
    code, status, where = call_block_function(entry, chosen, grid, _ORIGIN, shared, claims)
    with cgutils.if_unlikely(builder, status.is_error):
        *failed, site = (builder.load(address) for address in where)
        entry.note_failure(failed[:3], failed[3:])
        with builder.if_then(builder.icmp_signed("==", code, _I32(DEADLOCKED))):
            for number, place in enumerate(chosen.sites, start=1):
                with builder.if_then(builder.icmp_signed("==", site, _I32(number))):
                    message = deadlock_message(name, place, advice)
                    convention.return_user_exc(builder, KernelDeadlockError, (message,))
            message = deadlock_message(name, "", advice)
            convention.return_user_exc(builder, KernelDeadlockError, (message,))
        convention.return_status_propagate(builder, status)


def deadlock_message(kernel: str, place: str, advice: str) -> str:
    """Return the text of the error of a launch that does not make progress."""
    where = f" at {place}" if place else ""
    return (
        f"expected the threads of kernel {kernel} to make progress, got threads that wait{where} "
        f"while no other thread of the launch changes memory; {advice}"
    )


def emit_resident_blocks(entry: EntryBuilder, name: str, chosen: Lowered) -> None:
    """Emit the launch of a kernel whose threads spin; the parameters are `emit_resident_call`'s."""
    check_static_shared(entry.body, chosen.static_shared)
    emit_shared_check(entry, chosen.static_shared, entry.load("shared"))
    limit = resident_limit(entry.body.signature.args[0].block)
    advice = (
        "check that some thread writes what they wait for, that every thread of the block "
        f"comes to its barriers, and that they need no more than {limit} resident blocks of "
        f"this shape; to wait longer for other streams or the host, raise NBRT_DEADLOCK_TIMEOUT"
    )
    emit_resident_call(entry, name, chosen, _claims(entry, limit, chosen.whole_grid), advice)


def _claims(entry: EntryBuilder, resident: int, whole_grid: bool) -> list[ir.Value]:
    """Return the arguments that blocks are claimed from: the record, or a copy for all blocks."""
    builder, grid = entry.builder, entry.load_grid()
    count = builder.mul(builder.mul(grid[0], grid[1]), grid[2])
    next_slot = cgutils.alloca_once_value(builder, _I64(0))
    activity_slot = cgutils.alloca_once_value(builder, _I64(0))
    chunk = entry.load("chunk")
    whole = builder.icmp_signed("==", chunk, _I64(0))
    following = builder.select(whole, next_slot, entry.field("next"))
    activity = builder.select(whole, activity_slot, entry.field("activity"))
    limit: ir.Value = _I64(resident)
    if whole_grid:
        # The first OS thread runs all blocks.
        claimed = builder.atomic_rmw("add", following, count, "monotonic")
        is_first = builder.icmp_signed("==", claimed, _I64(0))
        builder.store(builder.select(is_first, _I64(0), count), next_slot)
        following, limit = next_slot, count
    wait = builder.inttoptr(entry.load("wait"), _I8P)
    return [following, count, ir.Constant(_I64P, None), activity, limit, wait]
