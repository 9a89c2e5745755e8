"""The library of an entry function: machine code whose loops poll the launch's stop word.

The polls are inserted after Numba has optimised the library, so they do not prevent vector loops.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import LoweringPass, register_pass

from nbrt.backends.cpu.simt.frontend.passes import CheckLegality, kernel_passes
from nbrt.backends.cpu.simt.llvm.chains import may_have_chains, with_chains_in_turns
from nbrt.backends.cpu.simt.llvm.narrow_loads import with_narrow_loads
from nbrt.backends.cpu.simt.llvm.polls import add_polls
from nbrt.backends.cpu.simt.llvm.vector_operations import has_only_avx2, with_fewer_instructions
from nbrt.backends.cpu.simt.processor import processor
from nbrt.backends.cpu.simt.stop_codes import (
    ATTEND,
    CALLING_CONVENTION,
    INTERRUPTED,
    PYTHON_EXCEPTION,
    RETURN_NONE,
    attend_module,
)
from nbrt.backends.cpu.simt.target import KernelLibrary

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Iterator

__all__ = ["emit_leave", "emit_poll", "polled_compiler", "with_polls"]

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)

_NODE = re.compile(r"^(!\d+) = (?:distinct )?!\{([^\n]*)\}$", re.M)
_DEFINED = re.compile(rf"^define [^\n]*@{ATTEND}\(", re.M)
_DECLARED = re.compile(rf"^declare [^\n]*@{ATTEND}\([^\n]*\n", re.M)

_STOP_FIELD = "stop"

_BLOCK_STOP = "%nbrt.stop"
"""Parameter of a block function: the address of the stop word."""

_LEAVE_BLOCK = ["  ret i32 %nbrt.status"]
_LEAVE_ENTRY = [
    f"  %nbrt.raised = icmp eq i32 %nbrt.status, {INTERRUPTED}",
    f"  %nbrt.result = select i1 %nbrt.raised, i32 {PYTHON_EXCEPTION}, i32 {RETURN_NONE}",
    "  ret i32 %nbrt.result",
]


def emit_poll(builder: ir.IRBuilder, stop: ir.Value) -> None:
    """Emit a poll of the stop word into an entry function.

    Parameters
    ----------
    builder : llvmlite IRBuilder
        Where the code goes.
    stop : llvmlite value
        Address of the stop word, as a pointer to ``i64``.
    """
    word = builder.load_atomic(stop, "monotonic", 8)
    with cgutils.if_unlikely(builder, builder.icmp_signed("!=", word, _I64(0))):
        kind = ir.FunctionType(_I32, [_I64.as_pointer()])
        attend = cgutils.get_or_insert_function(builder.module, kind, ATTEND)
        status = builder.call(attend, [stop], cconv=CALLING_CONVENTION)
        with cgutils.if_unlikely(builder, builder.icmp_signed("!=", status, _I32(0))):
            emit_leave(builder, status)


def emit_leave(builder: ir.IRBuilder, status: ir.Value) -> None:
    """Emit the end of an entry function whose launch is left: ``STOPPED`` or ``INTERRUPTED``."""
    raised = builder.icmp_signed("==", status, _I32(INTERRUPTED))
    builder.ret(builder.select(raised, _I32(PYTHON_EXCEPTION), _I32(RETURN_NONE)))


def with_polls(text: str, launch: str, offset: int) -> str:
    """Insert polls into the entry function of a module and the block functions that it calls.

    Parameters
    ----------
    text : str
        The module, optimised.
    launch : str
        Name of the entry function's argument that holds the address of the launch.
    offset : int
        Offset of the stop word in the launch.

    Returns
    -------
    str
        The module, with the definition of `ATTEND`.
    """
    if _DEFINED.search(text):
        # The definition of a block function's module; LLVM may have changed its convention.
        text = text.replace(f"@{ATTEND}(", f"@{ATTEND}.block(")
    nodes = dict(_NODE.findall(text))
    number = 1 + max((int(name[1:]) for name in nodes), default=-1)
    lines = []
    for header, body in _functions(text):
        if header is None:
            lines += body
            continue
        marks = (nodes, f", !prof !{number}")
        if f" {launch}," in header or f" {launch})" in header:
            before = [
                f"  %nbrt.launch = inttoptr i64 {launch} to ptr",
                f"  {_BLOCK_STOP} = getelementptr i8, ptr %nbrt.launch, i64 {offset}",
            ]
            polled = add_polls(body, _BLOCK_STOP, _LEAVE_ENTRY, *marks)
            at = 1 if body[0].rstrip().partition(";")[0].rstrip().endswith(":") else 0
            body = polled if polled is body else [*polled[:at], *before, *polled[at:]]
        elif f" {_BLOCK_STOP}," in header:
            body = add_polls(body, _BLOCK_STOP, _LEAVE_BLOCK, *marks)
        lines += [header, *body, "}"]
    rest = _DECLARED.sub("", "\n".join(lines) + "\n")
    weights = f'!{number} = !{{!"branch_weights", i32 1048575, i32 1}}\n'
    return f"{rest}\n{attend_module(rest)}\n{weights}"


def _functions(text: str) -> Iterator[tuple[str | None, list[str]]]:
    """Split a module into functions with their headers, and other text with None."""
    header, lines = None, list[str]()
    for line in text.splitlines():
        if header is None and line.startswith("define ") and "{" in line:
            yield None, lines
            header, lines = line, []
        elif header is not None and line == "}":
            yield header, lines
            header, lines = None, []
        else:
            lines.append(line)
    yield None, lines


class _PolledLibrary(KernelLibrary):
    """Machine code whose loops poll."""

    launch: str
    offset: int
    _codegen: Any
    _final_module: Any
    _keeps_order = False
    """Whether LLVM must not reorder the instructions again."""

    def _optimize_final_module(self) -> None:
        super()._optimize_final_module()
        self._narrow_loads()
        self._sink_instructions()
        features = processor().features
        text = str(self._final_module)
        if has_only_avx2(features) and may_have_chains(text):
            text = self._in_turns() or text
        text = with_fewer_instructions(text, features)
        self._replace(with_polls(text, self.launch, self.offset))

    def _replace(self, text: str) -> None:
        name = self._final_module.name
        self._final_module = llvm.parse_assembly(text)
        self._final_module.name = name

    def _narrow_loads(self) -> None:
        """Load no more lanes from the stack than are used; keep what can be in registers."""
        text = with_narrow_loads(str(self._final_module))
        if text is None:
            return
        self._replace(text)
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        self._run(passes)

    def _sink_instructions(self) -> None:
        """Move instructions behind the branches of which only some need them.

        LLVM's pipeline moves those that one block uses. A mask of lanes is written before the
        branches that skip the code for some lanes, and several blocks of this code use it.
        """
        passes = llvm.create_new_module_pass_manager()
        passes.add_sinking_pass()
        self._run(passes)

    def _in_turns(self) -> str | None:
        """Return the module with chains of operations in turns; None if it has none."""
        passes = llvm.create_new_module_pass_manager()
        passes.add_instruction_namer_pass()
        self._run(passes)
        text = with_chains_in_turns(str(self._final_module))
        self._keeps_order = text is not None
        return text

    def _run(self, passes: Any) -> None:
        options = llvm.create_pipeline_tuning_options(2)
        passes.run(self._final_module, llvm.create_pass_builder(self._codegen._tm, options))

    def _finalize_specific(self) -> None:
        if not self._keeps_order:
            super()._finalize_specific()
            return
        # An option of the process: code that another thread compiles meanwhile keeps its order,
        # too, and computes the same.
        llvm.set_option("nbrt", "-enable-misched=false")
        try:
            super()._finalize_specific()
        finally:
            llvm.set_option("nbrt", "-enable-misched=true")


@register_pass(mutates_CFG=False, analysis_only=True)
class _UsePolledLibrary(LoweringPass):
    """Use a library whose loops poll."""

    _name = "nbrt_simt_polled_library"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        library = _PolledLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        library.launch = f"%arg.{state.func_id.arg_names[0]}"
        library.offset = state.pipeline.stop_offset
        library.enable_object_caching()
        state.library = library
        return False


class _PolledCompiler(CompilerBase):
    """Compiles an entry function."""

    stop_offset: int

    def define_pipelines(self) -> list[Any]:
        """Return Numba's passes, with a library that polls."""
        passes = kernel_passes(self.state, "nbrt_simt_entry")
        passes.add_pass_after(_UsePolledLibrary, CheckLegality)
        passes.finalize()
        return [passes]


def polled_compiler(launch: type[ctypes.Structure]) -> type[CompilerBase]:
    """Return the compiler of entry functions, whose first argument is the address of a launch.

    Parameters
    ----------
    launch : ctypes structure
        The type of the launch; its field ``stop`` is the stop word.
    """
    stop_offset = getattr(launch, _STOP_FIELD).offset
    return type("PolledCompiler", (_PolledCompiler,), {"stop_offset": stop_offset})
