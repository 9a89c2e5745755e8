"""The native entry of a checked launch: blocks and threads one after another, in a given order."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher
from numba.extending import intrinsic, models, register_model

from nbrt.backends.cpu.simt.checked.blocks import BlockCode, resumed_thread
from nbrt.backends.cpu.simt.checked.compiler import checked_thread
from nbrt.backends.cpu.simt.checked.layout import MAX_SEATS
from nbrt.backends.cpu.simt.checked.probes import call_runtime
from nbrt.backends.cpu.simt.codegen.block_calls import lowered_if_spinning
from nbrt.backends.cpu.simt.codegen.environments import with_environments
from nbrt.backends.cpu.simt.codegen.lost_exceptions import lost_exceptions_raised
from nbrt.backends.cpu.simt.codegen.polled_library import emit_poll, polled_compiler
from nbrt.backends.cpu.simt.codegen.resident_calls import ResidentCall
from nbrt.backends.cpu.simt.codegen.static_shared import static_shared_bytes
from nbrt.backends.cpu.simt.frontend.pipeline import marker_kinds
from nbrt.backends.cpu.simt.runtime.arguments import argument_types
from nbrt.backends.cpu.simt.runtime.diagnostics import translated
from nbrt.backends.cpu.simt.thread_context import SimtContextType

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType

    from nbrt.backends.captures import Captures
    from nbrt.backends.cpu.simt.codegen.lowering import Lowered
    from nbrt.backends.cpu.simt.frontend.pipeline import ThreadDispatcher
    from nbrt.typing import Dim3

__all__ = ["CheckedEntry", "CheckedLaunch"]

_I64 = ir.IntType(64)
_I32 = ir.IntType(32)

_ADVICE = (
    "check that some thread writes what they wait for, and that every thread of the block comes to "
    f"its barriers; checked mode keeps several blocks resident in launches of at most {MAX_SEATS} "
    "threads, so check blocks that wait for each other with a smaller grid"
)

_OPTIONS = {
    "nopython": True,
    "nogil": True,
    "_nrt": False,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
}


class CheckedLaunch(ctypes.Structure):
    """A launch, as the entry reads it."""

    _fields_ = (
        ("grid_x", ctypes.c_int64),
        ("grid_y", ctypes.c_int64),
        ("grid_z", ctypes.c_int64),
        ("block_count", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("thread_count", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("shared", ctypes.c_int64),
        ("shared_bytes", ctypes.c_int64),
        ("seed", ctypes.c_int64),
        ("stop", ctypes.c_int64),
        ("together", ctypes.c_int64),
        ("wait", ctypes.c_int64),
        ("failed", ctypes.c_int32 * 6),
    )

    stop: int
    """As in a `LaunchRecord`."""
    failed: ctypes.Array[ctypes.c_int32]
    """Of a thread that waits for ever: its place in the block and the block's in the grid."""


_FIELDS = [name for name, _ in CheckedLaunch._fields_]


class _ThreadType(types.Opaque):
    """Numba type that carries the thread's code and the block shape to `_run_checked`."""

    def __init__(self, thread: ThreadDispatcher, block: Dim3, seeded: bool) -> None:
        self.thread = thread
        self.block = block
        self.seeded = seeded
        self.spinning: set[tuple[Any, ...]] = set()
        super().__init__(name=f"CheckedThread({id(thread)}, {block}, {seeded})")


register_model(_ThreadType)(models.OpaqueModel)


class _Thread:
    """What an entry runs; a global of it."""

    def __init__(self, thread: ThreadDispatcher, block: Dim3, seeded: bool) -> None:
        self._numba_type_ = _ThreadType(thread, block, seeded)


@intrinsic
def _run_checked(_typingctx: Any, thread: Any, launch: Any, *arguments: Any) -> Any:
    """Run every block of a launch."""
    body = thread.thread.result((SimtContextType(thread.block), *arguments))

    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> ir.Value:
        # Loops inlined into the wrapper that Python calls would not know the launch.
        builder.function.attributes.add("noinline")
        values = cgutils.unpack_tuple(builder, args[2])
        _Loops(context, builder, thread, body, values).emit(args[1])
        return context.get_dummy_value()

    return types.none(thread, launch, types.StarArgTuple(arguments)), codegen


