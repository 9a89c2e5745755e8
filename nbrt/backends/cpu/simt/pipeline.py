"""Stage 3, one thread: Numba's CPU pipeline with the dialect pass in it.

A kernel and each device function become native functions of one thread, always inlined. Nothing is
reference counted (``_nrt`` off): a kernel owns no memory, and the counting would stand between LLVM
and a vector loop.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.registry import CPUDispatcher
from numba.core.untyped_passes import InlineClosureLikes

from nbrt.backends.cpu.simt.resolve import DialectUse, resolve_dialect
from nbrt.backends.cpu.simt.source import with_context, without_context

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType

__all__ = ["ThreadDispatcher", "dialect_uses", "kernel_dispatcher"]

_METADATA = "nbrt.simt"

_OPTIONS = {
    "nopython": True,
    "_nrt": False,
    "error_model": "numpy",
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


@register_pass(mutates_CFG=False, analysis_only=False)  # type: ignore[untyped-decorator]
class _ResolveDialect(FunctionPass):  # type: ignore[misc]
    _name = "nbrt_simt_resolve_dialect"

    def run_pass(self, state: Any) -> bool:
        is_kernel = state.pipeline.is_kernel
        use = resolve_dialect(state.func_ir, device_dispatcher, is_kernel=is_kernel)
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


class _KernelCompiler(_DeviceCompiler):
    is_kernel = True


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


def kernel_dispatcher(function: FunctionType) -> ThreadDispatcher:
    """Make the dispatcher of a kernel's body."""
    return ThreadDispatcher(with_context(function), _KernelCompiler)


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
