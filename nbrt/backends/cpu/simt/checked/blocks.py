"""Blocks whose threads wait for each other: one thread's code, lowered to coroutines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils

from nbrt.backends.cpu.simt.checked.memory import state_address
from nbrt.backends.cpu.simt.checked.shadow import PREFIX
from nbrt.backends.cpu.simt.codegen.polled_library import emit_leave
from nbrt.backends.cpu.simt.codegen.thread_ir import thread_code
from nbrt.backends.cpu.simt.coroutines import (
    Resumed,
    coroutine_block,
    coroutine_grid,
    needs_grid,
)
from nbrt.backends.cpu.simt.frontend.pipeline import ThreadLibrary
from nbrt.backends.cpu.simt.stop_codes import INTERRUPTED
from nbrt.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.typing import Dim3

__all__ = ["BlockCode", "resumed_thread"]

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()


class BlockCode:
    """The block function of a compiled thread, for an entry to call.

    Parameters
    ----------
    context : numba.core.cpu.CPUContext
        The target.
    thread : numba.core.compiler.CompileResult
        One thread, with markers.
    block : tuple of int
        Threads of a block along x, y and z.
    seeded : bool
        Whether the order of threads is shuffled.

    Attributes
    ----------
    whole_grid : bool
        Blocks wait for each other, so that one call runs them all.
    """

    def __init__(self, context: Any, thread: Any, block: Dim3, seeded: bool) -> None:
        code = thread_code(thread.library, thread.fndesc.llvm_func_name, block)
        self._context, self._thread, self._seeded = context, thread, seeded
        self.whole_grid = needs_grid(code)
        self._symbol = f"{code.name}.{'grid' if self.whole_grid else 'block'}"
        self._library = ThreadLibrary(context.codegen(), self._symbol)
        lower = coroutine_grid if self.whole_grid else coroutine_block
        text = lower(code, order="seeded" if seeded else "linear", resumed=resumed_thread())
        module = llvm.parse_assembly(text)
        # Its own loops release memory when they leave: they must not become the entry's.
        module.get_function(self._symbol).add_function_attribute("noinline")
        self._library.add_llvm_module(module)
        self._library.finalize()

    def call(
        self,
        builder: ir.IRBuilder,
        arguments: Sequence[ir.Value],
        shared: tuple[ir.Value, ir.Value],
        stop: ir.Value,
        seed: ir.Value,
    ) -> Any:
        """Emit a call; gives Numba's status."""
        context, signature = self._context, self._thread.signature
        convention = context.call_conv
        plain = convention.get_function_type(signature.return_type, signature.args)
        more = [_POINTER, _I64, _I64.as_pointer(), _POINTER, *[_I64] * self._seeded]
        kind = ir.FunctionType(_I32, [*plain.args, *more])
        function = cgutils.get_or_insert_function(builder.module, kind, self._symbol)
        context.add_linking_libs([self._library])
        result = cgutils.alloca_once(builder, plain.args[0].pointee)
        raised = cgutils.alloca_once(builder, plain.args[1].pointee)
        where = cgutils.alloca_once(builder, ir.ArrayType(_I32, 6))
        flat = context.get_arg_packer(signature.args).as_arguments(builder, arguments)
        values = [result, raised, *flat, *shared, stop, builder.bitcast(where, _POINTER)]
        code = builder.call(function, [*values, *[seed] * self._seeded])
        with cgutils.if_unlikely(builder, builder.icmp_signed("<=", code, _I32(INTERRUPTED))):
            emit_leave(builder, code)
        with cgutils.if_unlikely(builder, builder.icmp_signed("==", code, _I32(-1))):
            message = "no host memory is left for the threads of a block; use smaller blocks"
            convention.return_user_exc(builder, OutOfMemoryError, (message,))
        return convention._get_return_status(builder, code, builder.load(raised))


def resumed_thread() -> Resumed:
    """Return the call by which a thread that continues says so, whatever it was suspended for."""
    return Resumed(f"{PREFIX}begin_thread", state_address())
