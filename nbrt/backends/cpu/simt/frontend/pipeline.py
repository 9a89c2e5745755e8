"""Compilation of the code of one thread: Numba's CPU pipeline with the dialect pass.

A kernel and each device function become native functions of one thread, always inlined. Reference
counting (``_nrt``) is off unless `CodeOptions.may_allocate`: other kernels own no memory, and
counting would prevent vector loops.
"""

from __future__ import annotations

import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

from numba.core import errors, types
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import FunctionPass, LoweringPass, register_pass
from numba.core.typed_passes import NopythonTypeInference
from numba.core.typing.templates import make_concrete_template, signature
from numba.core.untyped_passes import InlineClosureLikes

from nbrt.backends.captures import Captures
from nbrt.backends.cpu.simt.code_options import CodeOptions
from nbrt.backends.cpu.simt.frontend.bounds_checks import (
    Bound,
    keep_limits,
    remove_bounds_checks,
)
from nbrt.backends.cpu.simt.frontend.grid_stride import interchange_grid_strides
from nbrt.backends.cpu.simt.frontend.inlining import inline_functions
from nbrt.backends.cpu.simt.frontend.overloads import (
    ImplementationCalls,
    compile_implementations_with,
    overloads_read_thread,
)
from nbrt.backends.cpu.simt.frontend.passes import (
    CheckLegality,
    InferTypesOfView,
    kernel_passes,
)
from nbrt.backends.cpu.simt.frontend.python_semantics import (
    adapt_python_calls,
    refuse_names,
    refuse_types,
)
from nbrt.backends.cpu.simt.frontend.ranges import adapt_ranges
from nbrt.backends.cpu.simt.frontend.resolve import (
    RETURNS_VALUE,
    DialectUse,
    refuse_own_arrays,
    resolve_dialect,
)
from nbrt.backends.cpu.simt.frontend.silent_exceptions import SilentCallConv
from nbrt.backends.cpu.simt.frontend.source import with_context, without_context
from nbrt.backends.cpu.simt.frontend.thread_index_analysis import simplify_positions
from nbrt.backends.cpu.simt.frontend.thread_library import (
    ThreadLibrary,
    callees_raise,
    linked_libraries,
)
from nbrt.backends.cpu.simt.frontend.wait_points import (
    mark_places,
    mentions_markers,
    mentions_thread,
)
from nbrt.backends.cpu.simt.target import LinkedDispatcher, register_whole_library
from nbrt.backends.declared_signatures import declared_signatures
from nbrt.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FunctionType

__all__ = [
    "METADATA",
    "DeviceCompiler",
    "DeviceFunctions",
    "KernelBody",
    "ThreadDispatcher",
    "bounds_of",
    "dialect_uses",
    "marker_kinds",
    "marker_places",
    "may_spin",
    "strides_of",
]

METADATA = "nbrt.simt"
"""Key of the `DialectUse` in the metadata of a compile result."""

_OPTIONS = {
    "nopython": True,
    "_nrt": False,
    "forceinline": True,
}
_DEFAULTS = CodeOptions()


class NothingToLimitError(Exception):
    """A kernel has no guards, or no loop to remove, and so needs no limits function."""


@register_pass(mutates_CFG=True, analysis_only=False)
class _ResolveDialect(FunctionPass):
    _name = "nbrt_simt_resolve_dialect"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        compiler = state.pipeline
        func_ir = state.func_ir
        inline_functions(func_ir, compiler.devices.captured)
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
        if compiler.is_kernel and (kernel := _compiling.get()) and kernel.options.is_silent:
            state.targetctx = state.targetctx.subtarget()
            state.targetctx.convention = use.silent = SilentCallConv(state.targetctx)
        state.metadata[METADATA] = use
        return True


@register_pass(mutates_CFG=False, analysis_only=True)
class _RefuseUnsupported(LoweringPass):
    """Refuse constructs that CUDA does not have, and select the library of the code."""

    _name = "nbrt_simt_before_lowering"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        refuse_types(state)
        refuse_own_arrays(state, state.metadata[METADATA])
        state.library = ThreadLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.use = state.metadata[METADATA]
        return False


