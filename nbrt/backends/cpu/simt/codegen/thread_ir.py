"""The LLVM IR of one thread, from which the lowerings of a block start.

The functions that the thread calls are linked in, and the ranges of its indices are annotated. Then
LLVM's scalar passes run: inlining, promotion of memory to registers, constant folding, unrolling of
short loops. Vectorisation is left to the lowering.
"""

from __future__ import annotations

import re
from typing import Any

import llvmlite.binding as llvm

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.llvm.model import THREAD_PARAMETERS, ThreadIR
from nbrt.backends.cpu.simt.llvm.parse import split_list
from nbrt.backends.cpu.simt.processor import processor

__all__ = [
    "inlined_module",
    "prepared_text",
    "simplified",
    "simplified_thread",
    "target_machine",
    "thread_code",
    "tidy",
]

_MARKER = re.compile(r'^declare ([^@\n]*@"?(nbrt\.[^("\n]+)"?\([^)\n]*\)).*$', re.MULTILINE)
_OWN = re.compile(r"^(define linkonce_odr [^\n]*)\{$", re.MULTILINE)
_NEVER_INLINED = re.compile(r"^attributes (#\d+) = \{[^}]*\bnoinline\b", re.MULTILINE)
_PLACE = re.compile(
    rf'^define [^@\n]*(@"?{re.escape(placeholders.PLACE)}[0-9a-f]+"?)\(\)[^\n]*\{{.*?^\}}$',
    re.MULTILINE | re.DOTALL,
)
_NOTHING = re.compile(r'^ *(?:tail )?call void asm sideeffect "", ""\(\)[^\n]*\n', re.MULTILINE)
"""Nothing, with an effect that LLVM has to assume: it makes two loops of one (`ranges`)."""
_UNIFORM = "nounwind willreturn speculatable memory(none)"
_WARP = "convergent nounwind willreturn memory(inaccessiblemem: readwrite)"
_WAITING = "convergent nounwind"
_GRID_LIMIT = 2**31 - 1


def thread_code(
    library: Any, name: str, block: tuple[int, int, int], *, places: bool = False
) -> ThreadIR:
    """Return the optimised LLVM IR of one thread from Numba's library.

    Parameters
    ----------
    library : numba CodeLibrary
        The thread's, not optimised.
    name : str
        Symbol of its function.
    block : tuple of int
        Threads of a block along x, y and z.
    places : bool
        Keep the markers of source locations; loops with one then read memory in every iteration.
    """
    text = prepared_text(library, name, block, places=places)
    return ThreadIR(simplified(inlined_module(text), name), name, block)


def simplified_thread(code: ThreadIR) -> ThreadIR:
    """Return a thread whose module LLVM has optimised again."""
    text = simplified(llvm.parse_assembly(code.module), code.name)
    return ThreadIR(text, code.name, code.block)


def _with_inlining(text: str) -> str:
    """Mark the functions of Numba as always inlined."""
    # Those of reference counts are marked as never inlined, which excludes the other attribute.
    never = {f" {group}" for group in _NEVER_INLINED.findall(text)}

    def inlined(match: re.Match[str]) -> str:
        if "nbrt_atomic" in match[0]:
            return match[0]  # not inlined: a loop that lanes run one by one
        head = match[1].rstrip()
        for group in never:
            head = head.removesuffix(group)
        return f"{head} alwaysinline {{"

    return _OWN.sub(inlined, text)


def _attributes(symbol: str) -> str:
    if symbol.startswith(placeholders.SHARED):
        return _UNIFORM
    if symbol.startswith(
        (placeholders.SHUFFLE, placeholders.VOTE, placeholders.MATCH, placeholders.ACTIVEMASK)
    ):
        return _WARP
    return _WAITING


def _defined(line: str, block: tuple[int, int, int]) -> str:
    """Export the thread's function, and annotate the ranges of its indices."""
    head, _, rest = line.partition("(")
    inside, bracket, tail = rest.rpartition(")")
    while bracket and inside.count("(") != inside.count(")"):
        inside, bracket, more = inside.rpartition(")")
        tail = f"{more}){tail}"
    parameters = split_list(inside)
    ranges = [*((0, extent) for extent in block), *[(0, _GRID_LIMIT)] * 3, *[(1, _GRID_LIMIT)] * 3]
    for position, (least, end) in enumerate(ranges, start=THREAD_PARAMETERS):
        kind, _, name = parameters[position].partition(" ")
        parameters[position] = f"{kind} noundef range(i32 {least}, {end}) {name}"
    symbol = head[head.index("@") :]
    return f"define i32 {symbol}({', '.join(parameters)}){tail}"


def prepared_text(
    library: Any, name: str, block: tuple[int, int, int], *, places: bool = False
) -> str:
    """Return the module of a thread, with the attributes of markers and ranges of indices."""
    text = _NOTHING.sub("", str(library._get_module_for_linking()))
    if places:
        text = _PLACE.sub(r"declare void \1() convergent nounwind", text)
    text = _with_inlining(text)
    text = _MARKER.sub(lambda match: f"declare {match[1]} {_attributes(match[2])}", text)
    return re.sub(
        rf'^define [^@\n]*@"?{re.escape(name)}"?\(.*$',
        lambda match: _defined(match[0], block),
        text,
        flags=re.MULTILINE,
    )


def inlined_module(text: str) -> Any:
    """Return a module in which the functions of a thread are inlined."""
    module = llvm.parse_assembly(text)
    builder = llvm.create_pass_builder(target_machine(), llvm.create_pipeline_tuning_options(2))
    inline = llvm.create_new_module_pass_manager()
    inline.add_always_inliner_pass()
    inline.add_global_dead_code_eliminate_pass()
    inline.run(module, builder)
    return module


def simplified(module: Any, name: str) -> str:
    """Return the text of a module after LLVM's scalar passes."""
    builder = llvm.create_pass_builder(target_machine(), llvm.create_pipeline_tuning_options(2))
    # The function passes unroll loops of known length. Further unrolling and vectors follow when
    # lanes are known.
    builder.getFunctionPassManager().run(module.get_function(name), builder)
    tidy(module, builder)
    return str(module)


def tidy(module: Any, builder: Any) -> None:
    """Bring the loops and names of a module into the form that lowerings require."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_lower_switch_pass()
    passes.add_simplify_cfg_pass()
    passes.add_lower_switch_pass()
    passes.add_loop_simplify_pass()
    passes.add_lcssa_pass()
    passes.add_instruction_namer_pass()
    passes.run(module, builder)


_machines: list[Any] = []


def target_machine() -> Any:
    """Return the target machine of the CPU that kernels compile for."""
    if not _machines:
        target = llvm.Target.from_default_triple()
        cpu = processor()
        _machines.append(
            target.create_target_machine(cpu=cpu.name, features=cpu.features, opt=2, jit=True)
        )
    return _machines[0]
