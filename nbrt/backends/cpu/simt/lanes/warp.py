"""Operations of a warp, where the lanes of the vector are the lanes of the warp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.lanes.values import Lanes, Mask, Value
from nbrt.backends.cpu.simt.llvm.errors import CannotLowerError
from nbrt.backends.cpu.simt.placeholders import WARP_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.lanes.writer import Writer
    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["WarpOperations"]


class WarpOperations:
    """Writes shuffles, votes and matches.

    Lanes take part that execute the operation and are named in its mask. A shuffle from a lane that
    takes no part gives a lane its own value, which is one of the results that PTX allows.

    Parameters
    ----------
    writer, lanes : Writer, Lanes
        Where the code goes, operations on values.
    """

    def __init__(self, writer: Writer, lanes: Lanes) -> None:
        self._writer = writer
        self._lanes = lanes

    def write(self, item: Instruction, operands: list[Value], mask: Mask) -> Value:
        """Write one operation."""
        name = item.detail
        assert self._writer.width == WARP_SIZE
        if name == placeholders.ACTIVEMASK:
            return Value("i32", "scalar", self._lanes.bits(mask))
        if name.startswith(placeholders.SHUFFLE):
            return self._shuffle(name.removeprefix(placeholders.SHUFFLE), operands, mask)
        if name.startswith(placeholders.VOTE):
            return self._vote(name.removeprefix(placeholders.VOTE), operands, mask)
        if name.startswith(placeholders.MATCH):
            return self._match(name.removeprefix(placeholders.MATCH), operands, mask)
        raise CannotLowerError(f"{name} has no form for lanes")

    # -- shuffles ------------------------------------------------------------------------------

    def _shuffle(self, which: str, operands: list[Value], mask: Mask) -> Value:
        # The first operand names those that execute it, in any program that is right.
        mode, _, kind = which.partition(".")
        writer, lanes = self._writer, self._lanes
        value, other = operands[1:]
        if mode == "idx" and other.kind == "scalar":
            return self._broadcast(kind, value, other)
        vector = lanes.vector(value)
        if other.kind != "scalar" or not _is_number(other.text):
            return self._by_index(mode, kind, vector, other, mask)
        chosen = _sources(mode, int(other.text))
        moved = writer.shuffle(kind, vector, chosen)
        if mask is not None:
            present = writer.shuffle("i1", lanes.mask(mask), chosen)
            moved = self._own_if_absent(kind, present, moved, vector)
        return Value(kind, "vector", moved)

    def _broadcast(self, kind: str, value: Value, other: Value) -> Value:
        """Read one lane, the same for all."""
        if value.kind == "scalar":
            return value
        vector = f"{self._writer.vector(kind)} {self._lanes.vector(value)}"
        lane = self._writer.op(f"and i32 {other.text}, {WARP_SIZE - 1}")
        return Value(kind, "scalar", self._writer.op(f"extractelement {vector}, i32 {lane}"))

    def _own_if_absent(self, kind: str, present: str, moved: str, own: str) -> str:
        vector = self._writer.vector(kind)
        condition = f"{self._writer.vector('i1')} {present}"
        return self._writer.op(f"select {condition}, {vector} {moved}, {vector} {own}")

    def _by_index(self, mode: str, kind: str, vector: str, other: Value, mask: Mask) -> Value:
        """Shuffle from lanes known only at run time."""
        writer, lanes = self._writer, self._lanes
        wide = writer.vector("i32")
        numbers, given = writer.counting("i32", 1), lanes.vector(other)
        opcode = {"up": "sub", "down": "add", "xor": "xor"}.get(mode)
        source = given
        if opcode == "xor":
            source = writer.op(f"xor {wide} {numbers}, {given}")
        elif opcode is not None:
            distance = writer.op(f"and {wide} {given}, splat (i32 31)")
            source = writer.op(f"{opcode} {wide} {numbers}, {distance}")
        if mode != "idx":
            inside = writer.op(f"icmp ult {wide} {source}, splat (i32 {WARP_SIZE})")
            source = writer.op(
                f"select {writer.vector('i1')} {inside}, {wide} {source}, {wide} {numbers}"
            )
        source = writer.op(f"and {wide} {source}, splat (i32 {WARP_SIZE - 1})")
        moved = self._taken(kind, vector, source)
        if mask is None:
            return Value(kind, "vector", moved)
        flags = writer.op(f"zext {writer.vector('i1')} {lanes.mask(mask)} to {writer.vector('i8')}")
        taken = self._taken("i8", flags, source)
        present = writer.op(f"icmp ne {writer.vector('i8')} {taken}, zeroinitializer")
        return Value(kind, "vector", self._own_if_absent(kind, present, moved, vector))

    def _taken(self, kind: str, vector: str, source: str) -> str:
        """Pick lanes of a vector by a vector of numbers."""
        writer = self._writer
        room = writer.slot(f"[{WARP_SIZE} x {kind}]")
        writer.do(f"store {writer.vector(kind)} {vector}, ptr {room}, align 64")
        result = "poison"
        for lane in range(WARP_SIZE):
            index = writer.op(f"extractelement {writer.vector('i32')} {source}, i64 {lane}")
            at = writer.op(f"getelementptr {kind}, ptr {room}, i32 {index}")
            one = writer.op(f"load {kind}, ptr {at}, align 1")
            result = writer.op(
                f"insertelement {writer.vector(kind)} {result}, {kind} {one}, i64 {lane}"
            )
        return result

    # -- votes and matches -----------------------------------------------------------------------

    def _present(self, members: Value, mask: Mask) -> str:
        """Give the lanes that take part, as bits."""
        lanes = self._lanes
        named = members.text if members.kind == "scalar" else lanes.lane(members, 0)
        if members.kind != "scalar":
            raise CannotLowerError("lanes of a warp give different masks")
        if mask is None:
            return named
        return self._writer.op(f"and i32 {lanes.bits(mask)}, {named}")

    def _vote(self, which: str, operands: list[Value], mask: Mask) -> Value:
        writer, lanes = self._writer, self._lanes
        present = self._present(operands[0], mask)
        test = operands[1]
        vector = f"{writer.vector(test.type)} {lanes.vector(test)}"
        zero = "zeroinitializer"
        true = writer.op(f"icmp ne {vector}, {zero}")
        votes = writer.op(f"bitcast {writer.vector('i1')} {true} to i32")
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
        writer, lanes = self._writer, self._lanes
        mode, _, kind = which.partition(".")
        present = self._present(operands[0], mask)
        vector = lanes.vector(operands[1])
        whole = writer.vector(kind)
        if mode == "all":
            first = writer.call("i32", "llvm.cttz.i32", [f"i32 {present}", "i1 false"])
            lane = writer.op(f"and i32 {first}, {WARP_SIZE - 1}")
            one = writer.op(f"extractelement {whole} {vector}, i32 {lane}")
            same = self._same(kind, vector, one, present)
            every = writer.op(f"icmp eq i32 {same}, {present}")
            return Value("i32", "scalar", writer.op(f"select i1 {every}, i32 {present}, i32 0"))
        result = "poison"
        for lane_number in range(WARP_SIZE):
            one = writer.op(f"extractelement {whole} {vector}, i64 {lane_number}")
            same = self._same(kind, vector, one, present)
            result = writer.op(
                f"insertelement {writer.vector('i32')} {result}, i32 {same}, i64 {lane_number}"
            )
        return Value("i32", "vector", result)

    def _same(self, kind: str, vector: str, one: str, present: str) -> str:
        """Give the lanes that take part and hold a value, as bits."""
        writer = self._writer
        equal = writer.op(f"icmp eq {writer.vector(kind)} {vector}, {writer.splat(kind, one)}")
        bits = writer.op(f"bitcast {writer.vector('i1')} {equal} to i32")
        return writer.op(f"and i32 {bits}, {present}")


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _sources(mode: str, other: int) -> list[int]:
    """Give the lane that each lane reads."""
    moves: dict[str, Callable[[int], int]] = {
        "idx": lambda _lane: other % WARP_SIZE,
        "up": lambda lane: lane - (other & 31),
        "down": lambda lane: lane + (other & 31),
        "xor": lambda lane: lane ^ (other & 31),
    }
    move = moves[mode]
    return [move(lane) if 0 <= move(lane) < WARP_SIZE else lane for lane in range(WARP_SIZE)]