class DeviceCompiler(CompilerBase):
    """Compiles a device function."""

    is_kernel = False
    devices: ClassVar[DeviceFunctions]
    """Device functions that the compiled function may call; subclasses inherit or replace them."""

    def device_dispatcher(self, callee: Any, hidden: bool) -> ThreadDispatcher:
        """Return the dispatcher of a device function that the compiled function calls."""
        return self.devices.dispatcher(callee, hidden)

    _passes: ClassVar[Any]
    """The passes of this class, once it has compiled a function."""

    def define_pipelines(self) -> list[Any]:
        """Return Numba's passes, with the passes of this compiler."""
        kind = type(self)
        if "_passes" not in vars(kind):
            kind._passes = self.make_passes()
            kind._passes.finalize()
        return [kind._passes]

    def make_passes(self) -> Any:
        """Return the passes, which are the same for all functions."""
        passes = kernel_passes(self.state, "nbrt_simt")
        # After closures are inlined, so that names used inside them are seen as well.
        passes.add_pass_after(_ResolveDialect, InlineClosureLikes)
        passes.add_pass_after(_RefuseUnsupported, CheckLegality)
        return passes

    def handle_guards(self, func_ir: Any, use: DialectUse) -> None:
        """Remove the guards before the body, and record them in `use`."""


class _ViewCompiler(DeviceCompiler):
    """Compiles the implementation of an overload that may return a view of an array.

    LLVM inlines it. What it declares itself lives as long as the call, and is not returned.
    """

    def make_passes(self) -> Any:
        """Return the passes of device functions, with another type inference."""
        passes = super().make_passes()
        steps = [pass_class for pass_class, _ in passes.passes]
        number = steps.index(NopythonTypeInference)
        passes.passes[number] = InferTypesOfView, passes.passes[number][1]
        return passes


class _WholeKernelCompiler(DeviceCompiler):
    """Compiles a kernel's body with its guards."""

    is_kernel = True


class _GuardedKernelCompiler(_WholeKernelCompiler):
    """Compiles a kernel's body without its guards: the thread loop observes the limits."""

    def handle_guards(self, func_ir: Any, use: DialectUse) -> None:
        use.bounds = remove_bounds_checks(func_ir)


class _TurnCompiler(_WholeKernelCompiler):
    """Compiles one iteration of a kernel's grid-stride loops: the launch iterates."""

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


class ThreadDispatcher(LinkedDispatcher):
    """Compiles the code of one thread: a kernel's body or a device function."""

    def __init__(
        self,
        function: FunctionType,
        compiler: type[DeviceCompiler],
        captures: Captures | None = None,
        *,
        takes_context: bool = True,
        declared: Sequence[tuple[tuple[Any, ...], Any]] = (),
        options: CodeOptions = _DEFAULTS,
    ) -> None:
        all_options = {**_OPTIONS, **options.of_target()}
        super().__init__(function, targetoptions=all_options, pipeline_class=compiler)
        self.captures = captures
        self.options = options
        self._declared = declared
        self.takes_context = takes_context

    def __repr__(self) -> str:
        return f"CUDADispatcher({self.py_func})"  # as numba-cuda's messages name it

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return how a call is typed: with the arguments' types, or as the signatures declare."""
        if not self._declared:
            return super().get_call_template(args, kws)
        args = self._compiler.fold_argument_types(args, kws)[1]
        context = args[:1] if self.takes_context else ()
        signatures = []
        for types_of_arguments, result in self._declared:
            declared = (*context, *types_of_arguments)
            self.compile(declared if result is None else signature(result, *declared))
            signatures.append(self.overloads[declared].signature)
        name = self.py_func.__name__
        return make_concrete_template(name, name, signatures), None, args, {}

    def result(self, arguments: tuple[Any, ...], returns: Any = None) -> Any:
        """Return Numba's compile result for argument types, and the type of the result if given."""
        wanted = arguments if returns is None else signature(returns, *arguments)
        token = _compiling.set(self)
        try:
            try:
                self.compile(wanted)
            except errors.NumbaError:
                if not register_whole_library():
                    raise
                self.compile(wanted)
        finally:
            _compiling.reset(token)
        return self.overloads[arguments]


