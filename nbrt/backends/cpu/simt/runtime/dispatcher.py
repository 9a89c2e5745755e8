"""Calls of the native entry function of a kernel for one block shape.

Numba's C dispatcher selects the version for the types of the arguments in less than a microsecond.
The frontend and the code generation are imported when the first kernel compiles: code from the disk
cache needs neither them nor Numba's library of functions.
"""

from __future__ import annotations

import inspect
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from llvmlite.binding import ExecutionEngine
from numba._dispatcher import compute_fingerprint
from numba.core import errors, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment

from nbrt._internal.gc_control import gc_disabled
from nbrt.backends import in_flight as in_flight_jobs
from nbrt.backends.cpu.block_scheduler import LaunchRecord
from nbrt.backends.cpu.simt.prepared import kernel_types
from nbrt.backends.cpu.simt.runtime.arguments import argument_types, numba_type
from nbrt.backends.cpu.simt.target import SimtDispatcher
from nbrt.backends.plain_messages import plain_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FunctionType

    from nbrt.backends.captures import Captures
    from nbrt.backends.cpu.simt.codegen.entry import Emitter
    from nbrt.backends.cpu.simt.codegen.lowering import Lowering
    from nbrt.backends.cpu.simt.frontend.pipeline import KernelBody
    from nbrt.backends.cpu.simt.runtime.cache import KernelCache

__all__ = ["EntryDispatcher", "NativeEntry", "lost_exceptions_raised", "with_environments"]

_OPTIONS = {
    "nopython": True,
    "nogil": True,
    "_nrt": False,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
}


class NativeEntry(NamedTuple):
    """The entry function of a kernel for one block shape and argument types.

    Attributes
    ----------
    address : int
        The function, in Numba's calling convention; its first argument is the address of a
        `LaunchRecord`.
    types : tuple of numba types
        The types of the kernel's arguments.
    """

    address: int
    types: tuple[Any, ...]


class EntryDispatcher(SimtDispatcher):
    """Compiles and calls the entry function of one kernel for one block shape.

    Parameters
    ----------
    captures : Captures
        The kernel, with the values that it is compiled with.
    body : callable
        Returns the `KernelBody`: the code of one thread.
    block : tuple of int
        Threads of a block along x, y and z.
    cache : KernelCache or None
        The disk cache.
    emit : callable, optional
        Emits the blocks of a launch, as `codegen.entry.emit_blocks` does, which is the default.
    """

    def __init__(
        self,
        captures: Captures,
        body: Callable[[], KernelBody],
        block: tuple[int, int, int],
        cache: KernelCache | None,
        emit: Emitter | None = None,
    ) -> None:
        self._captures = captures
        self._function = captures.frozen
        self._block = block
        self._body = body
        self._disk = cache
        self._results: dict[bytes, Any] = {}
        self._emit = emit
        self._threads: dict[tuple[Any, ...], Any] = {}
        self._addresses: dict[tuple[Any, ...], int] = {}
        super().__init__(_entry_function(self._function), targetoptions=dict(_OPTIONS))

    def prepare(self, arguments: tuple[object, ...]) -> Any:
        """Compile for the types of the kernel's arguments; return Numba's compile result."""
        try:
            fingerprint = compute_fingerprint(arguments)
        except NotImplementedError:
            fingerprint = None
        known = self._results.get(fingerprint)
        if known is not None:
            return known
        result = self.prepare_types(self.types_of(arguments))
        if fingerprint is not None:
            self._results[fingerprint] = result
        return result

    def is_prepared(self, arguments: tuple[object, ...]) -> bool:
        """Return whether the code for the types of the kernel's arguments is loaded."""
        try:
            fingerprint = compute_fingerprint(arguments)
        except NotImplementedError:
            fingerprint = None
        if fingerprint in self._results:
            return True
        declared = self.types_of(arguments)
        result = self.overloads.get(declared)
        if result is not None and fingerprint is not None:
            self._results[fingerprint] = result
        return result is not None

    def types_of(self, arguments: tuple[object, ...]) -> tuple[Any, ...]:
        """Return the types of the entry for the kernel's arguments; the first is the launch's."""
        declared = (types.int64, *argument_types(self._function, arguments))
        return tuple(self.fold_argument_types(declared, {})[1])

    def prepare_types(self, declared: tuple[Any, ...]) -> Any:
        """Compile for the result of `types_of`; return Numba's compile result."""
        return self._prepared(declared)

    def key(self, declared: tuple[Any, ...]) -> str | None:
        """Return the key of the code for the result of `types_of` on disk; None: it has none."""
        if self._disk is None:
            return None
        return self._disk.key(self._block, declared, self.targetctx)

    def native(self, arguments: tuple[object, ...]) -> NativeEntry:
        """Compile for the types of the kernel's arguments; return the native entry function."""
        signature = self.prepare(arguments).signature.args
        return NativeEntry(self._addresses[signature], tuple(signature[1:]))

    def thread(self, arguments: tuple[object, ...]) -> Any:
        """Compile for the types of the arguments; return the compile result of one thread.

        Only for entries without a disk cache.
        """
        return self._threads[self.prepare(arguments).signature.args]

    @property
    def lowering(self) -> Lowering:
        """The lowering of the version that was compiled last, and its reasons."""
        lowering: Lowering = self.py_func.__globals__["__loop__"]._numba_type_.lowering
        return lowering

    def _prepared(self, signature: tuple[Any, ...]) -> Any:
        if signature not in self.overloads:
            try:
                self.compile(signature)
            except Exception as error:
                from nbrt.backends.cpu.simt.runtime.diagnostics import of_signal_handler, translated

                interrupt = of_signal_handler(error)
                if interrupt is error or isinstance(error, Warning):  # with ``-W error``
                    raise
                failed = interrupt or translated(self._function, error, signature[1:])
                raise failed from failed.__cause__
        return self.overloads[signature]

    def typeof_pyval(self, val: object) -> Any:
        """Return the type of an argument (called from C for a kind of array that is new)."""
        if type(val) is not np.ndarray:
            return super().typeof_pyval(val)
        try:
            typ = numba_type(val)
        except errors.NumbaError:
            typ = types.pyobject  # `argument_types` refuses it and names the parameter
        self._types_active_call.add(typ)
        return typ

    def _compile_for_args(self, *args: object, **_: object) -> Any:
        """Compile for the arguments of a call that no version matches (called from C)."""
        types_of_kernel = argument_types(self._function, args[1:])
        return self._prepared((types.int64, *types_of_kernel)).entry_point

    def compile(self, sig: Any) -> Any:
        """Compile for argument types, or load the code from disk."""
        arguments = tuple(sig)
        in_flight = None if in_flight_jobs.is_empty() else self.key(arguments)
        # Threads share the state of Numba and LLVM; loading code changes it, too.
        with in_flight_jobs.joined(in_flight), global_compiler_lock, lost_exceptions_raised():
            if arguments in self.overloads:
                return self.overloads[arguments].entry_point
            disk = self._disk
            key = disk.key(self._block, arguments, self.targetctx) if disk is not None else None
            if disk is None or key is None:
                return self._compile(arguments)
            result = disk.load(key, arguments, self.targetctx)
            if result is not None:
                self.add_overload(result)
                self._remember_address(arguments)
                return result.entry_point
            entry_point = self._compile(arguments)
            if self._captures.holds():
                disk.save(key, self.overloads[arguments], self._block)
            return entry_point

    def _remember_address(self, arguments: tuple[Any, ...]) -> None:
        """Look up the address of the entry that was compiled or loaded last.

        At once: the engine finds functions by name, and code from disk may have the name of another
        kernel's, as each process numbers its functions from zero.
        """
        result = self.overloads[arguments]
        address = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
        self._addresses[arguments] = address

    @gc_disabled()
    @plain_messages(errors)
    def _compile(self, arguments: tuple[Any, ...]) -> Any:
        from nbrt.backends.cpu.simt.codegen.entry import BlockLoop, run_blocks
        from nbrt.backends.cpu.simt.codegen.polled_library import polled_compiler
        from nbrt.backends.cpu.simt.thread_context import SimtContextType

        body = self._body()
        # The kernel first: its errors must not appear as errors of the entry.
        thread, _ = body.results((SimtContextType(self._block), *kernel_types(arguments[1:])))
        self._threads[arguments] = thread
        names = self.py_func.__globals__
        names["__run__"] = run_blocks
        names.setdefault("__loop__", BlockLoop(body, self._block, self._emit))
        self._compiler.pipeline_class = polled_compiler(LaunchRecord)
        entry_point = super().compile(arguments)
        self.overloads[arguments] = with_environments(self.overloads[arguments])
        self._remember_address(arguments)
        if not self._captures.holds():
            # Compiling reads attributes of modules, and may have read a new value.
            self._captures.expire()
        return entry_point