class _Loops:
    """Emits the loops over blocks and threads."""

    def __init__(
        self,
        context: Any,
        builder: ir.IRBuilder,
        thread: _ThreadType,
        body: Any,
        arguments: list[ir.Value],
    ) -> None:
        self._context, self._builder = context, builder
        self._block, self._body, self._arguments = thread.block, body, arguments
        self._seeded = thread.seeded
        order = "seeded" if thread.seeded else "linear"
        self._spinning = lowered_if_spinning(
            body, thread.block, order=order, resumed=resumed_thread()
        )
        if self._spinning is not None:
            thread.spinning.add(tuple(body.signature.args))
        waits = self._spinning is None and bool(marker_kinds(body))
        self._code = BlockCode(context, body, thread.block, thread.seeded) if waits else None

    def emit(self, launch: ir.Value) -> None:
        """Emit everything; `launch` is the address of a `CheckedLaunch`."""
        builder = self._builder
        self._launch = builder.inttoptr(launch, _I64.as_pointer())
        grid = [self._field(name) for name in ("grid_x", "grid_y", "grid_z")]
        code = self._code
        if self._spinning is not None:
            self._emit_spinning(self._spinning, grid)
            return
        if code is not None and code.whole_grid:
            call_runtime(builder, "begin_block", [_I64(0)])
            self._emit_block(code, [_I64(0)] * 3, grid)
        with self._blocks() as number:
            if code is None or not code.whole_grid:
                call_runtime(builder, "begin_block", [number])
                place = self._unravelled(number, grid[:2])
                if code is None:
                    self._emit_threads(place, grid)
                else:
                    self._emit_block(code, place, grid)
            call_runtime(builder, "end_block", [number])

    def _emit_spinning(self, lowered: Lowered, grid: list[ir.Value]) -> None:
        """Run blocks whose threads spin: all at once, or, if they are too many, one by one."""
        builder, count = self._builder, self._field("block_count")
        call = ResidentCall(
            self._context,
            builder,
            self._body.fndesc.qualname.rpartition(".")[2],
            self._body,
            lowered,
        )
        together = builder.icmp_signed("!=", self._field("together"), _I64(0))
        size = builder.select(together, count, _I64(1))
        following, activity = (cgutils.alloca_once(builder, _I64) for _ in range(2))
        wait = builder.inttoptr(self._field("wait"), ir.IntType(8).as_pointer())
        seed = [self._field("seed")] if self._seeded else []
        with cgutils.for_range(builder, builder.udiv(count, size)) as turn:
            order = builder.gep(self._pointer("blocks"), [turn.index])
            number = builder.load(order)
            call_runtime(builder, "begin_block", [builder.select(together, _I64(0), number)])
            builder.store(_I64(0), following)
            builder.store(_I64(0), activity)
            claims = [following, size, order, activity, size, wait, *seed]
            shared, stop = self._field("shared_bytes"), self._address("stop")
            status = call.emit(grid, self._arguments, shared, stop, claims)
            with cgutils.if_unlikely(builder, call.is_deadlocked()):
                place = builder.bitcast(self._address("failed"), _I32.as_pointer())
                for position, value in enumerate(call.place()):
                    builder.store(value, builder.gep(place, [_I64(position)]))
                call.emit_deadlock(_ADVICE)
            self._propagate(status)
            with builder.if_then(builder.not_(together)):
                call_runtime(builder, "end_block", [number])
        with builder.if_then(together), self._blocks() as number:
            call_runtime(builder, "end_block", [number])

    @contextlib.contextmanager
    def _blocks(self) -> Iterator[ir.Value]:
        """Loop over the blocks, in the order of the launch."""
        builder, blocks = self._builder, self._pointer("blocks")
        with cgutils.for_range(builder, self._field("block_count")) as turn:
            emit_poll(builder, self._address("stop"))
            yield builder.load(builder.gep(blocks, [turn.index]))

    def _field(self, name: str) -> ir.Value:
        return self._builder.load(self._address(name))

    def _address(self, name: str) -> ir.Value:
        return self._builder.gep(self._launch, [_I64(_FIELDS.index(name))])

    def _pointer(self, name: str) -> ir.Value:
        return self._builder.inttoptr(self._field(name), _I64.as_pointer())

    def _unravelled(self, number: ir.Value, extents: list[ir.Value]) -> list[ir.Value]:
        found = []
        for extent in extents:
            found.append(self._builder.urem(number, extent))
            number = self._builder.udiv(number, extent)
        return [*found, number]

    def _emit_threads(self, place: list[ir.Value], grid: list[ir.Value]) -> None:
        context, builder = self._context, self._builder
        signature = self._body.signature
        threads = self._pointer("threads")
        context.add_linking_libs([self._body.library])
        with cgutils.for_range(builder, self._field("thread_count")) as turn:
            rank = builder.load(builder.gep(threads, [turn.index]))
            thread = self._unravelled(rank, [_I64(size) for size in self._block[:2]])
            arguments = [self._hidden([*thread, *place, *grid]), *self._arguments]
            status, _ = context.call_internal_no_propagate(
                builder, self._body.fndesc, signature, arguments
            )
            self._propagate(status)

    def _emit_block(self, code: BlockCode, place: list[ir.Value], grid: list[ir.Value]) -> None:
        shared = (
            self._builder.inttoptr(self._field("shared"), ir.IntType(8).as_pointer()),
            self._field("shared_bytes"),
        )
        arguments = [self._hidden([_I64(0)] * 3 + place + grid), *self._arguments]
        stop = self._address("stop")
        self._propagate(code.call(self._builder, arguments, shared, stop, self._field("seed")))

    def _hidden(self, place: list[ir.Value]) -> ir.Value:
        """Make the hidden argument."""
        hidden = self._context.get_value_type(self._body.signature.args[0])(ir.Undefined)
        values = [self._builder.trunc(value, _I32) for value in place] + [_I64(0)] * 3
        for position, value in enumerate(values):
            hidden = self._builder.insert_value(hidden, value, position)
        return hidden

    def _propagate(self, status: Any) -> None:
        with cgutils.if_unlikely(self._builder, status.is_error):
            self._context.call_conv.return_status_propagate(self._builder, status)