class _ImplementationDispatcher(ImplementationCalls, ThreadDispatcher):
    """Compiles the implementation of an overload."""


_compiling: ContextVar[ThreadDispatcher | None] = ContextVar("compiling", default=None)
"""The dispatcher of the kernel that compiles."""


class DeviceFunctions:
    """The dispatchers of device functions, shared by the kernels that capture the same values.

    Parameters
    ----------
    compiler : type
        Their compiler.
    instrumented : bool
        Whether every function takes the hidden argument, for reports of the thread.
    """

    def __init__(self, compiler: type[DeviceCompiler], *, instrumented: bool = False) -> None:
        self._compiler = compiler
        self._is_instrumented = instrumented
        self._known: weakref.WeakKeyDictionary[
            Any, tuple[Captures, bool, dict[tuple[bool, CodeOptions], ThreadDispatcher]]
        ] = weakref.WeakKeyDictionary()

    def dispatcher(self, callee: Any, hidden: bool) -> ThreadDispatcher:
        """Return the dispatcher of a device function, which may take the hidden argument.

        A function that does not read its thread's index takes none: it is then compiled once for
        all block shapes.
        """
        captures = self._captures_of(callee)
        known = self._known.get(callee)
        if known is None or not known[0].agrees(captures):
            # An overload has no name here; what it reads is the argument of its caller.
            reads = (
                self._is_instrumented or mentions_thread(captures.frozen) or overloads_read_thread()
            )
            known = self._known[callee] = (captures, reads, {})
        captures, reads, versions = known
        hidden, options = hidden and reads, CodeOptions.of_callee(callee)
        key = hidden, options
        if key not in versions:
            versions[key] = ThreadDispatcher(
                (with_context if hidden else without_context)(captures.frozen),
                self._compiler,
                takes_context=hidden,
                declared=declared_signatures(callee),
                options=options,
            )
        return versions[key]

    def implementation(self, callee: Any) -> ThreadDispatcher:
        """Return the dispatcher of the implementation of an overload."""
        function = self.captured(callee)
        plain = _ImplementationDispatcher(
            without_context(function), self._compiler, takes_context=False
        )
        if mentions_thread(function):
            plain.indexed = ThreadDispatcher(with_context(function), self._compiler)
        return plain

    def captured(self, callee: Any) -> FunctionType:
        """Return the function of a device function, over the values that it is compiled with."""
        return self._captures_of(callee).frozen

    def _captures_of(self, callee: Any) -> Captures:
        kernel, function = _compiling.get(), callee.py_func
        captures = kernel and kernel.captures
        return captures.of(function) if captures else Captures(function)


DeviceCompiler.devices = DeviceFunctions(DeviceCompiler)
_views = DeviceFunctions(_ViewCompiler)
compile_implementations_with(
    lambda function, is_inlined: (_views if is_inlined else DeviceCompiler.devices).implementation(
        function
    )
)


