"""Stage 3, one thread: Numba's CPU pipeline with the dialect pass in it.

A kernel and each device function become native functions of one thread, always inlined. Nothing is
reference counted (``_nrt`` off): a kernel owns no memory, and the counting would stand between LLVM
and a vector loop.
"""

from __future__ import annotations

import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

from numba.core import errors, types
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, LoweringPass, register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import AnnotateTypes, NativeLowering
from numba.core.untyped_passes import InlineClosureLikes

from nbrt.backends.captures import Captures
from nbrt.backends.cpu.simt.frontend.bounds_checks import (
    Bound,
    keep_limits,
    remove_bounds_checks,
)
from nbrt.backends.cpu.simt.frontend.grid_stride import interchange_grid_strides
from nbrt.backends.cpu.simt.frontend.python_semantics import (
    adapt_python_calls,
    refuse_names,
    refuse_types,
)
from nbrt.backends.cpu.simt.frontend.ranges import adapt_ranges
from nbrt.backends.cpu.simt.frontend.resolve import DialectUse, resolve_dialect
from nbrt.backends.cpu.simt.frontend.source import with_context, without_context
from nbrt.backends.cpu.simt.frontend.thread_index_analysis import simplify_positions
from nbrt.backends.cpu.simt.frontend.wait_points import mark_places, mentions_markers
from nbrt.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType

__all__ = [
    "METADATA",
    "DeviceCompiler",
    "DeviceFunctions",
    "KernelBody",
    "ThreadDispatcher",
    "ThreadLibrary",
    "bounds_of",
    "dialect_uses",
    "marker_kinds",
    "marker_places",
    "may_spin",
    "strides_of",
]

METADATA = "nbrt.simt"
"""Key of a compile result's metadata under which its `DialectUse` is."""

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
class _ResolveDialect(FunctionPass):
    _name = "nbrt_simt_resolve_dialect"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        compiler = state.pipeline
        func_ir = state.func_ir
        refuse_names(func_ir)
        use = resolve_dialect(func_ir, compiler.device_dispatcher, is_kernel=compiler.is_kernel)
        simplify_positions(func_ir)
        compiler.handle_guards(func_ir, use)
        use.attributes = simplify_positions(func_ir)
        if not use.strides:  # of a loop taken out, the range is still asked for its end
            adapt_ranges(func_ir)
        adapt_python_calls(func_ir)
        use.loops = bool(compute_cfg_from_blocks(func_ir.blocks).loops())
        use.may_spin = mark_places(func_ir)
        state.metadata[METADATA] = use
        return True


class ThreadLibrary(JITCodeLibrary):
    """LLVM code as Numba wrote it: to be linked into a block's code and optimised there, once."""

    def _optimize_functions(self, ll_module: Any) -> None:
        pass

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


@register_pass(mutates_CFG=False, analysis_only=True)
class _BeforeLowering(LoweringPass):
    """Refuse what CUDA does not have, and keep Numba from making machine code of the function."""

    _name = "nbrt_simt_before_lowering"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        refuse_types(state)
        state.library = ThreadLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        return False


class _Inlined:
    """What other compiled functions know a function without an address by."""


@register_pass(mutates_CFG=False, analysis_only=True)
class _AfterLowering(LoweringPass):
    """Make the function callable from others, which Numba does only where it has an address."""

    _name = "nbrt_simt_after_lowering"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        lowered = state.cr._replace(cfunc=_Inlined())
        state.targetctx.insert_user_function(lowered.cfunc, lowered.fndesc, [state.library])
        state.cr = lowered
        return False


