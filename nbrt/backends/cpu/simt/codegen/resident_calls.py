"""Blocks whose threads spin: the call of the function that keeps several of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils

from nbrt.backends.cpu.simt.codegen.block_loops import note_failure, record_field
from nbrt.backends.cpu.simt.codegen.polled_library import emit_leave
from nbrt.backends.cpu.simt.codegen.static_shared import check_static_shared, emit_shared_check
from nbrt.backends.cpu.simt.frontend.pipeline import ThreadLibrary
from nbrt.backends.cpu.simt.stop_codes import DEADLOCKED, INTERRUPTED, WAIT_INTERRUPTED
from nbrt.errors import KernelDeadlockError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cpu.simt.codegen.lowering import Lowered

__all__ = ["MAX_RESIDENT_BLOCKS", "MAX_RESIDENT_THREADS", "ResidentCall", "emit_resident_blocks"]

MAX_RESIDENT_BLOCKS = 2**14
"""Most blocks that an OS thread keeps at once: a GPU keeps 32 on each of its multiprocessors."""

MAX_RESIDENT_THREADS = 2**20
"""Most threads of theirs: a GPU keeps 2048 on each of its multiprocessors."""

_I8P = ir.IntType(8).as_pointer()
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_I64P = _I64.as_pointer()


def resident_limit(block: tuple[int, int, int]) -> int:
    """Return the most blocks of a shape that an OS thread keeps at once."""
    threads = block[0] * block[1] * block[2]
    return min(MAX_RESIDENT_BLOCKS, max(1, MAX_RESIDENT_THREADS // threads))


class ResidentCall:
    """Emits a call of the function of resident blocks.

    Parameters
    ----------
    context, builder
        Numba's target context, and where the code goes.
    name : str
        The kernel's, for messages.
    body : numba CompileResult
        The code of one thread.
    chosen : Lowered
        The function.
    """

    def __init__(
        self, context: Any, builder: ir.IRBuilder, name: str, body: Any, chosen: Lowered
    ) -> None:
        self._context, self._builder = context, builder
        self._name, self._body, self._chosen = name, body, chosen
        library = ThreadLibrary(context.codegen(), chosen.symbol)
        module = llvm.parse_assembly(chosen.module)
        # Its own loops release memory when they leave: they must not become the entry's.
        module.get_function(chosen.symbol).add_function_attribute("noinline")
        library.add_llvm_module(module)
        context.add_linking_libs([library])
        self.where = cgutils.alloca_once(builder, ir.ArrayType(_I32, 7))

    def emit(
        self,
        grid: Sequence[ir.Value],
        arguments: Sequence[ir.Value],
        shared: ir.Value,
        stop: ir.Value,
        claims: Sequence[ir.Value],
    ) -> Any:
        """Emit the call and what it raises by itself; give Numba's status.

        Parameters
        ----------
        grid : sequence of llvmlite values
            Blocks of the grid along x, y and z.
        arguments : sequence of llvmlite values
            The kernel's own.
        shared : llvmlite value
            Bytes of dynamic shared memory for each block.
        stop : llvmlite value
            Address of the stop word.
        claims : sequence of llvmlite values
            What `coroutine_resident` says, from the address of the next block on.
        """
        context, builder = self._context, self._builder
        signature, convention = self._body.signature, context.call_conv
        plain = convention.get_function_type(signature.return_type, signature.args)
        more = [_I8P, _I64, _I64P, _I8P, *(value.type for value in claims)]
        kind = ir.FunctionType(_I32, [*plain.args, *more])
        callee = cgutils.get_or_insert_function(builder.module, kind, self._chosen.symbol)
        result = cgutils.alloca_once(builder, plain.args[0].pointee)
        raised = cgutils.alloca_once_value(builder, ir.Constant(plain.args[1].pointee, None))
        packer = context.get_arg_packer(signature.args)
        flat = packer.as_arguments(builder, [self._hidden(grid), *arguments])
        at = builder.bitcast(self.where, _I8P)
        values = [result, raised, *flat, ir.Constant(_I8P, None), shared, stop, at, *claims]
        code = builder.call(callee, values)
        with cgutils.if_unlikely(builder, builder.icmp_signed("==", code, _I32(-1))):
            message = "no host memory is left for the threads of a block; use smaller blocks"
            convention.return_user_exc(builder, OutOfMemoryError, (message,))
        with cgutils.if_unlikely(builder, builder.icmp_signed("<=", code, _I32(INTERRUPTED))):
            emit_leave(builder, code)
        with cgutils.if_unlikely(builder, builder.icmp_signed("==", code, _I32(WAIT_INTERRUPTED))):
            convention.return_user_exc(builder, KeyboardInterrupt, ())
        self._code = code
        return convention._get_return_status(builder, code, builder.load(raised))

    def is_deadlocked(self) -> ir.Value:
        """Emit whether the call has found a deadlock."""
        return self._builder.icmp_signed("==", self._code, _I32(DEADLOCKED))

    def place(self) -> list[ir.Value]:
        """Emit the place of the thread that failed or waits: its index and its block's."""
        builder = self._builder
        at = builder.bitcast(self.where, _I32.as_pointer())
        return [builder.load(builder.gep(at, [_I64(position)])) for position in range(6)]

    def emit_deadlock(self, advice: str) -> None:
        """Raise `KernelDeadlockError` for the site at which the noted thread waits."""
        builder, convention = self._builder, self._context.call_conv
        at = builder.bitcast(self.where, _I32.as_pointer())
        site = builder.load(builder.gep(at, [_I64(6)]))
        for number, place in enumerate(self._chosen.sites, start=1):
            with builder.if_then(builder.icmp_signed("==", site, _I32(number))):
                message = deadlock_message(self._name, place, advice)
                convention.return_user_exc(builder, KernelDeadlockError, (message,))
        message = deadlock_message(self._name, "", advice)
        convention.return_user_exc(builder, KernelDeadlockError, (message,))

    def _hidden(self, grid: Sequence[ir.Value]) -> ir.Value:
        """Make the hidden argument: the size of the grid is all of it that is known."""
        builder = self._builder
        packed = self._context.get_value_type(self._body.signature.args[0])(ir.Undefined)
        sizes = [builder.trunc(size, _I32) for size in grid]
        for position, value in enumerate([*[_I32(0)] * 6, *sizes, *[_I64(0)] * 3]):
            packed = builder.insert_value(packed, value, position)
        return packed


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
    """Emit the launch of a kernel whose threads spin.

    Parameters
    ----------
    context, builder
        Numba's target context, and where the code goes.
    name : str
        The kernel's.
    body : numba CompileResult
        The code of one thread.
    chosen : Lowered
        The function of resident blocks.
    record : llvmlite value
        Address of the `LaunchRecord`.
    arguments : sequence of llvmlite values
        The kernel's own.
    """
    check_static_shared(body, chosen.static_shared)
    _Launch(context, builder, name, body, chosen, record).emit(arguments)


