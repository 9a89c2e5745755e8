"""Code generation of the entry function, which runs the blocks of a launch.

Its arguments are the address of a `LaunchRecord` and the kernel's. It claims blocks from the record
until none is left, so several OS threads can run it on one record. The lowering decides how a block
runs: by loops around the code of one thread, or by a call of a block function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

from nbrt.backends.cpu.simt.codegen.block_loops import BlockLoops, EntryBuilder
from nbrt.backends.cpu.simt.codegen.lowering import Lowering
from nbrt.backends.cpu.simt.codegen.shared_entry import emit_sharing
from nbrt.backends.cpu.simt.codegen.thread_loops import ThreadLoops
from nbrt.backends.cpu.simt.frontend.pipeline import (
    KernelBody,
    dialect_uses,
    marker_kinds,
    may_spin,
    strides_of,
)
from nbrt.backends.cpu.simt.prepared import kernel_types
from nbrt.backends.cpu.simt.thread_context import SimtContextType

__all__ = ["BlockLoop", "BlockLoopType", "Emitter", "run_blocks"]

_I64 = ir.IntType(64)

Emitter = Callable[[EntryBuilder, "BlockLoopType", Any], None]
"""Emits the blocks of a launch; `emit_blocks` is one."""


class BlockLoopType(types.Opaque):
    """Numba type that carries the kernel and the block shape to `run_blocks`."""

    def __init__(self, body: KernelBody, block: tuple[int, int, int], emit: Emitter) -> None:
        self.body = body
        self.block = block
        self.emit = emit
        self.lowering = Lowering("threads", ("no thread waits for another",))
        super().__init__(name=f"BlockLoop({id(body)}, {block}, {id(emit)})")


register_model(BlockLoopType)(models.OpaqueModel)


class BlockLoop:
    """The kernel and block shape that an entry function runs; a global of that function.

    Parameters
    ----------
    body : KernelBody
        The kernel.
    block : tuple of int
        Threads of a block along x, y and z.
    emit : callable, optional
        Emits the blocks of a launch, as `emit_blocks` does.
    """

    def __init__(
        self, body: KernelBody, block: tuple[int, int, int], emit: Emitter | None = None
    ) -> None:
        self._numba_type_ = BlockLoopType(body, block, emit or emit_blocks)


@intrinsic
def run_blocks(_typingctx: Any, loop: Any, launch: Any, *arguments: Any) -> Any:
    """Run blocks of a launch until none is left."""
    body, limits = loop.body.results((SimtContextType(loop.block), *kernel_types(arguments)))

    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> ir.Value:
        # Loops inlined into the wrapper that Python calls would not know the launch.
        builder.function.attributes.add("noinline")
        values = cgutils.unpack_tuple(builder, args[2])
        record = builder.inttoptr(args[1], _I64.as_pointer())
        entry = EntryBuilder(context, builder, body, record, values)
        emit_sharing(entry)
        loop.emit(entry, loop, limits)
        return context.get_dummy_value()

    return types.none(loop, launch, types.StarArgTuple(arguments)), codegen


def emit_blocks(entry: EntryBuilder, loop: BlockLoopType, limits: Any) -> None:
    """Emit the loops over the blocks of a launch, and select the lowering of a block.

    Parameters
    ----------
    entry : EntryBuilder
        The entry function.
    loop : BlockLoopType
        The kernel and the block shape; its `lowering` is set.
    limits : numba CompileResult or None
        The limits function, see `KernelBody.results`.
    """
    if _emit_spinning(entry, loop):
        return
    kinds = marker_kinds(entry.body)
    if kinds:
        # Imported when the first kernel needs another lowering.
        from nbrt.backends.cpu.simt.codegen.block_calls import BlockCalls, lowered

        chosen = lowered(entry.body, loop.block, kinds)
        BlockLoops(entry, BlockCalls(entry, chosen)).emit()
        loop.lowering = chosen.lowering
    elif not _emit_diverging(entry, loop):
        BlockLoops(entry, ThreadLoops(entry, loop.block, limits)).emit()


def _emit_spinning(entry: EntryBuilder, loop: BlockLoopType) -> bool:
    """Emit a kernel as coroutines that yield if it has loops that spin; return whether."""
    if not may_spin(entry.body):
        return False
    from nbrt.backends.cpu.simt.codegen.block_calls import lowered_if_spinning
    from nbrt.backends.cpu.simt.codegen.resident_calls import emit_resident_blocks

    entry = entry._replace(body=loop.body.whole(tuple(entry.body.signature.args)))
    chosen = lowered_if_spinning(entry.body, loop.block)
    if chosen is None:
        return False
    emit_resident_blocks(entry, loop.body.name, chosen)
    loop.lowering = chosen.lowering
    return True


def _emit_diverging(entry: EntryBuilder, loop: BlockLoopType) -> bool:
    """Emit a kernel as lanes if threads leave its loops at different times; return whether.

    LLVM does not vectorise around such loops; around others its vectors are as good as lanes.
    """
    if strides_of(entry.body) or not any(use.loops for use in dialect_uses(entry.body)):
        return False
    from nbrt.backends.cpu.simt.codegen.block_calls import BlockCalls, lowered_if_diverging

    entry = entry._replace(body=loop.body.whole(tuple(entry.body.signature.args)))
    chosen = lowered_if_diverging(entry.body, loop.block)
    if chosen is None:
        return False
    if isinstance(chosen, Lowering):
        loop.lowering = chosen
        return False
    BlockLoops(entry, BlockCalls(entry, chosen)).emit()
    loop.lowering = chosen.lowering
    return True
