"""Calls of block functions, for kernels whose threads cooperate."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils

from nbrt.backends.cpu.simt.codegen.block_loops import smaller
from nbrt.backends.cpu.simt.codegen.lowering import (
    Lowered,
    Lowering,
    lower,
    lower_if_diverging,
    lower_if_spinning,
)
from nbrt.backends.cpu.simt.codegen.polled_library import emit_leave
from nbrt.backends.cpu.simt.codegen.thread_ir import simplified_thread, thread_code
from nbrt.backends.cpu.simt.codegen.tiled_thread import merge_accesses, tiled_thread_code
from nbrt.backends.cpu.simt.frontend.pipeline import (
    marker_kinds,
    marker_places,
    may_spin,
)
from nbrt.backends.cpu.simt.frontend.thread_library import ThreadLibrary
from nbrt.backends.cpu.simt.llvm.model import LOCAL
from nbrt.backends.cpu.simt.placeholders import SHARED, shared_extent
from nbrt.backends.cpu.simt.stop_codes import INTERRUPTED, WAIT_INTERRUPTED
from nbrt.errors import LaunchError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cpu.simt.codegen.block_loops import EntryBuilder

__all__ = [
    "STATIC_SHARED_LIMIT",
    "BlockCalls",
    "call_block_function",
    "check_static_shared",
    "emit_shared_check",
    "lowered",
    "lowered_if_diverging",
    "lowered_if_spinning",
    "static_shared_bytes",
]

_I8 = ir.IntType(8)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)

_DYNAMIC_PADDING = 2048
"""Bytes before and after dynamic shared memory that vectors may access."""


def lowered(body: Any, block: tuple[int, int, int], kinds: set[str]) -> Lowered:
    """Lower the code of one thread, which has markers of the given kinds, to a block function."""
    code = thread_code(body.library, body.fndesc.llvm_func_name, block)
    static = static_shared_bytes(code.module)
    check_static_shared(body, static)
    tiled = tiled_thread_code(body.library, body.fndesc.llvm_func_name, block)
    places = marker_places(body)
    found = lower(code, kinds, places, tiled, simplified=simplified_thread)
    return replace(found, static_shared=static)


def lowered_if_diverging(body: Any, block: tuple[int, int, int]) -> Lowered | Lowering | None:
    """Lower the code of one thread to lanes if threads leave its loops at different times.

    LLVM vectorises the loops of a block of one thread. The result is the reason if lanes are
    slower, and None if there is nothing to say.
    """
    if block == (1, 1, 1):
        return None
    return lower_if_diverging(thread_code(body.library, body.fndesc.llvm_func_name, block))


def lowered_if_spinning(body: Any, block: tuple[int, int, int], **options: Any) -> Lowered | None:
    """Lower the code of one thread to coroutines that yield if its loops spin."""
    if not may_spin(body):
        return None
    code = thread_code(body.library, body.fndesc.llvm_func_name, block, places=True)
    chosen = lower_if_spinning(code, marker_kinds(body), marker_places(body), **options)
    if chosen is None:
        return None
    return replace(chosen, static_shared=static_shared_bytes(code.module))


def call_block_function(
    entry: EntryBuilder,
    chosen: Lowered,
    grid: Sequence[ir.Value],
    index: Sequence[ir.Value],
    shared: tuple[ir.Value, ir.Value],
    more: Sequence[ir.Value],
) -> tuple[ir.Value, Any, list[ir.Value]]:
    """Link a block function, call it, and leave the entry if the launch is stopped.

    Parameters
    ----------
    entry : EntryBuilder
        The entry function.
    chosen : Lowered
        The block function.
    grid, index : sequence of llvmlite values
        Blocks of the grid, and the index of the block, along x, y and z.
    shared : tuple of llvmlite values
        Address and bytes of dynamic shared memory.
    more : sequence of llvmlite values
        Further arguments of the block function, after its parameter ``where``.

    Returns
    -------
    code : llvmlite value
        The result of the call.
    status
        Numba's status of the call.
    where : list of llvmlite values
        Addresses of the thread, block and site that the function stores when it fails.
    """
    context, builder, body, _, arguments = entry
    _link(context, chosen)
    signature = body.signature
    kind = context.call_conv.get_function_type(signature.return_type, signature.args)
    values = context.get_arg_packer(signature.args).as_arguments(
        builder, [entry.hidden_argument(grid, index), *arguments]
    )
    result = cgutils.alloca_once(builder, kind.args[0].pointee)
    exception = cgutils.alloca_once_value(builder, ir.Constant(kind.args[1].pointee, None))
    words = cgutils.alloca_once(builder, ir.ArrayType(_I32, 7))
    where = builder.bitcast(words, _I32.as_pointer())
    extra = [*shared, entry.field("stop"), where, *more]
    whole = ir.FunctionType(_I32, [*kind.args, *(value.type for value in extra)])
    callee = cgutils.get_or_insert_function(builder.module, whole, chosen.symbol)
    values = _used(values, chosen)
    code = builder.call(callee, [result, exception, *values, *extra])
    if chosen.resident:
        with cgutils.if_unlikely(builder, builder.icmp_signed("==", code, _I32(WAIT_INTERRUPTED))):
            context.call_conv.return_user_exc(builder, KeyboardInterrupt, ())
    status = _emit_status(context, builder, code, exception)
    return code, status, [builder.gep(where, [_I64(position)]) for position in range(7)]


def _used(arguments: Sequence[ir.Value], chosen: Lowered) -> Sequence[ir.Value]:
    """Return the arguments of a thread, undefined where its block function does not use them.

    An array has up to ten arguments, of which most kernels use two. The others would be stored to
    the stack before each block.
    """
    if chosen.lowering.kind != "lanes":
        return arguments
    lines = [line for text in (chosen.module, *chosen.more) for line in text.splitlines()]
    head = next(line for line in lines if line.startswith(f"define i32 @{chosen.symbol}("))
    passed_on = ("define ", "declare ")
    version = f" call i32 @{chosen.symbol}."
    used: set[str] = set()
    for line in lines:
        if not line.startswith(passed_on) and version not in line:
            used.update(LOCAL.findall(line))
    names = LOCAL.findall(head)[2 : 2 + len(arguments)]
    return [
        value if name in used else ir.Constant(value.type, ir.Undefined)
        for value, name in zip(arguments, names, strict=True)
    ]


def _link(context: Any, chosen: Lowered) -> None:
    """Link the module of a block function into the code that a context compiles."""
    library = ThreadLibrary(context.codegen(), chosen.symbol)
    module = llvm.parse_assembly(chosen.module)
    if chosen.lowering.kind == "coroutines":
        # Its loops release memory at their end, so it must not be inlined into the entry.
        module.get_function(chosen.symbol).add_function_attribute("noinline")
    if chosen.is_tiled:
        merge_accesses(module)
    library.add_llvm_module(module)
    for text in chosen.more:
        library.add_llvm_module(llvm.parse_assembly(text))
    context.add_linking_libs([library])


def _emit_status(context: Any, builder: ir.IRBuilder, code: ir.Value, exception: ir.Value) -> Any:
    """Leave the entry where a block function was stopped; return Numba's status of its call."""
    convention = context.call_conv
    with cgutils.if_unlikely(builder, builder.icmp_signed("<=", code, _I32(INTERRUPTED))):
        emit_leave(builder, code)
    with cgutils.if_unlikely(builder, builder.icmp_signed("==", code, _I32(-1))):
        message = "no host memory is left for the threads of a block; use smaller blocks"
        convention.return_user_exc(builder, OutOfMemoryError, (message,))
    return convention._get_return_status(builder, code, builder.load(exception))


