"""Loops over the blocks of a launch, which claim blocks from the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from llvmlite import ir
from numba.core import cgutils

from nbrt.backends.cpu.block_scheduler import PART_SIZE, SLOT_SIZE, LaunchRecord
from nbrt.backends.cpu.simt.codegen.polled_library import emit_poll

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BlockLoops",
    "BlockRunner",
    "EntryBuilder",
    "smaller",
]

_I64 = ir.IntType(64)
_I32 = ir.IntType(32)


class EntryBuilder(NamedTuple):
    """Builds an entry function: emits instructions that use its kernel and its `LaunchRecord`.

    Attributes
    ----------
    context, builder
        Numba's target context, and where the code goes.
    body : numba CompileResult
        The code of one thread.
    record : llvmlite value
        Address of the record, as a pointer to ``i64``.
    arguments : sequence of llvmlite values
        The kernel's arguments.
    """

    context: Any
    builder: ir.IRBuilder
    body: Any
    record: ir.Value
    arguments: Sequence[ir.Value]

    def field(self, name: str, layout: type[LaunchRecord] = LaunchRecord) -> ir.Value:
        """Return the address of a field of the record."""
        offset = getattr(layout, name).offset
        return self.builder.gep(self.record, [_I64(offset // 8)])

    def load(self, name: str, layout: type[LaunchRecord] = LaunchRecord) -> ir.Value:
        """Load a field of the record."""
        return self.builder.load(self.field(name, layout))

    def load_grid(self) -> list[ir.Value]:
        """Load the blocks of the grid along x, y and z."""
        return [self.load(name) for name in ("grid_x", "grid_y", "grid_z")]

    def note_failure(self, thread: Sequence[ir.Value], block: Sequence[ir.Value]) -> None:
        """Store the thread and block that raised, as 32-bit values."""
        at = self.builder.bitcast(self.field("failed"), _I32.as_pointer())
        for position, value in enumerate((*thread, *block)):
            self.builder.store(value, self.builder.gep(at, [_I64(position)]))

    def hidden_argument(
        self,
        grid: Sequence[ir.Value],
        block: Sequence[ir.Value] = (_I32(0),) * 3,
        thread: Sequence[ir.Value] = (_I32(0),) * 3,
        offsets: Sequence[ir.Value] = (_I64(0),) * 3,
    ) -> ir.Value:
        """Return the hidden argument of the kernel.

        Indices have 32 or 64 bits; `offsets` are those of grid-stride loops.
        """
        indices = [
            value if value.type == _I32 else self.builder.trunc(value, _I32)
            for value in (*thread, *block, *grid)
        ]
        packed = self.context.get_value_type(self.body.signature.args[0])(ir.Undefined)
        for position, value in enumerate((*indices, *offsets)):
            packed = self.builder.insert_value(packed, value, position)
        return packed


class BlockRunner(Protocol):
    """Emits the code that runs blocks."""

    def emit_limits(self, grid: list[ir.Value]) -> None:
        """Emit values that are the same for the whole launch."""

    def strip_length(self, available: ir.Value) -> ir.Value:
        """Return the number of blocks along x to run at once."""

    def emit_strip(self, grid: list[ir.Value], index: Sequence[ir.Value], count: ir.Value) -> None:
        """Run `count` blocks from `index` on."""

    def emit_end(self) -> None:
        """Emit what follows the last block of a range."""


def smaller(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """Return the smaller of two signed numbers."""
    return builder.select(builder.icmp_signed("<", left, right), left, right)


class Claims:
    """Emits claims of blocks: of the part of the thread first, then of the other parts.

    A thread that has a part of the blocks to itself finds the data of the last launch in its cache,
    and does not wait for the counter that another thread has written.

    Parameters
    ----------
    entry : EntryBuilder
        The entry function.
    chunk : llvmlite value
        Blocks claimed at a time.
    """

    def __init__(self, entry: EntryBuilder, chunk: ir.Value) -> None:
        builder = self._builder = entry.builder
        self._chunk, self._total = chunk, entry.load("total")
        parts, count = entry.load("parts"), entry.load("part_count")
        self._is_whole = builder.icmp_signed("==", parts, _I64(0))
        single = builder.ptrtoint(entry.field("next"), _I64)
        self._first_part = builder.select(self._is_whole, single, parts)
        self._count = builder.select(self._is_whole, _I64(1), count)
        # Each thread has another place for the description of an error; that of a helper is in its
        # slot, whose number is that of its part. The caller's is in its frame.
        error = builder.ptrtoint(builder.function.args[1], _I64)
        slot = builder.udiv(builder.sub(error, entry.load("slots")), _I64(SLOT_SIZE))
        number = builder.add(slot, _I64(1))
        is_helper = builder.icmp_unsigned("<", slot, builder.sub(self._count, _I64(1)))
        own = builder.select(is_helper, number, _I64(0))
        self._part = cgutils.alloca_once_value(builder, own)
        self._left = cgutils.alloca_once_value(builder, self._count)

    def emit(self, first: ir.Value, last: ir.Value, done: ir.Block) -> None:
        """Claim blocks, and store the first one and the one behind the last.

        Parameters
        ----------
        first, last : llvmlite value
            Addresses.
        done : llvmlite block
            Where to go if no block is left in any part.
        """
        builder = self._builder
        look = builder.append_basic_block("part")
        found = builder.append_basic_block("part.found")
        empty = builder.append_basic_block("part.empty")
        following = builder.append_basic_block("part.next")
        builder.branch(look)
        builder.position_at_end(look)
        part = builder.load(self._part)
        at = builder.add(self._first_part, builder.mul(part, _I64(PART_SIZE)))
        counter = builder.inttoptr(at, _I64.as_pointer())
        end = builder.load(builder.gep(counter, [_I64(1)]))
        end = builder.select(self._is_whole, self._total, end)
        start = builder.atomic_rmw("add", counter, self._chunk, "monotonic")
        builder.cbranch(builder.icmp_signed("<", start, end), found, empty)
        builder.position_at_end(empty)
        left = builder.sub(builder.load(self._left), _I64(1))
        builder.store(left, self._left)
        builder.cbranch(builder.icmp_signed("==", left, _I64(0)), done, following)
        builder.position_at_end(following)
        more = builder.add(part, _I64(1))
        is_last = builder.icmp_signed("==", more, self._count)
        builder.store(builder.select(is_last, _I64(0), more), self._part)
        builder.branch(look)
        builder.position_at_end(found)
        builder.store(start, first)
        builder.store(smaller(builder, builder.add(start, self._chunk), end), last)


class BlockLoops:
    """Emits the loops that claim blocks and run them."""

    def __init__(self, entry: EntryBuilder, runner: BlockRunner) -> None:
        self._entry = entry
        self._builder = entry.builder
        self._runner = runner

    def emit(self) -> None:
        """Emit everything."""
        entry, builder = self._entry, self._builder
        grid = entry.load_grid()
        total, chunk = entry.load("total"), entry.load("chunk")
        whole = builder.icmp_signed("==", chunk, _I64(0))
        self._runner.emit_limits(grid)
        claims = Claims(entry, chunk)
        claim = builder.append_basic_block("claim")
        blocks = builder.append_basic_block("blocks")
        done = builder.append_basic_block("done")
        first = cgutils.alloca_once_value(builder, _I64(0))
        last = cgutils.alloca_once_value(builder, total)
        builder.branch(claim)
        builder.position_at_end(claim)
        emit_poll(builder, entry.field("stop"))
        with builder.if_then(builder.not_(whole)):
            claims.emit(first, last, done)
        start, end = builder.load(first), builder.load(last)
        builder.cbranch(builder.icmp_signed("<", start, end), blocks, done)
        builder.position_at_end(blocks)
        self._emit_range(grid, start, end)
        builder.cbranch(whole, done, claim)
        builder.position_at_end(done)

    def _emit_range(self, grid: list[ir.Value], start: ir.Value, end: ir.Value) -> None:
        """Run blocks [start, end): one division, then increments with carry."""
        builder = self._builder
        rest = builder.udiv(start, grid[0])
        at = [
            builder.urem(start, grid[0]),
            builder.urem(rest, grid[1]),
            builder.udiv(rest, grid[1]),
        ]
        strip = builder.append_basic_block("strip")
        after = builder.append_basic_block("strip.end")
        before = builder.block
        builder.branch(strip)
        builder.position_at_end(strip)
        current = builder.phi(_I64)
        index = [builder.phi(_I64) for _ in at]
        for phi, value in zip((current, *index), (start, *at), strict=True):
            phi.add_incoming(value, before)
        count = self._runner.strip_length(
            smaller(builder, builder.sub(end, current), builder.sub(grid[0], index[0]))
        )
        self._runner.emit_strip(grid, index, count)
        following = [builder.add(current, count), *self._advance(grid, index, count)]
        for phi, value in zip((current, *index), following, strict=True):
            phi.add_incoming(value, builder.block)
        builder.cbranch(builder.icmp_signed("<", following[0], end), strip, after)
        builder.position_at_end(after)
        self._runner.emit_end()

    def _advance(
        self, grid: list[ir.Value], index: Sequence[ir.Value], count: ir.Value
    ) -> list[ir.Value]:
        builder = self._builder
        advanced, carry = [], count
        for position, extent in zip(index[:2], grid[:2], strict=True):
            moved = builder.add(position, carry)
            overflow = builder.icmp_unsigned("==", moved, extent)
            advanced.append(builder.select(overflow, _I64(0), moved))
            carry = builder.zext(overflow, _I64)
        return [*advanced, builder.add(index[2], carry)]
