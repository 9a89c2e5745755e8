"""Interchange of grid-stride loops with the loop over groups.

In an iteration of a grid-stride loop, the threads of a block read neighbouring elements. If each
group ran all its iterations before the next group, each cache line would be revisited only after a
long reuse distance. After the interchange all groups run an iteration before any runs the next, and
memory is read in order. Threads may run in any order between two barriers, so the interchange needs
no proof about memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.lanes.analysis.divergence import VARYING
from nbrt.backends.cpu.simt.llvm.graph import reachable

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.analysis.divergence import Divergence
    from nbrt.backends.cpu.simt.lanes.analysis.regions import SplitThread
    from nbrt.backends.cpu.simt.llvm.graph import LoopInfo
    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["find_interchanges", "iteration_name"]

_MAX_CARRIED = 2
"""Maximum number of vectors carried between iterations, which are kept in memory."""


def iteration_name(name: str) -> str:
    """Return the name of a phi of the header at the start of an iteration."""
    return f'%"{name[1:].strip(chr(34))}@turn"'


def find_interchanges(thread: SplitThread, divergence: Divergence, threads: int) -> list[str]:
    """Return the headers of the loops to interchange.

    A stride smaller than `threads`, the size of a block, is no grid stride.
    """
    return [
        loop.header
        for loop in divergence.levels[0].loops.values()
        if loop.header in divergence.divergent_loops
        and _is_grid_stride(thread, divergence, loop, threads)
    ]


def _is_grid_stride(
    thread: SplitThread, divergence: Divergence, loop: LoopInfo, threads: int
) -> bool:
    if any(thread.is_at_barrier(block) for block in loop.blocks):
        return False
    if _precedes_warp_operations(thread, loop):
        return False
    phis = thread.function.blocks[loop.header].phis
    carried = sum(divergence.strides[phi.name] is VARYING for phi in phis)
    strides = any(_has_grid_step(phi, divergence, loop, threads) for phi in phis)
    return strides and carried <= _MAX_CARRIED and _loads(thread, divergence, loop)


def _precedes_warp_operations(thread: SplitThread, loop: LoopInfo) -> bool:
    """Return whether lanes that have left the loop would wait at a warp operation for others."""
    following = loop.blocks | reachable(loop.blocks, thread.inner_successors)
    return any(
        item.opcode == "call" and item.detail.startswith(placeholders.WARP_OPERATIONS)
        for label in following
        for item in thread.function.blocks[label].instructions
    )


def _has_grid_step(phi: Instruction, divergence: Divergence, loop: LoopInfo, threads: int) -> bool:
    """Return whether a phi has stride 1, and a step of at least the number of threads."""
    if divergence.strides[phi.name] != 1:
        return False
    for operand, label in zip(phi.operands, phi.labels, strict=True):
        advance = divergence.definitions.get(operand.text)
        if label not in loop.blocks or advance is None or advance.opcode != "add":
            continue
        for step in advance.operands:
            if step.is_local and divergence[step] == 0:
                return True
            if not step.is_local and int(step.text) >= threads:
                return True
    return False


def _loads(thread: SplitThread, divergence: Divergence, loop: LoopInfo) -> bool:
    """Return whether the loop loads from addresses that differ between lanes."""
    return any(
        item.opcode == "load" and divergence[item.operands[0]] != 0
        for block in loop.blocks
        for item in thread.function.blocks[block].instructions
    )
