"""The stack of a block function: what groups keep between regions, stack slots of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.divergence import VARYING, Shapes, frame_size
from nbrt.backends.cpu.simt.lanes.values import Lanes, Mask, Value
from nbrt.backends.cpu.simt.llvm.errors import CannotLowerError
from nbrt.backends.cpu.simt.llvm.types import size_of

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.writer import Writer
    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["Slots"]

_MAX_STACK = 256 * 1024
"""Most bytes of shared memory, of stack slots and of what is kept between regions."""


class Slots:
    """Reserves memory, and writes what is kept there for one group.

    Parameters
    ----------
    writer, lanes, shapes : Writer, Lanes, Shapes
        Where the code goes, operations on values, what is known of them.
    groups : int
        Groups in the block.

    Attributes
    ----------
    group : str
        Number of the group that is being written.
    """

    def __init__(self, writer: Writer, lanes: Lanes, shapes: Shapes, groups: int) -> None:
        self._writer = writer
        self._lanes = lanes
        self._shapes = shapes
        self._groups = groups
        self._rooms: dict[str, str] = {}
        self._masks: dict[str, str] = {}
        self._frames: dict[str, tuple[str, int, bool]] = {}
        self._size = 0
        self.group = ""

    def room(self, count: int, kind: str) -> str:
        """Reserve an array on the stack, and give its address.

        Raises
        ------
        CannotLowerError
            If the block needs too much.
        """
        lanes, element = 1, kind
        if kind.startswith("<"):
            lanes, element = self._writer.width, kind[1:-1].split(" x ", 1)[1]
        self._size += count * lanes * size_of(element)
        if self._size > _MAX_STACK:
            raise CannotLowerError(f"a block needs more than {_MAX_STACK} bytes of stack")
        return self._writer.slot(f"[{count} x {kind}]")

    # -- stack slots of threads ------------------------------------------------------------------

    def add_frame(self, item: Instruction, *, kept: bool) -> None:
        """Reserve a stack slot of each thread; `kept` says that regions share it."""
        size = frame_size(item)
        groups = self._groups if kept else 1
        self._frames[item.name] = self.room(groups * size * self._lanes.width, "i8"), size, kept

    def frames(self) -> dict[str, Value]:
        """Give the stack slots of the group's threads by name."""
        found = {}
        for name, (room, size, kept) in self._frames.items():
            group = self.group if kept else "0"
            kind = f"[{size * self._lanes.width} x i8]"
            at = self._writer.op(f"getelementptr {kind}, ptr {room}, i64 {group}")
            found[name] = Value("ptr", "step", at, size)
        return found

    # -- what is kept ----------------------------------------------------------------------------

    def add(self, name: str) -> None:
        """Reserve room for a value."""
        self._rooms[name] = self.room(self._groups, self._kind(name))

    def add_mask(self, wait: str) -> None:
        """Reserve room for which threads are to go on from a place."""
        self._masks[wait] = self.room(self._groups, f"i{self._writer.width}")

    def _kind(self, name: str) -> str:
        kind = self._shapes.definitions[name].type
        if self._shapes.of[name] is not VARYING:
            return kind
        return f"i{self._writer.width}" if kind == "i1" else self._writer.vector(kind)

    def _at(self, name: str, kind: str) -> str:
        """Give the address where this group keeps a value."""
        return self._writer.op(f"getelementptr {kind}, ptr {self._rooms[name]}, i64 {self.group}")

    def fetch(self, name: str) -> Value:
        """Load a value."""
        kind, own = self._kind(name), self._shapes.definitions[name].type
        shape = self._shapes.of[name]
        text = self._writer.op(f"load {kind}, ptr {self._at(name, kind)}")
        if shape is not None:
            return Value(own, "step" if shape else "scalar", text, shape)
        if own == "i1":
            return self._lanes.from_bits(text)
        return Value(own, "vector", text)

    def keep(self, name: str, value: Value, mask: Mask) -> None:
        """Store a value of the lanes of a mask, if it is kept."""
        if name not in self._rooms:
            return
        kind = self._kind(name)
        if self._masks and mask is not None and self._shapes.of[name] is VARYING:
            # Others may have gone ahead and wait with theirs.
            text = self._lanes.blend(
                value.type, mask, self._lanes.vector(value), self._lanes.vector(self.fetch(name))
            )
            value = Value(value.type, "vector", text)
        if self._shapes.of[name] is not VARYING:
            text = value.text
        elif value.type == "i1":
            text = self._lanes.bits(value)
        else:
            text = self._lanes.vector(value)
        self._writer.do(f"store {kind} {text}, ptr {self._at(name, kind)}")

    # -- who goes on from where ------------------------------------------------------------------

    def clear_masks(self) -> None:
        """Note that no thread of the group is anywhere yet."""
        for wait in self._masks:
            self._writer.do(f"store i{self._writer.width} 0, ptr {self._mask_at(wait)}")

    def take_mask(self, wait: str) -> Mask:
        """Load which threads go on from a place, and note that none is left there."""
        kind, at = f"i{self._writer.width}", self._mask_at(wait)
        bits = self._writer.op(f"load {kind}, ptr {at}")
        self._writer.do(f"store {kind} 0, ptr {at}")
        return self._lanes.from_bits(bits)

    def add_to_mask(self, wait: str, bits: str) -> None:
        """Note that more threads are at a place."""
        kind, at = f"i{self._writer.width}", self._mask_at(wait)
        old = self._writer.op(f"load {kind}, ptr {at}")
        self._writer.do(f"store {kind} {self._writer.op(f'or {kind} {old}, {bits}')}, ptr {at}")

    def _mask_at(self, wait: str) -> str:
        kind = f"i{self._writer.width}"
        room = self._masks[wait]
        return self._writer.op(f"getelementptr {kind}, ptr {room}, i64 {self.group}")