class DeviceCompiler(CompilerBase):
    """Compiles a device function."""

    is_kernel = False
    devices: ClassVar[DeviceFunctions]
    """Device functions that the compiled function may call; subclasses inherit or replace them."""

    def device_dispatcher(self, callee: Any, hidden: bool) -> ThreadDispatcher:
        """Return the dispatcher of a device function that the compiled function calls."""
        return self.devices.dispatcher(callee, hidden)

    def define_pipelines(self) -> list[Any]:
        """Give Numba's passes with this compiler's in between."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state, "nbrt_simt")
        # After closures are inlined, so that names used inside them are seen as well.
        passes.add_pass_after(_ResolveDialect, InlineClosureLikes)
        passes.add_pass_after(_BeforeLowering, AnnotateTypes)
        passes.add_pass_after(_AfterLowering, NativeLowering)
        passes.finalize()
        return [passes]

    def handle_guards(self, func_ir: Any, use: DialectUse) -> None:
        """Rewrite what is in front of the body proper, and note down in `use` what came of it."""


class _WholeKernelCompiler(DeviceCompiler):
    """Compiles a kernel's body with its guards in it."""

    is_kernel = True


class _GuardedKernelCompiler(_WholeKernelCompiler):
    """Compiles a kernel's body without its guards: the thread loop keeps to the limits."""

    def handle_guards(self, func_ir: Any, use: DialectUse) -> None:
        use.bounds = remove_bounds_checks(func_ir)


class _TurnCompiler(_WholeKernelCompiler):
    """Compiles one turn of a kernel's grid-stride loops: the launch makes the turns."""

    def handle_guards(self, func_ir: Any, use: DialectUse) -> None:
        use.strides = interchange_grid_strides(func_ir)
        use.bounds = remove_bounds_checks(func_ir)


class _LimitsCompiler(DeviceCompiler):
    """Compiles the function that computes a kernel's limits."""

    def handle_guards(self, func_ir: Any, use: DialectUse) -> None:
        use.bounds = keep_limits(func_ir)
        if not use.bounds:
            raise NothingToLimitError


class _TurnLimitsCompiler(DeviceCompiler):
    """Compiles the function that computes a kernel's limits, those of its turns included."""

    def handle_guards(self, func_ir: Any, use: DialectUse) -> None:
        use.strides = interchange_grid_strides(func_ir)
        use.bounds = keep_limits(func_ir) if use.strides else []
        ending = {bound.axis for bound in use.bounds if bound.kind == "turn" and bound.upper}
        if not use.strides or not ending.issuperset(use.strides):
            raise NothingToLimitError


class ThreadDispatcher(CPUDispatcher):
    """Compiles what one thread does: a kernel's body or a device function, per argument types."""

    def __init__(
        self,
        function: FunctionType,
        compiler: type[DeviceCompiler],
        captures: Captures | None = None,
    ) -> None:
        super().__init__(function, targetoptions=dict(_OPTIONS), pipeline_class=compiler)
        self._captures = captures

    def add_overload(self, cres: Any) -> None:
        """Keep a compiled version for other compiled code only: Python never calls it."""
        self.overloads[tuple(cres.signature.args)] = cres

    def result(self, arguments: tuple[Any, ...]) -> Any:
        """Compile for argument types, if not done before, and give Numba's compile result."""
        token = _captures.set(self._captures)
        try:
            self.compile(arguments)
        finally:
            _captures.reset(token)
        return self.overloads[arguments]


_captures: ContextVar[Captures | None] = ContextVar("captures", default=None)
"""Those of the kernel that is being compiled."""


class DeviceFunctions:
    """The dispatchers of device functions, shared by the kernels that capture the same values.

    Parameters
    ----------
    compiler : type
        Compiles them.
    """

    def __init__(self, compiler: type[DeviceCompiler]) -> None:
        self._compiler = compiler
        self._known: weakref.WeakKeyDictionary[
            Any, tuple[Captures, dict[bool, ThreadDispatcher]]
        ] = weakref.WeakKeyDictionary()

    def dispatcher(self, callee: Any, hidden: bool) -> ThreadDispatcher:
        """Return the dispatcher of a device function, with or without the hidden argument."""
        kernel, function = _captures.get(), callee.py_func
        captures = Captures(function) if kernel is None else kernel.of(function)
        known = self._known.get(callee)
        if known is None or not known[0].agrees(captures):
            known = self._known[callee] = (captures, {})
        versions = known[1]
        if hidden not in versions:
            copy = with_context if hidden else without_context
            versions[hidden] = ThreadDispatcher(copy(known[0].frozen), self._compiler)
        return versions[hidden]


