"""Loops that are faster thread by thread: of loaded length, with loads of neighbouring elements.

In ``for i in range(offsets[row], offsets[row + 1]): total += values[i]`` a thread loads
neighbouring elements, and the processor overlaps the loops of successive threads. In lanes each
load is a gather, and all lanes run as many iterations as the longest row has. A loop whose length
follows from the index of the thread (``for j in range(i)``) has about the same length in all lanes,
so it is none of these; nor is a search, which reads the place of its next load.

Measured with one AVX2 core, rows of random length up to 32: lanes took 2.2 times as long for a
sparse product, 1.8 times for sums of squares, 1.2 times with nine operations an element; with rows
of nearly the same length from 0.4 to 0.9 times. A binary search takes 5.7 times as long by threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.analysis.divergence import VARYING, address_stride
from nbrt.backends.cpu.simt.llvm.types import size_of

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.analysis.divergence import Divergence
    from nbrt.backends.cpu.simt.llvm.graph import Level
    from nbrt.backends.cpu.simt.llvm.model import Function, Instruction, Operand

__all__ = ["runs_irregular_loops"]

_MAX_DEPTH = 16
_MAX_OPERATIONS = 16
"""Floating-point operations for each load up to which lanes take longer."""


def runs_irregular_loops(function: Function, divergence: Divergence) -> bool:
    """Return whether all loops that lanes leave at different times are of this kind."""
    loops = [level for level in divergence.levels if level.root in divergence.divergent_loops]
    return bool(loops) and all(_Loop(function, divergence, loop).is_irregular for loop in loops)


class _Loop:
    """One loop of a thread."""

    def __init__(self, function: Function, divergence: Divergence, level: Level) -> None:
        self._divergence = divergence
        self._definitions = divergence.definitions
        self._blocks = [function.blocks[label] for label in level.blocks]
        self._level = level
        self._inside = {i.name: i for b in self._blocks for i in b.instructions if i.name}

    @property
    def is_irregular(self) -> bool:
        """Whether the number of iterations is loaded, and a load steps through memory."""
        if self._level.loops or not self._leaves_by_count():
            return False
        items = [item for block in self._blocks for item in block.instructions]
        loads = [i for i in items if i.opcode == "load" and self._divergence[i.operands[0]] != 0]
        work = sum(item.opcode in ("fadd", "fsub", "fmul", "fdiv", "call") for item in items)
        return any(map(self._steps, loads)) and work <= _MAX_OPERATIONS * len(loads)

    def _leaves_by_count(self) -> bool:
        """Return whether lanes diverge at a test of a counter only, with a limit that is data."""
        tests = []
        for block in self._blocks:
            branch = block.terminator
            if len(branch.labels) > 1 and self._divergence[branch.operands[0]] != 0:
                if all(label in self._level.blocks for label in branch.labels):
                    return False
                tests.append(self._inside.get(branch.operands[0].text))
        if len(tests) != 1 or tests[0] is None or tests[0].opcode != "icmp":
            return False
        sides = tests[0].operands
        counts = [self._advance(side) for side in sides]
        return (
            None not in counts and any(counts) and any(self._is_data(side.text) for side in sides)
        )

    def _steps(self, load: Instruction) -> bool:
        """Return whether a load accesses neighbouring elements in successive iterations."""
        return abs(self._advance(load.operands[0]) or 0) == size_of(load.type)

    def _advance(self, operand: Operand, depth: int = _MAX_DEPTH) -> int | None:
        """Return by how much a value grows in each iteration; None: this is not known."""
        item = self._inside.get(operand.text)
        if item is None:
            return 0
        if depth == 0:
            return None
        if item.opcode == "phi":
            return self._step_of(item)
        if item.opcode == "select":  # of an offset, such as that of a negative index
            known = {self._advance(o, depth - 1) for o in item.operands[1:]}
            return known.pop() if len(known) == 1 else None
        steps = [self._advance(o, depth - 1) for o in item.operands]
        if item.opcode == "getelementptr":
            return address_stride(item, steps)
        if item.opcode in ("sext", "zext", "trunc", "freeze"):
            return steps[0]
        if item.opcode in ("add", "sub") and steps[0] is not None and steps[1] is not None:
            return steps[0] + (steps[1] if item.opcode == "add" else -steps[1])
        return None

    def _step_of(self, phi: Instruction) -> int | None:
        """Return the constant that a phi of the header grows by."""
        for operand, label in zip(phi.operands, phi.labels, strict=True):
            item = self._inside.get(operand.text)
            if label not in self._level.blocks:
                continue
            if item is None or item.opcode != "add" or item.operands[0].text != phi.name:
                return None
            step = item.operands[1].text
            return int(step) if step.lstrip("-").isdigit() else None
        return None

    def _is_data(self, name: str) -> bool:
        """Return whether a value is computed from one that differs between lanes and is loaded."""
        seen, pending = set[str](), [name]
        while pending:
            item = self._definitions.get(pending.pop())
            if item is None or item.name in seen:
                continue
            seen.add(item.name)
            if item.opcode == "load" and self._divergence.strides.get(item.name) is VARYING:
                return True
            if item.opcode != "load":
                pending += [operand.text for operand in item.operands if operand.is_local]
        return False
