"""Which threads share a vector: consecutive ones, in *groups* of as many as it has lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.placeholders import WARP_SIZE

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.llvm.model import Function

__all__ = ["Geometry", "choose_geometry", "widest"]

_FEW = 16

Block = tuple[int, int, int]


@dataclass(frozen=True)
class Geometry:
    """How the threads of a block are laid out over vectors."""

    block: Block
    width: int
    """Lanes of a vector."""

    by_rows: bool
    """Groups are parts of rows: y and z are the same in all lanes, x counts up by one. Otherwise
    groups are parts of the order of all threads, x fastest."""

    @property
    def per_row(self) -> int:
        """Groups in a row."""
        return -(-self.block[0] // self.width)

    @property
    def groups(self) -> int:
        """Groups in a block."""
        width, height, depth = self.block
        if self.by_rows:
            return self.per_row * height * depth
        return -(-width * height * depth // self.width)

    @property
    def tail(self) -> int:
        """Threads in the last group of a row (or of the block), 0 if all groups are full."""
        width, height, depth = self.block
        return (width if self.by_rows else width * height * depth) % self.width


def widest(function: Function, *, cooperates: bool) -> int:
    """Choose how many lanes are worth having.

    Measured on AVX2: for work with barriers, whose loops over groups cost, four registers to a
    value (a scan took 1.3 ms with two, 0.94 ms with four); two where a few threads do much of it
    (a reduction 0.44 ms with four, 0.39 ms with two), and in loops that keep many values in
    registers (the Mandelbrot set).

    Parameters
    ----------
    function : Function
        One thread.
    cooperates : bool
        Whether threads wait for each other, or share memory.
    """
    wide = sum(item.type == "double" for _, item in function.instructions())
    narrow = sum(item.type in ("float", "i8", "half") for _, item in function.instructions())
    in_two_registers = 8 if wide > narrow else 16
    return 2 * in_two_registers if cooperates and not _left_to_few(function) else in_two_registers


def _left_to_few(function: Function) -> bool:
    """Whether there is much that only the first few threads do, as at the end of a reduction."""
    tests = {item.name: item for _, item in function.instructions() if item.opcode == "icmp"}
    found = 0
    for block in function.blocks.values():
        branch = block.terminator
        test = tests.get(branch.operands[0].text) if len(branch.labels) > 1 else None
        if test is None or not test.operands[1].text.isdigit():
            continue
        if not 1 < int(test.operands[1].text) <= _FEW:
            continue
        # The arm for the few, and where it meets the others.
        arm, meet = branch.labels if test.detail in ("ult", "slt") else branch.labels[::-1]
        is_for_few = test.detail in ("ult", "slt", "ugt", "sgt")
        found += is_for_few and meet in function.blocks[arm].successors
    return found > 1


def choose_geometry(block: Block, widest: int, *, warps: bool) -> Geometry:
    """Choose the lanes for a block shape.

    Parameters
    ----------
    block : tuple of int
        Threads along x, y and z.
    widest : int
        Most lanes worth having.
    warps : bool
        Whether the lanes must be those of a warp, because threads of a warp talk to each other.
    """
    width, height, depth = block
    one_row = height * depth == 1
    if warps:
        return Geometry(block, WARP_SIZE, by_rows=one_row or width % WARP_SIZE == 0)
    if one_row:
        lanes = widest
        while lanes >= 2 * width and lanes > 1:
            lanes //= 2
        return Geometry(block, lanes, by_rows=True)
    lanes = widest
    while width % lanes:
        lanes //= 2
    if lanes >= 4:
        return Geometry(block, lanes, by_rows=True)
    return Geometry(block, widest, by_rows=False)
