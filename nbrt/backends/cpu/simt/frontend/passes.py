"""Numba's compiler passes for kernels, each run only where it changes or checks something.

Numba analyses the lifetimes of variables after almost every pass, for reference counts, generators
and lifted loops, which kernels do not have. Most of its passes rewrite constructs that few kernels
use. Kernels call many small functions, and most of their compile time was spent there.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from typing import TYPE_CHECKING, Any

from numba.core import config, errors, ir, types
from numba.core.compiler import DefaultPassBuilder
from numba.core.compiler_machinery import (
    AnalysisPass,
    FunctionPass,
    PassManager,
    _pass_registry,
    register_pass,
)
from numba.core.interpreter import Interpreter
from numba.core.ir_utils import (
    build_definitions,
    check_and_legalize_ir,
    enforce_no_dels,
    enforce_no_phis,
)
from numba.core.rewrites import rewrite_registry
from numba.core.ssa import reconstruct_ssa
from numba.core.transforms import canonicalize_cfg
from numba.core.typed_passes import (
    AnnotateTypes,
    DumpParforDiagnostics,
    IRLegalization,
    NativeLowering,
    NopythonRewrites,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import (
    DeadBranchPrune,
    GenericRewrites,
    InlineClosureLikes,
    IRProcessing,
    MakeFunctionToJitFunction,
    ReconstructSSA,
    RewriteDynamicRaises,
    TranslateByteCode,
    WithLifting,
)

from nbrt.backends.cpu.simt.frontend.function_lowering import LowerFunction
from nbrt.backends.cpu.simt.target import argument_types_of_caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CheckLegality", "InferTypesOfView", "StripPhis", "Translate", "kernel_passes"]


class _KernelPassManager(PassManager):
    """Runs passes without the analyses, checks and events of Numba between them."""

    def run(self, state: Any) -> None:
        """Run the passes that the function needs."""
        token = argument_types_of_caller.set(tuple(state.args))
        try:
            if self._print_after or self._print_before or self._print_wrap:
                super().run(state)  # the dumps of Numba's environment variables
                return
            for pass_class, description in self.passes:
                is_needed = _CONDITIONS.get(pass_class)
                if is_needed is None or is_needed(state):
                    self._run(_pass_registry.get(pass_class).pass_inst, description, state)
        finally:
            argument_types_of_caller.reset(token)

    def _run(self, instance: Any, description: str, state: Any) -> None:
        instance.analysis = self._analysis
        try:
            with errors.new_error_context("Pass {name}", name=instance.name()):
                instance.run_initialization(state)
                instance.run_pass(state)
                instance.run_finalizer(state)
        except errors.NumbaError as error:
            step = f"Failed in {self.pipeline_name} mode pipeline (step: {description})"
            raise self._patch_error(step, error) from error.__cause__


def kernel_passes(state: Any, name: str) -> Any:
    """Return Numba's passes for a function that counts no references.

    Parameters
    ----------
    state : numba.core.compiler.StateDict
        The state of its compiler.
    name : str
        Name of the pipeline.

    Returns
    -------
    PassManager
        To be finalised, and good for all functions with the same compiler flags.
    """
    passes = _KernelPassManager(name)
    for pass_class, description in DefaultPassBuilder.define_nopython_pipeline(state).passes:
        if pass_class not in _OMITTED:
            passes.add_pass(_REPLACED.get(pass_class, pass_class), description)
    return passes


_PLAIN_STATEMENTS = (ir.Assign, ir.SetItem, ir.Branch, ir.Jump, ir.Return)
_PLAIN_EXPRESSIONS = frozenset(
    {
        *("binop", "inplace_binop", "unary", "call", "getattr", "getitem", "static_getitem"),
        *("build_tuple", "exhaust_iter", "getiter", "iternext", "pair_first", "pair_second"),
        *("cast", "phi"),
    }
)


def _is_plain(statement: Any) -> bool:
    """Return whether no peephole of Numba's interpreter can apply to a statement."""
    value: Any = statement.value if type(statement) is ir.Assign else None
    if type(value) is not ir.Expr:
        return isinstance(statement, _PLAIN_STATEMENTS)
    if value.op == "call":
        return value.vararg is None and getattr(value, "varkwarg", None) is None
    return value.op in _PLAIN_EXPRESSIONS