class KernelBody:
    """The code of one thread of a kernel, and the limits on which threads run it.

    Parameters
    ----------
    captures : Captures
        The kernel, with the values that it is compiled with.
    instrumented : type, optional
        A compiler that adds probes: guards then stay in the body, and there are no limits.
    options : CodeOptions, optional
        The options of the kernel.
    """

    def __init__(
        self,
        captures: Captures,
        instrumented: type[DeviceCompiler] | None = None,
        *,
        options: CodeOptions = _DEFAULTS,
    ) -> None:
        self._is_instrumented = instrumented is not None
        self._function = captures.frozen
        self.name = self._function.__name__
        self._known: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self._unlimited: set[ThreadDispatcher] = set()
        copy = with_context(self._function)

        def dispatcher(compiler: type[DeviceCompiler]) -> ThreadDispatcher:
            return ThreadDispatcher(copy, compiler, captures, options=options)

        self._whole = dispatcher(instrumented or _WholeKernelCompiler)
        self._guarded = dispatcher(_GuardedKernelCompiler)
        self._limits = dispatcher(_LimitsCompiler)
        self._turn = dispatcher(_TurnCompiler)
        self._turn_limits = dispatcher(_TurnLimitsCompiler)

    def results(self, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return the compile results of the body and of the limits function, which may be None."""
        if arguments not in self._known:
            self._known[arguments] = self._compiled(arguments)
        return self._known[arguments]

    def _compiled(self, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        if self._is_instrumented or mentions_markers(self._function):
            body = self._whole.result(arguments)
            if self._is_instrumented or marker_kinds(body):
                return self._checked(body), None
        limits, dispatcher = self._limits_result(self._turn_limits, arguments), self._turn
        if limits is None:
            limits, dispatcher = self._limits_result(self._limits, arguments), self._guarded
        body = self._checked((self._whole if limits is None else dispatcher).result(arguments))
        if limits is not None and marker_kinds(body):  # in an overload, which has no name here
            return self.whole(arguments), None
        silent = body.metadata[METADATA].silent
        if silent and strides_of(body) and (silent.raises or callees_raise(body.library)):
            return self.whole(arguments), None  # a thread that raised runs no later iteration
        return body, limits

    def whole(self, arguments: tuple[Any, ...]) -> Any:
        """Compile for argument types, with the guards in the body."""
        return self._checked(self._whole.result(arguments))

    def _limits_result(self, limits: ThreadDispatcher, arguments: tuple[Any, ...]) -> Any:
        if limits in self._unlimited:
            return None
        # None also if a limit cannot be computed outside of the body, for instance for its type:
        # then the body with its guards compiles, or raises the error.
        try:
            return limits.result(arguments)
        except NothingToLimitError:  # found before types are inferred: so for all types
            self._unlimited.add(limits)
            return None
        except errors.NumbaError:
            return None

    def _checked(self, body: Any) -> Any:
        if body.signature.return_type not in (types.none, types.void):
            code = self._function.__code__
            raise CompileError(
                f"{code.co_filename}:{code.co_firstlineno}: {RETURNS_VALUE}, and this one returns "
                f"{body.signature.return_type}; write it into an array argument"
            )
        return body


def bounds_of(result: Any) -> list[Bound]:
    """Return the bounds that the results of a limits function are."""
    return list(result.metadata[METADATA].bounds)


def strides_of(body: Any) -> list[int]:
    """Return the axes of the grid-stride loops that the launch iterates, outermost first."""
    return list(body.metadata[METADATA].strides)


def marker_kinds(body: Any) -> set[str]:
    """Return the kinds of markers in a kernel and in the functions that it calls."""
    return set[str]().union(*(use.markers for use in dialect_uses(body)))


def marker_places(body: Any) -> list[str]:
    """Return name, file and line of the calls of markers in a kernel and its functions."""
    return list(dict.fromkeys(place for use in dialect_uses(body) for place in use.places))


def may_spin(body: Any) -> bool:
    """Return whether a kernel, or a function it calls, has a loop that may spin."""
    return any(use.may_spin for use in dialect_uses(body))


def dialect_uses(result: Any) -> Iterator[DialectUse]:
    """Yield the `DialectUse` of a compiled function and of all functions that it calls.

    Implementations of overloads are known once the function has its library.
    """
    pending, seen = [result], set()
    while pending:
        current = pending.pop()
        uses = [current.metadata[METADATA]]
        if current.library is not None:
            linked = linked_libraries(current.library)
            uses += [each.use for each in linked if isinstance(each, ThreadLibrary)]
        for use in uses:
            if id(use) not in seen:
                seen.add(id(use))
                yield use
                for callee in use.callees:
                    pending.extend(callee.overloads.values())
