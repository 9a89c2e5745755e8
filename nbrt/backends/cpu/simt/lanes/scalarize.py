"""What has no vector form: done for one lane after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.values import Lanes, Mask, Value
from nbrt.backends.cpu.simt.llvm.errors import CannotLowerError
from nbrt.backends.cpu.simt.llvm.model import renamed
from nbrt.backends.cpu.simt.llvm.types import is_scalar, size_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.lanes.writer import Writer
    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["Serial"]

_INTO_PYTHON = "numba_gil_ensure"
_OF_NO_RESULT = ("llvm.memcpy.", "llvm.memmove.", "llvm.memset.")


class Serial:
    """Writes an operation once for every lane.

    Parameters
    ----------
    writer, lanes : Writer, Lanes
        Where the code goes, operations on values.
    used : set of str
        Names of results that anything uses.
    """

    def __init__(self, writer: Writer, lanes: Lanes, used: set[str]) -> None:
        self._writer = writer
        self._lanes = lanes
        self._used = used

    def call(self, item: Instruction, operands: list[Value], mask: Mask) -> Value | None:
        """Write a call for every lane of a mask."""
        if not item.detail or (item.name and not is_scalar(item.type)):
            raise CannotLowerError(f"a call of {item.detail or 'a pointer'} has no form for lanes")
        is_known = item.type != "void" or item.detail.startswith(_OF_NO_RESULT)
        if item.detail.startswith("llvm.") and not is_known:
            raise CannotLowerError(f"a call of {item.detail} has no form for lanes")

        if item.detail == _INTO_PYTHON:
            # Whoever enters Python first leaves it last: threads cannot do that in step.
            raise CannotLowerError("threads print, one after the other")

        def one(texts: list[str]) -> str:
            pairs = zip(item.operands, texts, strict=True)
            text = renamed(item.text, {o.text: t for o, t in pairs if o.is_local})
            if item.type != "void":
                return self._writer.op(text)
            self._writer.do(text)
            return ""

        return self.each(item, operands, mask, one)

    def each(
        self,
        item: Instruction,
        operands: list[Value],
        mask: Mask,
        one: Callable[[list[str]], str],
    ) -> Value | None:
        """Write something for every lane.

        Parameters
        ----------
        item : Instruction
            What it stands for.
        operands : list of Value
            What differs from lane to lane.
        mask : Mask
            The lanes.
        one : callable
            Given the operands of one lane, writes the operation and gives its result.
        """
        wants = bool(item.name) and item.name in self._used
        if mask is None:
            return self._unrolled(item, operands, one, wants=wants)
        return self._looped(item, operands, mask, one, wants=wants)

    def _unrolled(
        self,
        item: Instruction,
        operands: list[Value],
        one: Callable[[list[str]], str],
        *,
        wants: bool,
    ) -> Value | None:
        writer, lanes = self._writer, self._lanes
        vectors = [
            Value(v.type, "vector", lanes.vector(v), one=v.one)
            if v.kind not in ("scalar", "step")
            else v
            for v in operands
        ]
        kind = writer.vector(item.type)
        gathered = "poison"
        for lane in range(writer.width):
            result = one([lanes.lane(value, lane) for value in vectors])
            if wants:
                gathered = writer.op(
                    f"insertelement {kind} {gathered}, {item.type} {result}, i64 {lane}"
                )
        return Value(item.type, "vector", gathered) if item.name else None

    def _looped(
        self,
        item: Instruction,
        operands: list[Value],
        mask: Mask,
        one: Callable[[list[str]], str],
        *,
        wants: bool,
    ) -> Value | None:
        """Loop over the bits of the mask: the cost is that of the lanes that take part."""
        writer, lanes = self._writer, self._lanes
        places = [self._spilled(value) for value in operands]
        # A vector of i1 is packed in memory, and lanes store bytes.
        kind = "i8" if item.type == "i1" else item.type
        room = self._room(kind) if wants else ""
        bits_type = f"i{writer.width}"
        first = lanes.bits(mask)
        before, turn, after = writer.label, writer.name("turn"), writer.name("turns.end")
        writer.go(turn)
        writer.start(turn)
        bits = writer.name("bits")
        rest = writer.name("rest")
        at = len(writer.lines)
        lane = writer.call(bits_type, f"llvm.cttz.{bits_type}", [f"{bits_type} {bits}", "i1 true"])
        index = writer.op(f"zext {bits_type} {lane} to i64") if writer.width < 64 else lane
        texts = [
            value.text if not place else self._fetched(value, place, index)
            for value, place in zip(operands, places, strict=True)
        ]
        result = one(texts)
        if wants:
            if item.type == "i1":
                result = writer.op(f"zext i1 {result} to i8")
            where = writer.op(f"getelementptr {kind}, ptr {room}, i64 {index}")
            writer.do(f"store {kind} {result}, ptr {where}")
        fewer = writer.op(f"sub {bits_type} {bits}, 1")
        writer.do(f"{rest} = and {bits_type} {bits}, {fewer}")
        phi = f"  {bits} = phi {bits_type} [ {first}, {before} ], [ {rest}, {writer.label} ]"
        writer.lines.insert(at, phi)
        more = writer.op(f"icmp ne {bits_type} {rest}, 0")
        writer.choose(more, turn, after)
        writer.start(after)
        if not item.name:
            return None
        if not wants:
            return Value(item.type, "vector", "poison")
        loaded = writer.op(f"load {writer.vector(kind)}, ptr {room}, align {size_of(kind)}")
        if item.type == "i1":
            loaded = writer.op(f"trunc {writer.vector(kind)} {loaded} to {writer.vector('i1')}")
        return Value(item.type, "vector", loaded)

    def _room(self, kind: str) -> str:
        return self._writer.slot(f"[{self._writer.width} x {kind}]")

    def _spilled(self, value: Value) -> str:
        """Put a vector where a lane can be fetched from by number; empty if there is no need."""
        if value.kind in ("scalar", "step"):
            return "step" if value.kind == "step" else ""
        vector = self._lanes.vector(value)
        kind = value.type
        if kind == "i1":
            vector = self._writer.op(
                f"zext {self._writer.vector('i1')} {vector} to {self._writer.vector('i8')}"
            )
            kind = "i8"
        room = self._room(kind)
        self._writer.do(f"store {self._writer.vector(kind)} {vector}, ptr {room}, align 1")
        return room

    def _fetched(self, value: Value, place: str, index: str) -> str:
        writer = self._writer
        if place != "step":
            kind = "i8" if value.type == "i1" else value.type
            where = writer.op(f"getelementptr {kind}, ptr {place}, i64 {index}")
            loaded = writer.op(f"load {kind}, ptr {where}, align 1")
            return writer.op(f"trunc i8 {loaded} to i1") if value.type == "i1" else loaded
        offset = writer.op(f"mul i64 {index}, {value.step}")
        if value.type == "ptr":
            return writer.op(f"getelementptr i8, ptr {value.text}, i64 {offset}")
        if value.type != "i64":
            offset = writer.op(f"trunc i64 {offset} to {value.type}")
        return writer.op(f"add {value.type} {value.text}, {offset}")
