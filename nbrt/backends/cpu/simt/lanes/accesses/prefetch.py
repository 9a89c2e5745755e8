"""Accesses to short runs of memory, which processors do not prefetch by themselves.

A block that marches through an array, plane by plane, reads a small part of each plane, in another
page in each iteration; so does a loop whose step is the number of threads of the grid. A block of
several rows reads a short run of each row of an array; the next block continues the runs. The
processor's prefetchers follow none of these. `Advances` finds by how much
an iteration, or the next block, moves an address. The code prefetches what a later iteration or
block accesses: a hint, which can neither fail nor change a result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbrt.backends.cpu.simt.lanes.vectors.lane_sets import constant
from nbrt.backends.cpu.simt.llvm.model import THREAD_PARAMETERS
from nbrt.backends.cpu.simt.llvm.types import is_scalar, size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.backends.cpu.simt.lanes.analysis.divergence import Divergence
    from nbrt.backends.cpu.simt.lanes.analysis.regions import SplitThread
    from nbrt.backends.cpu.simt.lanes.vectors.rows import RowWriter
    from nbrt.backends.cpu.simt.lanes.vectors.values import Value
    from nbrt.backends.cpu.simt.llvm.model import Instruction, Operand

__all__ = ["Advance", "Advances", "Prefetches"]

_LINE = 64
"""Bytes of a cache line."""

_ITERATIONS_AHEAD = 2
"""Iterations between a prefetch and its use; with one, steps on large grids took longer."""

_PLAIN_ITERATIONS_AHEAD = 8
"""The same in loops without barriers, where an iteration is that of one vector of threads."""

_BLOCKS_AHEAD = 2
"""Blocks between a prefetch and its use. A block that loads a halo reads elements of the next one
before it ends, so a prefetch for the next block would be too late for these."""

_RECOMPUTED = frozenset(("add", "sub", "mul", "shl", "sext", "zext"))

_ORDERS = ("llvm.smin.", "llvm.smax.", "llvm.umin.", "llvm.umax.")
_MAX_DEPTH = 16


class Advance(NamedTuple):
    """How far an iteration or the next block moves a value: a number, or a multiple of a value."""

    factor: int
    by: Operand | None = None
    """A value that does not change in the loop."""


_STILL = Advance(0)


class Advances:
    """Finds the distances by which loops around barriers, or the next block, move addresses.

    `divergence` is that of the lanes of the thread. Blocks follow each other along x; their
    distance matters if a block has several rows, so that `has_rows` is true.

    Attributes
    ----------
    function : Function
        The thread.
    """

    def __init__(self, thread: SplitThread, divergence: Divergence, *, has_rows: bool) -> None:
        self.function = thread.function
        self._divergence = divergence
        self._has_rows = has_rows
        parameters = thread.function.parameters[THREAD_PARAMETERS + 3 :]
        self._block = parameters[0].text if parameters else ""
        self._in_loops: set[str] = set()
        self._home = {
            item.name: block.label for block, item in thread.function.instructions() if item.name
        }
        self._barrier_loops: list[set[str]] = []
        self._plain_loops: list[set[str]] = []
        self._counters: dict[str, tuple[Advance, set[str]]] = {}
        """By phis of headers of loops: by how much they increase, and the blocks of the loop."""
        for level in divergence.levels:
            for loop in level.loops.values():
                self._in_loops |= loop.blocks
                has_barriers = any(thread.is_at_barrier(label) for label in loop.blocks)
                (self._barrier_loops if has_barriers else self._plain_loops).append(loop.blocks)
                for phi in thread.function.blocks[loop.header].phis:
                    added = self._increase(phi, loop.blocks)
                    if added is None:
                        continue
                    step = constant(added.text)
                    if step:
                        self._counters[phi.name] = Advance(step), loop.blocks
                    elif added.is_local and not has_barriers:
                        self._counters[phi.name] = Advance(1, added), loop.blocks

    def of(self, pointer: Operand, *, runs: bool = False) -> Advance | None:
        """Return how far an iteration, or the next block, moves an address, in bytes.

        Returns None if it is not known, and for distances that processors prefetch: loops whose
        distance is known when the code is written. They do not prefetch that either if each thread
        accesses another short run, so that `runs` is true.
        """
        home = self._home.get(pointer.text)
        inside = [blocks for blocks in self._barrier_loops if home in blocks]
        if inside:
            found = self._find(pointer, min(inside, key=len), _MAX_DEPTH)
            is_far = found is not None and (found.by is not None or (runs and found != _STILL))
            return found if is_far else None
        if home in self._in_loops:
            return self._in_plain_loop(pointer, home)
        if not self._has_rows:
            return None
        found = self._find(pointer, None, _MAX_DEPTH)
        return None if found == _STILL else found

    def iterations_ahead(self, pointer: Operand) -> int:
        """Return the number of iterations between a prefetch and its use."""
        home = self._home.get(pointer.text)
        has_barriers = any(home in blocks for blocks in self._barrier_loops)
        return _ITERATIONS_AHEAD if has_barriers else _PLAIN_ITERATIONS_AHEAD

    def _in_plain_loop(self, pointer: Operand, home: str | None) -> Advance | None:
        """Return how far an iteration of a loop without barriers moves an address by a value."""
        inside = [blocks for blocks in self._plain_loops if home in blocks]
        found = self._find(pointer, min(inside, key=len), _MAX_DEPTH)
        return found if found is not None and found.by is not None else None

    def moves_in_loops(self, pointer: Operand, block: str, nbytes: int) -> bool:
        """Return whether each loop around a block moves an address, by at least some bytes.

        A distance known only at run time counts as enough.
        """
        for blocks in (*self._barrier_loops, *self._plain_loops):
            if block not in blocks:
                continue
            found = self._find(pointer, blocks, _MAX_DEPTH)
            if found is None or (found.by is None and abs(found.factor) < nbytes):
                return False
        return True

    def _increase(self, phi: Instruction, blocks: set[str]) -> Operand | None:
        """Return what each iteration of a loop adds to a phi of its header.

        That is a constant, or a value from before the loop; None if it is neither, or varies.
        """
        added: set[Operand | None] = set()
        for operand, label in zip(phi.operands, phi.labels, strict=True):
            if label not in blocks:
                continue
            following = self._divergence.definitions.get(operand.text)
            if following is None or following.opcode != "add":
                return None
            texts = [inner.text for inner in following.operands]
            other = following.operands[1 - texts.index(phi.name)] if phi.name in texts else None
            added.add(other)
        found = added.pop() if len(added) == 1 else None
        return None if found is None or self._home.get(found.text) in blocks else found

    def _find(self, operand: Operand, loop: set[str] | None, depth: int) -> Advance | None:
        """Return how far an iteration of a loop moves a value, or the next block without a loop."""
        name, home = operand.text, self._home.get(operand.text)
        if loop is None and name == self._block:
            return Advance(1)
        if home is None or (loop is not None and home not in loop):
            return _STILL  # a constant, a parameter, or a value from before the loop
        found, counted = self._counters.get(name, (None, None))
        if loop is not None and counted is loop:
            return found
        item = self._divergence.definitions.get(name)
        if item is None or depth == 0 or item.opcode in ("phi", "load"):
            return None
        parts = [self._find(inner, loop, depth - 1) for inner in item.operands]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        if all(part == _STILL for part in known):
            return _STILL
        return self._combined(item, known)

    def _combined(self, item: Instruction, parts: list[Advance]) -> Advance | None:
        opcode, first, last = item.opcode, parts[0], parts[-1]
        if opcode in ("sext", "zext", "trunc", "freeze"):
            return first
        if opcode == "call" and item.detail.startswith(_ORDERS):
            return first if last == _STILL else last if first == _STILL else None
        if opcode in ("add", "or", "sub"):
            return _sum(first, last if opcode != "sub" else Advance(-last.factor, last.by))
        if opcode in ("mul", "shl"):
            return self._product(item, first, last)
        if opcode != "getelementptr" or item.detail.startswith("{") or len(parts) > 2:
            return None
        return _sum(first, Advance(last.factor * size_of(item.detail), last.by))

    def _product(self, item: Instruction, first: Advance, last: Advance) -> Advance | None:
        moving, still = (first, item.operands[1]) if last == _STILL else (last, item.operands[0])
        if _STILL not in (first, last):
            return None
        number = constant(still.text)
        if item.opcode == "shl":
            return None if number is None else Advance(moving.factor << number, moving.by)
        if number is not None:
            return Advance(moving.factor * number, moving.by)
        return Advance(moving.factor, still) if moving.by is None else None


def _sum(left: Advance, right: Advance) -> Advance | None:
    if left == _STILL or right == _STILL:
        return left if right == _STILL else right
    return Advance(left.factor + right.factor, left.by) if left.by == right.by else None


class Prefetches:
    """Writes prefetches.

    `values` are the values that are known at the current place.
    """

    def __init__(
        self,
        writer: RowWriter,
        advances: Advances,
        definitions: Mapping[str, Instruction],
        values: Mapping[str, Value],
    ) -> None:
        self._writer = writer
        self._advances = advances
        self._definitions = definitions
        self._values = values

    def write_run(self, item: Instruction, pointer: Value) -> None:
        """Prefetch what a load of a vector, part of a run of one thread, will use soon."""
        if item.opcode != "load" or not item.type.startswith("<"):
            return
        advance = self._advances.of(item.operands[0], runs=True)
        if advance is None:
            return
        distance = str(advance.factor)
        if advance.by is not None:
            factor = self._uniform(advance.by) if advance.by.type == "i64" else None
            if factor is None:
                return
            distance = self._writer.op(f"mul i64 {factor}, {advance.factor}")
        self._writer.notes["the next iteration is prefetched"] = None
        # Runs begin anywhere in a line; the last byte of the run before is in their first line.
        self._prefetch(pointer.text, distance, [size_of(item.type) - 1], is_store=False)

    def write(self, item: Instruction, pointer: Value) -> None:
        """Prefetch what a load or a store of neighbouring elements will use soon."""
        kind = item.type if item.opcode == "load" else item.operands[0].type
        if not is_scalar(kind):
            return
        count = size_of(kind)
        texts = [pointer.text]
        if pointer.kind == "step" and pointer.step == count:
            count *= self._writer.width
        elif pointer.kind == "rows" and pointer.step == count:
            count *= self._writer.rows.width
            texts = list(pointer.texts)
        elif pointer.kind != "scalar":
            return
        advance = self._advances.of(item.operands[-1])
        if advance is None or (advance.by is None and pointer.kind == "scalar"):
            return
        distance = str(_BLOCKS_AHEAD * advance.factor)
        # A neighbouring run begins in the last line of this one.
        offsets = [*range(_LINE - 1, count - 1, _LINE), count - 1]
        if pointer.kind == "scalar":
            offsets = [0]
        elif advance.by is not None or abs(advance.factor) > count:
            offsets = [*range(0, count, _LINE), count - 1]
        if advance.by is not None:
            factor = self._uniform(advance.by) if advance.by.type == "i64" else None
            if factor is None:
                return
            ahead = self._advances.iterations_ahead(item.operands[-1])
            distance = self._writer.op(f"mul i64 {factor}, {ahead * advance.factor}")
        self._writer.notes["the next iteration or block is prefetched"] = None
        for text in texts:
            self._prefetch(text, distance, offsets, is_store=item.opcode == "store")

    def _uniform(self, operand: Operand, depth: int = 6) -> str | None:
        """Write a value that depends on parameters only; return None for other values.

        The value itself may not be known at this place.
        """
        if not operand.is_local:
            return operand.text
        item = self._definitions.get(operand.text)
        if item is None:
            value = self._values[operand.text]
            return value.text if value.kind == "scalar" else None
        if depth == 0 or item.opcode not in _RECOMPUTED:
            return None
        found = [self._uniform(inner, depth - 1) for inner in item.operands]
        texts = [text for text in found if text is not None]
        return self._writer.op(item.without_flags(texts)) if len(texts) == len(found) else None

    def _prefetch(self, at: str, distance: str, offsets: list[int], *, is_store: bool) -> None:
        writer = self._writer
        following = writer.op(f"getelementptr i8, ptr {at}, i64 {distance}")
        for offset in offsets:
            line = writer.op(f"getelementptr i8, ptr {following}, i64 {offset}")
            arguments = [f"ptr {line}", f"i32 {int(is_store)}", "i32 3", "i32 1"]
            writer.call("void", "llvm.prefetch.p0", arguments)
