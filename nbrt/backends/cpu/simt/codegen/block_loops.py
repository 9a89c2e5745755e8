"""Loops over the blocks of a launch, which claim blocks from the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from llvmlite import ir
from numba.core import cgutils

from nbrt.backends.cpu.block_scheduler import LaunchRecord
from nbrt.backends.cpu.simt.codegen.polled_library import emit_poll

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BlockLoops",
    "BlockRunner",
    "hidden_argument",
    "note_failure",
    "record_field",
    "smaller",
]

_I64 = ir.IntType(64)
_I32 = ir.IntType(32)


class BlockRunner(Protocol):
    """Emits the code that runs blocks."""

    def emit_limits(self, grid: list[ir.Value]) -> None:
        """Emit values that are the same for the whole launch."""

    def strip_length(self, available: ir.Value) -> ir.Value:
        """Return the number of blocks along x to run at once."""

    def emit_strip(self, grid: list[ir.Value], index: Sequence[ir.Value], count: ir.Value) -> None:
        """Run `count` blocks from `index` on."""


def record_field(builder: ir.IRBuilder, record: ir.Value, name: str) -> ir.Value:
    """Return the address of a field of the launch's record."""
    offset = getattr(LaunchRecord, name).offset
    return builder.gep(record, [_I64(offset // 8)])


def note_failure(
    builder: ir.IRBuilder, record: ir.Value, thread: Sequence[ir.Value], block: Sequence[ir.Value]
) -> None:
    """Store the thread and block that raised, as 32-bit values."""
    at = builder.bitcast(record_field(builder, record, "failed"), _I32.as_pointer())
    for position, value in enumerate((*thread, *block)):
        builder.store(value, builder.gep(at, [_I64(position)]))


def hidden_argument(
    context: Any,
    builder: ir.IRBuilder,
    typ: Any,
    grid: Sequence[ir.Value],
    block: Sequence[ir.Value] = (_I32(0),) * 3,
    thread: Sequence[ir.Value] = (_I32(0),) * 3,
    offsets: Sequence[ir.Value] = (_I64(0),) * 3,
) -> ir.Value:
    """Return the hidden argument of a kernel.

    Indices have 32 or 64 bits; `offsets` are those of grid-stride loops.
    """
    place = [
        value if value.type == _I32 else builder.trunc(value, _I32)
        for value in (*thread, *block, *grid)
    ]
    packed = context.get_value_type(typ)(ir.Undefined)
    for position, value in enumerate((*place, *offsets)):
        packed = builder.insert_value(packed, value, position)
    return packed


def smaller(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """Return the smaller of two signed numbers."""
    return builder.select(builder.icmp_signed("<", left, right), left, right)


class BlockLoops:
    """Emits the loops that claim blocks and run them.

    `record` is the address of a `LaunchRecord`, as a pointer to ``i64``.
    """

    def __init__(self, builder: ir.IRBuilder, runner: BlockRunner, record: ir.Value) -> None:
        self._builder = builder
        self._runner = runner
        self._record = record

    def emit(self) -> None:
        """Emit everything."""
        builder = self._builder
        grid = [self._load(name) for name in ("grid_x", "grid_y", "grid_z")]
        total, chunk = self._load("total"), self._load("chunk")
        whole = builder.icmp_signed("==", chunk, _I64(0))
        self._runner.emit_limits(grid)
        claim = builder.append_basic_block("claim")
        done = builder.append_basic_block("done")
        first = cgutils.alloca_once_value(builder, _I64(0))
        last = cgutils.alloca_once_value(builder, total)
        builder.branch(claim)
        builder.position_at_end(claim)
        emit_poll(builder, self._field("stop"))
        with builder.if_then(builder.not_(whole)):
            start = builder.atomic_rmw("add", self._field("next"), chunk, "monotonic")
            builder.store(start, first)
            builder.store(smaller(builder, builder.add(start, chunk), total), last)
        start, end = builder.load(first), builder.load(last)
        blocks = builder.append_basic_block("blocks")
        builder.cbranch(builder.icmp_signed("<", start, end), blocks, done)
        builder.position_at_end(blocks)
        self._emit_range(grid, start, end)
        builder.cbranch(whole, done, claim)
        builder.position_at_end(done)

    def _field(self, name: str) -> ir.Value:
        return record_field(self._builder, self._record, name)

    def _load(self, name: str) -> ir.Value:
        return self._builder.load(self._field(name))

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
