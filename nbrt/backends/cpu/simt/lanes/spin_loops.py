"""Loops that wait for another thread: lanes in step would wait for themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.llvm.errors import CannotLowerError

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.divergence import Shapes
    from nbrt.backends.cpu.simt.llvm.graph import Level
    from nbrt.backends.cpu.simt.llvm.model import Function, Instruction

__all__ = ["check_spins"]

_ATOMIC = ("atomicrmw", "cmpxchg")


def check_spins(function: Function, shapes: Shapes) -> None:
    """Check that no loop waits for a lock or a flag.

    Such a loop repeats an atomic operation with the same operands until the result changes; one
    that retries with what it has just read (a maximum by compare-and-swap) gets on by itself.

    Raises
    ------
    CannotLowerError
        If one does: the lane that holds the lock would wait for those that want it.
    """
    for level in shapes.levels[1:]:
        for item in _decisive(function, shapes, level):
            if item.opcode in _ATOMIC and not _changes(item, function, level):
                raise CannotLowerError("a loop waits for other threads (a lock or a flag)")


def _decisive(function: Function, shapes: Shapes, level: Level) -> list[Instruction]:
    """Give the instructions of a loop that decide on leaving it."""
    home = {i.name: b.label for b, i in function.instructions() if i.name}
    pending = [
        operand.text
        for label in level.blocks
        for operand in function.blocks[label].terminator.operands
        if set(function.blocks[label].successors) - level.blocks
    ]
    found: dict[str, Instruction] = {}
    while pending:
        name = pending.pop()
        if home.get(name) in level.blocks and name not in found:
            found[name] = shapes.definitions[name]
            pending += [operand.text for operand in found[name].operands]
    return list(found.values())


def _changes(item: Instruction, function: Function, level: Level) -> bool:
    """Whether an operand other than the address is new in each turn."""
    inside = {i.name for label in level.blocks for i in function.blocks[label].instructions}
    return any(operand.text in inside for operand in item.operands[1:] if operand.is_local)