class _Launch:
    def __init__(
        self,
        context: Any,
        builder: ir.IRBuilder,
        name: str,
        body: Any,
        chosen: Lowered,
        record: ir.Value,
    ) -> None:
        self._builder, self._record, self._chosen = builder, record, chosen
        self._call = ResidentCall(context, builder, name, body, chosen)
        self._context = context
        self._block = body.signature.args[0].block

    def emit(self, arguments: Sequence[ir.Value]) -> None:
        builder = self._builder
        grid = [self._load(name) for name in ("grid_x", "grid_y", "grid_z")]
        count = builder.mul(builder.mul(grid[0], grid[1]), grid[2])
        claims = self._claims(count)
        stop = self._field("stop")
        emit_shared_check(self._context, builder, self._chosen.static_shared, self._load("shared"))
        status = self._call.emit(grid, arguments, self._load("shared"), stop, claims)
        with cgutils.if_unlikely(builder, status.is_error):
            place = self._call.place()
            note_failure(builder, self._record, place[:3], place[3:])
            with builder.if_then(self._call.is_deadlocked()):
                self._call.emit_deadlock(self._advice())
            self._context.call_conv.return_status_propagate(builder, status)

    def _advice(self) -> str:
        limit = resident_limit(self._block)
        return (
            "check that some thread writes what they wait for, that every thread of the block "
            f"comes to its barriers, and that they need no more than {limit} resident blocks of "
            f"this shape; to wait longer for other streams or the host, raise NBRT_DEADLOCK_TIMEOUT"
        )

    def _claims(self, count: ir.Value) -> list[ir.Value]:
        """Return what blocks are claimed from: the record, or a copy where all are this call's."""
        builder = self._builder
        next_slot = cgutils.alloca_once_value(builder, _I64(0))
        activity_slot = cgutils.alloca_once_value(builder, _I64(0))
        whole = builder.icmp_signed("==", self._load("chunk"), _I64(0))
        following = builder.select(whole, next_slot, self._field("next"))
        activity = builder.select(whole, activity_slot, self._field("activity"))
        limit: ir.Value = _I64(resident_limit(self._block))
        if self._chosen.whole_grid:
            # One OS thread has all blocks: the one that comes first.
            claimed = builder.atomic_rmw("add", following, count, "monotonic")
            is_first = builder.icmp_signed("==", claimed, _I64(0))
            builder.store(builder.select(is_first, _I64(0), count), next_slot)
            following, limit = next_slot, count
        wait = builder.inttoptr(self._load("wait"), _I8P)
        return [following, count, ir.Constant(_I64P, None), activity, limit, wait]

    def _field(self, name: str) -> ir.Value:
        return record_field(self._builder, self._record, name)

    def _load(self, name: str) -> ir.Value:
        return self._builder.load(self._field(name))