class _Interpreter(Interpreter):
    """Numba's translation of bytecode."""

    def post_process(self, peepholes: Any, func_ir: Any) -> Any:
        """Apply the peepholes for ``with``, lists and dicts if the function may have one."""
        if all(_is_plain(each) for block in func_ir.blocks.values() for each in block.body):
            return func_ir
        return super().post_process(peepholes, func_ir)


@register_pass(mutates_CFG=True, analysis_only=False)
class Translate(FunctionPass):
    """Translate bytecode to Numba IR, as `TranslateByteCode` does."""

    _name = "nbrt_simt_translate"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Translate the function."""
        state.func_ir = _Interpreter(state.func_id).interpret(state.bc)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Canonicalize(FunctionPass):
    """Make the back edges of every loop one, as `IRProcessing` does; no lifetimes."""

    _name = "nbrt_simt_canonicalize"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        state.func_ir.blocks = canonicalize_cfg(state.func_ir.blocks)
        return True


_OF_PRINT = ("RewritePrintCalls", "DetectConstPrintArguments")


@register_pass(mutates_CFG=True, analysis_only=False)
class _RewriteUntyped(FunctionPass):
    """Apply Numba's rewrites before types are known, as `GenericRewrites` does."""

    _name = "nbrt_simt_rewrites"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        blocks = state.func_ir.blocks
        prints = _has_name(state, print)
        for rewrite_class in rewrite_registry.rewrites["before-inference"]:
            if not prints and rewrite_class.__name__ in _OF_PRINT:
                continue
            rewrite = rewrite_class(state)
            for label, block in list(blocks.items()):
                while rewrite.match(state.func_ir, block, None, None):
                    block = blocks[label] = rewrite.apply()
        return True


@contextlib.contextmanager
def _warnings_of_cuda() -> Iterator[None]:
    """Warn of variables without a value if the configuration of numba-cuda says so."""
    cuda_config = sys.modules.get("numba.cuda.core.config")
    if not getattr(cuda_config, "ALWAYS_WARN_UNINIT_VAR", 0):
        yield
        return
    from numba.cuda.core.errors import NumbaWarning

    before, config.ALWAYS_WARN_UNINIT_VAR = config.ALWAYS_WARN_UNINIT_VAR, 1
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        config.ALWAYS_WARN_UNINIT_VAR = before
    for each in caught:
        warnings.warn(NumbaWarning(str(each.message)), stacklevel=2)


@register_pass(mutates_CFG=True, analysis_only=False)
class _ReconstructSSA(FunctionPass):
    """Rename variables that are assigned several times, as `ReconstructSSA` does."""

    _name = "nbrt_simt_ssa"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        with _warnings_of_cuda():
            state.func_ir = reconstruct_ssa(state.func_ir)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class StripPhis(PreLowerStripPhis):
    """Replace phi nodes by assignments."""

    _name = "nbrt_simt_strip_phis"

    def run_pass(self, state: Any) -> bool:
        """Replace them if there are any."""
        if _has_expression(state, "phi"):
            state.func_ir = self._strip_phi_nodes(state.func_ir)
            state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