def _entry_function(function: FunctionType) -> FunctionType:
    """Return the Python function of the entry: one call of `run_blocks`.

    Names that are not parameters are bound when it is first compiled.
    """
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    star = inspect.Parameter.VAR_POSITIONAL
    declared = ["__launch__", *(f"{'*' * (p.kind is star)}{p.name}" for p in parameters)]
    passed = ["__loop__", "__launch__", *(p.name for p in parameters)]
    name = function.__name__ if function.__name__.isidentifier() else "kernel"
    source = f"def {name}({', '.join(declared)}):\n    __run__({', '.join(passed)})\n"
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, f"<entry of {name}>", "exec"), namespace)
    entry: FunctionType = namespace[name]
    entry.__defaults__ = function.__defaults__
    return entry


_PREFIX = "_ZN08NumbaEnv"
"""Prefix of the variables that point to a function's environment."""


def with_environments(result: Any) -> Any:
    """Attach the environments of its functions to compiled code, and keep them alive.

    Numba does so only for functions that it compiles separately. Printing a number needs an
    environment; without one, print returns from the kernel without releasing the GIL.

    Parameters
    ----------
    result : numba CompileResult
        Compile result of a function that Python calls.

    Returns
    -------
    numba CompileResult
        The same with the environments.
    """
    environments = []
    for variable in result.library._final_module.global_variables:
        if variable.name.startswith(_PREFIX):
            environment = lookup_environment(variable.name)
            if environment is not None:
                result.library.codegen.set_env(variable.name, environment)
                environments.append(environment)
    return result._replace(referenced_envs=tuple(environments))


_CALLBACKS = frozenset(
    {
        ExecutionEngine._raw_object_cache_notify.__code__,
        ExecutionEngine._raw_object_cache_getbuffer.__code__,
    }
)


@contextmanager
def lost_exceptions_raised() -> Iterator[None]:
    """Raise, at the end of a block, the first exception that a callback of LLVM dropped.

    Only in the main thread: Python runs no signal handlers in other threads.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    lost: list[BaseException] = []
    hook_before = sys.unraisablehook

    def keep(unraisable: sys.UnraisableHookArgs) -> None:
        trace = unraisable.exc_traceback
        if (
            trace is not None
            and unraisable.exc_value is not None
            and trace.tb_frame.f_code in _CALLBACKS
        ):
            lost.append(unraisable.exc_value)
        else:
            hook_before(unraisable)

    sys.unraisablehook = keep
    try:
        yield
    finally:
        sys.unraisablehook = hook_before
    if lost:
        raise lost[0]
