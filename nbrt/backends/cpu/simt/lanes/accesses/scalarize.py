"""Scalarisation: operations without a vector form, written for single lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.vectors.writer import LaneWriter, Mask, Value
from nbrt.backends.cpu.simt.llvm.model import CannotLowerError, renamed
from nbrt.backends.cpu.simt.llvm.types import is_scalar, size_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["IGNORED_CALLS", "Scalarizer", "refusal"]

IGNORED_CALLS = ("llvm.assume", "llvm.lifetime.", "llvm.experimental.noalias", "llvm.dbg.")
"""Functions whose calls are left out."""

_ENTERS_PYTHON = "numba_gil_ensure"
# Threads that enter the interpreter must leave it before another enters it.
_PRINTS = "threads print, one after the other"
_MEMORY_INTRINSICS = ("llvm.memcpy.", "llvm.memmove.", "llvm.memset.")


def refusal(item: Instruction) -> str:
    """Return why a call cannot be written for single lanes; empty if it can."""
    if not item.detail or (item.name and not is_scalar(item.type)):
        return f"a call of {item.detail or 'a pointer'} has no form for lanes"
    is_known = item.type != "void" or item.detail.startswith((*_MEMORY_INTRINSICS, *IGNORED_CALLS))
    if item.detail.startswith("llvm.") and not is_known:
        return f"a call of {item.detail} has no form for lanes"
    return _PRINTS if item.detail == _ENTERS_PYTHON else ""


class Scalarizer:
    """Writes an operation for each lane.

    `used` are the names of values with uses.
    """

    def __init__(self, writer: LaneWriter, used: set[str]) -> None:
        self._writer = writer
        self._used = used

    def check(self, item: Instruction) -> None:
        """Raise `CannotLowerError` if a call cannot be made for one lane after the other."""
        if not item.detail:
            raise CannotLowerError("a call of a pointer has no form for lanes")
        if item.detail == _ENTERS_PYTHON:
            raise CannotLowerError(_PRINTS)

    def call(self, item: Instruction, operands: list[Value], mask: Mask) -> Value | None:
        """Write a call for each lane of a mask."""
        reason = refusal(item)
        if reason:
            raise CannotLowerError(reason)

        def write_lane(texts: list[str]) -> str:
            pairs = zip(item.operands, texts, strict=True)
            text = renamed(item.text, {o.text: t for o, t in pairs if o.is_local})
            if item.type != "void":
                return self._writer.op(text)
            self._writer.do(text)
            return ""

        return self.each(item, operands, mask, write_lane)

    def each(
        self,
        item: Instruction,
        operands: list[Value],
        mask: Mask,
        write_lane: Callable[[list[str]], str],
    ) -> Value | None:
        """Write an operation for each lane of a mask, and return its results.

        `write_lane` writes the operation for the operands of one lane, and returns the result.
        `item` has the name and type of the result.
        """
        if mask is None:
            return self._unrolled(item, operands, write_lane)
        return self._looped(item, operands, mask, write_lane)

    def _unrolled(
        self,
        item: Instruction,
        operands: list[Value],
        write_lane: Callable[[list[str]], str],
    ) -> Value | None:
        writer = self._writer
        vectors = [
            Value(v.type, "vector", writer.vector(v), write_lane=v.write_lane)
            if v.kind not in ("scalar", "step")
            else v
            for v in operands
        ]
        kind = writer.vector_type(item.type)
        gathered = "poison"
        for lane in range(writer.width):
            result = write_lane([writer.lane(value, lane) for value in vectors])
            if item.name in self._used:
                gathered = writer.op(
                    f"insertelement {kind} {gathered}, {item.type} {result}, i64 {lane}"
                )
        return Value(item.type, "vector", gathered) if item.name else None

    def _looped(
        self,
        item: Instruction,
        operands: list[Value],
        mask: Mask,
        write_lane: Callable[[list[str]], str],
    ) -> Value | None:
        """Write a loop over the bits of the mask; inactive lanes cost nothing."""
        writer = self._writer
        slots = [self._spilled(value) for value in operands]
        # A vector of i1 is packed in memory, so lanes store bytes.
        kind = "i8" if item.type == "i1" else item.type
        results = self._slot(kind) if item.name in self._used else ""
        bits_type = f"i{writer.width}"
        first = writer.bits(mask)
        before, head, after = writer.label, writer.name("turn"), writer.name("turns.end")
        writer.go(head)
        writer.start(head)
        bits = writer.name("bits")
        rest = writer.name("rest")
        at = len(writer.lines)
        lane = writer.call(bits_type, f"llvm.cttz.{bits_type}", [f"{bits_type} {bits}", "i1 true"])
        index = writer.op(f"zext {bits_type} {lane} to i64") if writer.width < 64 else lane
        texts = [
            value.text if not slot else self._fetched(value, slot, index)
            for value, slot in zip(operands, slots, strict=True)
        ]
        result = write_lane(texts)
        if item.name in self._used:
            if item.type == "i1":
                result = writer.op(f"zext i1 {result} to i8")
            where = writer.op(f"getelementptr {kind}, ptr {results}, i64 {index}")
            writer.do(f"store {kind} {result}, ptr {where}")
        fewer = writer.op(f"sub {bits_type} {bits}, 1")
        writer.do(f"{rest} = and {bits_type} {bits}, {fewer}")
        phi = f"  {bits} = phi {bits_type} [ {first}, {before} ], [ {rest}, {writer.label} ]"
        writer.lines.insert(at, phi)
        more = writer.op(f"icmp ne {bits_type} {rest}, 0")
        writer.choose(more, head, after)
        writer.start(after)
        if not item.name:
            return None
        if item.name not in self._used:
            return Value(item.type, "vector", "poison")
        loaded = writer.op(f"load {writer.vector_type(kind)}, ptr {results}, align {size_of(kind)}")
        if item.type == "i1":
            loaded = writer.op(
                f"trunc {writer.vector_type(kind)} {loaded} to {writer.vector_type('i1')}"
            )
        return Value(item.type, "vector", loaded)

    def _slot(self, kind: str) -> str:
        return self._writer.slot(f"[{self._writer.width} x {kind}]")

    def _spilled(self, value: Value) -> str:
        """Store a vector to a slot for access by lane; return the slot, or empty if not needed."""
        if value.kind in ("scalar", "step"):
            return "step" if value.kind == "step" else ""
        vector = self._writer.vector(value)
        kind = value.type
        if kind == "i1":
            kind = "i8"
            masks, numbers = self._writer.vector_type("i1"), self._writer.vector_type(kind)
            vector = self._writer.op(f"zext {masks} {vector} to {numbers}")
        slot = self._slot(kind)
        self._writer.do(f"store {self._writer.vector_type(kind)} {vector}, ptr {slot}, align 1")
        return slot

    def _fetched(self, value: Value, slot: str, index: str) -> str:
        writer = self._writer
        if slot != "step":
            kind = "i8" if value.type == "i1" else value.type
            where = writer.op(f"getelementptr {kind}, ptr {slot}, i64 {index}")
            loaded = writer.op(f"load {kind}, ptr {where}, align 1")
            return writer.op(f"trunc i8 {loaded} to i1") if value.type == "i1" else loaded
        offset = writer.op(f"mul i64 {index}, {value.step}")
        if value.type == "ptr":
            return writer.op(f"getelementptr i8, ptr {value.text}, i64 {offset}")
        if value.type != "i64":
            offset = writer.op(f"trunc i64 {offset} to {value.type}")
        return writer.op(f"add {value.type} {value.text}, {offset}")
