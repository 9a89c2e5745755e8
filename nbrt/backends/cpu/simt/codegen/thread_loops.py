"""Loops over the threads of a strip of blocks, around the code of one thread.

The threads do not wait for each other. Metadata marks memory accesses of different threads as
independent, so LLVM vectorises without run-time overlap checks. If a kernel reads only its position
in the grid, neighbouring blocks along x run as one *strip*, and blocks of 16 x 16 threads, or of
one thread, vectorise as well as blocks of 256. The loops of other kernels have constant length.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import cgutils

from nbrt.backends.cpu.simt.codegen.block_loops import EntryBuilder, smaller
from nbrt.backends.cpu.simt.frontend.pipeline import bounds_of, dialect_uses, strides_of
from nbrt.backends.cpu.simt.llvm.polls import BOUNDED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nbrt.backends.cpu.simt.frontend.bounds_checks import Bound

__all__ = ["ThreadLoops"]

_I64 = ir.IntType(64)
_I32 = ir.IntType(32)

_MAX_STRIP_THREADS = 2**18
"""Maximum length of a strip, whose threads run without a poll."""

_MAX_REVISITED_THREADS = 4096
"""Maximum length of a strip with several rows, or with iterations of a grid-stride loop.

It is long enough for streaming, and short enough for the cache: 256 made a 5-point stencil on
2048 x 2048 float32 1.5 times slower than a plain loop; without a limit, a histogram with a row for
each of 32768 threads was 2 times slower."""

_BLOCK_ATTRIBUTES = {"threadIdx.x", "blockIdx.x", "laneid"}
"""Attributes of the hidden argument that differ between the blocks of a strip."""


class _Metadata(ir.MDValue):
    """A distinct metadata node, with itself as first operand if LLVM requires it."""

    def __init__(self, module: ir.Module, operands: list[Any], *, names_itself: bool) -> None:
        self._names_itself = names_itself
        super().__init__(module, operands, name=str(len(module.metadata)))

    def descr(self, buffer: list[str]) -> None:
        references = [self.get_reference()] if self._names_itself else []
        references += [operand.get_reference() for operand in self.operands]
        buffer += [f"distinct !{{ {', '.join(references)} }}", "\n"]


@contextlib.contextmanager
def _loop(
    builder: ir.IRBuilder, start: ir.Value, end: ir.Value
) -> Iterator[tuple[ir.Value, list[Any]]]:
    """Emit a loop from start to a larger end.

    Yields the counter, and a list that receives the back edge after the body.
    """
    before = builder.block
    body = builder.append_basic_block("loop")
    after = builder.append_basic_block("loop.end")
    builder.branch(body)
    builder.position_at_end(body)
    counter = builder.phi(end.type)
    counter.add_incoming(start, before)
    back: list[Any] = []
    yield counter, back
    following = builder.add(counter, end.type(1), flags=("nsw", "nuw"))
    counter.add_incoming(following, builder.block)
    back.append(builder.cbranch(builder.icmp_unsigned("<", following, end), body, after))
    builder.position_at_end(after)


def _larger(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_signed(">", left, right), left, right)


class ThreadLoops:
    """Emits the loops over the threads of a strip of blocks, around the body of the kernel."""

    def __init__(self, entry: EntryBuilder, block: tuple[int, int, int], limits: Any) -> None:
        self._entry = entry
        self._builder = entry.builder
        self._block = block
        self._limits = limits
        self._bounds: list[tuple[Bound, ir.Value]] = []
        self._strides = strides_of(entry.body)
        uses = list(dialect_uses(entry.body))
        reads = set[str]().union(*(use.attributes for use in uses))
        bounds = bounds_of(limits) if limits is not None else []
        in_block = any(bound.kind == "thread" and bound.axis == 0 for bound in bounds)
        self._has_strips = not reads & _BLOCK_ATTRIBUTES and not in_block
        # All iterations share the stack slot of a local array, so they are not independent.
        shares_stack = any(use.local_arrays for use in uses)
        group = None if shares_stack else _Metadata(entry.builder.module, [], names_itself=False)
        self._access_group = group

    def emit_limits(self, grid: list[ir.Value]) -> None:
        """Compute the limits on the positions, which are the same for the whole launch."""
        if self._limits is None:
            return
        context, limits = self._entry.context, self._limits
        # Limits are uniform, but may depend on the size of the grid.
        extents = [self._bounded(value) for value in grid]
        values = [self._entry.hidden_argument(extents), *self._entry.arguments]
        context.add_linking_libs([limits.library])
        packed = context.call_internal(self._builder, limits.fndesc, limits.signature, values)
        ends = cgutils.unpack_tuple(self._builder, packed)
        self._bounds = list(zip(bounds_of(limits), ends, strict=True))

    def strip_length(self, available: ir.Value) -> ir.Value:
        """Return the number of blocks along x to run as one strip."""
        if not self._has_strips:
            return _I64(1)
        width, height, depth = self._block
        is_revisited = height * depth > 1 or bool(self._strides)
        longest = _MAX_REVISITED_THREADS if is_revisited else _MAX_STRIP_THREADS
        return smaller(self._builder, available, _I64(max(1, longest // width)))

    def emit_strip(self, grid: list[ir.Value], index: Sequence[ir.Value], count: ir.Value) -> None:
        """Run `count` blocks from `index` on."""
        with contextlib.ExitStack() as nest:
            offsets = [_I64(0)] * 3
            for axis in self._strides:
                offsets[axis] = nest.enter_context(self._iterations(axis, grid[axis], index[axis]))
            self._emit_iteration(grid, index, count, offsets)

    def emit_end(self) -> None:
        """Emit nothing."""

    @contextlib.contextmanager
    def _iterations(self, axis: int, grid: ir.Value, block: ir.Value) -> Iterator[ir.Value]:
        """Emit the loop over iterations of a grid-stride loop; yields their offsets.

        It is outside of the loops over threads, so neighbouring threads access neighbouring
        elements, and every thread runs its iterations in order.
        """
        builder, width = self._builder, _I64(self._block[axis])
        base = builder.mul(block, width, flags=("nsw", "nuw"))
        stride = builder.mul(grid, width, flags=("nsw", "nuw"))
        _, end = self._limited(axis, "turn", base, (_I64(0), _I64(2**62)))
        before = builder.block
        test = builder.append_basic_block("turn.test")
        body = builder.append_basic_block("turn")
        after = builder.append_basic_block("turn.end")
        builder.branch(test)
        builder.position_at_end(test)
        moved = builder.phi(_I64)
        moved.add_incoming(_I64(0), before)
        builder.cbranch(builder.icmp_signed("<", moved, end), body, after)
        builder.position_at_end(body)
        # The mask shows LLVM that a position is not negative.
        yield builder.and_(moved, _I64(2**62 - 1))
        moved.add_incoming(builder.add(moved, stride, flags=("nsw", "nuw")), builder.block)
        builder.branch(test)
        builder.position_at_end(after)

    def _emit_iteration(
        self,
        grid: list[ir.Value],
        index: Sequence[ir.Value],
        count: ir.Value,
        offsets: list[ir.Value],
    ) -> None:
        builder = self._builder
        lengths = [_I64(extent) for extent in self._block]
        if self._has_strips:
            lengths[0] = builder.mul(count, lengths[0], flags=("nsw", "nuw"))
        ranges = [self._range(axis, index[axis], lengths[axis], offsets[axis]) for axis in range(3)]
        blocks = [self._bounded(value) for value in index]
        extents = [self._bounded(value) for value in grid]
        with contextlib.ExitStack() as nest:
            if self._bounds:
                runs = [builder.icmp_signed("<", start, end) for start, end in ranges]
                every = builder.and_(builder.and_(runs[0], runs[1]), runs[2])
                nest.enter_context(builder.if_then(every))
            threads = [_I32(0)] * 3
            back: list[list[Any]] = []
            for axis in (2, 1, 0):
                if self._block[axis] > 1 or (axis == 0 and self._has_strips):
                    start, end = (builder.trunc(value, _I32) for value in ranges[axis])
                    threads[axis], branch = nest.enter_context(_loop(builder, start, end))
                    back.append(branch)
            self._call_body(extents, blocks, threads, offsets)
        for branch in back:
            self._mark(*branch)

    def _range(
        self, axis: int, block: ir.Value, length: ir.Value, offset: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Return the positions in the strip, [start, end), within the limits of an axis."""
        builder = self._builder
        base = builder.mul(block, _I64(self._block[axis]), flags=("nsw", "nuw"))
        start, end = _I64(0), length
        for kind, origin in (
            ("thread", _I64(0)),
            ("grid", base),
            ("turn", builder.add(base, offset, flags=("nsw", "nuw"))),
        ):
            start, end = self._limited(axis, kind, origin, (start, end))
        return start, end

    def _limited(
        self, axis: int, kind: str, origin: ir.Value, positions: tuple[ir.Value, ir.Value]
    ) -> tuple[ir.Value, ir.Value]:
        """Intersect a range of positions, relative to an origin, with the limits of one kind."""
        builder = self._builder
        start, end = positions
        for bound, limit in self._bounds:
            if bound.axis == axis and bound.kind == kind:
                here = builder.sub(builder.sub(limit, _I64(bound.shift)), origin)
                if bound.upper:
                    end = smaller(builder, end, here)
                else:
                    start = _larger(builder, start, here)
        return start, end

    def _bounded(self, value: ir.Value) -> ir.Value:
        """Truncate to 32 bits, with a mask that shows LLVM that the sign bit is clear."""
        return self._builder.and_(self._builder.trunc(value, _I32), _I32(2**31 - 1))

    def _call_body(
        self,
        extents: list[ir.Value],
        blocks: list[ir.Value],
        threads: list[ir.Value],
        offsets: list[ir.Value],
    ) -> None:
        context, builder, body, _, arguments = self._entry
        hidden = self._entry.hidden_argument(extents, blocks, threads, offsets)
        context.add_linking_libs([body.library])
        block = builder.block
        before = len(block.instructions)
        status, _ = context.call_internal_no_propagate(
            builder, body.fndesc, body.signature, [hidden, *arguments]
        )
        if self._access_group is not None:
            for instruction in block.instructions[before:]:
                if isinstance(instruction, ir.CallInstr):
                    # The inliner adds it to every access of the inlined body.
                    instruction.set_metadata("llvm.access.group", self._access_group)
        with cgutils.if_unlikely(builder, status.is_error):
            self._note_failure(blocks, threads)
            context.call_conv.return_status_propagate(builder, status)

    def _note_failure(self, blocks: list[ir.Value], threads: list[ir.Value]) -> None:
        """Store the thread and block that raised; x counts over all blocks of the strip."""
        builder, width = self._builder, _I32(self._block[0])
        within = [builder.urem(threads[0], width), *threads[1:]]
        block = [builder.add(blocks[0], builder.udiv(threads[0], width)), *blocks[1:]]
        self._entry.note_failure(within, block)

    def _mark(self, back: Any) -> None:
        """Add metadata to a loop: its length is limited, and its accesses are independent."""
        module = self._builder.module
        marks = [module.add_metadata([ir.MetaDataString(module, BOUNDED)])]
        if self._access_group is not None:
            name = ir.MetaDataString(module, "llvm.loop.parallel_accesses")
            marks.append(module.add_metadata([name, self._access_group]))
        back.set_metadata("llvm.loop", _Metadata(module, marks, names_itself=True))
