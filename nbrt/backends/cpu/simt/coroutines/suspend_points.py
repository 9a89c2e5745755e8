"""The points of a thread's code at which it suspends, and the operations it waits for."""

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
"""Operation -> its number in a thread's state; see ``record.ll``."""


def operation(instruction: Instruction) -> str:
    """Return the name of the marker that an instruction calls, without the width of its values."""
    return re.sub(r"\.i\d+$", "", instruction.detail)


def calls_marker(instruction: Instruction) -> bool:
    """Return whether an instruction calls a marker."""
    return instruction.opcode == "call" and is_marker(instruction.detail)


def waits(function: Function) -> list[Instruction]:
    """Return the instructions at which a thread waits, in the order of the code."""
    return [
        instruction
        for _, instruction in function.instructions()
        if calls_marker(instruction) and operation(instruction) in KINDS
    ]
