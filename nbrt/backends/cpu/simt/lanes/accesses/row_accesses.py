"""Accesses of groups of several rows: a run of neighbouring elements for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.llvm.types import size_of

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.vectors.rows import RowWriter
    from nbrt.backends.cpu.simt.lanes.vectors.values import Mask, Value
    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["SUFFIX", "RowAccesses"]

SUFFIX = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}
"""Names of types in those of LLVM's intrinsics."""

_MAX_ROW_BYTES = 8 * placeholders.WARP_SIZE
"""Maximum size of a run of elements."""


class RowAccesses:
    """Writes loads and stores."""

    def __init__(self, writer: RowWriter) -> None:
        self._writer = writer
        self._scratch = ""

    def has_runs(self, pointer: Value, kind: str) -> bool:
        """Return whether each row accesses neighbouring elements, or all its lanes the same."""
        return pointer.kind == "rows" and pointer.step in (0, size_of(kind)) and kind != "i1"

    def _pointers(self, pointer: Value, mask: Mask) -> list[str]:
        """Return the addresses of rows; a row without active lanes has a scratch slot instead."""
        if mask is None:
            return list(pointer.texts)
        writer = self._writer
        if not self._scratch:
            self._scratch = writer.slot(f"[{_MAX_ROW_BYTES} x i8]")
        return [
            writer.op(f"select i1 {writer.rows.some(mask, row)}, ptr {text}, ptr {self._scratch}")
            for row, text in enumerate(pointer.texts)
        ]

    def load(self, item: Instruction, pointer: Value, mask: Mask, *, is_private: bool) -> str:
        """Load a run, or one element, for each row, and return the vector.

        `is_private` tells whether the memory is private to the block, with padding.
        """
        writer, rows, kind = self._writer, self._writer.rows, item.type
        narrow = f"<{rows.width} x {kind}>"
        if pointer.step == 0:
            texts = [
                writer.op(f"load {kind}, ptr {at}, align {item.align}")
                for at in self._pointers(pointer, mask)
            ]
            return rows.vector(rows.value(kind, texts, 0))
        if mask is None or is_private:
            parts = [
                writer.op(f"load {narrow}, ptr {at}, align {item.align}")
                for at in self._pointers(pointer, mask)
            ]
            return rows.joined(kind, parts)
        name = f"llvm.masked.load.v{rows.width}{SUFFIX.get(kind, kind)}.p0"
        parts = []
        for row, at in enumerate(pointer.texts):
            chosen = f"<{rows.width} x i1> {rows.mask(mask, row)}"
            arguments = [f"ptr {at}", f"i32 {item.align}", chosen, f"{narrow} poison"]
            parts.append(writer.call(narrow, name, arguments))
        return rows.joined(kind, parts)

    def store(
        self,
        item: Instruction,
        vector: str,
        pointer: Value,
        mask: Mask,
        *,
        is_private: bool,
    ) -> None:
        """Store a run for each row."""
        writer, rows, kind = self._writer, self._writer.rows, item.operands[0].type
        narrow = f"<{rows.width} x {kind}>"
        pointers = self._pointers(pointer, mask) if is_private else list(pointer.texts)
        for row, at in enumerate(pointers):
            part = rows.part(kind, vector, row)
            if mask is None:
                writer.do(f"store {narrow} {part}, ptr {at}, align {item.align}")
                continue
            chosen = f"<{rows.width} x i1> {rows.mask(mask, row)}"
            if is_private:
                before = writer.op(f"load {narrow}, ptr {at}, align {item.align}")
                before = writer.op(f"freeze {narrow} {before}")  # as in `LaneWriter.frozen`
                part = writer.op(f"select {chosen}, {narrow} {part}, {narrow} {before}")
                writer.do(f"store {narrow} {part}, ptr {at}, align {item.align}")
                continue
            name = f"llvm.masked.store.v{rows.width}{SUFFIX.get(kind, kind)}.p0"
            align = f"i32 {item.align}"
            writer.call("void", name, [f"{narrow} {part}", f"ptr {at}", align, chosen])