class BlockCalls:
    """Emits a call of the block function for each block.

    Parameters
    ----------
    entry : EntryBuilder
        The entry function.
    chosen : Lowered
        The block function.
    more : sequence of llvmlite values
        Further arguments of the block function, after its parameter ``where``.

    Attributes
    ----------
    shared, shared_bytes : llvmlite value
        Address and size of dynamic shared memory.
    """

    def __init__(self, entry: EntryBuilder, chosen: Lowered, more: Sequence[ir.Value] = ()) -> None:
        self._entry = entry
        self._lowered = chosen
        self._more = more

    def emit_limits(self, grid: list[ir.Value]) -> None:
        """Reserve dynamic shared memory, once for all blocks that this call runs."""
        del grid
        builder = self._entry.builder
        self.shared_bytes = self._entry.load("shared")
        emit_shared_check(self._entry, self._lowered.static_shared, self.shared_bytes)
        if self._lowered.whole_grid:
            self.shared = ir.Constant(_I8.as_pointer(), None)
            return
        room = builder.add(self.shared_bytes, _I64(2 * _DYNAMIC_PADDING))
        memory = builder.alloca(_I8, size=room)
        memory.align = 128
        self.shared = builder.gep(memory, [_I64(_DYNAMIC_PADDING)])

    def strip_length(self, available: ir.Value) -> ir.Value:
        """Return the number of neighbouring blocks that the block function can run at once."""
        strip = self._lowered.strip
        return _I64(1) if strip == 1 else smaller(self._entry.builder, available, _I64(strip))

    def emit_strip(self, grid: list[ir.Value], index: Sequence[ir.Value], count: ir.Value) -> None:
        """Run blocks; a function of the whole grid runs in place of the first block."""
        builder = self._entry.builder
        if not self._lowered.whole_grid:
            self.emit_call(grid, index, [count] if self._lowered.strip > 1 else [])
            return
        rank = builder.or_(builder.or_(index[0], index[1]), index[2])
        with builder.if_then(builder.icmp_signed("==", rank, _I64(0))):
            self.emit_call(grid, index)

    def emit_end(self) -> None:
        """Order the stores that bypass the caches before what follows."""
        if self._lowered.bypasses_caches:
            builder = self._entry.builder
            kind = ir.FunctionType(ir.VoidType(), ())
            name = "llvm.x86.sse.sfence"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), ())

    def emit_call(
        self, grid: list[ir.Value], index: Sequence[ir.Value], counts: Sequence[ir.Value] = ()
    ) -> None:
        """Call the block function for the block at `index`, and raise its error.

        `counts` are the last arguments of a function of strips: the number of blocks.
        """
        builder = self._entry.builder
        shared = self.shared, self.shared_bytes
        _, status, where = call_block_function(
            self._entry, self._lowered, grid, index, shared, [*self._more, *counts]
        )
        with cgutils.if_unlikely(builder, status.is_error):
            failed = [builder.load(address) for address in where[:6]]
            if not self._lowered.whole_grid:
                failed[3:] = [builder.trunc(value, _I32) for value in index]
            self._entry.note_failure(failed[:3], failed[3:])
            self._entry.context.call_conv.return_status_propagate(builder, status)


