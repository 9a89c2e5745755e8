"""Which loops of optimised LLVM IR are vectors, and how wide: read from the text of a module."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from nbrt.backends.inspection import Loop

__all__ = ["innermost_loops"]

_FUNCTION = re.compile(r"^define [^\n]*\{[^\n]*\n(.*?)^\}", re.M | re.S)
_LABEL = re.compile(r'^("[^"]*"|[\w$.-]+):')
_TARGET = re.compile(r'label %("[^"]*"|[\w$.-]+)')
_VECTOR = re.compile(r"<(\d+) x ([\w.]+)>")
_CALL = re.compile(r"\bcall\b[^@\n]*@\"?([\w$.]+)")
_LOOP_METADATA = re.compile(r"!llvm\.loop (!\d+)")
_NODE = re.compile(r"^(!\d+) = (?:distinct )?!\{([^\n]*)\}$", re.M)
_VECTORISED = '!"llvm.loop.isvectorized"'


@dataclass
class _Block:
    """A basic block: its instructions, and the blocks that may follow."""

    lines: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)


def innermost_loops(module: str) -> tuple[Loop, ...]:
    """Return the loops with no loop in them, in the order of the text.

    The loops that LLVM leaves behind a vector loop, for the elements that do not fill a vector,
    are no loops of their own.

    Parameters
    ----------
    module : str
        LLVM IR after optimisation.

    Returns
    -------
    tuple of Loop
        What each is made of.
    """
    found: list[Loop] = []
    nodes = dict(_NODE.findall(module))
    for match in _FUNCTION.finditer(module):
        blocks = _blocks(match[1])
        loops = _natural_loops(blocks)
        for head, body in loops.items():
            if not any(other in body for other in loops if other != head):
                depth = sum(head in around for around in loops.values())
                lines = [line for name in blocks if name in body for line in blocks[name].lines]
                loop = _described(head, depth, lines)
                if not _is_remainder(loop, lines, nodes):
                    found.append(loop)
    return tuple(found)


def _is_remainder(loop: Loop, lines: list[str], nodes: dict[str, str]) -> bool:
    if loop.lanes > 1:
        return loop.block.startswith("vec.epilog.")
    operands = [nodes.get(name, "") for line in lines for name in _LOOP_METADATA.findall(line)]
    named = [name for text in operands for name in re.findall(r"!\d+", text)]
    return any(_VECTORISED in nodes.get(name, "") for name in named)


def _blocks(text: str) -> dict[str, _Block]:
    current = _Block()
    blocks = {"": current}
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label:
            name = label[1].strip('"')
            if current is blocks[""] and not current.lines:
                current.targets.append(name)  # the first block has a label of its own
            current = blocks[name] = _Block()
        elif line.strip():
            current.lines.append(line)
            current.targets += [name.strip('"') for name in _TARGET.findall(line)]
    return blocks


def _natural_loops(blocks: dict[str, _Block]) -> dict[str, set[str]]:
    """Give the blocks of each loop by its head: a block that a path from itself leads back to."""
    before: dict[str, list[str]] = {name: [] for name in blocks}
    for name, block in blocks.items():
        for target in block.targets:
            before[target].append(name)
    loops: dict[str, set[str]] = {}
    for tail, head in _back_edges(blocks):
        body = loops.setdefault(head, {head})
        pending = [tail]
        while pending:
            name = pending.pop()
            if name not in body:
                body.add(name)
                pending += before[name]
    return {name: loops[name] for name in blocks if name in loops}


def _back_edges(blocks: dict[str, _Block]) -> list[tuple[str, str]]:
    """Find the edges to a block on the path that a depth-first walk has taken."""
    edges: list[tuple[str, str]] = []
    on_path: set[str] = set()
    seen = {""}
    stack = [("", iter(blocks[""].targets))]
    on_path.add("")
    while stack:
        name, targets = stack[-1]
        for target in targets:
            if target in on_path:
                edges.append((name, target))
            elif target not in seen:
                seen.add(target)
                on_path.add(target)
                stack.append((target, iter(blocks[target].targets)))
                break
        else:
            on_path.discard(name)
            stack.pop()
    return edges


def _described(head: str, depth: int, lines: list[str]) -> Loop:
    vectors = [(int(n), element) for line in lines for n, element in _VECTOR.findall(line)]
    # i1 vectors are masks: as wide as the loop, and no type of its data.
    data = [vector for vector in vectors if vector[1] != "i1"] or vectors
    lanes, element = max(data, key=lambda vector: vector[0]) if data else (1, "")
    calls = {name for line in lines for name in _CALL.findall(line) if not name.startswith("llvm.")}
    return Loop(head, depth, lanes, element, tuple(sorted(calls)))
