"""Accesses at constant distances: one run of elements in memory, and a permutation of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbrt.backends.cpu.simt.llvm.types import size_of

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.vectors.writer import LaneWriter, Mask, Value

__all__ = ["Windows"]

_MAX_LENGTH = 4
"""Maximum length of a window in vectors."""

_MAX_BYTES = 1024
"""Maximum size of a window; half the padding of shared arrays, so a window of which one lane is in
the array is in the padded array."""


class _Window(NamedTuple):
    """A run of elements, and the element of each lane."""

    begin: int
    """Distance in bytes of its first element from the scalar of the address."""
    length: int
    lanes: list[int]

    @property
    def is_covered(self) -> bool:
        """Whether each element belongs to one lane."""
        return sorted(self.lanes) == list(range(self.length))

    @property
    def is_distinct(self) -> bool:
        """Whether no two lanes have the same element."""
        return len(set(self.lanes)) == len(self.lanes)


class Windows:
    """Writes accesses to windows.

    Elements are aligned to their size, not to more: a window begins with an element of no lane.

    In shared arrays, windows have the size of a power of two and contain elements that no lane
    accesses. Reads of them are harmless. Writes store what is there: one OS thread runs the block,
    and nothing runs between the read and the write. Windows of related patterns, such as the two
    sides of an exchange, then are the same run, which LLVM keeps in registers.

    In other memory, a window is exact. Elements between those of the lanes are read only: they are
    in a page of an element that is accessed, as windows are smaller than pages.
    """

    def __init__(self, writer: LaneWriter) -> None:
        self._writer = writer

    def load(self, kind: str, align: int, pointer: Value, mask: Mask, *, shared: bool) -> str:
        """Write a load; return the vector, or empty if there is no window."""
        window = self._window(pointer, kind, aligned=shared)
        if window is None or (mask is not None and not shared):
            return ""
        run = self._load(window, kind, min(align, size_of(kind)), pointer)
        return self._permuted(f"<{window.length} x {kind}>", run, window.lanes)

    def store(
        self, kind: str, align: int, vector: str, pointer: Value, mask: Mask, *, shared: bool
    ) -> bool:
        """Write a store of a vector; return whether there is a window."""
        window = self._window(pointer, kind, aligned=shared)
        if window is None or not window.is_distinct:
            return False
        if not shared and (mask is not None or not window.is_covered):
            return False
        writer, align = self._writer, min(align, size_of(kind))
        whole = f"<{window.length} x {kind}>"
        places = dict(zip(window.lanes, range(writer.width), strict=True))
        order = [places.get(element, -1) for element in range(window.length)]
        before = ""
        if mask is not None or -1 in order:
            before = self._load(window, kind, align, pointer)
        if mask is not None:
            # Lanes are chosen before the permutation: processors permute numbers, not masks.
            own = self._permuted(whole, before, window.lanes)
            vector = writer.blend(kind, mask, vector, writer.frozen(kind, own))
        run = self._permuted(writer.vector_type(kind), vector, order)
        if -1 in order:
            chosen = ", ".join(f"i1 {'true' if lane >= 0 else 'false'}" for lane in order)
            masks = f"<{window.length} x i1> <{chosen}>"
            run = writer.op(f"select {masks}, {whole} {run}, {whole} {before}")
        at = self._at(window, pointer)
        writer.do(f"store {whole} {run}, ptr {at}, align {align}")
        return True

    def holds(self, pointer: Value, kind: str) -> bool:
        """Return whether a store to an address in a shared array has a window."""
        if pointer.kind not in ("step", "pattern"):
            return False
        window = self._window(pointer, kind, aligned=True)
        return window is not None and window.is_distinct

    def _window(self, pointer: Value, kind: str, *, aligned: bool) -> _Window | None:
        size, offsets = size_of(kind), pointer.offsets
        if pointer.kind == "step":
            offsets = tuple(lane * pointer.step for lane in range(self._writer.width))
        if not offsets or kind == "i1" or any((offset - offsets[0]) % size for offset in offsets):
            return None
        begin, end = min(offsets), max(offsets) + size
        length = (end - begin) // size
        if aligned and begin % size == 0:
            # The smallest run of 2 ** n elements, from a multiple of its length.
            length = 1
            while begin // (length * size) != (end - size) // (length * size):
                length *= 2
                if length * size > _MAX_BYTES:
                    return None
            begin = begin // (length * size) * (length * size)
        if length > _MAX_LENGTH * self._writer.width or length * size > _MAX_BYTES:
            return None
        return _Window(begin, length, [(offset - begin) // size for offset in offsets])

    def _at(self, window: _Window, pointer: Value) -> str:
        if window.begin == 0:
            return pointer.text
        return self._writer.op(f"getelementptr i8, ptr {pointer.text}, i64 {window.begin}")

    def _load(self, window: _Window, kind: str, align: int, pointer: Value) -> str:
        at = self._at(window, pointer)
        return self._writer.op(f"load <{window.length} x {kind}>, ptr {at}, align {align}")

    def _permuted(self, whole: str, vector: str, order: list[int]) -> str:
        """Return the elements of a vector in an order; -1 is any value."""
        chosen = ", ".join("i32 poison" if lane < 0 else f"i32 {lane}" for lane in order)
        pair = f"{whole} {vector}, {whole} poison"
        return self._writer.op(f"shufflevector {pair}, <{len(order)} x i32> <{chosen}>")
