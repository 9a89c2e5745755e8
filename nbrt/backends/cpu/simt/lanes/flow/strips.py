"""Loads of lanes that each step through memory: strips of a loop, loaded by rows and transposed.

In ``for d in range(n): ... x[row, d]`` the lanes have different rows. One iteration loads an
element of each row, lane by lane. In a strip of iterations each lane loads a vector of its row
instead, and a transposition makes of them the vectors of the iterations: about one instruction for
an element, where single loads take three.

The loop counts by 1 up to a uniform limit and has no other exit, so the iterations of a strip are
certain to run if that many remain: no element is loaded that the loop would not load. The loop
writes nothing, so loads of later iterations may move to the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.analysis.divergence import VARYING
from nbrt.backends.cpu.simt.lanes.instructions import is_elementwise
from nbrt.backends.cpu.simt.lanes.vectors.writer import Value
from nbrt.backends.cpu.simt.llvm.model import BINARY, CASTS, NEGATED, Operand
from nbrt.backends.cpu.simt.llvm.types import is_scalar, size_of
from nbrt.backends.cpu.simt.math_functions import PURE_FUNCTIONS

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.analysis.divergence import Divergence
    from nbrt.backends.cpu.simt.lanes.instructions import Instructions
    from nbrt.backends.cpu.simt.lanes.vectors.writer import LaneWriter, Mask
    from nbrt.backends.cpu.simt.llvm.model import BasicBlock, Instruction

__all__ = ["Strip", "find_strip"]

_ROW_BYTES = 32
"""Bytes that a lane loads at once: more would need more registers than there are."""

_NO_EFFECT = BINARY | CASTS | {"icmp", "fcmp", "select", "getelementptr", "fneg", "freeze", "phi"}
_REMAINING = {"eq": ("sub", "uge"), "slt": ("ssub.sat", "sge"), "ult": ("usub.sat", "uge")}
"""By how the loop ends: the difference of limit and counter, and the comparison with a length."""

_SHUFFLES = {
    8: (
        (1, (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)),
        (2, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)),
        (4, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
    ),
    4: ((1, (0, 4, 2, 6), (1, 5, 3, 7)), (2, (0, 1, 4, 5), (2, 3, 6, 7))),
}
"""By length: the stages of a transposition. A stage combines rows at a distance by two shuffles."""

_PLACES = {8: (0, 2, 1, 3, 4, 6, 5, 7), 4: (0, 1, 2, 3)}
"""By length: the row of each column after these stages."""


@dataclass(frozen=True)
class Strip:
    """The strips of a loop.

    Attributes
    ----------
    length : int
        Iterations of a strip.
    counter : str
        The phi that counts iterations.
    """

    length: int
    counter: str
    limit: Operand
    ends: str
    loads: tuple[tuple[Instruction, Operand], ...]
    """Loads, and the addresses of the elements with the counter 0."""

    def remains(self, instructions: Instructions, counter: Value) -> str:
        """Return whether all iterations of a strip from a counter on will run, as an ``i1``."""
        writer, kind = instructions.writer, counter.type
        limit = instructions.value(self.limit).text
        difference, predicate = _REMAINING[self.ends]
        if difference == "sub":
            left = writer.op(f"sub {kind} {limit}, {counter.text}")
        else:
            arguments = [f"{kind} {limit}", f"{kind} {counter.text}"]
            left = writer.call(kind, f"llvm.{difference}.{kind}", arguments)
        return writer.op(f"icmp {predicate} {kind} {left}, {self.length}")

    def load(
        self, instructions: Instructions, counter: Value, mask: Mask
    ) -> dict[str, list[Value]]:
        """Write the loads of a strip; return the values by name, for each iteration."""
        found = {}
        for item, base in self.loads:
            pointers = instructions.row_addresses(base, item, counter, mask)
            texts = _transposed(instructions.writer, item, pointers, self.length)
            found[item.name] = [Value(item.type, "vector", text) for text in texts]
        return found


def find_strip(block: BasicBlock, divergence: Divergence, lanes: int) -> Strip | None:
    """Return the strips of a loop of one block that all lanes leave together, or None."""
    counted = _counter(block, divergence)
    if counted is None or not all(_has_no_effect(item) for item in block.instructions):
        return None
    counter, limit, ends = counted
    defined = {item.name: item for item in block.instructions if item.name}
    loads = []
    for item in block.instructions:
        if item.opcode != "load" or divergence[item.operands[0]] is not VARYING:
            continue
        address = defined.get(item.operands[0].text)
        if address is None or address.opcode != "getelementptr" or not _is_row(address, counter):
            continue
        base = address.operands[0]
        if base.text not in defined and _has_size_of(address, item):
            loads.append((item, base))
    if not loads:
        return None
    length = min(_ROW_BYTES // size_of(item.type) for item, _ in loads)
    if lanes % length:
        return None
    return Strip(length, counter, limit, ends, tuple(loads))


def _is_row(address: Instruction, counter: str) -> bool:
    indices = address.operands[1:]
    return len(indices) == 1 and indices[0] == Operand("i64", counter)


def _has_size_of(address: Instruction, item: Instruction) -> bool:
    """Return whether an address steps by the elements of a load, which are of 4 or 8 bytes."""
    if not is_scalar(item.type) or not is_scalar(address.detail) or item.type in ("i1", "ptr"):
        return False
    return size_of(item.type) in (4, 8) and size_of(address.detail) == size_of(item.type)


def _has_no_effect(item: Instruction) -> bool:
    if item.opcode == "load":
        return not item.detail
    if item.opcode == "call":
        return item.detail in PURE_FUNCTIONS or is_elementwise(item.detail)
    return item.opcode in _NO_EFFECT or item.is_terminator


def _counter(block: BasicBlock, divergence: Divergence) -> tuple[str, Operand, str] | None:
    """Return the counter of a loop, its limit, and how the loop ends."""
    branch = block.terminator
    defined = {item.name: item for item in block.instructions if item.name}
    if branch.opcode != "br" or len(branch.labels) != 2:
        return None
    test = defined.get(branch.operands[0].text)
    if test is None or test.opcode != "icmp":
        return None
    left, right = test.operands
    predicate = test.detail
    if branch.labels[1] == block.label:  # true leaves the loop
        predicate = NEGATED.get(predicate) or {v: k for k, v in NEGATED.items()}.get(predicate, "")
    if predicate in ("ne", "sgt", "ugt") and left.text not in defined:
        left, right = right, left
        predicate = {"ne": "ne", "sgt": "slt", "ugt": "ult"}[predicate]
    ends = {"ne": "eq", "slt": "slt", "ult": "ult"}.get(predicate)
    step = defined.get(left.text)
    if ends is None or right.text in defined or divergence[right] != 0:
        return None
    if step is None or step.opcode != "add" or step.operands[1].text != "1":
        return None
    phi = defined.get(step.operands[0].text)
    if phi is None or phi.opcode != "phi" or divergence[step.operands[0]] != 0:
        return None
    if phi.operands[phi.labels.index(block.label)].text != step.name:
        return None
    return phi.name, right, ends


def _transposed(writer: LaneWriter, item: Instruction, pointers: str, length: int) -> list[str]:
    """Write loads of a row for each lane; return the vectors of the elements at each place."""
    kind = item.type
    row = f"<{length} x {kind}>"
    groups = []
    for first in range(0, writer.width, length):
        rows = []
        for lane in range(first, first + length):
            at = writer.lane(Value("ptr", "vector", pointers), lane)
            rows.append(writer.op(f"load {row}, ptr {at}, align {item.align}"))
        for distance, low, high in _SHUFFLES[length]:
            rows = _combined(writer, rows, row, distance, (low, high))
        groups.append(rows)
    return [
        _joined(writer, kind, [group[place] for group in groups], length)
        for place in _PLACES[length]
    ]


def _combined(
    writer: LaneWriter,
    rows: list[str],
    row: str,
    distance: int,
    shuffles: tuple[tuple[int, ...], tuple[int, ...]],
) -> list[str]:
    """Write one stage of a transposition: row pairs at a distance become two other rows."""
    found = list(rows)
    for first in range(len(rows)):
        if first & distance:
            continue
        pair = f"{row} {rows[first]}, {row} {rows[first | distance]}"
        for place, lanes in zip((first, first | distance), shuffles, strict=True):
            chosen = ", ".join(f"i32 {lane}" for lane in lanes)
            found[place] = writer.op(f"shufflevector {pair}, <{len(lanes)} x i32> <{chosen}>")
    return found


def _joined(writer: LaneWriter, kind: str, parts: list[str], length: int) -> str:
    """Write a vector of vectors, one after the other; their number is a power of two."""
    while len(parts) > 1:
        part = f"<{length} x {kind}>"
        length *= 2
        chosen = ", ".join(f"i32 {lane}" for lane in range(length))
        parts = [
            writer.op(f"shufflevector {part} {first}, {part} {second}, <{length} x i32> <{chosen}>")
            for first, second in zip(parts[::2], parts[1::2], strict=True)
        ]
    return parts[0]
