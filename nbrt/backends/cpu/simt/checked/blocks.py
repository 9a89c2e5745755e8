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
from nbrt.backends.cpu.simt.codegen.block_loops import BlockLoops
from nbrt.backends.cpu.simt.codegen.lowering import lower_to_coroutines
from nbrt.backends.cpu.simt.codegen.resident_calls import emit_resident_call
from nbrt.backends.cpu.simt.codegen.thread_ir import thread_code
from nbrt.backends.cpu.simt.coroutines import Resumed
from nbrt.backends.cpu.simt.frontend.pipeline import marker_kinds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cpu.simt.codegen.block_loops import EntryBuilder
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


def emit_linear(entry: EntryBuilder, loop: BlockLoopType, limits: None) -> None:
    """Emit the blocks of a checked launch; see `emit_blocks` of `codegen.entry`."""
    del limits
    _emit(entry, loop, seeded=False)


def emit_seeded(entry: EntryBuilder, loop: BlockLoopType, limits: None) -> None:
    """Emit the same with the threads of a block in an order that depends on a seed."""
    del limits
    _emit(entry, loop, seeded=True)


def spins(thread: Any) -> bool:
    """Return whether the threads of a compiled kernel spin."""
    return bool(thread.metadata.get(_SPINS))


def _emit(entry: EntryBuilder, loop: BlockLoopType, *, seeded: bool) -> None:
    body, block, kinds = entry.body, loop.block, marker_kinds(entry.body)
    options: dict[str, Any] = {
        "order": "seeded" if seeded else "linear",
        "resumed": Resumed(f"{PREFIX}begin_thread", state_address()),
    }
    chosen = lowered_if_spinning(body, block, **options)
    if chosen is None and kinds:
        code = thread_code(body.library, body.fndesc.llvm_func_name, block)
        chosen = lower_to_coroutines(code, kinds, **options)
    if chosen is not None:
        loop.lowering = chosen.lowering
        body.metadata[_SPINS] = chosen.resident
    BlockLoops(entry, _CheckedBlocks(entry, chosen, seeded)).emit()


class _CheckedBlocks:
    """Emits the blocks of a launch with calls of the shadow runtime around each of them."""

    def __init__(self, entry: EntryBuilder, chosen: Lowered | None, seeded: bool) -> None:
        self._entry, self._chosen, self._builder = entry, chosen, entry.builder
        self._seed = [self._load("seed")] if seeded else []
        self._together = entry.builder.icmp_signed("!=", self._load("together"), _I64(0))
        self._calls: BlockCalls | None = None
        if chosen is not None and not chosen.resident:
            self._calls = BlockCalls(entry, chosen, self._seed)

    def emit_limits(self, grid: list[ir.Value]) -> None:
        """Reserve dynamic shared memory, filled with a pattern that is unlikely to go unnoticed."""
        if self._calls is not None:
            self._calls.emit_limits(grid)
            if self._chosen is not None and not self._chosen.whole_grid:
                cgutils.memset(self._builder, self._calls.shared, self._calls.shared_bytes, 255)

    def strip_length(self, available: ir.Value) -> ir.Value:
        """Return one: blocks run one by one."""
        del available
        return _I64(1)

    def emit_end(self) -> None:
        """Emit what follows the calls of the blocks."""
        if self._calls is not None:
            self._calls.emit_end()

    def emit_strip(self, grid: list[ir.Value], index: Sequence[ir.Value], count: ir.Value) -> None:
        """Run the next block in the order of the launch; or all blocks, in place of the first."""
        del count
        builder = self._builder
        rank = builder.mul(builder.add(builder.mul(index[2], grid[1]), index[1]), grid[0])
        rank = builder.add(rank, index[0])
        order = builder.gep(self._order("blocks"), [rank])
        number = builder.load(order)
        is_first = builder.icmp_signed("==", rank, _I64(0))
        with builder.if_then(builder.or_(builder.not_(self._together), is_first)):
            first = builder.select(self._together, _I64(0), number)
            call_runtime(builder, "begin_block", [first])
            if self._calls is not None:
                self._calls.emit_call(grid, self._unravel(first, grid[:2]))
            elif self._chosen is not None:
                self._emit_resident(self._chosen, order)
            else:
                self._emit_threads(grid, self._unravel(first, grid[:2]))
        call_runtime(builder, "end_block", [number])

    def _emit_threads(self, grid: list[ir.Value], block: list[ir.Value]) -> None:
        """Run threads that do not wait for each other one after another."""
        context, builder, body, _, arguments = self._entry
        width, height, depth = body.signature.args[0].block
        context.add_linking_libs([body.library])
        with cgutils.for_range(builder, _I64(width * height * depth)) as turn:
            rank = builder.load(builder.gep(self._order("threads"), [turn.index]))
            thread = self._unravel(rank, [_I64(width), _I64(height)])
            hidden = self._entry.hidden_argument(grid, block, thread)
            status, _ = context.call_internal_no_propagate(
                builder, body.fndesc, body.signature, [hidden, *arguments]
            )
            with cgutils.if_unlikely(builder, status.is_error):
                failed = [builder.trunc(value, _I32) for value in (*thread, *block)]
                self._entry.note_failure(failed[:3], failed[3:])
                context.call_conv.return_status_propagate(builder, status)

    def _emit_resident(self, chosen: Lowered, order: ir.Value) -> None:
        """Run blocks whose threads spin: all at once or, in large launches, one by one."""
        builder = self._builder
        name = self._entry.body.fndesc.qualname.rpartition(".")[2]
        count = builder.select(self._together, self._load("total"), _I64(1))
        following, activity = (cgutils.alloca_once(builder, _I64) for _ in range(2))
        builder.store(_I64(0), following)
        builder.store(_I64(0), activity)
        wait = builder.inttoptr(self._load("wait"), ir.IntType(8).as_pointer())
        claims = [following, count, order, activity, count, wait, *self._seed]
        emit_resident_call(self._entry, name, chosen, claims, _ADVICE)

    def _load(self, name: str) -> ir.Value:
        """Load a field of the record."""
        return self._entry.load(name, CheckedRecord)

    def _order(self, name: str) -> ir.Value:
        """Return the address of the order of blocks or threads."""
        return self._builder.inttoptr(self._load(name), _I64.as_pointer())

    def _unravel(self, number: ir.Value, extents: Sequence[ir.Value]) -> list[ir.Value]:
        """Return the index of a number, given the extents along x and y."""
        index = []
        for extent in extents:
            index.append(self._builder.urem(number, extent))
            number = self._builder.udiv(number, extent)
        return [*index, number]
