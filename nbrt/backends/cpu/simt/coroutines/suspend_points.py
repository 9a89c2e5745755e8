"""What a thread can wait for, and where in its code it does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.placeholders import (
    ACTIVEMASK,
    BARRIER,
    GRID_SYNC,
    MATCH,
    SHUFFLE,
    VOTE,
    WARP_SYNC,
    YIELD,
    is_marker,
)

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.llvm.model import Function, Instruction

__all__ = ["KINDS", "WARP_OPERATIONS", "calls_marker", "operation", "waits"]

WARP_OPERATIONS = (
    WARP_SYNC,
    *(SHUFFLE + mode for mode in ("idx", "up", "down", "xor")),
    *(VOTE + kind for kind in ("all", "any", "eq", "ballot")),
    *(MATCH + kind for kind in ("any", "all")),
    ACTIVEMASK,
)

KINDS: dict[str, int] = {
    BARRIER: 1,
    BARRIER + ".count": 1,
    BARRIER + ".and": 1,
    BARRIER + ".or": 1,
    GRID_SYNC: 2,
    YIELD: 3,
    **{name: 4 + index for index, name in enumerate(WARP_OPERATIONS)},
}
"""By operation, the number in a thread's state: ``record.ll`` says which are whose."""


def operation(instruction: Instruction) -> str:
    """Give the name of a marker that is called, without the width of its values."""
    return re.sub(r"\.i\d+$", "", instruction.detail)


def calls_marker(instruction: Instruction) -> bool:
    """Tell whether an instruction calls a marker."""
    return instruction.opcode == "call" and is_marker(instruction.detail)


def waits(function: Function) -> list[Instruction]:
    """List the instructions at which a thread waits, in the order of the code."""
    return [
        instruction
        for _, instruction in function.instructions()
        if calls_marker(instruction) and operation(instruction) in KINDS
    ]