DeviceCompiler.devices = DeviceFunctions(DeviceCompiler)


class KernelBody:
    """What one thread of a kernel does, and the limits on which threads do it.

    Parameters
    ----------
    captures : Captures
        The kernel, with the values that it is compiled with.
    instrumented : type, optional
        A compiler that adds probes: guards then stay in the body, and there are no limits.
    """

    def __init__(
        self, captures: Captures, instrumented: type[DeviceCompiler] | None = None
    ) -> None:
        self._is_instrumented = instrumented is not None
        self._function = captures.frozen
        self.name = self._function.__name__
        copy = with_context(self._function)
        self._whole = ThreadDispatcher(copy, instrumented or _WholeKernelCompiler, captures)
        self._guarded = ThreadDispatcher(copy, _GuardedKernelCompiler, captures)
        self._limits = ThreadDispatcher(copy, _LimitsCompiler, captures)
        self._turn = ThreadDispatcher(copy, _TurnCompiler, captures)
        self._turn_limits = ThreadDispatcher(copy, _TurnLimitsCompiler, captures)

    def results(self, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """Compile for argument types; give the body and the limits function, or None for that."""
        if self._is_instrumented or mentions_markers(self._function):
            body = self._whole.result(arguments)
            if self._is_instrumented or marker_kinds(body):
                return self._checked(body), None
        limits, dispatcher = _limits_result(self._turn_limits, arguments), self._turn
        if limits is None:
            limits, dispatcher = _limits_result(self._limits, arguments), self._guarded
        return self._checked(
            (self._whole if limits is None else dispatcher).result(arguments)
        ), limits

    def whole(self, arguments: tuple[Any, ...]) -> Any:
        """Compile for argument types, with the guards in the body."""
        return self._checked(self._whole.result(arguments))

    def _checked(self, body: Any) -> Any:
        if body.signature.return_type not in (types.none, types.void):
            code = self._function.__code__
            raise CompileError(
                f"{code.co_filename}:{code.co_firstlineno}: a kernel must not return a value, and "
                f"this one returns {body.signature.return_type}; write it into an array argument"
            )
        return body


def _limits_result(limits: ThreadDispatcher, arguments: tuple[Any, ...]) -> Any:
    # Also none when a limit cannot be computed apart from the body, say from an odd type: the body
    # with its guards in it says so, or does it.
    try:
        return limits.result(arguments)
    except (NothingToLimitError, errors.NumbaError):
        return None


def bounds_of(result: Any) -> list[Bound]:
    """Give what the results of a limits function mean."""
    return list(result.metadata[METADATA].bounds)


def strides_of(body: Any) -> list[int]:
    """Give the axes along which the launch makes the turns of a kernel, outermost loop first."""
    return list(body.metadata[METADATA].strides)


def marker_kinds(body: Any) -> set[str]:
    """Give the kinds of markers in a kernel and in all that it calls."""
    return set[str]().union(*(use.markers for use in dialect_uses(body)))


def marker_places(body: Any) -> list[str]:
    """Give where a kernel, or what it calls, calls markers: name, file and line."""
    return list(dict.fromkeys(place for use in dialect_uses(body) for place in use.places))


def may_spin(body: Any) -> bool:
    """Return whether a kernel, or what it calls, has a loop that may wait for other threads."""
    return any(use.may_spin for use in dialect_uses(body))


def dialect_uses(result: Any) -> Iterator[DialectUse]:
    """Go through what a compiled function and everything it calls use of the dialect."""
    pending, seen = [result], set()
    while pending:
        use = pending.pop().metadata[METADATA]
        yield use
        for callee in use.callees:
            if id(callee) not in seen:
                seen.add(id(callee))
                pending.extend(callee.overloads.values())
