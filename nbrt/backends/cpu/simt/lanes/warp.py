"""Warp operations: the lanes of the vector are the lanes of the warp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.lanes.vectors.writer import LaneWriter, Mask, Value
from nbrt.backends.cpu.simt.llvm.model import CannotLowerError
from nbrt.backends.cpu.simt.placeholders import WARP_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["WarpOperations"]


class WarpOperations:
    """Writes shuffles, votes and matches.

    The lanes that execute an operation and are in its mask take part. A shuffle from another lane
    returns the value of the reading lane, which is one of the results that PTX allows.
    """

    def __init__(self, writer: LaneWriter) -> None:
        self._writer = writer

    def write(self, item: Instruction, operands: list[Value], mask: Mask) -> Value:
        """Write one operation."""
        name = item.detail
        assert self._writer.width == WARP_SIZE
        if name == placeholders.ACTIVEMASK:
            return Value("i32", "scalar", self._writer.bits(mask))
        if name.startswith(placeholders.SHUFFLE):
            return self._shuffle(name.removeprefix(placeholders.SHUFFLE), operands, mask)
        if name.startswith(placeholders.VOTE):
            return self._vote(name.removeprefix(placeholders.VOTE), operands, mask)
        if name.startswith(placeholders.MATCH):
            return self._match(name.removeprefix(placeholders.MATCH), operands, mask)
        raise CannotLowerError(f"{name} has no form for lanes")

    # -- shuffles ------------------------------------------------------------------------------

    def _shuffle(self, which: str, operands: list[Value], mask: Mask) -> Value:
        # In a correct program the mask contains exactly the lanes that execute the operation.
        mode, _, kind = which.partition(".")
        writer = self._writer
        value, other = operands[1:]
        if mode == "idx" and other.kind == "scalar":
            return self._broadcast(kind, value, other)
        vector = writer.vector(value)
        if other.kind != "scalar" or not _is_number(other.text):
            return self._by_index(mode, kind, vector, other, mask)
        sources = _sources(mode, int(other.text))
        moved = writer.shuffle(kind, vector, sources)
        if mask is not None:
            present = writer.shuffle("i1", writer.mask(mask), sources)
            moved = self._own_if_absent(kind, present, moved, vector)
        return Value(kind, "vector", moved)

    def _broadcast(self, kind: str, value: Value, other: Value) -> Value:
        """Read the same lane in all lanes."""
        if value.kind == "scalar":
            return value
        vector = f"{self._writer.vector_type(kind)} {self._writer.vector(value)}"
        lane = self._writer.op(f"and i32 {other.text}, {WARP_SIZE - 1}")
        return Value(kind, "scalar", self._writer.op(f"extractelement {vector}, i32 {lane}"))

    def _own_if_absent(self, kind: str, present: str, moved: str, own: str) -> str:
        vector = self._writer.vector_type(kind)
        condition = f"{self._writer.vector_type('i1')} {present}"
        return self._writer.op(f"select {condition}, {vector} {moved}, {vector} {own}")

    def _by_index(self, mode: str, kind: str, vector: str, other: Value, mask: Mask) -> Value:
        """Shuffle from lanes that are known only at run time."""
        writer = self._writer
        wide = writer.vector_type("i32")
        numbers, operand = writer.counting("i32", 1), writer.vector(other)
        opcode = {"up": "sub", "down": "add", "xor": "xor"}.get(mode)
        source = operand
        if opcode == "xor":
            source = writer.op(f"xor {wide} {numbers}, {operand}")
        elif opcode is not None:
            distance = writer.op(f"and {wide} {operand}, splat (i32 31)")
            source = writer.op(f"{opcode} {wide} {numbers}, {distance}")
        if mode != "idx":
            inside = writer.op(f"icmp ult {wide} {source}, splat (i32 {WARP_SIZE})")
            source = writer.op(
                f"select {writer.vector_type('i1')} {inside}, {wide} {source}, {wide} {numbers}"
            )
        source = writer.op(f"and {wide} {source}, splat (i32 {WARP_SIZE - 1})")
        moved = self._permuted(kind, vector, source)
        if mask is None:
            return Value(kind, "vector", moved)
        numbers = writer.vector_type("i8")
        flags = writer.op(f"zext {writer.vector_type('i1')} {writer.mask(mask)} to {numbers}")
        flags = self._permuted("i8", flags, source)
        present = writer.op(f"icmp ne {numbers} {flags}, zeroinitializer")
        return Value(kind, "vector", self._own_if_absent(kind, present, moved, vector))

    def _permuted(self, kind: str, vector: str, source: str) -> str:
        """Return the lanes of a vector with the numbers in another vector."""
        writer = self._writer
        room = writer.slot(f"[{WARP_SIZE} x {kind}]")
        writer.do(f"store {writer.vector_type(kind)} {vector}, ptr {room}, align 64")
        result = "poison"
        for lane in range(WARP_SIZE):
            index = writer.op(f"extractelement {writer.vector_type('i32')} {source}, i64 {lane}")
            at = writer.op(f"getelementptr {kind}, ptr {room}, i32 {index}")
            element = writer.op(f"load {kind}, ptr {at}, align 1")
            result = writer.op(
                f"insertelement {writer.vector_type(kind)} {result}, {kind} {element}, i64 {lane}"
            )
        return result

    # -- votes and matches -----------------------------------------------------------------------

    def _present(self, members: Value, mask: Mask) -> str:
        """Return the lanes that take part, as bits."""
        if members.kind != "scalar":
            raise CannotLowerError("lanes of a warp give different masks")
        if mask is None:
            return members.text
        return self._writer.op(f"and i32 {self._writer.bits(mask)}, {members.text}")

    def _vote(self, which: str, operands: list[Value], mask: Mask) -> Value:
        writer = self._writer
        present = self._present(operands[0], mask)
        test = operands[1]
        vector = f"{writer.vector_type(test.type)} {writer.vector(test)}"
        zero = "zeroinitializer"
        true = writer.op(f"icmp ne {vector}, {zero}")
        votes = writer.op(f"bitcast {writer.vector_type('i1')} {true} to i32")
        yes = writer.op(f"and i32 {votes}, {present}")
        if which == "ballot":
            return Value("i32", "scalar", yes)
        some = writer.op(f"icmp ne i32 {yes}, 0")
        every = writer.op(f"icmp eq i32 {yes}, {present}")
        if which == "eq":
            none = writer.op(f"xor i1 {some}, true")
            answer = writer.op(f"or i1 {every}, {none}")
        else:
            answer = some if which == "any" else every
        return Value("i32", "scalar", writer.op(f"zext i1 {answer} to i32"))

    def _match(self, which: str, operands: list[Value], mask: Mask) -> Value:
        writer = self._writer
        mode, _, kind = which.partition(".")
        present = self._present(operands[0], mask)
        vector = writer.vector(operands[1])
        whole = writer.vector_type(kind)
        if mode == "all":
            first = writer.call("i32", "llvm.cttz.i32", [f"i32 {present}", "i1 false"])
            lane = writer.op(f"and i32 {first}, {WARP_SIZE - 1}")
            element = writer.op(f"extractelement {whole} {vector}, i32 {lane}")
            same = self._same(kind, vector, element, present)
            every = writer.op(f"icmp eq i32 {same}, {present}")
            return Value("i32", "scalar", writer.op(f"select i1 {every}, i32 {present}, i32 0"))
        result = "poison"
        for lane_number in range(WARP_SIZE):
            element = writer.op(f"extractelement {whole} {vector}, i64 {lane_number}")
            same = self._same(kind, vector, element, present)
            result = writer.op(
                f"insertelement {writer.vector_type('i32')} {result}, i32 {same}, i64 {lane_number}"
            )
        return Value("i32", "vector", result)

    def _same(self, kind: str, vector: str, element: str, present: str) -> str:
        """Return the lanes that take part and have a value, as bits."""
        writer = self._writer
        equal = writer.op(
            f"icmp eq {writer.vector_type(kind)} {vector}, {writer.splat(kind, element)}"
        )
        bits = writer.op(f"bitcast {writer.vector_type('i1')} {equal} to i32")
        return writer.op(f"and i32 {bits}, {present}")


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _sources(mode: str, other: int) -> list[int]:
    """Return the lane that each lane reads."""
    moves: dict[str, Callable[[int], int]] = {
        "idx": lambda _lane: other % WARP_SIZE,
        "up": lambda lane: lane - (other & 31),
        "down": lambda lane: lane + (other & 31),
        "xor": lambda lane: lane ^ (other & 31),
    }
    move = moves[mode]
    return [move(lane) if 0 <= move(lane) < WARP_SIZE else lane for lane in range(WARP_SIZE)]
