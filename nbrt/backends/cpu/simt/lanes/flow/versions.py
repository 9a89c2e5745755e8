"""Versions of code for values of a uniform scalar, in which accesses become vector accesses.

In `s[t ^ distance]`, the lanes of a vector access a run of neighbouring elements if `distance` is a
multiple of the number of lanes, and a permutation of one run if it is a smaller constant. Which of
these holds is known at run time only. So the code is written several times behind tests of the
scalar: for the constants that exchange lanes within a vector, for the multiples, and once for all
other values. In each version the scalar, or its low bits, are known (`patterns`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from nbrt.backends.cpu.simt.lanes.analysis.divergence import VARYING
from nbrt.backends.cpu.simt.lanes.vectors.writer import LowBits, Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nbrt.backends.cpu.simt.lanes.analysis.divergence import Divergence
    from nbrt.backends.cpu.simt.lanes.vectors.writer import LaneWriter
    from nbrt.backends.cpu.simt.llvm.graph import Level
    from nbrt.backends.cpu.simt.llvm.model import BasicBlock, Instruction, Operand

__all__ = ["VersionPoint", "Versions", "versions_of"]

_MAX_WRITTEN = 800
"""Maximum number of instructions in all versions of a piece of code."""

_MAX_PLACES = 4
"""Maximum number of places of a region; code that is written twice counts twice."""

_MADE_UP = re.compile(r"[iB]\d+$")
"""Names that LLVM and Numba give to values without one."""

_EQUALITIES = ("eq", "ne")


class VersionPoint(NamedTuple):
    """A place from which code is written in versions."""

    begin: int
    """Instructions of the block before the place."""
    root: Operand
    """The scalar that is tested."""
    numbers: tuple[int, ...]
    """Values with a version each."""
    low_bits: LowBits
    """Low bits with one more version."""
    nodes: frozenset[str]
    """Nodes of the level that are written in versions: those that the block dominates."""

    @property
    def note(self) -> str:
        """The accesses in the versions, for inspection."""
        numbers = ", ".join(map(str, sorted(self.numbers)))
        modulus, residue = self.low_bits
        rest = f"multiples of {modulus}" + (f" plus {residue}" if residue else "")
        return (
            f"accesses at threads exchanged by {_source_name(self.root)}: permutations of vectors"
            f" for {numbers}, runs for {rest}, single elements for others"
        )


def _source_name(operand: Operand) -> str:
    """Return the name of a variable of the kernel, as far as it is known."""
    name = operand.text[1:].strip('"').removeprefix("arg.").partition(".")[0]
    return f"`{name}`" if name.isidentifier() and not _MADE_UP.match(name) else "a uniform value"


def versions_of(
    writer: LaneWriter, value: Value, point: VersionPoint
) -> Iterator[tuple[str, Value]]:
    """Write the tests of a scalar, and give it as it is known behind each; the last has no test."""
    kind = value.type
    for number in point.numbers:
        test = writer.op(f"icmp eq {kind} {value.text}, {number}")
        yield test, Value(kind, "scalar", str(number))
    modulus, residue = point.low_bits
    low = writer.op(f"and {kind} {value.text}, {modulus - 1}")
    test = writer.op(f"icmp eq {kind} {low}, {residue}")
    yield test, value.with_low_bits(point.low_bits)
    yield "", value


class _Use(NamedTuple):
    """A bit operation on a value with a stride and a scalar: the scalar is root plus constant."""

    root: Operand
    constant: int
    opcode: str
    span: int


class Versions:
    """Finds the places.

    `blocks` are those of a region, with the names of its values.
    """

    def __init__(
        self, blocks: Mapping[str, BasicBlock], divergence: Divergence, lanes: int
    ) -> None:
        self._blocks = blocks
        self._divergence = divergence
        self._lanes = lanes
        self._places = 0
        self._users: dict[str, list[Instruction]] = {}
        for block in blocks.values():
            for item in block.instructions:
                for operand in item.operands:
                    self._users.setdefault(operand.text, []).append(item)

    def find(
        self, level: Level, label: str, nodes: set[str], notes: dict[str, None]
    ) -> VersionPoint | None:
        """Return the place in a block, or None.

        `nodes` are those that may be in versions, `notes` receives what stands in the way.
        """
        if label in level.loops or self._lanes < 2:
            return None
        block = self._blocks[label]
        uses = (self._use(item, block) for item in block.instructions)
        use = next(filter(None, uses), None)
        if use is None:
            return None
        inside = frozenset(node for node in nodes if self._dominates(level, label, node))
        items = [i for b in level.blocks_of(inside) for i in self._blocks[b].instructions]
        numbers = _numbers(use)
        if not any(map(self._is_scattered, items)):
            return None
        reason = ""
        if len(items) * (len(numbers) + 2) > _MAX_WRITTEN:
            reason = f"{len(items)} instructions are too many to be written in versions"
        elif not self._leaves_together(level, inside):
            reason = "threads leave the code behind at different places"
        elif self._places == _MAX_PLACES:
            reason = f"{_MAX_PLACES} places between two barriers are written in versions"
        if reason:
            name = _source_name(use.root)
            notes[f"accesses at threads exchanged by {name} are of single elements: {reason}"] = (
                None
            )
            return None
        self._places += 1
        at = [i for i, item in enumerate(block.instructions) if item.name == use.root.text]
        begin = max(at[0] + 1 if at else 0, len(block.phis))
        full = use.span - 1 if use.opcode == "and" else 0
        low_bits = LowBits(use.span, (full - use.constant) % use.span)
        return VersionPoint(begin, use.root, numbers, low_bits, inside)

    def _dominates(self, level: Level, label: str, node: str) -> bool:
        while node != label and level.idom[node] != node:
            node = level.idom[node]
        return node == label

    def _leaves_together(self, level: Level, nodes: frozenset[str]) -> bool:
        """Return whether all lanes leave the nodes along one edge, or to one target."""
        targets = {
            target
            for node in nodes
            for _, target in level.edges(node)
            if target == level.root or level.node_of(target) not in nodes
        }
        return len(targets) == 1 or all(
            level.ipdom[node] in nodes for node in nodes if self._divergence.splits(level, node)
        )

    def _is_scattered(self, item: Instruction) -> bool:
        """Return whether an access has an address without a stride."""
        if item.opcode not in ("load", "store"):
            return False
        return self._divergence[item.operands[item.opcode == "store"]] is VARYING

    def _use(self, item: Instruction, block: BasicBlock) -> _Use | None:
        """Return what is to know about a bit operation, if a version of it makes a pattern."""
        strides = self._divergence
        if item.opcode not in ("and", "or", "xor") or strides.strides.get(item.name) is not None:
            return None
        if all(
            user.opcode == "icmp" and user.detail in _EQUALITIES
            for user in self._users.get(item.name, [])
        ):
            return None  # a test of bits needs no version
        value, scalar = item.operands
        if strides[value] == 0:
            value, scalar = scalar, value
        step = strides[value]
        if not step or step < 0 or strides[scalar] != 0 or not scalar.is_local:
            return None
        span = 1 << (step * (self._lanes - 1)).bit_length()
        if strides.aligned(value) < span:
            return None
        root, constant = self._root(scalar, block)
        return _Use(root, constant, item.opcode, span)

    def _root(self, scalar: Operand, block: BasicBlock) -> tuple[Operand, int]:
        """Return the scalar of which another is a sum with a constant, by instructions of a block.

        Values of other blocks are written before the versions, and stay as they are.
        """
        inside = {item.name: item for item in block.instructions if item.name}
        constant = 0
        item = inside.get(scalar.text)
        while item is not None and item.opcode in ("add", "sub"):
            left, right = item.operands
            if not left.is_local or right.is_local:
                break
            constant += int(right.text) * (-1 if item.opcode == "sub" else 1)
            scalar = left
            item = inside.get(scalar.text)
        return scalar, constant


def _numbers(use: _Use) -> tuple[int, ...]:
    """Return the least values of the root whose low bits exchange lanes in a regular way."""
    powers = [1 << k for k in range(use.span.bit_length() - 1)]
    lows: Iterator[int] = iter(powers)
    if use.opcode == "and":
        lows = (power - 1 for power in powers)
    if use.opcode == "xor":
        lows = iter([*powers, *(2 * power - 1 for power in powers[1:])])
    return tuple((low - use.constant) % use.span for low in lows)
