"""The shared arrays of a block, or of each block of a strip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.lanes.vectors.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.lanes.vectors.rows import RowWriter
    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["SharedArrays"]

_LINE = 64
"""Bytes of a cache line."""

_PADDING = 64 * placeholders.WARP_SIZE
"""Bytes around shared arrays, which partly active vectors may access."""


class SharedArrays:
    """Allocates shared arrays for a number of blocks.

    In a strip, the arrays of the blocks are beside each other. A vector with inactive lanes may
    load and store back elements of the next block; one OS thread runs all blocks of the strip.

    `allocate` returns stack memory for a number of bytes and an alignment.

    Attributes
    ----------
    padding : int
        Bytes that were allocated around the arrays, for any number of blocks.
    """

    def __init__(
        self, writer: RowWriter, allocate: Callable[[int, str, int], str], blocks: int
    ) -> None:
        self._writer = writer
        self._allocate = allocate
        self._blocks = blocks
        self._arrays: dict[str, str] = {}
        self._strides: dict[str, int] = {}
        """By the address of an array of the first block, the distance to that of the next."""
        self.padding = 0

    def add(self, item: Instruction) -> Value:
        """Return the result of a marker of shared memory, for the first block."""
        writer = self._writer
        if item.detail == placeholders.SHARED_DYNAMIC:
            return Value("ptr", "scalar", f"%{placeholders.SHARED}at")
        if item.detail == placeholders.SHARED_BYTES:
            return Value("i64", "scalar", f"%{placeholders.SHARED}bytes")
        if item.detail not in self._arrays:
            size, align = placeholders.shared_extent(item.detail)
            padding, unit = max(_PADDING, align), max(_LINE, align)
            stride = -(-size // unit) * unit
            slot = self._allocate(self._blocks * stride + 2 * padding, "i8", align)
            first = writer.op(f"getelementptr i8, ptr {slot}, i64 {padding}")
            self._arrays[item.detail], self._strides[first] = first, stride
            self.padding += 2 * padding
        return Value("ptr", "scalar", self._arrays[item.detail])

    def of_block(self, known: dict[str, Value], index: str, number: str) -> dict[str, Value]:
        """Return the known values of a block of the strip that differ from those of the first.

        `known` are those of the first, `index` is its ``blockIdx.x``.
        """
        writer, addresses = self._writer, {}
        narrow = writer.op(f"trunc nuw nsw i64 {number} to i32")
        own = writer.op(f"add nuw nsw i32 {index}, {narrow}")
        for first, stride in self._strides.items():
            distance = writer.op(f"mul nuw nsw i64 {number}, {stride}")
            addresses[first] = writer.op(f"getelementptr inbounds i8, ptr {first}, i64 {distance}")
        return {index: Value("i32", "scalar", own)} | {
            name: Value("ptr", "scalar", addresses[value.text])
            for name, value in known.items()
            if value.text in addresses
        }
