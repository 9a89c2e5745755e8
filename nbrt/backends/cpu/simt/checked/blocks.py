"""Native code of a checked launch, which runs blocks and threads in a given order."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import cgutils

from nbrt.backends.cpu.block_scheduler import LaunchRecord
from nbrt.backends.cpu.simt.checked.layout import MAX_RESIDENT_THREADS
from nbrt.backends.cpu.simt.checked.memory import PREFIX, state_address
from nbrt.backends.cpu.simt.checked.probes import call_runtime
from nbrt.backends.cpu.simt.codegen.block_calls import BlockCalls, lowered_if_spinning
from nbrt.backends.cpu.simt.codegen.block_loops import BlockLoops, hidden_argument, note_failure
from nbrt.backends.cpu.simt.codegen.lowering import lower_to_coroutines
from nbrt.backends.cpu.simt.codegen.resident_calls import ResidentCall
from nbrt.backends.cpu.simt.codegen.thread_ir import thread_code
from nbrt.backends.cpu.simt.coroutines import Resumed
from nbrt.backends.cpu.simt.frontend.pipeline import marker_kinds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cpu.simt.codegen.entry import BlockLoopType
    from nbrt.backends.cpu.simt.codegen.lowering import Lowered
    from nbrt.typing import Dim3

__all__ = ["CheckedRecord", "emit_linear", "emit_seeded", "spins"]

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)

_SPINS = "nbrt.spins"
"""Key of a compile result's metadata: whether its threads spin."""

_ADVICE = (
    "check that some thread writes what they wait for, and that every thread of the block comes to "
    "its barriers; checked mode keeps several blocks resident in launches of at most "
    f"{MAX_RESIDENT_THREADS} threads, so check blocks that wait for each other with a smaller grid"
)


