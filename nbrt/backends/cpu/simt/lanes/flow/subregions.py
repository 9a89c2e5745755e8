"""Parts of a region with one entry, and tests of what writing them for some lanes costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.backends.cpu.simt.lanes.instructions import Instructions
    from nbrt.backends.cpu.simt.llvm.graph import Level
    from nbrt.backends.cpu.simt.llvm.model import BasicBlock, Instruction

__all__ = ["Subregion", "SubregionTests", "addresses_in"]

_CHEAP = frozenset(
    (
        *("add", "sub", "mul", "shl", "lshr", "ashr", "and", "or", "xor"),
        *("fadd", "fsub", "fmul", "fneg", "icmp", "fcmp", "select"),
        *("zext", "sext", "trunc", "getelementptr", "freeze", "phi", "br"),
    )
)
_MAX_CHEAP_LENGTH = 8


class Subregion(NamedTuple):
    """Nodes of a level with one entry."""

    level: Level
    entry: str
    nodes: set[str]
    begin: int = 0
    """Instructions of the entry that are written already, with its phis."""


def addresses_in(blocks: Mapping[str, BasicBlock], level: Level, node: str) -> frozenset[str]:
    """Return the addresses that a block loads from or stores to; none for a loop."""
    if node in level.loops:
        return frozenset()
    return frozenset(
        item.operands[item.opcode == "store"].text
        for item in blocks[node].instructions
        if item.opcode in ("load", "store")
    )


class SubregionTests:
    """Tests of subregions of a region with the given blocks."""

    def __init__(self, blocks: Mapping[str, BasicBlock], instructions: Instructions) -> None:
        self._blocks = blocks
        self._instructions = instructions

    def is_cheap(self, part: Subregion, accessed: frozenset[str]) -> bool:
        """Return whether computing a subregion costs less than a jump that skips it.

        A store without active lanes writes back what is there. It must not access other memory than
        its active lanes would: its address is one of those that the lanes have `accessed`.
        """
        if any(node in part.level.loops for node in part.nodes):
            return False
        items = [item for node in part.nodes for item in self._blocks[node].instructions]
        return len(items) <= _MAX_CHEAP_LENGTH and all(
            item.opcode in _CHEAP or self._is_cheap_store(item, accessed) for item in items
        )

    def _is_cheap_store(self, item: Instruction, accessed: frozenset[str]) -> bool:
        return (
            item.opcode == "store"
            and item.operands[1].text in accessed
            and self._instructions.is_written_in_runs(item)
        )

    def uses_memory(self, part: Subregion) -> bool:
        """Return whether a subregion accesses memory."""
        return any(
            item.opcode in ("load", "store", "atomicrmw", "call")
            for block in part.level.blocks_of(part.nodes)
            for item in self._blocks[block].instructions
        )
