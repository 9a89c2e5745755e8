"""The layout of threads in vectors: a *group* is as many consecutive threads as lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.placeholders import WARP_OPERATIONS, WARP_SIZE, WARP_SYNC

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.llvm.model import Function

__all__ = ["LaneLayout", "choose_lane_count", "choose_layout", "uses_warps"]

_MAX_FEW = 16

Block = tuple[int, int, int]


@dataclass(frozen=True)
class LaneLayout:
    """How the threads of a block are distributed over vectors."""

    block: Block
    width: int
    """Number of lanes."""

    by_rows: bool
    """Whether groups are parts of rows: y and z are uniform, x has stride 1. If not, they are parts
    of the sequence of all threads, x fastest."""

    @property
    def rows(self) -> int:
        """Whole rows in a group; 1 also if groups are no whole rows."""
        width = self.block[0]
        return self.width // width if 4 <= width < self.width and self.width % width == 0 else 1

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
        """Threads in the last group of a row (or of the block); 0 if all groups are full."""
        width, height, depth = self.block
        return (width if self.by_rows else width * height * depth) % self.width


def uses_warps(function: Function) -> bool:
    """Return whether a function has warp operations."""
    return any(
        item.opcode == "call" and item.detail.startswith((*WARP_OPERATIONS, WARP_SYNC))
        for _, item in function.instructions()
    )


def choose_lane_count(function: Function, *, cooperates: bool) -> int:
    """Return the maximum number of lanes for a function.

    Measured on AVX2: four registers a value are best for functions with barriers, whose loops over
    groups have a cost (a scan took 1.3 ms with two, 0.94 ms with four). Two are best if a few
    threads do much of the work (a reduction took 0.44 ms with four, 0.39 ms with two), and for
    loops that keep many values in registers (the Mandelbrot set).

    The threads wait for each other or share memory if `cooperates` is true.
    """
    wide = sum(item.type == "double" for _, item in function.instructions())
    narrow = sum(item.type in ("float", "i8", "half") for _, item in function.instructions())
    in_two_registers = 8 if wide > narrow else 16
    wider = cooperates and not _is_left_to_few(function)
    return 2 * in_two_registers if wider else in_two_registers


def _is_left_to_few(function: Function) -> bool:
    """Return whether only the first few threads do much, as at the end of a reduction."""
    tests = {item.name: item for _, item in function.instructions() if item.opcode == "icmp"}
    count = 0
    for block in function.blocks.values():
        branch = block.terminator
        test = tests.get(branch.operands[0].text) if len(branch.labels) > 1 else None
        if test is None or not test.operands[1].text.isdigit():
            continue
        if not 1 < int(test.operands[1].text) <= _MAX_FEW:
            continue
        # The branch of the few, and the merge.
        arm, meet = branch.labels if test.detail in ("ult", "slt") else branch.labels[::-1]
        is_for_few = test.detail in ("ult", "slt", "ugt", "sgt")
        count += is_for_few and meet in function.blocks[arm].successors
    return count > 1


def choose_layout(block: Block, max_lanes: int, *, warps: bool) -> LaneLayout:
    """Return the layout for a block shape; one lane is a part of a row.

    If `warps` is true, a group is a warp, because there are warp operations.
    """
    width, height, depth = block
    one_row = height * depth == 1
    if max_lanes == 1:
        return LaneLayout(block, 1, by_rows=True)
    if warps:
        return LaneLayout(block, WARP_SIZE, by_rows=one_row or width % WARP_SIZE == 0)
    if one_row:
        lanes = max_lanes
        while lanes >= 2 * width and lanes > 1:
            lanes //= 2
        return LaneLayout(block, lanes, by_rows=True)
    lanes = max_lanes
    while width % lanes:
        lanes //= 2
    if lanes >= 4:
        return LaneLayout(block, lanes, by_rows=True)
    return LaneLayout(block, max_lanes, by_rows=False)
