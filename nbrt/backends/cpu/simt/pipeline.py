"""Stage 3, one thread: Numba's CPU pipeline with the dialect pass in it.

A kernel and each device function become native functions of one thread, always inlined. Nothing is
reference counted (``_nrt`` off): a kernel owns no memory, and the counting would stand between LLVM
and a vector loop.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from numba.core import errors, types
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.registry import CPUDispatcher
from numba.core.untyped_passes import InlineClosureLikes

from nbrt.backends.cpu.simt.guards import Bound, absorb_guards, keep_limits
from nbrt.backends.cpu.simt.positions import simplify_positions
from nbrt.backends.cpu.simt.resolve import DialectUse, resolve_dialect
from nbrt.backends.cpu.simt.source import with_context, without_context
from nbrt.backends.cpu.simt.strides import straighten_strides
from nbrt.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType

__all__ = ["KernelBody", "ThreadDispatcher", "bounds_of", "dialect_uses", "strides_of"]

_METADATA = "nbrt.simt"

_OPTIONS = {
    "nopython": True,
    "_nrt": False,
    "error_model": "numpy",
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


class NothingToLimitError(Exception):
    """A kernel has no guards, or no loop to take out: there is no limits function to compile."""


@register_pass(mutates_CFG=True, analysis_only=False)
class _ResolveDialect(FunctionPass):  # type: ignore[misc]
    _name = "nbrt_simt_resolve_dialect"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        compiler = state.pipeline
        func_ir = state.func_ir
        use = resolve_dialect(func_ir, device_dispatcher, is_kernel=compiler.is_kernel)
        simplify_positions(func_ir)
        compiler.handle_guards(func_ir, use)
        use.attributes = simplify_positions(func_ir)
        state.metadata[_METADATA] = use
        return True


class _DeviceCompiler(CompilerBase):  # type: ignore[misc]
    is_kernel = False

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state, "nbrt_simt")
        # After closures are inlined, so that names used inside them are seen as well.
        passes.add_pass_after(_ResolveDialect, InlineClosureLikes)
        passes.finalize()
        return [passes]

    def handle_guards(self, func_ir: Any, use: DialectUse) -> None:
        """Rewrite what is in front of the body proper, and note down in `use` what came of it."""


class _WholeKernelCompiler(_DeviceCompiler):
    """Compiles a kernel's body with its guards in it."""

    is_kernel = True


class _GuardedKernelCompiler(_WholeKernelCompiler):
    """Compiles a kernel's body without its guards: the thread loop keeps to the limits."""

    def handle_guards(self, func_ir: Any, use: DialectUse) -> None:
        use.bounds = absorb_guards(func_ir)


class _TurnCompiler(_WholeKernelCompiler):
    """Compiles one turn of a kernel's grid-stride loops: the launch makes the turns."""

    def handle_guards(self, func_ir: Any, use: DialectUse) -> None:
        use.strides = straighten_strides(func_ir)
        use.bounds = absorb_guards(func_ir)


class _LimitsCompiler(_DeviceCompiler):
    """Compiles the function that computes a kernel's limits."""

    def handle_guards(self, func_ir: Any, use: DialectUse) -> None:
        use.bounds = keep_limits(func_ir)
        if not use.bounds:
            raise NothingToLimitError


class _TurnLimitsCompiler(_DeviceCompiler):
    """Compiles the function that computes a kernel's limits, those of its turns included."""

    def handle_guards(self, func_ir: Any, use: DialectUse) -> None:
        use.strides = straighten_strides(func_ir)
        use.bounds = keep_limits(func_ir) if use.strides else []
        ending = {bound.axis for bound in use.bounds if bound.kind == "turn" and bound.upper}
        if not use.strides or not ending.issuperset(use.strides):
            raise NothingToLimitError


class ThreadDispatcher(CPUDispatcher):  # type: ignore[misc]
    """Compiles what one thread does: a kernel's body or a device function, per argument types."""

    def __init__(self, function: FunctionType, compiler: type[_DeviceCompiler]) -> None:
        super().__init__(function, targetoptions=dict(_OPTIONS), pipeline_class=compiler)

    def add_overload(self, cres: Any) -> None:
        """Keep a compiled version for other compiled code only: Python never calls it."""
        self.overloads[tuple(cres.signature.args)] = cres

    def result(self, arguments: tuple[Any, ...]) -> Any:
        """Compile for argument types, if not done before, and give Numba's compile result."""
        self.compile(arguments)
        return self.overloads[arguments]


_devices: weakref.WeakKeyDictionary[Any, dict[bool, ThreadDispatcher]] = weakref.WeakKeyDictionary()


def device_dispatcher(callee: Any, hidden: bool) -> ThreadDispatcher:
    """Give the one dispatcher of a device function, with or without the hidden argument."""
    versions = _devices.setdefault(callee, {})
    if hidden not in versions:
        copy = with_context if hidden else without_context
        versions[hidden] = ThreadDispatcher(copy(callee.py_func), _DeviceCompiler)
    return versions[hidden]


class KernelBody:
    """What one thread of a kernel does, and the limits on which threads do it.

    Parameters
    ----------
    function : function
        The kernel.
    """

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        copy = with_context(function)
        self._whole = ThreadDispatcher(copy, _WholeKernelCompiler)
        self._guarded = ThreadDispatcher(copy, _GuardedKernelCompiler)
        self._limits = ThreadDispatcher(copy, _LimitsCompiler)
        self._turn = ThreadDispatcher(copy, _TurnCompiler)
        self._turn_limits = ThreadDispatcher(copy, _TurnLimitsCompiler)

    def results(self, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """Compile for argument types; give the body and the limits function, or None for that."""
        limits, dispatcher = _limits_result(self._turn_limits, arguments), self._turn
        if limits is None:
            limits, dispatcher = _limits_result(self._limits, arguments), self._guarded
        body = (self._whole if limits is None else dispatcher).result(arguments)
        if body.signature.return_type not in (types.none, types.void):
            code = self._function.__code__
            raise CompileError(
                f"{code.co_filename}:{code.co_firstlineno}: a kernel must not return a value, and "
                f"this one returns {body.signature.return_type}; write it into an array argument"
            )
        return body, limits


def _limits_result(limits: ThreadDispatcher, arguments: tuple[Any, ...]) -> Any:
    # Also none when a limit cannot be computed apart from the body, say from an odd type: the body
    # with its guards in it says so, or does it.
    try:
        return limits.result(arguments)
    except (NothingToLimitError, errors.NumbaError):
        return None


def bounds_of(result: Any) -> list[Bound]:
    """Give what the results of a limits function mean."""
    return list(result.metadata[_METADATA].bounds)


def strides_of(body: Any) -> list[int]:
    """Give the axes along which the launch makes the turns of a kernel, outermost loop first."""
    return list(body.metadata[_METADATA].strides)


def dialect_uses(result: Any) -> Iterator[DialectUse]:
    """Go through what a compiled function and everything it calls use of the dialect."""
    pending, seen = [result], set()
    while pending:
        use = pending.pop().metadata[_METADATA]
        yield use
        for callee in use.callees:
            if id(callee) not in seen:
                seen.add(id(callee))
                pending.extend(callee.overloads.values())
