"""Regions with a loop that neighbouring threads run together.

The code before the loop and behind it is written for one thread after the other. In the loop, the
vectors of the threads are joined to one: eight sums of each of two threads are sixteen elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbrt.backends.cpu.simt.lanes.flow.merges import Edge
from nbrt.backends.cpu.simt.lanes.instructions import fast_flags
from nbrt.backends.cpu.simt.lanes.vectors.writer import FULL, Value
from nbrt.backends.cpu.simt.llvm.model import BINARY, CASTS, renamed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt.backends.cpu.simt.lanes.analysis.jammed_loops import JammedLoop, LoopPart
    from nbrt.backends.cpu.simt.lanes.analysis.regions import BarrierRegion, SplitThread
    from nbrt.backends.cpu.simt.lanes.instructions import Instructions
    from nbrt.backends.cpu.simt.lanes.spill_slots import SpillSlots
    from nbrt.backends.cpu.simt.llvm.model import Instruction, Operand

__all__ = ["JammedRegion"]


class _Thread(NamedTuple):
    """One of the threads: its group, and the values that it knows before the loop."""

    group: str
    values: dict[str, Value]


class JammedRegion:
    """Writes a region for groups of one thread each that run its loop together."""

    def __init__(
        self,
        thread: SplitThread,
        region: BarrierRegion,
        loop: JammedLoop,
        instructions: Instructions,
        slots: SpillSlots,
    ) -> None:
        self._thread = thread
        self._region = region
        self._loop = loop
        self._instructions = instructions
        self._slots = slots
        self._writer = instructions.writer
        self._values = instructions.values
        order = region.level.order
        at = order.index(loop.block.label)
        self._before, self._after = order[:at], order[at + 1 :]
        self._joined = _JoinedVectors(instructions, loop)

    def write(self, first: str, begin: Callable[[], object]) -> Iterator[list[Edge]]:
        """Write the region, and return the edges that each thread leaves it by.

        `first` is the group of the first thread. `begin` sets the values that a thread knows at the
        start of the region. When an item is returned, the values are those of its thread.
        """
        threads: list[_Thread] = []
        previous = ""
        for number in range(self._loop.threads):
            group = self._writer.op(f"add nuw nsw i64 {first}, {number}") if number else first
            self._slots.group = group
            begin()
            previous = self._write_blocks(self._before, "")
            threads.append(_Thread(group, dict(self._values)))
        starts = [self._initial(part, previous) for part in self._loop.parts]
        if not self._may_load_late(starts):
            starts = [list(dict.fromkeys(name for names in starts for name in names))]
        for number, part in enumerate(self._loop.parts):
            for name in starts[number] if number < len(starts) else ():
                for thread in threads:
                    self._slots.group = thread.group
                    thread.values[name] = self._slots.fetch(name)
            results = self._joined.write_loop(part, previous, [t.values for t in threads])
            for each, thread in enumerate(threads):
                self._enter(thread)
                for item in part.items:
                    if item.name in results:
                        text = self._joined.of_thread(item, results[item.name], each)
                        self._set(item.name, Value(item.type, "scalar", text))
                for name in self._passed_on(part):
                    self._set(name, self._values[self._passed_on(part)[name]])
                thread.values.update(self._values)
        for thread in threads:
            self._enter(thread)
            last = self._write_blocks(self._after, self._loop.block.label)
            (target,) = (t for t in self._thread.successors(last) if t != self._loop.block.label)
            yield [Edge(target, "true", FULL, self._incoming(last, target))]

    def _enter(self, thread: _Thread) -> None:
        self._slots.group = thread.group
        self._values.clear()
        self._values.update(thread.values)

    def _initial(self, part: LoopPart, previous: str) -> list[str]:
        """Return the kept values that the sums of a part begin with."""
        names = [
            item.operands[item.labels.index(previous)].text
            for item in part.items
            if item.opcode == "phi"
        ]
        return [
            name
            for name in dict.fromkeys(names)
            if name in self._region.loads and not self._slots.is_of_block(name)
        ]

    def _passed_on(self, part: LoopPart) -> dict[str, str]:
        """Return the phis behind the loop that take results of a part, with these."""
        if not self._after:
            return {}
        label = self._loop.block.label
        found = {
            phi.name: phi.operands[phi.labels.index(label)].text
            for phi in self._thread.phis(self._after[0])
        }
        return {name: value for name, value in found.items() if value in part.results}

    def _may_load_late(self, starts: list[list[str]]) -> bool:
        """Return whether each part may load its sums behind the parts before it.

        The sums of all parts would not fit the registers. The parts before keep their results,
        which may share slots with values of this thread.
        """
        kept: list[str] = []
        for part, names in zip(self._loop.parts, starts, strict=True):
            if any(self._slots.share(name, other) for name in names for other in kept):
                return False
            kept += [*part.results, *self._passed_on(part)]
        return True

    def _set(self, name: str, value: Value) -> None:
        self._values[name] = value
        self._slots.keep(name, value, FULL)

    def _write_blocks(self, labels: list[str], previous: str) -> str:
        """Write blocks that follow each other for the current thread; return the last label."""
        for label in labels:
            if previous:
                for name, value in self._incoming(previous, label).items():
                    if name not in self._values:
                        self._set(name, value)
            for item in self._thread.function.blocks[label].instructions:
                if item.opcode == "phi" or item.is_terminator:
                    continue
                self._instructions.write(item, FULL)
                if item.name:
                    self._slots.keep(item.name, self._values[item.name], FULL)
            previous = label
        return previous

    def _incoming(self, source: str, target: str) -> dict[str, Value]:
        return {
            phi.name: self._instructions.value(phi.operands[phi.labels.index(source)])
            for phi in self._thread.phis(target)
        }


class _JoinedVectors:
    """Writes the loop, with joined vectors of all threads."""

    def __init__(self, instructions: Instructions, loop: JammedLoop) -> None:
        self._writer = instructions.writer
        self._loop = loop
        self._threads = loop.threads
        self._texts: dict[str, str] = {}

    def write_loop(
        self, part: LoopPart, previous: str, threads: list[dict[str, Value]]
    ) -> dict[str, str]:
        """Write a part of the loop, and return its results by name.

        `previous` is the block before the loop, `threads` are the values of each thread there.
        """
        writer, block = self._writer, self._loop.block
        phis = [item for item in part.items if item.opcode == "phi"]
        others = [item for item in part.items if item.opcode != "phi"]
        initial = {
            phi.name: self._from_outside(
                phi.operands[phi.labels.index(previous)], threads, joined=self._is_joined(phi.name)
            )
            for phi in phis
        }
        self._texts = {}
        inside = {item.name for item in block.instructions}
        for item in (*others, block.terminator):
            for operand in item.operands:
                if operand.is_local and operand.text not in inside:
                    joined = self._is_joined(operand.text)
                    self._texts[operand.text] = self._from_outside(operand, threads, joined=joined)
        before, head, after = writer.label, writer.name("loop"), writer.name("after")
        self._texts |= {phi.name: writer.name("phi") for phi in phis}
        writer.go(head)
        writer.start(head)
        at = len(writer.lines)
        for item in others:
            self._texts[item.name] = self._written(item)
        lines = []
        for phi in phis:
            kind = self._type(phi.type) if self._is_joined(phi.name) else phi.type
            operand = phi.operands[phi.labels.index(block.label)]
            following = self._operand(operand, joined=self._is_joined(phi.name))
            values = f"[ {initial[phi.name]}, {before} ], [ {following}, {head} ]"
            lines.append(f"  {self._texts[phi.name]} = phi {kind} {values}")
        condition = self._operand(block.terminator.operands[0])
        yes, no = block.terminator.labels
        labels = (head, after) if yes == block.label else (after, head)
        assert block.label in (yes, no)
        writer.choose(condition, *labels)
        writer.keep_rolled()
        writer.lines[at:at] = lines
        writer.start(after)
        return {name: self._texts[name] for name in part.results}

    def of_thread(self, item: Instruction, text: str, number: int) -> str:
        """Return the value of one thread from a result of the loop."""
        if not self._is_joined(item.name) or self._threads == 1:
            return text
        count, _ = _parts(item.type)
        whole = self._type(item.type)
        if count == 0:
            return self._writer.op(f"extractelement {whole} {text}, i64 {number}")
        lanes = range(number * count, (number + 1) * count)
        return self._shuffled(whole, text, "poison", list(lanes))

    # -- joined vectors --------------------------------------------------------------------------

    def _is_joined(self, name: str) -> bool:
        return self._loop.kinds[name] == "joined"

    def _type(self, kind: str) -> str:
        """Return the type of a joined vector."""
        if self._threads == 1:
            return kind
        count, element = _parts(kind)
        return f"<{self._threads * max(count, 1)} x {element}>"

    def _shuffled(self, kind: str, first: str, second: str, lanes: list[int]) -> str:
        chosen = ", ".join(f"i32 {lane}" for lane in lanes)
        mask = f"<{len(lanes)} x i32> <{chosen}>"
        return self._writer.op(f"shufflevector {kind} {first}, {kind} {second}, {mask}")

    def _from_outside(
        self, operand: Operand, threads: list[dict[str, Value]], *, joined: bool
    ) -> str:
        """Return a value from before the loop: joined, or that of the first thread."""
        texts = [
            values[operand.text].text if operand.is_local else operand.text for values in threads
        ]
        if not joined or self._threads == 1:
            return texts[0]
        count, element = _parts(operand.type)
        if count == 0:
            kind, text = self._type(element), "poison"
            for number, part in enumerate(texts):
                text = self._writer.op(
                    f"insertelement {kind} {text}, {element} {part}, i64 {number}"
                )
            return text
        while len(texts) > 1:
            kind, lanes = f"<{count} x {element}>", list(range(2 * count))
            pairs = zip(texts[::2], texts[1::2], strict=True)
            texts = [self._shuffled(kind, left, right, lanes) for left, right in pairs]
            count *= 2
        return texts[0]

    def _operand(self, operand: Operand, *, joined: bool = False) -> str:
        """Return the text of an operand, as a joined vector on request."""
        text = self._texts[operand.text] if operand.is_local else operand.text
        is_joined = operand.is_local and self._is_joined(operand.text)
        if not joined or is_joined or self._threads == 1:
            return text
        count, element = _parts(operand.type)
        if count == 0:
            kind = self._type(element)
            first = self._writer.op(f"insertelement {kind} poison, {element} {text}, i64 0")
            return self._shuffled(kind, first, "poison", [0] * self._threads)
        return self._shuffled(operand.type, text, "poison", [*range(count)] * self._threads)

    def _written(self, item: Instruction) -> str:
        """Write an instruction, and return its result."""
        if self._threads == 1 or not self._is_joined(item.name):
            names = {o.text: self._operand(o) for o in item.operands if o.is_local}
            return self._writer.op(renamed(item.text, names))
        kind = self._type(item.type)
        if item.opcode == "load":
            at = self._operand(item.operands[0])
            return self._writer.op(f"load {kind}, ptr {at}, align {item.align}")
        texts = [self._operand(operand, joined=True) for operand in item.operands]
        kinds = [self._type(operand.type) for operand in item.operands]
        typed = [f"{each} {text}" for each, text in zip(kinds, texts, strict=True)]
        flags = f"{item.flags} " if item.flags else ""
        if item.opcode == "call":
            return self._call(item, kind, typed)
        if item.opcode in BINARY:
            return self._writer.op(f"{item.opcode} {flags}{typed[0]}, {texts[1]}")
        if item.opcode in ("icmp", "fcmp"):
            return self._writer.op(f"{item.opcode} {flags}{item.detail} {typed[0]}, {texts[1]}")
        if item.opcode in CASTS:
            return self._writer.op(f"{item.opcode} {flags}{typed[0]} to {kind}")
        return self._writer.op(f"{item.opcode} {flags}{', '.join(typed)}")

    def _call(self, item: Instruction, kind: str, typed: list[str]) -> str:
        base = item.detail.rpartition(".")[0]
        suffix = item.detail.rpartition(".")[2].rpartition("f")[2]
        count = kind[1:].partition(" ")[0]
        return self._writer.call(kind, f"{base}.v{count}f{suffix}", typed, fast_flags(item))


def _parts(kind: str) -> tuple[int, str]:
    """Return the elements of a vector type and their type; no elements for a scalar."""
    if not kind.startswith("<"):
        return 0, kind
    count, element = kind[1:-1].split(" x ", 1)
    return int(count), element