STATIC_SHARED_LIMIT = 48 * 1024
"""Bytes of shared memory that a kernel can declare, as on a GPU."""

_CALLED = re.compile(rf'^(?!declare).*@"?({re.escape(SHARED)}\d+\.[^"(]*)"?\(', re.MULTILINE)


def static_shared_bytes(module: str) -> int:
    """Return the bytes of all static shared arrays that a module of LLVM assembly uses."""
    return sum(shared_extent(marker)[0] for marker in set(_CALLED.findall(module)))


def check_static_shared(body: Any, used: int) -> None:
    """Raise if a kernel declares more shared memory than a GPU allows.

    Parameters
    ----------
    body : numba CompileResult
        The compiled kernel.
    used : int
        Bytes of static shared memory.

    Raises
    ------
    LaunchError
        If `used` exceeds the limit.
    """
    if used > STATIC_SHARED_LIMIT:
        places = [place for place in marker_places(body) if place.startswith("cuda.shared.array ")]
        raise LaunchError(
            f"expected at most {STATIC_SHARED_LIMIT} bytes of static shared memory per block in "
            f"kernel {body.fndesc.qualname}, got {used} bytes ({', '.join(places)}); use smaller "
            "tiles, or dynamic shared memory, of which a GPU may have more: declare "
            "cuda.shared.array(0, ...) and launch with kernel[grid, block, stream, nbytes]"
        )


def emit_shared_check(entry: EntryBuilder, static: int, dynamic: ir.Value) -> None:
    """Emit a check that static and dynamic shared memory are within the limit.

    Parameters
    ----------
    entry : EntryBuilder
        The entry function.
    static : int
        Bytes that the kernel declares.
    dynamic : llvmlite value
        Bytes that the launch asks for.
    """
    if static == 0:
        return
    builder, room = entry.builder, STATIC_SHARED_LIMIT - static
    with cgutils.if_unlikely(builder, builder.icmp_signed(">", dynamic, _I64(room))):
        message = (
            f"expected at most {room} bytes of dynamic shared memory beside the {static} bytes "
            "that the kernel declares, got more; use smaller tiles"
        )
        entry.context.call_conv.return_user_exc(builder, LaunchError, (message,))