class CheckedEntry(CPUDispatcher):
    """Compiles and calls the entry of one kernel for one block shape.

    Parameters
    ----------
    captures : Captures
        The kernel as the user wrote it, with the values that it is compiled with.
    block : tuple of int
        Threads of a block along x, y and z.
    seeded : bool
        Whether the threads of a block run in an order made from a seed.
    """

    def __init__(self, captures: Captures, block: Dim3, seeded: bool) -> None:
        self._captures = captures
        self._function = function = captures.frozen
        self._block = block
        self.thread = checked_thread(captures)
        loops = _Thread(self.thread, block, seeded)
        super().__init__(
            _entry_function(function, loops),
            targetoptions=dict(_OPTIONS),
            pipeline_class=polled_compiler(CheckedLaunch),
        )

    def add_overload(self, cres: Any) -> None:
        """Keep a compiled version."""
        super().add_overload(with_environments(cres))

    def spins(self, thread: Any) -> bool:
        """Return whether the threads of a compiled version spin."""
        kind = self.py_func.__globals__["__thread__"]._numba_type_
        return tuple(thread.signature.args) in kind.spinning

    def prepare(self, arguments: tuple[object, ...]) -> Any:
        """Compile for the types of the kernel's arguments; give what one thread became."""
        given = (types.int64, *argument_types(self._function, arguments))
        bound = tuple(self.fold_argument_types(given, {})[1])
        hidden = (SimtContextType(self._block), *bound[1:])
        if bound not in self.overloads:
            try:
                with global_compiler_lock, lost_exceptions_raised():
                    # First what the user wrote: its errors then come as they are.
                    self.thread.result(hidden)
                    self.compile(bound)
                    if not self._captures.holds():
                        self._captures.expire()
            except Exception as error:  # noqa: BLE001  # raised again, in the user's terms
                failed = translated(self._function, error)
                raise failed from failed.__cause__
        return self.thread.overloads[hidden]

    @staticmethod
    def static_shared(thread: Any) -> int:
        """Return the bytes of static shared memory of what `prepare` gave; computed once."""
        key = "nbrt.static_shared"
        if key not in thread.metadata:
            module = str(thread.library._get_module_for_linking())
            thread.metadata[key] = static_shared_bytes(module)
        return int(thread.metadata[key])


def _entry_function(function: FunctionType, thread: _Thread) -> FunctionType:
    """Make the Python function that Numba compiles into the entry: one call of `_run_checked`."""
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    star = inspect.Parameter.VAR_POSITIONAL
    declared = ["__launch__", *(f"{'*' * (p.kind is star)}{p.name}" for p in parameters)]
    passed = ["__thread__", "__launch__", *(p.name for p in parameters)]
    source = f"def checked({', '.join(declared)}):\n    __run__({', '.join(passed)})\n"
    namespace: dict[str, Any] = {
        "__name__": __name__,
        "__run__": _run_checked,
        "__thread__": thread,
    }
    exec(compile(source, f"<checked entry of {function.__name__}>", "exec"), namespace)
    entry: FunctionType = namespace["checked"]
    entry.__defaults__ = function.__defaults__
    return entry
