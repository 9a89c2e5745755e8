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
    "CLAIM_SUFFIX",
    "BlockLoops",
    "BlockRunner",
    "EntryBuilder",
    "smaller",
]

_I64 = ir.IntType(64)
_I32 = ir.IntType(32)

_STATE = ir.ArrayType(_I64, 5)
"""What a thread knows of its claims: the fields below."""

_CALLS, _PART, _LEFT, _FIRST, _LAST = range(5)
"""Not 0 after the first claim; the part to look at and the parts left; the blocks claimed last."""

CLAIM_SUFFIX = ".claim"
"""End of the symbol of the function that claims blocks for an entry function."""


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
    """

    def __init__(self, entry: EntryBuilder) -> None:
        self._entry = entry
        self._state = cgutils.alloca_once(entry.builder, _STATE, zfill=True)
        # A separate function: LLVM takes a quarter more time for loops around its branches.
        self._function = self._define(entry.builder.function)

    def emit(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Claim blocks; return whether there were any, the first one, and that behind the last."""
        builder = self._entry.builder
        error = builder.ptrtoint(builder.function.args[1], _I64)
        found = builder.call(self._function, [self._entry.record, error, self._state])
        return (
            found,
            self._load(builder, self._state, _FIRST),
            self._load(builder, self._state, _LAST),
        )

    @staticmethod
    def _load(builder: ir.IRBuilder, state: ir.Value, field: int) -> ir.Value:
        return builder.load(cgutils.gep_inbounds(builder, state, 0, field))

    @staticmethod
    def _store(builder: ir.IRBuilder, state: ir.Value, field: int, value: ir.Value) -> None:
        builder.store(value, cgutils.gep_inbounds(builder, state, 0, field))

    def _define(self, caller: ir.Function) -> ir.Function:
        kind = ir.FunctionType(ir.IntType(1), [_I64.as_pointer(), _I64, _STATE.as_pointer()])
        function = ir.Function(caller.module, kind, f"{caller.name}{CLAIM_SUFFIX}")
        function.linkage = "internal"
        function.attributes.add("noinline")
        function.attributes.add("optnone")  # it takes no time when it runs
        record, error, state = function.args
        builder = ir.IRBuilder(function.append_basic_block())
        entry = self._entry._replace(builder=builder, record=record)
        total, chunk = entry.load("total"), entry.load("chunk")
        is_first = builder.icmp_signed("==", self._load(builder, state, _CALLS), _I64(0))
        self._store(builder, state, _CALLS, _I64(1))
        with builder.if_then(builder.icmp_signed("==", chunk, _I64(0))):
            self._store(builder, state, _FIRST, _I64(0))
            self._store(builder, state, _LAST, total)
            builder.ret(is_first)
        parts, count = entry.load("parts"), entry.load("part_count")
        is_single = builder.icmp_signed("==", parts, _I64(0))
        parts = builder.select(is_single, builder.ptrtoint(entry.field("next"), _I64), parts)
        count = builder.select(is_single, _I64(1), count)
        with builder.if_then(is_first):
            self._store(builder, state, _PART, _own_part(entry, error, count))
            self._store(builder, state, _LEFT, count)
        look = builder.append_basic_block("part")
        found = builder.append_basic_block("part.found")
        empty = builder.append_basic_block("part.empty")
        following = builder.append_basic_block("part.next")
        none = builder.append_basic_block("none")
        builder.branch(look)
        builder.position_at_end(look)
        part = self._load(builder, state, _PART)
        at = builder.add(parts, builder.mul(part, _I64(PART_SIZE)))
        counter = builder.inttoptr(at, _I64.as_pointer())
        end = builder.select(is_single, total, builder.load(builder.gep(counter, [_I64(1)])))
        start = builder.atomic_rmw("add", counter, chunk, "monotonic")
        builder.cbranch(builder.icmp_signed("<", start, end), found, empty)
        builder.position_at_end(empty)
        left = builder.sub(self._load(builder, state, _LEFT), _I64(1))
        self._store(builder, state, _LEFT, left)
        builder.cbranch(builder.icmp_signed("==", left, _I64(0)), none, following)
        builder.position_at_end(following)
        more = builder.add(part, _I64(1))
        is_last = builder.icmp_signed("==", more, count)
        self._store(builder, state, _PART, builder.select(is_last, _I64(0), more))
        builder.branch(look)
        builder.position_at_end(found)
        self._store(builder, state, _FIRST, start)
        self._store(builder, state, _LAST, smaller(builder, builder.add(start, chunk), end))
        builder.ret(ir.IntType(1)(1))
        builder.position_at_end(none)
        builder.ret(ir.IntType(1)(0))
        return function


def _own_part(entry: EntryBuilder, error: ir.Value, count: ir.Value) -> ir.Value:
    """Return the number of the part of this thread.

    Each thread has another place for the description of an error; that of a helper is in its slot,
    whose number is that of its part. The caller's is in its frame.
    """
    builder = entry.builder
    slot = builder.udiv(builder.sub(error, entry.load("slots")), _I64(SLOT_SIZE))
    is_helper = builder.icmp_unsigned("<", slot, builder.sub(count, _I64(1)))
    return builder.select(is_helper, builder.add(slot, _I64(1)), _I64(0))


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
        self._runner.emit_limits(grid)
        claims = Claims(entry)
        claim = builder.append_basic_block("claim")
        blocks = builder.append_basic_block("blocks")
        done = builder.append_basic_block("done")
        builder.branch(claim)
        builder.position_at_end(claim)
        emit_poll(builder, entry.field("stop"))
        is_found, start, end = claims.emit()
        builder.cbranch(is_found, blocks, done)
        builder.position_at_end(blocks)
        self._emit_range(grid, start, end)
        builder.branch(claim)
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
