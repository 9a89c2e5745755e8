"""Yields in a thread's code: in each iteration of a loop that spins, other threads run.

The scheduler ends a launch that makes no progress, so the code also marks progress: the thread
changes memory that others read, reaches another loop or barrier, or iterates a loop with other
values in its exit condition.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.coroutines.suspend_points import KINDS, calls_marker, operation
from nbrt.backends.cpu.simt.llvm.graph import find_loops
from nbrt.backends.cpu.simt.llvm.model import (
    BasicBlock,
    Function,
    Instruction,
    NotReducibleError,
    Operand,
    renamed,
)
from nbrt.backends.cpu.simt.llvm.paths import ATOMIC_FUNCTION, stores
from nbrt.backends.cpu.simt.llvm.types import is_integer
from nbrt.backends.cpu.simt.placeholders import CHANGED, PLACE, YIELD, place_of

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.llvm.spins import Spin

__all__ = ["insert_yields"]

_FLOATS = ("half", "float", "double")
_TRUE = Operand("i1", "true")
_COPIES = ("llvm.memcpy", "llvm.memmove", "llvm.memset")

_LESS = {"max": "slt", "min": "sgt", "umax": "ult", "umin": "ugt"}
_ZERO_KEEPS = ("add", "sub", "xor", "fadd", "fsub")


def insert_yields(function: Function, spins: list[Spin]) -> list[str]:
    """Insert yields into the loops of a function that spin; remove markers of source locations.

    Parameters
    ----------
    function : Function
        One thread; changed in place.
    spins : list of Spin
        Its loops that spin.

    Returns
    -------
    list of str
        Source location of each site at which a thread waits; empty if not known.
    """
    writer = _Yields(function, spins)
    writer.note_changes()
    writer.yield_in_turns()
    return writer.take_places()


class _Yields:
    def __init__(self, function: Function, spins: list[Spin]) -> None:
        self._function = function
        self._spins = {spin.header: spin for spin in spins}
        self._definitions = {i.name: i for _, i in function.instructions() if i.name}
        self._defined = set(re.findall(r'^define [^@\n]*@"?([^"(\n]+)', function.outside, re.M))
        self._homes = self._innermost_loops()
        self._count = 0

    def _innermost_loops(self) -> dict[str, str]:
        """Return the header of the innermost loop around each block that is in one."""
        function = self._function
        try:
            loops = find_loops(
                function.entry,
                set(function.blocks),
                lambda label: function.blocks[label].successors,
            )
        except NotReducibleError:
            return {}
        homes = {}
        for loop in sorted(loops.values(), key=lambda each: -len(each.blocks)):
            homes.update(dict.fromkeys(loop.blocks, loop.header))
        return homes

    # -- what counts as progress -----------------------------------------------------------

    def note_changes(self) -> None:
        """Insert a marker of progress after each instruction that makes some."""
        for block in self._function.blocks.values():
            spins = self._homes.get(block.label) in self._spins
            written: list[Instruction] = []
            for item in block.instructions:
                if item.opcode == "store" and stores(item, self._definitions):
                    written += [*self._store(item, spins), item]
                elif calls_marker(item) and operation(item) in KINDS:
                    written += [] if spins else [_changed(_TRUE)]
                    written.append(item)
                else:
                    written += [item, *self._update(item)]
            block.instructions = written
        for spin in self._spins.values():
            self._note_entry(spin)

    def _note_entry(self, spin: Spin) -> None:
        for block in self._function.blocks.values():
            outside = block.label not in spin.blocks and spin.header in block.successors
            if outside and self._homes.get(block.label) not in self._spins:
                block.instructions.insert(-1, _changed(_TRUE))

    def _store(self, item: Instruction, spins: bool) -> list[Instruction]:
        """Compare what is stored with what is there, where a thread that waits may store."""
        value, pointer = item.operands
        if not spins or item.detail or not (is_integer(value.type) or value.type in _FLOATS):
            return [_changed(_TRUE)]
        old = self._instruction(
            "load", value.type, [pointer], f"{value.type}, ptr {pointer.text}, align {item.align}"
        )
        return [old, *self._differs(Operand(value.type, old.name), value)]

    def _update(self, item: Instruction) -> list[Instruction]:
        if item.opcode == "atomicrmw":
            return self._atomic(item)
        if item.opcode == "cmpxchg":
            _, expected, new = item.operands
            text = f"{item.type} {item.name}, 1"
            swapped = self._instruction("extractvalue", "i1", [Operand(item.type, item.name)], text)
            *compared, differs = self._compared("ne", expected, new)
            both = self._binary("and", Operand("i1", swapped.name), Operand("i1", differs.name))
            return [swapped, *compared, differs, both, _changed(Operand("i1", both.name))]
        if item.opcode != "call" or calls_marker(item):
            return []
        if item.detail.startswith(ATOMIC_FUNCTION):
            order = "u" if item.detail.startswith(f"{ATOMIC_FUNCTION}nan") else "o"
            better = "lt" if "max_" in item.detail else "gt"
            old = Operand(item.operands[1].type, item.name)
            return self._when(f"{order}{better}", old, item.operands[1])
        copies = item.detail.startswith(_COPIES) or item.detail in self._defined
        return [_changed(_TRUE)] if copies else []

    def _atomic(self, item: Instruction) -> list[Instruction]:
        value, old = item.operands[1], Operand(item.operands[1].type, item.name)
        kind = item.detail
        if kind in _ZERO_KEEPS:
            zero = Operand(value.type, "0.0" if value.type in _FLOATS else "0")
            return self._differs(value, zero)
        if kind == "xchg":
            return self._differs(old, value)
        if kind in _LESS:
            return self._when(_LESS[kind], old, value)
        if kind in ("and", "or"):
            new = self._binary(kind, old, value)
            return [new, *self._differs(Operand(value.type, new.name), old)]
        return [_changed(_TRUE)]

    # -- turns -------------------------------------------------------------------------------

    def yield_in_turns(self) -> None:
        """Insert a block with a yield on each back edge of a loop that spins."""
        for spin in self._spins.values():
            for latch in spin.latches:
                self._yield_between(spin, latch)

    def _yield_between(self, spin: Spin, latch: str) -> None:
        self._count += 1
        label = f"%simt.turn{self._count}"
        header = self._function.blocks[spin.header]
        end = self._function.blocks[latch].terminator
        end.text = renamed(end.text, {spin.header: label})
        end.labels = [label if target == spin.header else target for target in end.labels]
        items: list[Instruction] = []
        for phi in header.phis:
            incoming = phi.operands[phi.labels.index(latch)]
            phi.labels = [label if source == latch else source for source in phi.labels]
            if phi.name in spin.state and incoming.text != phi.name:
                items += self._differs(incoming, Operand(phi.type, phi.name))
        place = Instruction("", "call", "void", [], detail=f"{PLACE}{spin.place.encode().hex()}")
        back = Instruction(
            "", "br", "void", [], labels=[spin.header], text=f"br label {spin.header}"
        )
        waits = Instruction("", "call", "void", [], detail=YIELD, text=f"call void @{YIELD}()")
        self._function.blocks[label] = BasicBlock(label, [*items, place, waits, back])

    # -- sites -------------------------------------------------------------------------------

    def take_places(self) -> list[str]:
        """Remove the markers of source locations; return the locations of the sites."""
        sites = []
        for block in self._function.blocks.values():
            remaining, place = [], ""
            for item in block.instructions:
                if calls_marker(item) and item.detail.startswith(PLACE):
                    place = place_of(item.detail)
                    continue
                if calls_marker(item) and operation(item) in KINDS:
                    sites.append(place)
                    place = ""
                remaining.append(item)
            block.instructions = remaining
        return sites

    # -- instructions ------------------------------------------------------------------------

    def _instruction(
        self, opcode: str, kind: str, operands: list[Operand], text: str
    ) -> Instruction:
        self._count += 1
        name = f"%simt.c{self._count}"
        return Instruction(name, opcode, kind, operands, text=f"{opcode} {text}")

    def _binary(self, opcode: str, left: Operand, right: Operand) -> Instruction:
        text = f"{left.type} {left.text}, {right.text}"
        return self._instruction(opcode, left.type, [left, right], text)

    def _compared(self, predicate: str, left: Operand, right: Operand) -> list[Instruction]:
        opcode = "fcmp" if left.type in _FLOATS else "icmp"
        text = f"{predicate} {left.type} {left.text}, {right.text}"
        return [self._instruction(opcode, "i1", [left, right], text)]

    def _when(self, predicate: str, left: Operand, right: Operand) -> list[Instruction]:
        (test,) = self._compared(predicate, left, right)
        return [test, _changed(Operand("i1", test.name))]

    def _differs(self, left: Operand, right: Operand) -> list[Instruction]:
        if left.type in _FLOATS:
            return self._when("une", left, right)
        if is_integer(left.type) or left.type == "ptr":
            return self._when("ne", left, right)
        return [_changed(_TRUE)]


def _changed(condition: Operand) -> Instruction:
    text = f"call void @{CHANGED}(i1 {condition.text})"
    return Instruction("", "call", "void", [condition], detail=CHANGED, text=text)
