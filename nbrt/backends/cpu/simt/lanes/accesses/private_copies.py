"""Private copies of shared arrays that threads only add to, as in histograms.

Additions to one element depend on each other through memory, and the processor has to wait for each
before the next. If neighbouring lanes add to different copies of the array, an image of one colour
is counted nearly as fast as noise. Sums of integers are the same in any order, modulo a power of
two.

An array has copies if it is small and its address is used for accesses only. A loop over a grid
stride adds to the copies if it accesses the array in no other way and needs no results. A region
that accesses the array otherwise first adds the copies to it; the flag `dirty` tells whether there
is something to add. The first iterations use the array itself, because copies cost more than they
save where each thread adds a few numbers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.llvm.graph import reachable
from nbrt.backends.cpu.simt.llvm.types import is_integer, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nbrt.backends.cpu.simt.lanes.analysis.regions import BarrierRegion, SplitThread
    from nbrt.backends.cpu.simt.lanes.vectors.writer import LaneWriter, Value
    from nbrt.backends.cpu.simt.llvm.model import Instruction, Operand

__all__ = ["PrivateCopies"]

_COPIES = 3
"""Number of copies besides the array."""
_MAX_SIZE = 4096
"""Maximum size in bytes of an array with copies."""
_FIRST_PASSES = 4
"""Iterations that use the array itself."""
_ESCAPES = "its address is chosen at run time, stored or passed on"
_NO_ADDITIONS = "threads use the results of the additions, or the sums are no integers"
_NO_REGION = "no grid-stride loop accesses it by additions only"


@dataclass
class _Array:
    """A shared array with copies."""

    at: str
    """Its address."""
    size: int
    type: str
    names: frozenset[str]
    """Names of its addresses."""
    copies: str
    dirty: str
    """Slot of the flag that the copies are in use."""
    passes: str
    """Slot of the number of iterations."""


class PrivateCopies:
    """Finds arrays with copies, and writes additions to the copies.

    `allocate` returns stack memory for a number of bytes, `used` are the names of values with uses.
    """

    def __init__(
        self,
        writer: LaneWriter,
        allocate: Callable[[int, str], str],
        thread: SplitThread,
        used: set[str],
    ) -> None:
        self._writer = writer
        self._allocate = allocate
        self._thread = thread
        self._used = used
        self._arrays: list[_Array] = []
        self._bases: dict[str, tuple[str, list[str]]] = {}
        """In the current region: by address, the address of the array, and those of the copies."""

    # -- analysis --------------------------------------------------------------------------------

    def find(self, known: Mapping[str, Value]) -> None:
        """Find the arrays; `known` are the addresses of shared arrays by name."""
        roots: dict[str, list[str]] = {}
        for _, item in self._thread.function.instructions():
            if item.opcode == "call" and item.detail.startswith(placeholders.SHARED):
                roots.setdefault(item.detail, []).append(item.name)
        for detail, names in roots.items():
            if detail not in (placeholders.SHARED_DYNAMIC, placeholders.SHARED_BYTES):
                self._add(detail, names, known[names[0]].text)

    def _add(self, detail: str, roots: list[str], at: str) -> None:
        """Allocate copies of an array, or note what stands in the way if a loop adds to it."""
        size, _ = placeholders.shared_extent(detail)
        names, escapes = self._addresses(roots)
        obstacle = _ESCAPES if escapes else self._obstacle(size, names)
        if obstacle:
            if self._adds_in_loop(names):
                note = f"no private copies of a shared array of {size} bytes: {obstacle}"
                self._writer.notes[note] = None
            return
        kind = self._additions(names)[0].type
        array = _Array(at, size, kind, frozenset(names), "", "", "")
        array.copies = self._allocate(_COPIES * size, "i8")
        array.dirty, array.passes = self._writer.slot("i1"), self._writer.slot("i32")
        self._writer.do(f"store i1 false, ptr {array.dirty}")
        self._writer.do(f"store i32 0, ptr {array.passes}")
        self._arrays.append(array)
        self._writer.notes["additions to a shared array: neighbouring lanes add to copies"] = None

    def _items(self) -> list[Instruction]:
        return [item for _, item in self._thread.function.instructions()]

    def _additions(self, names: set[str]) -> list[Instruction]:
        return [item for item in self._items() if self._is_addition(item, names)]

    def _obstacle(self, size: int, names: set[str]) -> str:
        """Return why an array whose addresses have these names has no copies, or nothing."""
        if size > _MAX_SIZE:
            return f"more than {_MAX_SIZE}"
        additions = self._additions(names)
        if not additions:
            return _NO_ADDITIONS
        kinds = {item.type for item in additions}
        units = [
            size,
            *(
                size_of(item.detail)
                for item in self._items()
                if item.opcode == "getelementptr" and item.name in names
            ),
        ]
        if len(kinds) > 1 or any(unit % size_of(additions[0].type) for unit in units):
            return "additions of several types, or not to whole elements"
        if not self._has_region(names):
            return _NO_REGION
        return ""

    def _adds_in_loop(self, names: set[str]) -> bool:
        """Return whether a loop adds to an array atomically, in any way."""
        blocks = self._thread.function.blocks

        def successors(label: str) -> list[str]:
            return [each for each in blocks[label].successors if each in blocks]

        return any(
            item.opcode == "atomicrmw"
            and item.detail in ("add", "sub", "fadd", "fsub")
            and item.operands[0].text in names
            and block.label in reachable([block.label], successors)
            for block, item in self._thread.function.instructions()
        )

    def _addresses(self, roots: list[str]) -> tuple[set[str], bool]:
        """Return the names of addresses in an array, and whether they are used otherwise."""
        names, escapes = set(roots), False
        items = [*self._items(), *self._thread.all_phis()]
        pending = True
        while pending:
            pending = False
            for item in items:
                if item.name in names or not any(o.text in names for o in item.operands):
                    continue
                if item.opcode in ("getelementptr", "freeze"):
                    names.add(item.name)
                    pending = True
                elif not self._is_access(item, names):
                    escapes = True
        return names, escapes

    def _is_access(self, item: Instruction, names: set[str]) -> bool:
        pointer = _pointer(item)
        others = [operand for operand in item.operands if operand is not pointer]
        return pointer is not None and not any(operand.text in names for operand in others)

    def _is_addition(self, item: Instruction, names: set[str] | frozenset[str]) -> bool:
        return (
            item.opcode == "atomicrmw"
            and item.detail in ("add", "sub")
            and is_integer(item.type)
            and item.operands[0].text in names
            and item.name not in self._used
        )

    def _has_region(self, names: set[str]) -> bool:
        return any(
            self._adds(region, names) and region.wait in self._thread.interchanged
            for region in self._thread.regions
        )

    def _adds(self, region: BarrierRegion, names: set[str] | frozenset[str]) -> bool:
        """Return whether a region only adds to an array."""
        items = self._accesses(region, names)
        return bool(items) and all(self._is_addition(item, names) for item in items)

    def _accesses(
        self, region: BarrierRegion, names: set[str] | frozenset[str]
    ) -> list[Instruction]:
        blocks = self._thread.function.blocks
        items = [item for label in region.level.blocks for item in blocks[label].instructions]
        return [i for i in items if (pointer := _pointer(i)) is not None and pointer.text in names]

    # -- regions ---------------------------------------------------------------------------------

    def begin_region(self, region: BarrierRegion) -> None:
        """Write what a region does before its groups: begin to use copies, or add them up."""
        self._bases.clear()
        for array in self._arrays:
            if self._adds(region, array.names):
                if region.wait in self._thread.interchanged:
                    self._use(array)
            elif self._accesses(region, array.names):
                self._add_up(array)

    def _use(self, array: _Array) -> None:
        """Use the copies after some iterations; clear them before."""
        writer = self._writer
        passes = writer.op(f"load i32, ptr {array.passes}")
        writer.do(f"store i32 {writer.op(f'add i32 {passes}, 1')}, ptr {array.passes}")
        begins = writer.op(f"icmp eq i32 {passes}, {_FIRST_PASSES}")
        clear, after = writer.name("copies.clear"), writer.name("copies.after")
        writer.choose(begins, clear, after)
        writer.start(clear)
        length = _COPIES * array.size
        arguments = [f"ptr {array.copies}", "i8 0", f"i64 {length}", "i1 false"]
        writer.call("void", "llvm.memset.p0.i64", arguments)
        writer.do(f"store i1 true, ptr {array.dirty}")
        writer.go(after)
        writer.start(after)
        uses = writer.op(f"load i1, ptr {array.dirty}")
        bases = []
        for number in range(_COPIES):
            copy = writer.op(f"getelementptr i8, ptr {array.copies}, i64 {number * array.size}")
            bases.append(writer.op(f"select i1 {uses}, ptr {copy}, ptr {array.at}"))
        for name in array.names:
            self._bases[name] = (array.at, bases)

    def _add_up(self, array: _Array) -> None:
        """Add the copies to the array if they are in use."""
        writer = self._writer
        dirty = writer.op(f"load i1, ptr {array.dirty}")
        start, head = writer.name("copies.add"), writer.name("copies.loop")
        after = writer.name("copies.after")
        writer.choose(dirty, start, after)
        writer.start(start)
        writer.go(head)
        writer.start(head)
        kind, index = array.type, writer.name("at")
        line = len(writer.lines)
        place = writer.op(f"getelementptr i8, ptr {array.at}, i64 {index}")
        total = writer.op(f"load {kind}, ptr {place}, align {size_of(kind)}")
        for number in range(_COPIES):
            moved = writer.op(f"add i64 {index}, {number * array.size}")
            copy = writer.op(f"getelementptr i8, ptr {array.copies}, i64 {moved}")
            part = writer.op(f"load {kind}, ptr {copy}, align {size_of(kind)}")
            total = writer.op(f"add {kind} {total}, {part}")
        writer.do(f"store {kind} {total}, ptr {place}, align {size_of(kind)}")
        following = writer.op(f"add nuw nsw i64 {index}, {size_of(kind)}")
        phi = f"  {index} = phi i64 [ 0, {start} ], [ {following}, {head} ]"
        writer.lines.insert(line, phi)
        more = writer.op(f"icmp ult i64 {following}, {array.size}")
        done = writer.name("copies.done")
        writer.choose(more, head, done)
        writer.start(done)
        writer.do(f"store i1 false, ptr {array.dirty}")
        writer.do(f"store i32 0, ptr {array.passes}")
        writer.go(after)
        writer.start(after)

    # -- additions -------------------------------------------------------------------------------

    def places(self, item: Instruction) -> Iterator[Callable[[str], str]]:
        """Return functions for the lanes in turn, without an end, for an atomic operation.

        A function takes the address that its lane accesses, and returns the one to use: the same,
        or that of the element in a copy. The latter is computed from the address of the copy, as
        LLVM assumes that no offset from the array's address reaches other memory.
        """
        root, bases = self._bases.get(item.operands[0].text, ("", []))
        if not self._is_addition(item, {item.operands[0].text}):
            bases = []
        return itertools.cycle([str, *(partial(self._in_copy, root, base) for base in bases)])

    def _in_copy(self, root: str, base: str, at: str) -> str:
        writer = self._writer
        begin = writer.op(f"ptrtoint ptr {root} to i64")
        offset = writer.op(f"sub i64 {writer.op(f'ptrtoint ptr {at} to i64')}, {begin}")
        return writer.op(f"getelementptr i8, ptr {base}, i64 {offset}")


def _pointer(item: Instruction) -> Operand | None:
    """Return the address that an instruction accesses."""
    if item.opcode in ("load", "atomicrmw", "cmpxchg"):
        return item.operands[0]
    return item.operands[1] if item.opcode == "store" else None
