"""Loads, stores and atomic operations of a group of lanes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.lanes.accesses.row_accesses import SUFFIX, RowAccesses
from nbrt.backends.cpu.simt.lanes.accesses.windows import Windows
from nbrt.backends.cpu.simt.lanes.vectors.values import Element, Lane, Linear, Mask, Value
from nbrt.backends.cpu.simt.llvm.model import CannotLowerError, Instruction, renamed
from nbrt.backends.cpu.simt.llvm.types import is_scalar, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nbrt.backends.cpu.simt.lanes.accesses.prefetch import Prefetches
    from nbrt.backends.cpu.simt.lanes.accesses.private_copies import PrivateCopies
    from nbrt.backends.cpu.simt.lanes.accesses.scalarize import Scalarizer
    from nbrt.backends.cpu.simt.lanes.accesses.streaming import StreamedStores
    from nbrt.backends.cpu.simt.lanes.vectors.rows import RowWriter

__all__ = ["Memory"]

_PLAIN = frozenset(("add", "sub", "and", "or", "xor", "fadd", "fsub"))
_ORDERED = {"max": "smax", "min": "smin", "umax": "umax", "umin": "umin"}
_FLOATING = {
    "fmax": "maxnum",
    "fmin": "minnum",
    "fmaximum": "maximum",
    "fminimum": "minimum",
}
_PART = 8
"""Lanes of which the elements are gathered together."""
_AHEAD = 512
"""Distance of a prefetch in bytes; 256 to 2048 are equal within 10 % for sparse rows."""
_WRAPS = ("uinc_wrap", "udec_wrap")


class Memory:
    """Writes accesses to memory.

    Shared arrays and stack slots are private to the block, and one OS thread runs a block.
    Therefore a masked store there is a load, a blend and a store, which is far cheaper, and an
    atomic operation needs no atomic instruction.

    `definitions` are the instructions of the thread by the names of their results.
    """

    def __init__(
        self,
        writer: RowWriter,
        scalarizer: Scalarizer,
        definitions: Mapping[str, Instruction],
        prefetches: Prefetches,
        streamed: StreamedStores,
    ) -> None:
        self._writer = writer
        self._scalarizer = scalarizer
        self._definitions = definitions
        self._windows = Windows(writer)
        self.copies: PrivateCopies | None = None
        self._prefetches = prefetches
        self._streamed = streamed
        self._rows = RowAccesses(writer)
        self._scratch = ""
        self._writes = {True: 0, False: 0}
        """Number of writes to private memory, and to other memory."""

    def write(self, item: Instruction, operands: list[Value], mask: Mask) -> Value | None:
        """Write a load, a store or an atomic operation."""
        is_streamed = self._streamed.may_stream(item, operands[-1], mask)
        if item.opcode in ("load", "store") and not is_streamed:
            self.prefetch(item, operands[-1])
        if item.opcode == "load":
            return self._load(item, operands[0], mask)
        self._writes[self.is_private(item.operands[1 if item.opcode == "store" else 0].text)] += 1
        if is_streamed:
            self._store_streamed(item, operands[0], operands[1])
            return None
        if item.opcode == "store":
            self._store(item, operands[0], operands[1], mask)
            return None
        return self._atomic(item, operands, mask)

    # -- pointers -----------------------------------------------------------------------------

    def is_private(self, name: str) -> bool:
        """Return whether a pointer is always to memory that is private to the block."""
        return self._is_private(name, set(), stack=True)

    def is_shared(self, name: str) -> bool:
        """Return whether a pointer is always to shared arrays, which have padding."""
        return self._is_private(name, set(), stack=False)

    def _is_private(self, name: str, seen: set[str], *, stack: bool) -> bool:
        if name in seen:
            return True  # a phi of a loop: its other operands decide
        seen.add(name)
        item = self._definitions.get(name)
        if item is None:
            return False
        if item.opcode == "alloca":
            return stack
        if item.opcode == "call":
            return item.detail.startswith(placeholders.SHARED)
        if item.opcode in ("getelementptr", "freeze"):
            return self._is_private(item.operands[0].text, seen, stack=stack)
        if item.opcode in ("phi", "select"):
            pointers = [o for o in item.operands if o.type == "ptr"]
            return all(self._is_private(o.text, seen, stack=stack) for o in pointers)
        return False

    def prefetch(self, item: Instruction, pointer: Value) -> None:
        """Prefetch what a load or a store will use soon."""
        if not self.is_private(item.operands[-1].text):
            self._prefetches.write(item, pointer)

    # -- loads ---------------------------------------------------------------------------------

    def _load(self, item: Instruction, pointer: Value, mask: Mask) -> Value:
        writer, kind = self._writer, item.type
        if not is_scalar(kind):
            raise CannotLowerError(f"a load of the type {kind} has no form for lanes")
        if item.detail:
            value = self._scalarizer.each(
                item, [pointer], mask, lambda at: self._reread(item, at[0])
            )
            assert value is not None
            return value
        if pointer.kind == "scalar":
            text = writer.op(f"load {kind}, ptr {pointer.text}, align {item.align}")
            return Value(kind, "scalar", text)
        vector, size = writer.vector_type(kind), size_of(kind)
        if self._rows.has_runs(pointer, kind):
            is_private = self.is_private(item.operands[0].text)
            text = self._rows.load(item, pointer, mask, is_private=is_private)
            return Value(kind, "vector", text)
        if pointer.kind == "step" and pointer.step == size and kind != "i1":
            text = self._load_run(item, pointer.text, mask)
            if mask is None:
                return Value(kind, "vector", text, write_lane=self._reload(item, pointer, text))
        elif window := self._load_window(item, pointer, mask):
            text = window
        elif pointer.kind == "step" and mask is None:
            text = "poison"
            for lane in range(writer.width):
                at = self._writer.lane(pointer, lane)
                element = writer.op(f"load {kind}, ptr {at}, align {item.align}")
                text = writer.op(f"insertelement {vector} {text}, {kind} {element}, i64 {lane}")
        elif (run := _run_address(pointer, size)) and kind != "i1":
            writer.notes["vectors are loaded or stored unless an index is negative"] = None
            text = self._either(
                run.condition,
                lambda: self._load_run(item, run.value.text, mask),
                lambda: self._gather(item, pointer, mask),
                vector,
            )
        else:
            note = f"gathers of {kind}: the distance of the addresses of two threads is not known"
            writer.notes[note] = None
            text = self._gather(item, pointer, mask)
        return Value(kind, "vector", text)

    def _load_window(self, item: Instruction, pointer: Value, mask: Mask) -> str:
        """Write a load at constant distances; return the vector, or empty."""
        shared = self.is_shared(item.operands[0].text)
        if pointer.kind != "pattern" and not (pointer.kind == "step" and shared):
            return ""
        return self._windows.load(item.type, item.align, pointer, mask, shared=shared)

    def _either(
        self, condition: str, yes: Callable[[], str], no: Callable[[], str], kind: str = ""
    ) -> str:
        """Write one of two forms of an access; return the result, if it has one."""
        writer = self._writer
        if condition == "true":
            return yes()
        first, second, after = writer.name("run"), writer.name("any"), writer.name("done")
        writer.choose(condition, first, second)
        incoming = []
        for label, write in ((first, yes), (second, no)):
            writer.start(label)
            text = write()
            incoming.append((text, writer.label))
            writer.go(after)
        writer.start(after)
        return writer.phi(kind, incoming) if kind else ""

    def _reread(self, item: Instruction, at: str) -> str:
        return self._writer.op(renamed(item.text, {item.operands[0].text: at}))

    def _load_run(self, item: Instruction, at: str, mask: Mask) -> str:
        """Load neighbouring elements."""
        writer = self._writer
        vector = writer.vector_type(item.type)
        if mask is None or self.is_private(item.operands[0].text):
            return writer.op(f"load {vector}, ptr {at}, align {item.align}")
        chosen = f"{writer.vector_type('i1')} {self._writer.mask(mask)}"
        if mask.kind == "below":
            # The end of a run, or a short one such as a sparse row. The next one often follows in
            # memory, and a processor does not recognise a stream of such short runs.
            ahead = writer.op(f"getelementptr i8, ptr {at}, i64 {_AHEAD}")
            writer.call("void", "llvm.prefetch.p0", [f"ptr {ahead}", "i32 0", "i32 3", "i32 1"])
        name = f"llvm.masked.load.{self._suffix(item.type)}.p0"
        return writer.call(
            vector, name, [f"ptr {at}", f"i32 {item.align}", chosen, f"{vector} poison"]
        )

    def _reload(self, item: Instruction, pointer: Value, vector: str) -> Callable[[Lane], str]:
        """Return a writer of single lanes, which reloads a lane if no write can have changed it."""
        is_private = self.is_private(item.operands[0].text)
        writes = self._writes[is_private]

        def write_lane(lane: Lane) -> str:
            if self._writes[is_private] != writes:
                whole = f"{self._writer.vector_type(item.type)} {vector}"
                return self._writer.op(f"extractelement {whole}, i64 {lane}")
            at = self._writer.lane(pointer, lane)
            return self._writer.op(f"load {item.type}, ptr {at}, align {item.align}")

        return write_lane

    def note_writes(self) -> None:
        """Record that a call may have written to memory."""
        for is_private in self._writes:
            self._writes[is_private] += 1

    def _suffix(self, kind: str) -> str:
        return f"v{self._writer.width}{SUFFIX.get(kind, kind)}"

    def _gather(self, item: Instruction, pointer: Value, mask: Mask) -> str:
        """Load from any addresses; inactive lanes load from a scratch slot."""
        element = pointer.element
        if mask is None or mask.kind != "below" or element is None:
            return self._gather_any(item, pointer, mask)
        number = mask.text
        return self._either(
            element.condition,
            lambda: self._gather_below(item, element, mask, number),
            lambda: self._gather_any(item, pointer, mask),
            self._writer.vector_type(item.type),
        )

    def _gather_below(self, item: Instruction, element: Element, mask: Mask, number: str) -> str:
        """Load elements of one array for the lanes below a number, at least one.

        Indices are cheaper to extract than addresses. Parts of the group without an active lane are
        skipped; an inactive lane of another part loads the element of lane 0.
        """
        writer, kind = self._writer, element.index.type
        first = writer.lane(element.index, 0)
        chosen = writer.blend(kind, mask, writer.vector(element.index), writer.splat(kind, first))
        indices, width = Value(kind, "vector", chosen), min(writer.width, _PART)
        whole, incoming, after = "poison", [], writer.name("gathered")
        for start in range(0, writer.width, width):
            if start:
                more, part = writer.op(f"icmp ugt i64 {number}, {start}"), writer.name("gather")
                incoming.append((whole, writer.label))
                writer.choose(more, part, after)
                writer.start(part)
            loaded = "poison"
            for lane in range(width):
                index = writer.lane(indices, start + lane)
                if element.extension:
                    index = writer.op(f"{element.extension} {kind} {index} to i64")
                at = writer.op(f"getelementptr {element.type}, ptr {element.base}, i64 {index}")
                value = writer.op(f"load {item.type}, ptr {at}, align {item.align}")
                place = f"{item.type} {value}, i64 {lane}"
                loaded = writer.op(f"insertelement <{width} x {item.type}> {loaded}, {place}")
            whole = writer.with_part(item.type, whole, loaded, start, width)
        incoming.append((whole, writer.label))
        writer.go(after)
        writer.start(after)
        return writer.phi(writer.vector_type(item.type), incoming)

    def _gather_any(self, item: Instruction, pointer: Value, mask: Mask) -> str:
        writer = self._writer
        pointers = self.safe_pointers(pointer, mask)
        vector = writer.vector_type(item.type)
        name = f"llvm.masked.gather.{self._suffix(item.type)}.v{writer.width}p0"
        everyone = f"{writer.vector_type('i1')} splat (i1 true)"
        where = f"{writer.vector_type('ptr')} {pointers}"
        return writer.call(vector, name, [where, f"i32 {item.align}", everyone, f"{vector} poison"])

    def safe_pointers(self, pointer: Value, mask: Mask) -> str:
        """Return addresses that all lanes may load 32 bytes from: inactive lanes get a slot."""
        if mask is not None and not self._scratch:
            self._scratch = self._writer.slot("[64 x i8]")
        pointers = self._writer.vector(pointer)
        if mask is None:
            return pointers
        other = self._writer.splat("ptr", self._scratch)
        return self._writer.blend("ptr", mask, pointers, other)

    # -- stores --------------------------------------------------------------------------------

    def _store(self, item: Instruction, value: Value, pointer: Value, mask: Mask) -> None:
        writer, kind = self._writer, item.operands[0].type
        if pointer.kind == "scalar":
            text = value.text if value.kind == "scalar" else self._last(value, mask)
            writer.do(f"store {kind} {text}, ptr {pointer.text}, align {item.align}")
            return
        if not is_scalar(kind) or item.detail:
            self._scalarizer.each(item, [value, pointer], mask, lambda t: self._rewrite(item, t))
            return
        if pointer.kind == "step" and pointer.step == size_of(kind) and kind != "i1":
            self._store_run(item, self._writer.vector(value), pointer.text, mask)
            return
        if self._rows.has_runs(pointer, kind) and pointer.step:
            is_private = self.is_private(item.operands[1].text)
            self._rows.store(item, writer.vector(value), pointer, mask, is_private=is_private)
            return
        if (run := _run_address(pointer, size_of(kind))) and kind != "i1":
            vector = self._writer.vector(value)
            self._either(
                run.condition,
                lambda: self._store_run(item, vector, run.value.text, mask),
                lambda: self._scatter(item, value, pointer, mask),
            )
        elif not self._store_window(item, value, pointer, mask):
            self._scatter(item, value, pointer, mask)

    def _store_streamed(self, item: Instruction, value: Value, pointer: Value) -> None:
        """Store a run that bypasses the caches if the array is large."""
        vector = self._writer.vector(value)

        def store() -> str:
            self.prefetch(item, pointer)
            return self._store_run(item, vector, pointer.text, None)

        def stream() -> str:
            self._streamed.write(item, vector, pointer.text)
            return ""

        self._either(self._streamed.condition(item, pointer), stream, store)

    def _store_window(self, item: Instruction, value: Value, pointer: Value, mask: Mask) -> bool:
        """Write a store at constant distances; return whether it is possible."""
        shared = self.is_shared(item.operands[1].text)
        if pointer.kind != "pattern" and not (pointer.kind == "step" and shared):
            return False
        kind, vector = item.operands[0].type, self._writer.vector(value)
        return self._windows.store(kind, item.align, vector, pointer, mask, shared=shared)

    def is_written_in_runs(self, item: Instruction, pointer: Value) -> bool:
        """Return whether a store to shared memory is one store of a run, under any mask."""
        kind = item.operands[0].type
        if not is_scalar(kind) or item.detail or not self.is_shared(item.operands[1].text):
            return False
        if pointer.kind == "step" and pointer.step == size_of(kind):
            return kind != "i1"
        return self._windows.holds(pointer, kind)

    def _last(self, value: Value, mask: Mask) -> str:
        """Return the value of the last active lane, which is the result of several stores."""
        writer = self._writer
        if mask is None:
            return writer.lane(value, writer.width - 1)
        kind = f"i{writer.width}"
        leading = writer.call(kind, f"llvm.ctlz.{kind}", [f"{kind} {writer.bits(mask)}", "i1 true"])
        last = writer.op(f"sub {kind} {writer.width - 1}, {leading}")
        vector = f"{writer.vector_type(value.type)} {writer.vector(value)}"
        return writer.op(f"extractelement {vector}, {kind} {last}")

    def _rewrite(self, item: Instruction, texts: list[str]) -> str:
        if item.detail:
            raise CannotLowerError("an ordered store has no form for lanes")
        kind = item.operands[0].type
        self._writer.do(f"store {kind} {texts[0]}, ptr {texts[1]}, align {item.align}")
        return ""

    def _store_run(self, item: Instruction, vector: str, at: str, mask: Mask) -> str:
        writer = self._writer
        kind = item.operands[0].type
        whole = writer.vector_type(kind)
        if mask is not None and not self.is_private(item.operands[1].text):
            chosen = f"{writer.vector_type('i1')} {writer.mask(mask)}"
            name = f"llvm.masked.store.{self._suffix(kind)}.p0"
            align = f"i32 {item.align}"
            writer.call("void", name, [f"{whole} {vector}", f"ptr {at}", align, chosen])
            return ""
        if mask is not None:
            before = writer.op(f"load {whole}, ptr {at}, align {item.align}")
            if mask.kind in ("vector", "bits"):
                before = writer.frozen(kind, before)
            vector = writer.blend(kind, mask, vector, before)
        writer.do(f"store {whole} {vector}, ptr {at}, align {item.align}")
        return ""

    def _scatter(self, item: Instruction, value: Value, pointer: Value, mask: Mask) -> str:
        writer = self._writer
        kind = item.operands[0].type
        whole = Value("ptr", "vector", self.safe_pointers(pointer, mask)) if mask else pointer
        vector = Value(kind, "vector", writer.vector(value)) if value.kind != "scalar" else value
        for lane in range(writer.width):
            at, element = writer.lane(whole, lane), writer.lane(vector, lane)
            writer.do(f"store {kind} {element}, ptr {at}, align {item.align}")
        return ""

    # -- atomic operations ---------------------------------------------------------------------

    def _atomic(self, item: Instruction, operands: list[Value], mask: Mask) -> Value | None:
        is_private = self.is_private(item.operands[0].text)
        if item.opcode == "cmpxchg":
            return self._exchange(item, operands, mask, is_private)

        # Under a mask, lanes are not numbered while the code is written.
        places: Iterator[Callable[[str], str]] = itertools.repeat(str)
        if self.copies is not None and mask is None:
            places = self.copies.places(item)

        def write_lane(texts: list[str]) -> str:
            if is_private:
                return self._plain_operation(item, next(places)(texts[0]), texts[1])
            kind = item.type
            return self._writer.op(
                f"atomicrmw {item.detail} ptr {texts[0]}, {kind} {texts[1]} monotonic"
            )

        return self._scalarizer.each(item, operands, mask, write_lane)

    def _plain_operation(self, item: Instruction, at: str, value: str) -> str:
        """Write an atomic operation on private memory as plain instructions."""
        writer, kind, operation = self._writer, item.type, item.detail
        old = writer.op(f"load {kind}, ptr {at}, align {size_of(kind)}")
        pair = [f"{kind} {old}", f"{kind} {value}"]
        if operation == "xchg":
            new = value
        elif operation in _PLAIN:
            new = writer.op(f"{operation} {kind} {old}, {value}")
        elif operation in _ORDERED:
            new = writer.call(kind, f"llvm.{_ORDERED[operation]}.{kind}", pair)
        elif operation in _FLOATING:
            new = writer.call(kind, f"llvm.{_FLOATING[operation]}.{SUFFIX[kind]}", pair)
        elif operation in _WRAPS:
            new = self._wrapped(operation, kind, old, value)
        else:
            raise CannotLowerError(f"the atomic operation {operation} has no form for lanes")
        writer.do(f"store {kind} {new}, ptr {at}, align {size_of(kind)}")
        return old

    def _wrapped(self, operation: str, kind: str, old: str, limit: str) -> str:
        writer = self._writer
        if operation == "uinc_wrap":
            over = writer.op(f"icmp uge {kind} {old}, {limit}")
            moved = writer.op(f"add {kind} {old}, 1")
            return writer.op(f"select i1 {over}, {kind} 0, {kind} {moved}")
        zero = writer.op(f"icmp eq {kind} {old}, 0")
        above = writer.op(f"icmp ugt {kind} {old}, {limit}")
        over = writer.op(f"or i1 {zero}, {above}")
        moved = writer.op(f"sub {kind} {old}, 1")
        return writer.op(f"select i1 {over}, {kind} {limit}, {kind} {moved}")

    def _exchange(
        self, item: Instruction, operands: list[Value], mask: Mask, is_private: bool
    ) -> Value:
        """Write a compare-and-swap; its result has two members."""
        writer, kind = self._writer, item.operands[1].type

        def write_lane(texts: list[str]) -> str:
            at, expected, new = texts
            if is_private:
                old = writer.op(f"load {kind}, ptr {at}, align {size_of(kind)}")
                same = writer.op(f"icmp eq {kind} {old}, {expected}")
                stored = writer.op(f"select i1 {same}, {kind} {new}, {kind} {old}")
                writer.do(f"store {kind} {stored}, ptr {at}, align {size_of(kind)}")
                return old
            pair = writer.op(
                f"cmpxchg ptr {at}, {kind} {expected}, {kind} {new} monotonic monotonic"
            )
            return writer.op(f"extractvalue {{ {kind}, i1 }} {pair}, 0")

        stand_in = Instruction(item.name, item.opcode, kind, item.operands)
        old = self._scalarizer.each(stand_in, operands, mask, write_lane)
        assert old is not None
        equal = writer.op(
            f"icmp eq {writer.vector_type(kind)} {old.text}, {self._writer.vector(operands[1])}"
        )
        return Value(kind, "members", f"{old.text} {equal}")

    def member(self, pair: Value, item: Instruction) -> Value:
        """Return a member of the result of a compare-and-swap."""
        old, equal = pair.text.split(" ")
        return Value(item.type, "vector", equal if item.detail == "1" else old)


def _run_address(pointer: Value, size: int) -> Linear | None:
    """Return the strided form of an address if lanes then access neighbouring elements."""
    linear = pointer.linear
    return linear if linear is not None and linear.value.step == size else None
