"""The LLVM IR of one thread whose local arrays become vector registers.

A thread of a matrix product that computes a tile of the result fills the registers with its own
elements: 8 x 8 sums are eight vectors of AVX2. Several threads in lanes would not fit. Therefore
the loops over local arrays are vectorised here, before the lowering, and the lowering runs the
threads of a region one after the other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm

from nbrt.backends.cpu.simt.codegen.thread_ir import (
    inlined_module,
    prepared_text,
    simplified,
    target_machine,
    tidy,
)
from nbrt.backends.cpu.simt.llvm.graph import find_loops
from nbrt.backends.cpu.simt.llvm.model import NotReducibleError, ThreadIR
from nbrt.backends.cpu.simt.llvm.parse import parse_function

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.llvm.model import Function, Instruction

__all__ = ["merge_accesses", "tiled_thread_code"]

_LOCAL_ARRAY = re.compile(
    r"= alloca (?:\[(\d+) x (?:float|double|half|i\d+)\]|(?:float|double|half|i\d+), i\d+ (\d+))"
)
_VECTOR_PHI = re.compile(r"= phi <\d+ x (?:float|double|half|i\d\d)>")
_LOOP = re.compile(r", !llvm\.loop !\d+")
_MIN_TILE = 16
"""Elements of local arrays that, for each lane of a vector, need more than all registers."""
_FIRST_NODE = 1 << 20
"""Number of the first metadata that is added; the module's own begin at 0."""


def tiled_thread_code(library: Any, name: str, block: tuple[int, int, int]) -> ThreadIR | None:
    """Return the LLVM IR of one thread, vectorised, if local arrays become vector registers in it.

    That is: local arrays of at least `_MIN_TILE` elements are no longer in memory, and a loop
    keeps vectors in registers.

    Parameters
    ----------
    library : numba CodeLibrary
        The thread's, not optimised.
    name : str
        Symbol of its function.
    block : tuple of int
        Threads of a block along x, y and z.
    """
    text = prepared_text(library, name, block)
    if _elements_in(text) < _MIN_TILE:
        return None
    module = inlined_module(text)
    # LLVM would unroll loops over tiles before it vectorises them, and then not vectorise them.
    options = llvm.create_pipeline_tuning_options(3)
    options.loop_vectorization, options.loop_unrolling = True, False
    options.loop_interleaving = options.slp_vectorization = False
    builder = llvm.create_pass_builder(target_machine(), options)
    builder.getModulePassManager().run(module, builder)
    tidy(module, builder)
    vectorised = str(module)
    before = _elements_in(vectorised)
    if before < _MIN_TILE:
        return None
    module = llvm.parse_assembly(_with_unrolling(vectorised, name))
    simplified(module, name)
    found = simplified(module, name)  # promotes the arrays whose indices are constant now
    is_tiled = before - _elements_in(found) >= _MIN_TILE and _VECTOR_PHI.search(found) is not None
    return ThreadIR(found, name, block) if is_tiled else None


def merge_accesses(module: Any) -> None:
    """Merge accesses of one thread to neighbouring elements, such as copies of tiles, to vectors.

    Parameters
    ----------
    module : llvmlite ModuleRef
        The block function, in which shared arrays are on the stack: LLVM knows that no argument
        points to them.
    """
    options = llvm.create_pipeline_tuning_options(3)
    options.slp_vectorization, options.loop_vectorization = True, False
    builder = llvm.create_pass_builder(target_machine(), options)
    builder.getModulePassManager().run(module, builder)


def _elements_in(text: str) -> int:
    """Return the number of elements of the local arrays in LLVM text."""
    return sum(int(long or count) for long, count in _LOCAL_ARRAY.findall(text))


def _with_unrolling(text: str, name: str) -> str:
    """Demand that loops over elements of local arrays are unrolled, so that no index varies.

    LLVM does so where it knows the number of iterations. The loops around them stay: threads run
    them together.
    """
    function = parse_function(text, name)
    try:
        loops = find_loops(
            function.entry, function.blocks, lambda label: function.blocks[label].successors
        )
    except NotReducibleError:
        return text
    chosen = _headers_of_indices(function) & loops.keys()
    around = {header for header, loop in loops.items() if chosen & (loop.blocks - {header})}
    latches = {
        latch: _FIRST_NODE + (header not in chosen)
        for header in chosen | around
        for latch in loops[header].latches
    }
    lines, label = text.splitlines(), ""
    nodes = [
        f'!{_FIRST_NODE + number} = !{{!"llvm.loop.unroll.{mode}"}}'
        for number, mode in enumerate(("full", "disable"))
    ]
    begin = next(i for i, line in enumerate(lines) if line.startswith("define") and name in line)
    for position in range(begin + 1, lines.index("}", begin)):
        line = lines[position]
        if line and not line.startswith(" "):
            label = f"%{line.partition(':')[0]}"
        elif label in latches and line.startswith("  br "):
            node = f"!{_FIRST_NODE + len(nodes)}"
            nodes.append(f"{node} = distinct !{{{node}, !{latches[label]}}}")
            lines[position] = f"{_LOOP.sub('', line)}, !llvm.loop {node}"
    return "\n".join([*lines, *nodes]) + "\n"


def _headers_of_indices(function: Function) -> set[str]:
    """Return the blocks of the phis that indices of local arrays are computed from."""
    items = {item.name: item for _, item in function.instructions() if item.name}
    home = {item.name: block.label for block, item in function.instructions() if item.name}
    headers: set[str] = set()
    for item in items.values():
        if item.opcode == "getelementptr" and _is_local(items.get(item.operands[0].text), items):
            indices = [o.text for o in item.operands[1:] if o.is_local]
            headers |= {home[phi] for phi in _phis_behind(indices, items)}
    return headers


def _is_local(item: Instruction | None, items: dict[str, Instruction]) -> bool:
    """Return whether an instruction is the address of a local array, or of a part of one."""
    while item is not None and item.opcode == "getelementptr":
        item = items.get(item.operands[0].text)
    return item is not None and item.opcode == "alloca"


def _phis_behind(names: list[str], items: dict[str, Instruction]) -> set[str]:
    """Return the phis that values are computed from without other phis in between."""
    phis: set[str] = set()
    seen: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in seen or name not in items:
            continue
        seen.add(name)
        if items[name].opcode == "phi":
            phis.add(name)
        else:
            pending += [operand.text for operand in items[name].operands if operand.is_local]
    return phis
