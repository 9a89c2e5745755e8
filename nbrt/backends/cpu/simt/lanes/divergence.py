"""What a value looks like across the threads of a group: one number, a step apart, or anything.

A *shape* is how far the values of neighbouring lanes are apart: 0 for a value that all lanes share
(kept in a scalar register, branched on), a number of units or bytes where lanes count up evenly
(kept as the first lane's value; a pointer with the step of its element is one vector access), or
`VARYING`. The analysis also finds the branches that lanes may take differently, and the loops that
they may leave differently. Run with positions that vary without a step, it tells what is the same
in the whole block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.llvm.graph import END, Level
from nbrt.backends.cpu.simt.llvm.types import is_integer, is_scalar, member_offset, size_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nbrt.backends.cpu.simt.llvm.model import Block, Function, Instruction, Operand

__all__ = ["VARYING", "Shape", "Shapes", "address_steps", "frame_size"]

Shape = int | None
VARYING: Shape = None

_PURE = ("llvm.assume", "llvm.lifetime", "llvm.experimental.noalias")


def frame_size(alloca: Instruction) -> int:
    """Give the bytes of one thread's copy of a stack slot."""
    count = int(alloca.operands[0].text) if alloca.operands else 1
    return -(-size_of(alloca.detail) * count // 16) * 16


def address_steps(address: Instruction) -> tuple[int, list[tuple[Operand, int]]] | None:
    """Take an address apart: constant bytes, and each index with the bytes it counts in."""
    constant, steps = 0, []
    kind = address.detail
    for position, index in enumerate(address.operands[1:]):
        if position and kind.startswith("{"):
            offset, kind = member_offset(kind, int(index.text))
            constant += offset
            continue
        if position:
            if not kind.startswith("["):
                return None
            kind = kind[1:-1].split(" x ", 1)[1]
        if index.is_local:
            steps.append((index, size_of(kind)))
        elif index.text.lstrip("-").isdigit():
            constant += int(index.text) * size_of(kind)
        else:
            return None
    return constant, steps


class Shapes:
    """Shapes of all values of a function, and where lanes part.

    Parameters
    ----------
    function : Function
        One thread.
    parameters : mapping
        Shapes of arguments that are not the same for all.
    alignment : mapping
        For arguments with a step of one: what the first lane's value is a multiple of.
    lanes : int
        How many lanes; 0 to tell only what is the same in the whole block.
    """

    def __init__(
        self,
        function: Function,
        parameters: Mapping[str, Shape],
        alignment: Mapping[str, int],
        lanes: int,
    ) -> None:
        self._function = function
        self._lanes = lanes
        self.of: dict[str, Shape] = dict.fromkeys((p.text for p in function.parameters), 0)
        self.of.update(parameters)
        self._aligned = {p.text: 1 for p in function.parameters} | dict(alignment)
        self.definitions = {i.name: i for _, i in function.instructions() if i.name}
        self.joins: set[str] = set()
        """Blocks whose phis merge lanes that came different ways."""
        self.parting: set[str] = set()
        """Headers of the loops that lanes may leave at different times or to different places."""
        self.forced: set[str] = set()
        """Nodes to be treated as if lanes parted there, since others' ways cross theirs."""
        self.levels = self._find_levels()
        self._pieces: list[Level] = []
        self._solve()

    def __getitem__(self, operand: Operand) -> Shape:
        return self.of.get(operand.text, VARYING) if operand.is_local else 0

    def splits(self, level: Level, node: str) -> bool:
        """Tell whether lanes are written apart from a node on."""
        return node in self.forced or self.differs(level, node)

    def differs(self, level: Level, node: str) -> bool:
        """Tell whether lanes that reach a node together may leave it for different places."""
        if node in level.loops:
            return node in self.parting and len({t for _, t in level.ways(node)}) > 1
        branch = self._function.blocks[node].terminator
        return len(set(branch.labels)) > 1 and self[branch.operands[0]] != 0

    def aligned(self, operand: Operand) -> int:
        """Give a power of two that divides the first lane's value, at most 4096."""
        if operand.is_local:
            return self._aligned.get(operand.text, 1)
        text = operand.text.lstrip("-")
        return _power(int(text)) if text.isdigit() else 1

    def refine(self, pieces: Iterable[Level]) -> None:
        """Take into account how lanes part where the function is cut into pieces, too.

        In a piece, ways may cross that in the whole function are turns of a loop.
        """
        self._pieces += pieces
        self._solve()

    # -- solving -----------------------------------------------------------------------------

    def _find_levels(self) -> list[Level]:
        function = self._function

        def successors(block: str) -> list[str]:
            return function.blocks[block].successors

        levels, pending = [], [(function.entry, set(function.blocks))]
        while pending:
            root, blocks = pending.pop()
            level = Level(root, blocks, successors)
            levels.append(level)
            pending += [(loop.header, loop.blocks) for loop in level.loops.values()]
        return levels

    def _solve(self) -> None:
        changed = True
        while changed:
            changed = False
            for block, instruction in self._function.instructions():
                if instruction.name:
                    changed |= self._update(block, instruction)
            for level in (*self.levels, *self._pieces):
                changed |= self._part(level)

    def _update(self, block: Block, instruction: Instruction) -> bool:
        name = instruction.name
        if any(o.is_local and o.text not in self.of for o in instruction.operands):
            if instruction.opcode != "phi":
                return False
            if not any(o.text in self.of or not o.is_local for o in instruction.operands):
                return False
        known = name in self.of
        old = self.of.get(name, VARYING)
        if known and old is VARYING:
            return False
        self._aligned[name] = self._alignment(instruction)
        found = self._shape(block, instruction)
        if known and found != old:
            found = VARYING
        self.of[name] = found
        return not known or found != old

    def _part(self, level: Level) -> bool:
        """Note what follows from lanes parting at nodes of a level; tell whether it is news."""
        size = len(self.joins) + len(self.parting) + len(self.forced)
        for node in level.order:
            if not self.splits(level, node):
                continue
            meet = level.below[node]
            inside = {node, *level.zone(node)}
            ways = [way for item in inside for way in level.ways(item)]
            for root, _ in level.parts(node):
                if level.above[root] != node:
                    self.forced.add(level.above[root])
                if sum(level.node_of(target) == root for _, target in ways) > 1:
                    self.joins.add(root)
            if meet != END:
                if sum(level.node_of(t) == meet for _, t in ways if t in level.blocks) > 1:
                    self.joins.add(meet)
                continue
            outside = [t for _, t in ways if t not in level.blocks or t == level.root]
            if level.root in outside and outside.count(level.root) > 1:
                self.joins.add(level.root)
            if len(set(outside)) > 1 and level.root in self._headers:
                self.parting.add(level.root)
        for header in self.parting & set(level.loops):
            self.joins.update(target for _, target in level.ways(header))
        return size != len(self.joins) + len(self.parting) + len(self.forced)

    @property
    def _headers(self) -> set[str]:
        return {level.root for level in self.levels[1:]}

    # -- shapes ------------------------------------------------------------------------------

    def _shape(self, block: Block, item: Instruction) -> Shape:
        if item.opcode == "phi":
            return self._of_phi(block, item)
        if item.opcode == "alloca":
            return frame_size(item) if self._lanes else VARYING
        if item.opcode in ("atomicrmw", "cmpxchg"):
            return VARYING
        if item.opcode == "call":
            return self._of_call(item)
        if item.opcode == "load" and item.detail:
            return VARYING
        shapes = [self[operand] for operand in item.operands]
        if item.opcode == "load":
            return 0 if shapes == [0] and is_scalar(item.type) else VARYING
        if not any(shape != 0 for shape in shapes):
            return 0
        return self._with_step(item, shapes)

    def _of_phi(self, block: Block, item: Instruction) -> Shape:
        if block.label in self.joins:
            return VARYING
        known = {
            self[operand]
            for operand in item.operands
            if not operand.is_local or operand.text in self.of
        }
        return known.pop() if len(known) == 1 and _steps(item.type, known) else VARYING

    def _of_call(self, item: Instruction) -> Shape:
        name = item.detail
        if name.startswith((placeholders.SHARED, placeholders.BARRIER)):
            return 0
        if placeholders.is_marker(name):
            broadcast = (
                name.startswith(f"{placeholders.SHUFFLE}idx") and self[item.operands[2]] == 0
            )
            voted = name.startswith(
                (placeholders.VOTE, placeholders.ACTIVEMASK, f"{placeholders.MATCH}all")
            )
            return 0 if self._lanes and (broadcast or voted) else VARYING
        if not name.startswith("llvm.") or item.type.startswith("{"):
            return VARYING
        return VARYING if any(self[operand] != 0 for operand in item.operands) else 0

    def _with_step(self, item: Instruction, shapes: list[Shape]) -> Shape:
        if VARYING in shapes or not self._lanes:
            return VARYING
        opcode, (first, second) = item.opcode, (*item.operands, item.operands[0])[:2]
        if opcode == "getelementptr":
            return self._of_address(item)
        if not (is_integer(item.type) or item.type == "ptr") or item.type == "i1":
            return VARYING
        left, right = shapes[0], shapes[-1]
        assert left is not None
        assert right is not None
        if opcode == "add" or (opcode == "or" and "disjoint" in item.flags):
            return left + right
        if opcode == "sub":
            return left - right
        if opcode in ("mul", "shl", "and", "lshr", "ashr") and not second.is_local:
            return self._with_constant(opcode, first, left, int(second.text))
        if opcode == "select" and shapes[0] == 0 and shapes[1] == shapes[2]:
            return shapes[1]
        if opcode in ("sext", "trunc", "freeze", "ptrtoint", "inttoptr"):
            return left
        if opcode == "zext" and ("nneg" in item.flags or self._is_position(first)):
            return left
        return VARYING

    def _with_constant(self, opcode: str, first: Operand, step: int, constant: int) -> Shape:
        if opcode == "mul":
            return step * constant
        if opcode == "shl":
            return step << constant
        lanes = self._lanes
        if step != 1 or self.aligned(first) % lanes:
            return VARYING
        if opcode == "and":
            span = constant + 1
            if span > 0 and span & constant == 0:
                return 1 if span % lanes == 0 else VARYING
            return 0 if constant % lanes == 0 else VARYING
        return 0 if (1 << constant) % lanes == 0 else VARYING

    def _is_position(self, operand: Operand) -> bool:
        return operand.text in {p.text for p in self._function.parameters}

    def _of_address(self, item: Instruction) -> Shape:
        taken = address_steps(item)
        if taken is None or item.type != "ptr":
            return VARYING
        total = self[item.operands[0]]
        assert total is not None
        for index, size in taken[1]:
            step = self[index]
            if step != 0 and index.type != "i64":
                return VARYING
            assert step is not None
            total += step * size
        return total

    def _alignment(self, item: Instruction) -> int:
        if item.opcode in ("sext", "zext", "trunc", "freeze"):
            return self.aligned(item.operands[0])
        if item.opcode in ("add", "or", "sub", "mul", "shl", "and"):
            left, right = (self.aligned(operand) for operand in item.operands)
            if item.opcode == "mul":
                return min(4096, left * right)
            if item.opcode == "and":
                return max(left, right)
            if item.opcode == "shl":
                shift = item.operands[1].text
                return min(4096, left << int(shift)) if shift.isdigit() else left
            return min(left, right)
        return 1


def _power(number: int) -> int:
    return min(4096, number & -number) if number else 4096


def _steps(kind: str, shapes: set[Shape]) -> bool:
    """Whether values of a type can have these shapes: only integers and pointers count up."""
    return shapes == {0} or ((is_integer(kind) and kind != "i1") or kind == "ptr")