@register_pass(mutates_CFG=False, analysis_only=True)
class CheckLegality(AnalysisPass):
    """Check the IR as `IRLegalization` does; delete variables only if references are counted."""

    _name = "nbrt_simt_check_legality"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Check it."""
        if state.flags.nrt:
            check_and_legalize_ir(state.func_ir, flags=state.flags)
            return True
        enforce_no_phis(state.func_ir)
        enforce_no_dels(state.func_ir)
        return False


@register_pass(mutates_CFG=True, analysis_only=False)
class InferTypesOfView(NopythonTypeInference):
    """Infer types in a function that may return a view of an array."""

    _name = "nbrt_simt_infer_types_of_view"

    def run_pass(self, state: Any) -> bool:
        """Infer them; Numba accepts any array from functions that may allocate."""
        known = state.targetctx
        state.targetctx = known.subtarget(enable_nrt=True)
        try:
            return bool(super().run_pass(state))
        finally:
            state.targetctx = known


_REPLACED = {
    TranslateByteCode: Translate,
    IRProcessing: _Canonicalize,
    GenericRewrites: _RewriteUntyped,
    ReconstructSSA: _ReconstructSSA,
    PreLowerStripPhis: StripPhis,
    IRLegalization: CheckLegality,
    NativeLowering: LowerFunction,
}

_OMITTED = (AnnotateTypes, DumpParforDiagnostics)
"""Passes whose results nothing reads."""


def _statements(state: Any) -> Iterator[Any]:
    for block in state.func_ir.blocks.values():
        yield from block.body


def _has_statement(state: Any, *kinds: type[Any]) -> bool:
    return any(isinstance(statement, kinds) for statement in _statements(state))


def _has_expression(state: Any, *operations: str) -> bool:
    return any(
        type(statement) is ir.Assign
        and type(statement.value) is ir.Expr
        and statement.value.op in operations
        for statement in _statements(state)
    )


def _has_name(state: Any, function: Any) -> bool:
    """Return whether the code may name a function, as a global or as an attribute."""
    for statement in _statements(state):
        value = statement.value if type(statement) is ir.Assign else None
        if isinstance(value, ir.Expr):
            if value.op == "getattr" and value.attr == function.__name__:
                return True
        elif isinstance(value, ir.Global | ir.FreeVar) and value.value is function:
            return True
    return False


def _has_closure(state: Any) -> bool:
    """Return whether Numba may inline a closure, a comprehension or a reduction."""
    return _has_expression(state, "make_function", "build_list") or _has_name(
        state, functools.reduce
    )


def _has_several_definitions(state: Any) -> bool:
    if len(state.func_ir.blocks) > 1:
        return True
    targets = [each.target.name for each in _statements(state) if type(each) is ir.Assign]
    return len(targets) != len(set(targets))


_MAY_REWRITE = ("binop", "inplace_binop", "unary", "call")


def _may_rewrite_typed(state: Any) -> bool:
    """Return whether one of Numba's rewrites of typed IR may match: those of arrays, of strings."""
    if {rewrite.__name__ for rewrite in rewrite_registry.rewrites["after-inference"]} - _KNOWN:
        return True
    typemap = state.typemap
    if any(isinstance(typ, types.StringLiteral) for typ in typemap.values()):
        return True
    return any(
        type(statement) is ir.Assign
        and type(statement.value) is ir.Expr
        and statement.value.op in _MAY_REWRITE
        and isinstance(typemap[statement.target.name], types.Array)
        for statement in _statements(state)
    )


_KNOWN = {
    "RewriteArrayExprs",
    "RewriteArrayOfConsts",
    "RewriteStringLiteralGetitems",
    "RewriteStringLiteralSetitems",
}

_CONDITIONS: dict[Any, Callable[[Any], bool]] = {
    WithLifting: lambda state: _has_statement(state, ir.EnterWith),
    InlineClosureLikes: _has_closure,
    DeadBranchPrune: lambda state: _has_statement(state, ir.Branch),
    RewriteDynamicRaises: lambda state: _has_statement(state, ir.Raise, ir.TryRaise),
    MakeFunctionToJitFunction: lambda state: _has_expression(state, "make_function"),
    _ReconstructSSA: _has_several_definitions,
    NopythonRewrites: _may_rewrite_typed,
}
"""Passes that few functions need, and the test for it."""
