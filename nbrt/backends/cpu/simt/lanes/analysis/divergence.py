"""Divergence analysis: which values are uniform or strided across lanes, and where lanes diverge.

The *stride* of a value is the difference between neighbouring lanes: 0 if the value is uniform (it
stays a scalar register, and a branch on it stays a branch), a constant (the value of lane 0 is
kept; an access with the stride of its element is one vector access), or `VARYING`. The analysis
also finds divergent branches and loops. With thread indices that vary without a stride, it finds
what is uniform in the whole block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.llvm.graph import END, Level
from nbrt.backends.cpu.simt.llvm.parse import member_type
from nbrt.backends.cpu.simt.llvm.types import is_integer, is_scalar, size_of
from nbrt.backends.cpu.simt.math_functions import PURE_FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nbrt.backends.cpu.simt.llvm.model import BasicBlock, Function, Instruction, Operand

__all__ = ["VARYING", "Divergence", "Stride", "address_indices", "address_stride", "frame_size"]

Stride = int | None
VARYING: Stride = None


def frame_size(alloca: Instruction) -> int:
    """Return the size in bytes of a stack slot of one thread, a multiple of its alignment."""
    count = int(alloca.operands[0].text) if alloca.operands else 1
    align = max(alloca.align, 16)
    return -(-size_of(alloca.detail) * count // align) * align


def address_indices(address: Instruction) -> list[tuple[Operand, int]] | None:
    """Return the variable indices of an address, with the sizes of their units."""
    indices = []
    kind = address.detail
    for position, index in enumerate(address.operands[1:]):
        if position:
            if not kind.startswith(("[", "{")):
                return None
            is_struct = kind.startswith("{")
            kind = member_type(kind, int(index.text) if is_struct else 0)
            if is_struct:
                continue
        if index.is_local:
            indices.append((index, size_of(kind)))
        elif not index.text.lstrip("-").isdigit():
            return None
    return indices


def address_stride(item: Instruction, strides: Sequence[Stride]) -> Stride:
    """Return the stride in bytes of an address, for the strides of the operands."""
    indices = address_indices(item)
    if indices is None or item.type != "ptr":
        return VARYING
    by_name = {o.text: step for o, step in zip(item.operands, strides, strict=True)}
    total = strides[0]
    for index, size in indices:
        step = by_name[index.text]
        if total is None or step is None or (step != 0 and index.type != "i64"):
            return VARYING
        total += step * size
    return total


class Divergence:
    """Strides of all values of a function, and the places where lanes diverge.

    Parameters
    ----------
    function : Function
        One thread.
    parameters : mapping
        Strides of the parameters that are not uniform.
    alignment : mapping
        Alignment of lane 0, for parameters with stride 1.
    lanes : int
        Number of lanes; 0 to find only what is uniform in the whole block. One lane is uniform. The
        lanes may be all threads of a block of one row, which may be several warps.

    Attributes
    ----------
    strides : dict
        Stride of each value by name.
    definitions : dict
        Instructions by the names of their results.
    levels : list of Level
        The levels of the loop nest, the function itself first.
    """

    def __init__(
        self,
        function: Function,
        parameters: Mapping[str, Stride],
        alignment: Mapping[str, int],
        lanes: int,
    ) -> None:
        self._function = function
        self._lanes = lanes
        self.strides: dict[str, Stride] = dict.fromkeys((p.text for p in function.parameters), 0)
        self.strides.update(parameters)
        self._aligned = {p.text: 1 for p in function.parameters} | dict(alignment)
        self.definitions = {i.name: i for _, i in function.instructions() if i.name}
        if lanes == 1:
            self.strides.update(dict.fromkeys(self.definitions, 0))
        self._merges: set[str] = set()
        """Blocks whose phis merge lanes from several predecessors."""
        self.divergent_loops: set[str] = set()
        """Headers of loops that lanes may leave at different times or to different targets."""
        self._forced: set[str] = set()
        """Nodes to treat as divergent, because subregions of others begin behind them."""
        self.levels = self._find_levels()
        self._region_levels: list[Level] = []
        self._solve()

    def __getitem__(self, operand: Operand) -> Stride:
        if not operand.is_local or self._lanes == 1:
            return 0
        return self.strides.get(operand.text, VARYING)

    def splits(self, level: Level, node: str) -> bool:
        """Return whether the subregions behind a node are written one after the other."""
        return node in self._forced or self.diverges(level, node)

    def diverges(self, level: Level, node: str) -> bool:
        """Return whether lanes that reach a node together may leave it to different targets."""
        if node in level.loops:
            return node in self.divergent_loops and len({t for _, t in level.edges(node)}) > 1
        branch = self._function.blocks[node].terminator
        return len(set(branch.labels)) > 1 and self[branch.operands[0]] != 0

    def aligned(self, operand: Operand) -> int:
        """Return a power of two that divides the value of lane 0, at most 4096."""
        if operand.is_local:
            return self._aligned.get(operand.text, 1)
        text = operand.text.lstrip("-")
        return _power(int(text)) if text.isdigit() else 1

    def refine(self, levels: Iterable[Level]) -> None:
        """Take the levels of barrier regions into account, too.

        Edges may meet in a region that are iterations of a loop in the function.
        """
        self._region_levels += levels
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
            for level in (*self.levels, *self._region_levels):
                changed |= self._diverge(level)

    def _update(self, block: BasicBlock, instruction: Instruction) -> bool:
        name = instruction.name
        if any(o.is_local and o.text not in self.strides for o in instruction.operands):
            if instruction.opcode != "phi":
                return False
            if not any(o.text in self.strides or not o.is_local for o in instruction.operands):
                return False
        known = name in self.strides
        old = self.strides.get(name, VARYING)
        if known and old is VARYING:
            return False
        self._aligned[name] = self._alignment(instruction)
        stride = self._stride(block, instruction)
        if known and stride != old:
            stride = VARYING
        self.strides[name] = stride
        return not known or stride != old

    def _diverge(self, level: Level) -> bool:
        """Mark the effects of the divergent nodes of a level; return whether any is new."""
        size = self._size
        for node in level.order:
            if not self.splits(level, node):
                continue
            merge = level.ipdom[node]
            inside = {node, *level.region(node)}
            edges = [edge for item in inside for edge in level.edges(item)]
            for entry, _ in level.subregions(node):
                if level.idom[entry] != node:
                    self._forced.add(level.idom[entry])
                if sum(level.node_of(target) == entry for _, target in edges) > 1:
                    self._merges.add(entry)
            if merge != END:
                if sum(level.node_of(t) == merge for _, t in edges if t in level.blocks) > 1:
                    self._merges.add(merge)
                continue
            outside = [t for _, t in edges if t not in level.blocks or t == level.root]
            if level.root in outside and outside.count(level.root) > 1:
                self._merges.add(level.root)
            if len(set(outside)) > 1 and level.root in self._headers:
                self.divergent_loops.add(level.root)
        for header in self.divergent_loops & set(level.loops):
            self._merges.update(target for _, target in level.edges(header))
        return size != self._size

    @property
    def _size(self) -> int:
        return len(self._merges) + len(self.divergent_loops) + len(self._forced)

    @property
    def _headers(self) -> set[str]:
        return {level.root for level in self.levels[1:]}

    # -- strides -----------------------------------------------------------------------------

    def _stride(self, block: BasicBlock, item: Instruction) -> Stride:
        if self._lanes == 1:
            return 0
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
        strides = [self[operand] for operand in item.operands]
        if item.opcode == "load":
            return 0 if strides == [0] and is_scalar(item.type) else VARYING
        if not any(stride != 0 for stride in strides):
            return 0
        return self._of_operands(item, strides)

    def _of_phi(self, block: BasicBlock, item: Instruction) -> Stride:
        if block.label in self._merges:
            return VARYING
        known = {
            self[operand]
            for operand in item.operands
            if not operand.is_local or operand.text in self.strides
        }
        return known.pop() if len(known) == 1 and _may_have_strides(item.type, known) else VARYING

    def _of_call(self, item: Instruction) -> Stride:
        name = item.detail
        if name.startswith((placeholders.SHARED, placeholders.BARRIER)):
            return 0
        if name == placeholders.SUM_TOTAL:
            return 0 if all(self[operand] == 0 for operand in item.operands) else VARYING
        if placeholders.is_marker(name):
            broadcast = (
                name.startswith(f"{placeholders.SHUFFLE}idx") and self[item.operands[2]] == 0
            )
            voted = name.startswith(
                (placeholders.VOTE, placeholders.ACTIVEMASK, f"{placeholders.MATCH}all")
            )
            is_warp = 0 < self._lanes <= placeholders.WARP_SIZE
            return 0 if is_warp and (broadcast or voted) else VARYING
        is_pure = name.startswith("llvm.") or name in PURE_FUNCTIONS
        if not is_pure or item.type.startswith("{"):
            return VARYING
        return VARYING if any(self[operand] != 0 for operand in item.operands) else 0

    def _of_operands(self, item: Instruction, strides: list[Stride]) -> Stride:
        if VARYING in strides or not self._lanes:
            return VARYING
        opcode, (first, second) = item.opcode, (*item.operands, item.operands[0])[:2]
        if opcode == "getelementptr":
            return address_stride(item, strides)
        if not (is_integer(item.type) or item.type == "ptr") or item.type == "i1":
            return VARYING
        left, right = strides[0], strides[-1]
        assert left is not None
        assert right is not None
        if opcode == "add" or (opcode == "or" and "disjoint" in item.flags):
            return left + right
        if opcode == "sub":
            return left - right
        if opcode in ("mul", "shl", "and", "lshr", "ashr") and not second.is_local:
            return self._with_constant(opcode, first, left, int(second.text))
        if opcode == "select" and strides[0] == 0 and strides[1] == strides[2]:
            return strides[1]
        if opcode == "sext" and not self.is_exact(first):
            return VARYING
        if opcode in ("sext", "trunc", "freeze", "ptrtoint", "inttoptr"):
            return left
        if opcode == "zext" and ("nneg" in item.flags or self._is_position(first)):
            return left
        return VARYING

    def _with_constant(self, opcode: str, first: Operand, step: int, constant: int) -> Stride:
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

    def is_exact(self, operand: Operand, seen: set[str] | None = None) -> bool:
        """Return whether the stride of a value holds for its signed numbers, not only for its bits.

        A value of few bits may wrap around between two lanes, as ``np.int8(t * 16)`` does. `seen`
        are values that are known to be exact if this one is.
        """
        seen = set() if seen is None else seen
        if not operand.is_local or operand.text in seen or self.strides.get(operand.text, 1) == 0:
            return True
        seen.add(operand.text)
        item = self.definitions.get(operand.text)
        if item is None:
            return self._is_position(operand)
        if item.opcode in ("add", "sub", "mul", "shl", "trunc"):
            if "nsw" not in item.flags:
                return False
        elif item.opcode == "or":
            if "disjoint" not in item.flags:
                return False
        elif item.opcode not in ("phi", "select", "freeze", "sext", "zext", "and"):
            return False
        operands = item.operands[1:] if item.opcode == "select" else item.operands
        return all(self.is_exact(o, seen) for o in operands)

    def _is_position(self, operand: Operand) -> bool:
        return operand.text in {p.text for p in self._function.parameters}

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


def _may_have_strides(kind: str, strides: set[Stride]) -> bool:
    """Return whether values of a type can have strides: only integers and pointers can."""
    return strides == {0} or ((is_integer(kind) and kind != "i1") or kind == "ptr")
