"""The stack of a block function: values kept between regions, and stack slots of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.analysis.divergence import VARYING, Divergence, Stride, frame_size
from nbrt.backends.cpu.simt.lanes.vectors.values import Mask, Value
from nbrt.backends.cpu.simt.llvm.model import CannotLowerError
from nbrt.backends.cpu.simt.llvm.types import size_of, width_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nbrt.backends.cpu.simt.lanes.analysis.row_strides import RowStrides
    from nbrt.backends.cpu.simt.lanes.vectors.rows import RowWriter
    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["SpillSlots"]

_MAX_STACK = 256 * 1024
"""Maximum size in bytes of shared arrays, stack slots and spilled values."""

_ALIGNMENT = 64


class SpillSlots:
    """Allocates stack memory, and writes accesses of one group to it.

    Attributes
    ----------
    group : str
        Number of the current group.
    size : int
        Bytes that are allocated.
    """

    def __init__(
        self,
        writer: RowWriter,
        divergence: Divergence,
        groups: int,
        rows: RowStrides | None = None,
    ) -> None:
        self._writer = writer
        self._rows = rows
        self._divergence = divergence
        self._groups = groups
        self._slots: dict[str, str] = {}
        self._offsets: dict[str, int] = {}
        self._of_block: dict[str, int] = {}
        self._record = ""
        self._masks: dict[str, str] = {}
        self._frames: dict[str, tuple[str, int, bool]] = {}
        self.size = 0
        self.group = ""

    def allocate(self, count: int, kind: str, align: int = _ALIGNMENT) -> str:
        """Allocate an array on the stack, and return its address.

        Raises
        ------
        CannotLowerError
            If the block needs too much.
        """
        self.size += count * size_of(kind)
        if self.size > _MAX_STACK:
            raise CannotLowerError(f"a block needs more than {_MAX_STACK} bytes of stack")
        return self._writer.slot(f"[{count} x {kind}]", max(align, _ALIGNMENT))

    # -- stack slots of threads ------------------------------------------------------------------

    def add_frame(self, item: Instruction, *, kept: bool) -> None:
        """Allocate a stack slot for each thread; regions share it if `kept` is true."""
        size = frame_size(item)
        groups = self._groups if kept else 1
        self._frames[item.name] = (
            self.allocate(groups * size * self._writer.width, "i8", item.align),
            size,
            kept,
        )

    def frames(self) -> dict[str, Value]:
        """Return the stack slots of the threads of the group by name."""
        frames = {}
        for name, (array, size, kept) in self._frames.items():
            group = self.group if kept else "0"
            kind = f"[{size * self._writer.width} x i8]"
            at = self._writer.op(f"getelementptr {kind}, ptr {array}, i64 {group}")
            is_one = self._writer.width == 1
            frames[name] = Value("ptr", "scalar" if is_one else "step", at, 0 if is_one else size)
        return frames

    # -- kept values ----------------------------------------------------------------------------

    def add_all(
        self, names: Iterable[str], owners: Mapping[str, str], in_block: Mapping[str, Stride]
    ) -> None:
        """Allocate slots for values; those of a group of one lane are beside each other.

        A value uses the slot of its owner, if it has one and groups have one lane. `in_block` has
        the strides of values in the whole block. A value that has the same stride in each group has
        one slot for all groups, with the value of thread 0.

        A group of one lane accesses few bytes of each array of slots, and arrays at distances of
        powers of two have their slots in one set of the cache.
        """
        names = list(names)
        for name in names:
            stride = in_block.get(name, VARYING)
            is_same = stride == self._divergence.strides[name] and not self._has_rows(name)
            if stride is not None and is_same:
                self._of_block[name] = stride
                self._slots[name] = self.allocate(1, self._kind(name))
            elif self._writer.width > 1:
                self._slots[name] = self.allocate(self._groups, self._kind(name))
        if self._writer.width > 1:
            return
        names = [name for name in names if name not in self._of_block]
        owners = {
            name: owner
            for name, owner in owners.items()
            if name not in self._of_block and owner not in self._of_block
        }
        sizes = {name: size_of(self._kind(name)) for name in names if name not in owners}
        end = 0
        for name, size in sorted(sizes.items(), key=lambda pair: -pair[1]):
            end = -(-end // size) * size
            self._offsets[name] = end
            end += size
        if end:
            stride = -(-end // _ALIGNMENT) * _ALIGNMENT
            self._record = f"[{stride} x i8]"
            records = self.allocate(self._groups, self._record)
            self._offsets |= {name: self._offsets[owner] for name, owner in owners.items()}
            self._slots |= dict.fromkeys(self._offsets, records)

    def is_of_block(self, name: str) -> bool:
        """Return whether a value has one slot for all groups.

        A region must load it before the first group stores another value.
        """
        return name in self._of_block

    def fetch_first(self, name: str) -> Value:
        """Load the value of thread 0 from a slot for all groups."""
        kind = self._kind(name)
        text = self._writer.op(f"load {kind}, ptr {self._slots[name]}")
        return Value(kind, "scalar", text)

    def in_group(self, name: str, first: Value) -> Value:
        """Return the value of the current group from that of thread 0."""
        stride = self._of_block[name]
        if stride == 0:
            return first
        text = self._moved(first.type, first.text, stride * self._writer.width)
        return Value(first.type, "step", text, stride)

    def _moved(self, kind: str, text: str, step: int) -> str:
        """Return a number or address that is `step` higher for each group of the block."""
        if step == 0 or self.group == "0":
            return text
        writer = self._writer
        distance = writer.op(f"mul i64 {self.group}, {step}")
        if kind == "ptr":
            return writer.op(f"getelementptr i8, ptr {text}, i64 {distance}")
        if kind != "i64":
            opcode = "trunc" if width_of(kind) < 64 else "sext"
            distance = writer.op(f"{opcode} i64 {distance} to {kind}")
        return writer.op(f"add {kind} {text}, {distance}")

    def keeps(self, name: str) -> bool:
        """Return whether a value has slots."""
        return name in self._slots

    def share(self, first: str, second: str) -> bool:
        """Return whether two values have the same slots."""
        if not (self.keeps(first) and self.keeps(second)):
            return False
        slots = [(self._slots[name], self._offsets.get(name)) for name in (first, second)]
        return slots[0] == slots[1]

    def add_mask(self, wait: str) -> None:
        """Allocate masks of the threads that continue from a place."""
        self._masks[wait] = self.allocate(self._groups, f"i{self._writer.width}")

    def _kind(self, name: str) -> str:
        kind = self._divergence.definitions[name].type
        if self._has_rows(name):
            return f"[{self._writer.rows.count} x {kind}]"
        if self._divergence.strides[name] is not VARYING:
            return kind
        return f"i{self._writer.width}" if kind == "i1" else self._writer.vector_type(kind)

    def _has_rows(self, name: str) -> bool:
        return self._rows is not None and self._rows.has_rows(name)

    def _at(self, name: str, kind: str) -> str:
        """Return the address of the slot of a value."""
        if name in self._offsets:
            records = self._slots[name]
            at = self._writer.op(f"getelementptr {self._record}, ptr {records}, i64 {self.group}")
            return self._writer.op(f"getelementptr i8, ptr {at}, i64 {self._offsets[name]}")
        return self._writer.op(f"getelementptr {kind}, ptr {self._slots[name]}, i64 {self.group}")

    def _row_at(self, kind: str, at: str, row: int) -> str:
        return self._writer.op(f"getelementptr {kind}, ptr {at}, i64 {row}")

    def fetch(self, name: str) -> Value:
        """Load a value of the current group, for which it has a slot."""
        kind, own = self._kind(name), self._divergence.definitions[name].type
        stride = self._divergence.strides[name]
        if self._rows is not None and self._has_rows(name):
            at, step = self._at(name, kind), self._rows.strides[name]
            assert step is not None
            texts = [
                self._writer.op(f"load {own}, ptr {self._row_at(own, at, row)}")
                for row in range(self._writer.rows.count)
            ]
            return self._writer.rows.value(own, texts, step)
        text = self._writer.op(f"load {kind}, ptr {self._at(name, kind)}")
        if stride is not None:
            return Value(own, "step" if stride else "scalar", text, stride)
        if own == "i1":
            return self._writer.from_bits(text)
        return Value(own, "vector", text)

    def keep(self, name: str, value: Value, mask: Mask, some: str = "true") -> None:
        """Store a value for the lanes of a mask, if it has a slot; `some` is whether any has it."""
        if name not in self._slots:
            return
        if name in self._of_block:
            self._keep_first(name, value, mask, some)
            return
        kind = self._kind(name)
        if self._has_rows(name):
            # As for uniform values, all lanes store the same.
            at = self._at(name, kind)
            for row, text in enumerate(value.texts):
                where = self._row_at(value.type, at, row)
                self._writer.do(f"store {value.type} {text}, ptr {where}")
            return
        if self._masks and mask is not None and self._divergence.strides[name] is VARYING:
            # Other lanes may have stored their values before, and wait.
            text = self._writer.blend(
                value.type, mask, self._writer.vector(value), self._writer.vector(self.fetch(name))
            )
            value = Value(value.type, "vector", text)
        if self._divergence.strides[name] is not VARYING:
            text = value.text
        elif value.type == "i1":
            text = self._writer.bits(value)
        else:
            text = self._writer.vector(value)
        self._writer.do(f"store {kind} {text}, ptr {self._at(name, kind)}")

    def _keep_first(self, name: str, value: Value, mask: Mask, some: str) -> None:
        """Store the value of thread 0, which all groups compute that have active lanes.

        It is the same in all of them, for the strides hold in the whole block.
        """
        writer, kind, slot = self._writer, value.type, self._slots[name]
        text = self._moved(kind, value.text, -self._of_block[name] * writer.width)
        active = writer.any(mask)
        if some != "true":
            active = some if active == "true" else writer.op(f"and i1 {active}, {some}")
        if active != "true":
            old = writer.op(f"load {kind}, ptr {slot}")
            text = writer.op(f"select i1 {active}, {kind} {text}, {kind} {old}")
        writer.do(f"store {kind} {text}, ptr {slot}")

    # -- exit masks -----------------------------------------------------------------------------

    def clear_masks(self) -> None:
        """Clear the masks of the group."""
        for wait in self._masks:
            self.clear_mask(wait)

    def clear_mask(self, wait: str) -> None:
        """Clear the mask of the threads that continue from a place."""
        self._writer.do(f"store i{self._writer.width} 0, ptr {self._mask_at(wait)}")

    def take_mask(self, wait: str) -> Mask:
        """Load and clear the mask of the threads that continue from a place."""
        kind, at = f"i{self._writer.width}", self._mask_at(wait)
        bits = self._writer.op(f"load {kind}, ptr {at}")
        self._writer.do(f"store {kind} 0, ptr {at}")
        return self._writer.from_bits(bits)

    def add_to_mask(self, wait: str, bits: str) -> None:
        """Add threads to the mask of a place."""
        kind, at = f"i{self._writer.width}", self._mask_at(wait)
        old = self._writer.op(f"load {kind}, ptr {at}")
        self._writer.do(f"store {kind} {self._writer.op(f'or {kind} {old}, {bits}')}, ptr {at}")

    def _mask_at(self, wait: str) -> str:
        kind = f"i{self._writer.width}"
        return self._writer.op(f"getelementptr {kind}, ptr {self._masks[wait]}, i64 {self.group}")