class CheckedRecord(LaunchRecord):
    """The record of a checked launch, which fixes the order of blocks and threads.

    `blocks` and `threads` are arrays of ``int64``: the numbers of the blocks, and of the threads of
    a block, in the order to run them. `seed` shuffles threads that wait for each other; `together`:
    all blocks are resident at once.
    """

    _fields_ = (  # type: ignore[assignment]  # ctypes appends them to those of the base class
        ("blocks", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("seed", ctypes.c_int64),
        ("together", ctypes.c_int64),
    )

    def __init__(
        self, grid: Dim3, blocks: Any, threads: Any, shared: int, seed: int, together: bool
    ) -> None:
        super().__init__(*grid, len(blocks), 0, 0, shared)
        self._orders = blocks, threads  # their memory is in use as long as the record
        self.blocks, self.threads = blocks.ctypes.data, threads.ctypes.data
        self.seed, self.together = seed, together


def emit_linear(*context: Any) -> None:
    """Emit the blocks of a checked launch; see `emit_blocks` of `codegen.entry`."""
    _emit(False, *context)


def emit_seeded(*context: Any) -> None:
    """Emit the same with the threads of a block in an order that depends on a seed."""
    _emit(True, *context)


def spins(thread: Any) -> bool:
    """Return whether the threads of a compiled kernel spin."""
    return bool(thread.metadata.get(_SPINS))


def _emit(
    seeded: bool,
    context: Any,
    builder: ir.IRBuilder,
    loop: BlockLoopType,
    results: tuple[Any, None],
    record: ir.Value,
    arguments: list[ir.Value],
) -> None:
    body, _ = results
    block, kinds = loop.block, marker_kinds(body)
    options: dict[str, Any] = {
        "order": "seeded" if seeded else "linear",
        "resumed": Resumed(f"{PREFIX}begin_thread", state_address()),
    }
    chosen = lowered_if_spinning(body, block, **options)
    if chosen is None and kinds:
        code = thread_code(body.library, body.fndesc.llvm_func_name, block)
        chosen = lower_to_coroutines(code, kinds, **options)
    blocks: _CheckedBlocks
    if chosen is None:
        blocks = _SerialThreads(context, builder, body, record, arguments, seeded)
    else:
        loop.lowering = chosen.lowering
        body.metadata[_SPINS] = chosen.resident
        kind = _ResidentBlocks if chosen.resident else _CoroutineBlocks
        blocks = kind(context, builder, body, record, arguments, seeded, chosen)
    BlockLoops(builder, blocks, record).emit()


class _CheckedBlocks:
    """Emits the blocks of a launch with calls of the shadow runtime around each of them."""

    def __init__(
        self,
        context: Any,
        builder: ir.IRBuilder,
        body: Any,
        record: ir.Value,
        arguments: list[ir.Value],
        seeded: bool,
        chosen: Lowered | None = None,
    ) -> None:
        self.chosen: Any = chosen
        self.context, self.builder, self.body = context, builder, body
        self.record, self.arguments = record, arguments
        self.seed = [self.load("seed")] if seeded else []
        self.together = builder.icmp_signed("!=", self.load("together"), _I64(0))

    def emit_limits(self, grid: list[ir.Value]) -> None:
        """Emit what is computed once for the launch: nothing."""

    def strip_length(self, available: ir.Value) -> ir.Value:
        """Return one: blocks run one by one."""
        del available
        return _I64(1)

    def emit_strip(self, grid: list[ir.Value], index: Sequence[ir.Value], count: ir.Value) -> None:
        """Run the block whose turn it is; or all blocks, in the place of the first."""
        del count
        builder = self.builder
        rank = builder.mul(builder.add(builder.mul(index[2], grid[1]), index[1]), grid[0])
        rank = builder.add(rank, index[0])
        order = builder.gep(self.order("blocks"), [rank])
        number = builder.load(order)
        is_first = builder.icmp_signed("==", rank, _I64(0))
        with builder.if_then(builder.or_(builder.not_(self.together), is_first)):
            first = builder.select(self.together, _I64(0), number)
            call_runtime(builder, "begin_block", [first])
            self.emit_block(grid, order, self.unravel(first, grid[:2]))
        call_runtime(builder, "end_block", [number])

    def emit_block(self, grid: list[ir.Value], order: ir.Value, index: list[ir.Value]) -> None:
        """Run the block at `index`, whose number is at the address `order`."""
        raise NotImplementedError

    def field(self, name: str) -> ir.Value:
        """Return the address of a field of the record."""
        offset = getattr(CheckedRecord, name).offset
        return self.builder.gep(self.record, [_I64(offset // 8)])

    def load(self, name: str) -> ir.Value:
        """Load a field of the record."""
        return self.builder.load(self.field(name))

    def order(self, name: str) -> ir.Value:
        """Return the address of the order of blocks or threads."""
        return self.builder.inttoptr(self.load(name), _I64.as_pointer())

    def unravel(self, number: ir.Value, extents: Sequence[ir.Value]) -> list[ir.Value]:
        """Return the index of a number, given the extents along x and y."""
        index = []
        for extent in extents:
            index.append(self.builder.urem(number, extent))
            number = self.builder.udiv(number, extent)
        return [*index, number]

    def propagate(self, status: Any, thread: list[ir.Value], block: list[ir.Value]) -> None:
        """Raise what a thread raised, after a note of its place in the record."""
        builder = self.builder
        with cgutils.if_unlikely(builder, status.is_error):
            place = [
                value if value.type == _I32 else builder.trunc(value, _I32)
                for value in (*thread, *block)
            ]
            note_failure(builder, self.record, place[:3], place[3:])
            self.context.call_conv.return_status_propagate(builder, status)


class _SerialThreads(_CheckedBlocks):
    """Runs threads that do not wait for each other one after another."""

    def emit_block(self, grid: list[ir.Value], order: ir.Value, index: list[ir.Value]) -> None:
        context, builder, body = self.context, self.builder, self.body
        signature = body.signature
        width, height, depth = signature.args[0].block
        context.add_linking_libs([body.library])
        with cgutils.for_range(builder, _I64(width * height * depth)) as turn:
            rank = builder.load(builder.gep(self.order("threads"), [turn.index]))
            thread = self.unravel(rank, [_I64(width), _I64(height)])
            hidden = hidden_argument(context, builder, signature.args[0], grid, index, thread)
            status, _ = context.call_internal_no_propagate(
                builder, body.fndesc, signature, [hidden, *self.arguments]
            )
            self.propagate(status, thread, index)


class _CoroutineBlocks(_CheckedBlocks):
    """Runs blocks, or the whole grid, whose threads wait for each other."""

    def __init__(self, *target: Any) -> None:
        super().__init__(*target)
        self._calls = BlockCalls(
            self.context,
            self.builder,
            self.body,
            self.chosen,
            self.record,
            self.arguments,
            self.seed,
        )

    def emit_limits(self, grid: list[ir.Value]) -> None:
        self._calls.emit_limits(grid)
        if not self.chosen.whole_grid:
            # A pattern that is unlikely to go unnoticed.
            calls = self._calls
            cgutils.memset(self.builder, calls.shared, calls.shared_bytes, 255)

    def emit_block(self, grid: list[ir.Value], order: ir.Value, index: list[ir.Value]) -> None:
        self._calls.emit_call(grid, index)


class _ResidentBlocks(_CheckedBlocks):
    """Runs blocks whose threads spin: all at once or, in large launches, one by one."""

    def __init__(self, *target: Any) -> None:
        super().__init__(*target)
        name = self.body.fndesc.qualname.rpartition(".")[2]
        self._call = ResidentCall(
            self.context, self.builder, name, self.body, self.chosen, self.record
        )
        self._claimed = [cgutils.alloca_once(self.builder, _I64) for _ in range(2)]

    def emit_block(self, grid: list[ir.Value], order: ir.Value, index: list[ir.Value]) -> None:
        builder = self.builder
        count = builder.select(self.together, self.load("total"), _I64(1))
        following, activity = self._claimed
        builder.store(_I64(0), following)
        builder.store(_I64(0), activity)
        wait = builder.inttoptr(self.load("wait"), ir.IntType(8).as_pointer())
        claims = [following, count, order, activity, count, wait, *self.seed]
        self._call.emit(grid, self.arguments, claims, _ADVICE)
