"""Sums of warps as vectors in shared memory: the markers of `analysis/warp_sums`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.lanes.analysis.warp_sums import SUMS_NOTE, VECTOR_BYTES
from nbrt.backends.cpu.simt.lanes.vectors.values import Mask, Value
from nbrt.backends.cpu.simt.llvm.types import is_integer, size_of

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.vectors.writer import LaneWriter
    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["WarpSums"]

_SUFFIXES = {"float": "f32", "double": "f64"}


class WarpSums:
    """Writes sums of warps and their totals."""

    def __init__(self, writer: LaneWriter) -> None:
        self._writer = writer

    def write(self, item: Instruction, operands: list[Value], mask: Mask) -> Value | None:
        """Write a marker."""
        if item.detail == placeholders.SUM_LANES:
            return self._lanes(operands[0], mask)
        if item.detail == placeholders.SUM_KEEP:
            self._keep(item, operands)
            return None
        return self._total(item, operands)

    def _lanes(self, value: Value, mask: Mask) -> Value:
        """Return the values of active lanes, and zeros."""
        writer, kind = self._writer, value.type
        zero = "zeroinitializer" if is_integer(kind) else f"splat ({kind} -0.0)"
        return Value(kind, "vector", writer.blend(kind, mask, writer.vector(value), zero))

    def _keep(self, item: Instruction, operands: list[Value]) -> None:
        """Store partial sums; lane 0 alone is active."""
        writer, (address, sums, vectors, lanes) = self._writer, operands
        kind, count, text = lanes.type, writer.width, writer.vector(lanes)
        while count * size_of(kind) > VECTOR_BYTES:
            half = count // 2
            parts = [
                writer.op(
                    f"shufflevector <{count} x {kind}> {text}, <{count} x {kind}> poison, "
                    f"<{half} x i32> <{', '.join(f'i32 {i}' for i in range(first, first + half))}>"
                )
                for first in (0, half)
            ]
            text, count = self._added(item.flags, f"<{half} x {kind}>", *parts), half
        at = self._vector_at(kind, writer.lane(address, 0), sums, vectors)
        writer.do(f"store <{count} x {kind}> {text}, ptr {at}, align {VECTOR_BYTES}")

    def _total(self, item: Instruction, operands: list[Value]) -> Value:
        """Add vectors, and then their lanes.

        The additions of vectors have no flags: LLVM would make one chain of the pairs.
        """
        writer, kind, (sums, vectors, *addresses) = self._writer, item.type, operands
        writer.notes[SUMS_NOTE] = None
        count = VECTOR_BYTES // size_of(kind)
        whole = f"<{count} x {kind}>"
        texts = []
        for address in addresses:
            at = self._vector_at(kind, address.text, sums, vectors)
            texts.append(writer.op(f"load {whole}, ptr {at}, align {VECTOR_BYTES}"))
        while len(texts) > 1:
            pairs = zip(texts[::2], texts[1::2], strict=False)
            rest_of_texts = texts[len(texts) - len(texts) % 2 :]
            texts = [self._added("", whole, *pair) for pair in pairs] + rest_of_texts
        arguments = [f"{whole} {texts[0]}"]
        if is_integer(kind):
            total = writer.call(kind, f"llvm.vector.reduce.add.v{count}{kind}", arguments)
        else:
            symbol = f"llvm.vector.reduce.fadd.v{count}{_SUFFIXES[kind]}"
            total = writer.call(kind, symbol, [f"{kind} -0.0", *arguments], item.flags)
        return Value(kind, "scalar", total)

    def _added(self, flags: str, kind: str, left: str, right: str) -> str:
        if "float" in kind or "double" in kind:
            return self._writer.op(f"fadd {flags} {kind} {left}, {right}")
        return self._writer.op(f"add {kind} {left}, {right}")

    def _vector_at(self, kind: str, address: str, sums: Value, vectors: Value) -> str:
        """Return the address of the vector at the index of an address of a sum."""
        writer = self._writer
        begin, end = (writer.op(f"ptrtoint ptr {at} to i64") for at in (sums.text, address))
        distance = writer.op(f"sub i64 {end}, {begin}")
        scaled = writer.op(f"mul i64 {distance}, {VECTOR_BYTES // size_of(kind)}")
        return writer.op(f"getelementptr i8, ptr {vectors.text}, i64 {scaled}")
