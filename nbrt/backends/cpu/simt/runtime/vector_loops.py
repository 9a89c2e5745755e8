"""The innermost loops of optimised LLVM IR, and their vector widths."""

from __future__ import annotations

import re

from nbrt.backends.cpu.simt.llvm.text import FunctionText
from nbrt.backends.inspection import Loop

__all__ = ["innermost_loops"]

_FUNCTION = re.compile(r"^define [^\n]*\{[^\n]*\n(.*?)^\}", re.M | re.S)
_VECTOR = re.compile(r"<(\d+) x ([\w.]+)>")
_CALL = re.compile(r"\bcall\b[^@\n]*@\"?([\w$.]+)")
_LOOP_METADATA = re.compile(r"!llvm\.loop (!\d+)")
_NODE = re.compile(r"^(!\d+) = (?:distinct )?!\{([^\n]*)\}$", re.M)
_VECTORISED = '!"llvm.loop.isvectorized"'


def innermost_loops(module: str) -> tuple[Loop, ...]:
    """Return the loops without inner loops, in the order of the text.

    Loops for the remainder of a vector loop are left out.

    Parameters
    ----------
    module : str
        LLVM IR after optimisation.
    """
    innermost: list[Loop] = []
    nodes = dict(_NODE.findall(module))
    for match in _FUNCTION.finditer(module):
        function = FunctionText(match[1].splitlines())
        loops = function.loops()
        for label in function.blocks:
            if label not in loops or any(h in loops[label].blocks for h in loops if h != label):
                continue
            depth = sum(label in outer.blocks for outer in loops.values())
            inside = [b for b in function.blocks.values() if b.label in loops[label].blocks]
            lines = [line for block in inside for line in block.lines]
            loop = _described(label.strip('"'), depth, lines)
            if not _is_remainder(loop, lines, nodes):
                innermost.append(loop)
    return tuple(innermost)


def _is_remainder(loop: Loop, lines: list[str], nodes: dict[str, str]) -> bool:
    if loop.lanes > 1:
        return loop.block.startswith("vec.epilog.")
    operands = [nodes.get(name, "") for line in lines for name in _LOOP_METADATA.findall(line)]
    named = [name for text in operands for name in re.findall(r"!\d+", text)]
    return any(_VECTORISED in nodes.get(name, "") for name in named)


def _described(label: str, depth: int, lines: list[str]) -> Loop:
    vectors = [(int(n), element) for line in lines for n, element in _VECTOR.findall(line)]
    # i1 vectors are masks: as wide as the loop, and no type of its data.
    data = [vector for vector in vectors if vector[1] != "i1"] or vectors
    lanes, element = max(data, key=lambda vector: vector[0]) if data else (1, "")
    calls = {name for line in lines for name in _CALL.findall(line) if not name.startswith("llvm.")}
    return Loop(label, depth, lanes, element, tuple(sorted(calls)))
