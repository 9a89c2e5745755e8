"""The thread indices of the groups of a block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.vectors.values import Mask, Value

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.analysis.lane_layout import LaneLayout
    from nbrt.backends.cpu.simt.lanes.vectors.rows import RowWriter

__all__ = ["ThreadIndices"]


class ThreadIndices:
    """Writes ``threadIdx`` for a group.

    Parameters
    ----------
    writer : RowWriter
        Receives the code.
    layout : LaneLayout
        The threads of each group.
    block : tuple of int
        Threads of the block along x, y and z.
    tids : list of str
        Names of the three indices.
    """

    def __init__(
        self, writer: RowWriter, layout: LaneLayout, block: tuple[int, int, int], tids: list[str]
    ) -> None:
        self._writer = writer
        self._layout = layout
        self._block = block
        self._tids = tids

    def set(self, values: dict[str, Value], group: str) -> Mask:
        """Set the thread indices of the group, and return the mask of lanes that are threads."""
        writer, layout = self._writer, self._layout
        width, height, depth = self._block
        x, y, z = self._tids
        for name in self._tids:
            values[name] = Value("i32", "scalar", "0")
        if not layout.by_rows:
            return self._set_linear_indices(values, group)
        row, part = "0", group
        if layout.groups != layout.per_row:
            row = writer.op(f"udiv i64 {group}, {layout.per_row}")
            part = writer.op(f"urem i64 {group}, {layout.per_row}")
            low, high = (
                writer.op(f"urem i64 {row}, {height}"),
                writer.op(f"udiv i64 {row}, {height}"),
            )
            for name, value, extent in ((y, low, height), (z, high, depth)):
                if extent > 1:
                    narrow = writer.op(f"trunc nuw nsw i64 {value} to i32")
                    values[name] = Value("i32", "scalar", narrow)
        if width > 1:
            first = "0"  # known, so that comparisons with constants are known sets of lanes
            if layout.per_row > 1:
                wide = writer.op(f"mul nuw nsw i64 {part}, {layout.width}")
                first = writer.op(f"trunc nuw nsw i64 {wide} to i32")
            is_one = layout.width == 1
            values[x] = Value("i32", "scalar" if is_one else "step", first, int(not is_one))
        if not layout.tail:
            return None
        return self._tail(part, layout.per_row)

    def _tail(self, part: str, count: int) -> Mask:
        writer, layout = self._writer, self._layout
        if count == 1:
            return Value("i1", "below", str(layout.tail))
        last = writer.op(f"icmp eq i64 {part}, {count - 1}")
        return Value(
            "i1",
            "below",
            writer.op(f"select i1 {last}, i64 {layout.tail}, i64 {layout.width}"),
        )

    def _set_linear_indices(self, values: dict[str, Value], group: str) -> Mask:
        """Set the indices of consecutive threads of the block, which may be in several rows."""
        writer, layout = self._writer, self._layout
        width, height, depth = self._block
        if layout.rows > 1:
            return self._set_rows(values, group)
        first = writer.op(f"mul nuw nsw i64 {group}, {layout.width}")
        narrow = writer.op(f"trunc nuw nsw i64 {first} to i32")
        whole = writer.vector_type("i32")
        rank = self._writer.vector(Value("i32", "step", narrow, 1))
        row = writer.op(f"udiv {whole} {rank}, splat (i32 {width})")
        parts = (
            (f"urem {whole} {rank}, splat (i32 {width})", width),
            (f"urem {whole} {row}, splat (i32 {height})", height),
            (f"udiv {whole} {row}, splat (i32 {height})", depth),
        )
        for name, (text, extent) in zip(self._tids, parts, strict=True):
            if extent > 1:
                values[name] = Value("i32", "vector", writer.op(text))
        return self._tail(group, layout.groups) if layout.tail else None

    def _set_rows(self, values: dict[str, Value], group: str) -> Mask:
        """Set the indices of several rows of the block."""
        writer, layout, rows = self._writer, self._layout, self._writer.rows
        _, height, depth = self._block
        first = writer.op(f"mul nuw nsw i64 {group}, {rows.count}")
        narrow = writer.op(f"trunc nuw nsw i64 {first} to i32")
        numbers = [writer.op(f"add i32 {narrow}, {row}") for row in range(rows.count)]
        x, y, z = self._tids
        values[x] = rows.value("i32", ["0"] * rows.count, 1)
        if height > 1:
            low = numbers
            if depth > 1:
                low = [writer.op(f"urem i32 {number}, {height}") for number in numbers]
            values[y] = rows.value("i32", low, 0)
        if depth > 1:
            high = [writer.op(f"udiv i32 {number}, {height}") for number in numbers]
            values[z] = rows.value("i32", high, 0)
        return self._tail(group, layout.groups) if layout.tail else None
