"""Stage 4, the launch: the native function that runs a range of blocks, thread by thread.

Its arguments are the address of a `LaunchRecord` and the kernel's own. It claims blocks from the
record until none is left, so any number of OS threads may run it on one record at the same time.
The loop over the threads of a block has a constant trip count, and its accesses are marked as
independent between threads (which, between barriers, is what the CUDA model says), so that LLVM
vectorises it without run-time overlap checks.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

from nbrt.backends.cpu.simt.context import SimtContextType
from nbrt.backends.cpu.simt.pipeline import ThreadDispatcher, dialect_uses

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BlockLoop", "LaunchRecord", "run_blocks"]

_I64 = ir.IntType(64)
_I32 = ir.IntType(32)


class LaunchRecord(ctypes.Structure):
    """What every OS thread that works on one launch shares."""

    _fields_ = (
        ("grid_x", ctypes.c_int64),
        ("grid_y", ctypes.c_int64),
        ("total", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
        ("next", ctypes.c_int64),
        ("grid_z", ctypes.c_int64),
    )

    grid_x: int
    grid_y: int
    grid_z: int
    total: int
    """Blocks to run: indices below this, x fastest."""
    chunk: int
    """Blocks claimed at a time; 0 runs all of them, claims nothing and leaves the record as it is."""
    next: int
    """First block that nobody has claimed."""


_FIELDS = [name for name, _ in LaunchRecord._fields_]


class BlockLoopType(types.Opaque):  # type: ignore[misc]
    """Numba type that carries the kernel and the block shape to `run_blocks`."""

    def __init__(self, body: ThreadDispatcher, block: tuple[int, int, int]) -> None:
        self.body = body
        self.block = block
        super().__init__(name=f"BlockLoop({id(body)}, {block})")


register_model(BlockLoopType)(models.OpaqueModel)


class BlockLoop:
    """The kernel and block shape that an entry function runs; a global of that function."""

    def __init__(self, body: ThreadDispatcher, block: tuple[int, int, int]) -> None:
        self._numba_type_ = BlockLoopType(body, block)


@intrinsic  # type: ignore[untyped-decorator]
def run_blocks(_typingctx: Any, loop: Any, launch: Any, *arguments: Any) -> Any:
    """Run blocks of a launch until none is left."""
    result = loop.body.result((SimtContextType(loop.block), *arguments))

    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> ir.Value:
        values = cgutils.unpack_tuple(builder, args[2])
        _Emitter(context, builder, loop.block, result, values).emit(args[1])
        return context.get_dummy_value()

    return types.none(loop, launch, types.StarArgTuple(arguments)), codegen


class _Metadata(ir.MDValue):  # type: ignore[misc]
    """A distinct metadata node, with itself as first operand where LLVM asks for that."""

    def __init__(self, module: ir.Module, operands: list[Any], *, names_itself: bool) -> None:
        self._names_itself = names_itself
        super().__init__(module, operands, name=str(len(module.metadata)))

    def descr(self, buffer: list[str]) -> None:
        references = [self.get_reference()] if self._names_itself else []
        references += [operand.get_reference() for operand in self.operands]
        buffer += [f"distinct !{{ {', '.join(references)} }}", "\n"]


class _Emitter:
    """Emits the loops over blocks and threads around the kernel's body."""

    def __init__(
        self, context: Any, builder: ir.IRBuilder, block: tuple[int, int, int], result: Any, args: Any
    ) -> None:
        self._context = context
        self._builder = builder
        self._block = block
        self._result = result
        self._arguments = args
        self._access_group = self._independent_accesses()

    def _independent_accesses(self) -> _Metadata | None:
        # An array on the stack is one array for all the turns of the loop: there the turns do
        # depend on each other.
        if any(use.local_arrays for use in dialect_uses(self._result)):
            return None
        return _Metadata(self._builder.module, [], names_itself=False)

    # -- claiming blocks ---------------------------------------------------------------------

    def emit(self, launch: ir.Value) -> None:
        """Emit everything; `launch` is the address of a `LaunchRecord`."""
        builder = self._builder
        self._record = builder.inttoptr(launch, _I64.as_pointer())
        grid = [self._load(name) for name in ("grid_x", "grid_y", "grid_z")]
        total, chunk = self._load("total"), self._load("chunk")
        whole = builder.icmp_signed("==", chunk, _I64(0))
        claim = builder.append_basic_block("claim")
        done = builder.append_basic_block("done")
        first = cgutils.alloca_once_value(builder, _I64(0))
        last = cgutils.alloca_once_value(builder, total)
        builder.branch(claim)
        builder.position_at_end(claim)
        with builder.if_then(builder.not_(whole)):
            start = builder.atomic_rmw("add", self._field("next"), chunk, "monotonic")
            end = builder.add(start, chunk)
            builder.store(start, first)
            builder.store(builder.select(builder.icmp_signed("<", end, total), end, total), last)
        start, end = builder.load(first), builder.load(last)
        blocks = builder.append_basic_block("blocks")
        builder.cbranch(builder.icmp_signed("<", start, end), blocks, done)
        builder.position_at_end(blocks)
        self._emit_range(grid, start, end)
        builder.cbranch(whole, done, claim)
        builder.position_at_end(done)

    def _field(self, name: str) -> ir.Value:
        return self._builder.gep(self._record, [_I64(_FIELDS.index(name))])

    def _load(self, name: str) -> ir.Value:
        return self._builder.load(self._field(name))

    # -- blocks ------------------------------------------------------------------------------

    def _emit_range(self, grid: list[ir.Value], start: ir.Value, end: ir.Value) -> None:
        """Run blocks [start, end): divide once, then count up with carry."""
        builder = self._builder
        rest = builder.udiv(start, grid[0])
        first = [builder.urem(start, grid[0]), builder.urem(rest, grid[1])]
        first.append(builder.udiv(rest, grid[1]))
        index = [cgutils.alloca_once_value(builder, value) for value in first]
        for slot, value in zip(index, first, strict=True):
            builder.store(value, slot)
        with self._loop(end, start=start):
            self._emit_block(grid, [builder.load(slot) for slot in index])
            self._advance(grid, index)

    def _advance(self, grid: list[ir.Value], index: list[ir.Value]) -> None:
        builder = self._builder
        advanced = builder.add(builder.load(index[0]), _I64(1))
        builder.store(advanced, index[0])
        for axis in (0, 1):
            overflow = builder.icmp_unsigned("==", builder.load(index[axis]), grid[axis])
            with builder.if_then(overflow, likely=False):
                builder.store(_I64(0), index[axis])
                builder.store(builder.add(builder.load(index[axis + 1]), _I64(1)), index[axis + 1])

    # -- threads -----------------------------------------------------------------------------

    def _emit_block(self, grid: list[ir.Value], index: list[ir.Value]) -> None:
        blocks = [self._bounded(value) for value in index]
        extents = [self._bounded(value) for value in grid]
        with contextlib.ExitStack() as nest:
            threads = [_I32(0)] * 3
            for axis in (2, 1, 0):
                if self._block[axis] > 1:
                    loop = self._loop(_I32(self._block[axis]), independent=True)
                    threads[axis] = nest.enter_context(loop)
            self._call_body([*threads, *blocks, *extents])

    def _bounded(self, value: ir.Value) -> ir.Value:
        """Narrow to 32 bits in a way that shows LLVM that the sign bit is clear."""
        return self._builder.and_(self._builder.trunc(value, _I32), _I32(2**31 - 1))

    def _call_body(self, place: list[ir.Value]) -> None:
        context, builder = self._context, self._builder
        signature = self._result.signature
        packed = context.get_value_type(signature.args[0])(ir.Undefined)
        for position, value in enumerate(place):
            packed = builder.insert_value(packed, value, position)
        context.add_linking_libs(builder, [self._result.library])
        before = len(builder.block.instructions)
        block = builder.block
        status, _ = context.call_internal_no_propagate(
            builder, self._result.fndesc, signature, [packed, *self._arguments]
        )
        if self._access_group is not None:
            for instruction in block.instructions[before:]:
                if isinstance(instruction, ir.CallInstr):
                    # The inliner puts it on every access of the inlined body.
                    instruction.set_metadata("llvm.access.group", self._access_group)
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)

    # -- loops -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _loop(
        self, end: ir.Value, *, start: ir.Value | None = None, independent: bool = False
    ) -> Iterator[ir.Value]:
        """Loop from start (0) to end, which is at least one turn away; yields the counter."""
        builder = self._builder
        before = builder.block
        body = builder.append_basic_block("loop")
        after = builder.append_basic_block("loop.end")
        builder.branch(body)
        builder.position_at_end(body)
        counter = builder.phi(end.type)
        counter.add_incoming(end.type(0) if start is None else start, before)
        yield counter
        following = builder.add(counter, end.type(1), flags=("nsw", "nuw"))
        counter.add_incoming(following, builder.block)
        again = builder.cbranch(builder.icmp_unsigned("<", following, end), body, after)
        if independent and self._access_group is not None:
            again.set_metadata("llvm.loop", self._loop_metadata())
        builder.position_at_end(after)

    def _loop_metadata(self) -> _Metadata:
        module = self._builder.module
        name = ir.MetaDataString(module, "llvm.loop.parallel_accesses")
        return _Metadata(
            module, [module.add_metadata([name, self._access_group])], names_itself=True
        )
