"""Grid-stride loops turned inside out: all groups make a turn before any makes the next.

Threads of a block that each jump through memory by the size of the grid read neighbours of each
other in every turn. Group after group, each going through all its turns, the same cache lines are
come back to from far away; turn after turn they are read in order. Threads between two barriers may
run in any order, so this needs no proof about memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.lanes.divergence import VARYING

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.divergence import Shapes
    from nbrt.backends.cpu.simt.lanes.regions import Cut
    from nbrt.backends.cpu.simt.llvm.graph import Loop
    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["find_turns", "turn_of"]

_MAX_CARRIED = 2
"""Most vectors that a turn hands on to the next: they go through memory."""


def turn_of(name: str) -> str:
    """Name what a phi of the header is in a turn's beginning."""
    return f'%"{name[1:].strip(chr(34))}@turn"'


def find_turns(made: Cut, shapes: Shapes, threads: int) -> list[str]:
    """Give the headers of the loops to be turned inside out.

    Parameters
    ----------
    made : Cut
        The thread, cut at its barriers.
    shapes : Shapes
        What is known of its values.
    threads : int
        Threads of the block: a stride of fewer is no grid's.
    """
    return [
        loop.header
        for loop in shapes.levels[0].loops.values()
        if loop.header in shapes.parting and _is_grid_stride(made, shapes, loop, threads)
    ]


def _is_grid_stride(made: Cut, shapes: Shapes, loop: Loop, threads: int) -> bool:
    if any(made.is_at_barrier(block) for block in loop.blocks) or _meets_warps(made, loop):
        return False
    phis = made.function.blocks[loop.header].phis
    carried = sum(shapes.of[phi.name] is VARYING for phi in phis)
    strides = any(_strides(phi, shapes, loop, threads) for phi in phis)
    return strides and carried <= _MAX_CARRIED and _loads(made, shapes, loop)


def _meets_warps(made: Cut, loop: Loop) -> bool:
    """Whether lanes talk to each other before the next barrier: those that have left would wait."""
    seen = set(loop.blocks)
    pending = list(loop.blocks)
    while pending:
        for target in made.successors(pending.pop()):
            if target in made.function.blocks and target not in seen:
                seen.add(target)
                pending.append(target)
    return any(
        item.opcode == "call" and item.detail.startswith(placeholders.WARP_OPERATIONS)
        for label in seen
        for item in made.function.blocks[label].instructions
    )


def _strides(phi: Instruction, shapes: Shapes, loop: Loop, threads: int) -> bool:
    """Whether a phi counts lanes one by one, and turns by at least the size of the block."""
    if shapes.of[phi.name] != 1:
        return False
    for operand, label in zip(phi.operands, phi.labels, strict=True):
        advance = shapes.definitions.get(operand.text)
        if label not in loop.blocks or advance is None or advance.opcode != "add":
            continue
        for step in advance.operands:
            if step.is_local and shapes[step] == 0:
                return True
            if not step.is_local and int(step.text) >= threads:
                return True
    return False


def _loads(made: Cut, shapes: Shapes, loop: Loop) -> bool:
    """Whether the loop reads memory at places that count with the lanes."""
    return any(
        item.opcode == "load" and shapes[item.operands[0]] != 0
        for block in loop.blocks
        for item in made.function.blocks[block].instructions
    )
