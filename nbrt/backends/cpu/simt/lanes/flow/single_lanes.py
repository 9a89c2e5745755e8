"""Subregions that one lane, or a few known lanes, enter: scalar code for each of them.

``if threadIdx.x == 0`` runs in one lane of a group. Vector code would compute all lanes and gather
from an address in each. Threads may run in any order between two barriers, so the lanes may also
run one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.lanes.accesses.scalarize import IGNORED_CALLS, refusal
from nbrt.backends.cpu.simt.lanes.flow.merges import Edge
from nbrt.backends.cpu.simt.lanes.vectors.lane_sets import known_lanes
from nbrt.backends.cpu.simt.lanes.vectors.values import Lane, Mask, Value
from nbrt.backends.cpu.simt.llvm.model import BINARY, CASTS
from nbrt.backends.cpu.simt.llvm.types import is_scalar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from nbrt.backends.cpu.simt.lanes.analysis.regions import SplitThread
    from nbrt.backends.cpu.simt.lanes.instructions import Instructions
    from nbrt.backends.cpu.simt.lanes.spill_slots import SpillSlots
    from nbrt.backends.cpu.simt.llvm.model import BasicBlock, Instruction

__all__ = ["SingleLanes"]

_MAX_LANES = 4
"""Maximum number of known lanes that are written one after the other."""

_MAX_RECOMPUTED = 10
"""Maximum number of instructions that recompute one lane of a vector."""

_ORDERS = ("llvm.smin.", "llvm.smax.", "llvm.umin.", "llvm.umax.", "llvm.abs.")
_COPIED = frozenset(
    (
        *(BINARY | CASTS),
        *("icmp", "fcmp", "select", "fneg", "freeze", "getelementptr", "load", "store", "call"),
    )
)
_RECOMPUTED = _COPIED - {"load", "store", "call", "udiv", "sdiv", "urem", "srem"}


class SingleLanes:
    """Writes subregions of one region for single lanes.

    `blocks` are the blocks of the region by label, and `aliases` the other names that they have for
    values from before the region; `instructions` holds the values known so far.
    """

    def __init__(
        self,
        thread: SplitThread,
        blocks: dict[str, BasicBlock],
        aliases: dict[str, dict[str, str]],
        instructions: Instructions,
        slots: SpillSlots,
    ) -> None:
        self._thread = thread
        self._blocks = blocks
        self._aliases = aliases
        self._instructions = instructions
        self._slots = slots
        self._writer = instructions.writer
        self._divergence = instructions.divergence

    def lanes(self, mask: Mask, root: str, labels: Collection[str]) -> list[Lane]:
        """Return the lanes of a mask if the blocks can be written for each; else none."""
        if mask is None:
            return []
        known = known_lanes(mask, self._writer.width)
        lanes: list[Lane] = []
        if known is not None and known.bit_count() <= _MAX_LANES:
            lanes = [lane for lane in range(self._writer.width) if known >> lane & 1]
        elif known is None and mask.kind == "one":
            lanes = [mask.text]
        return lanes if lanes and self._can_copy(root, labels) else []

    def _can_copy(self, root: str, labels: Collection[str]) -> bool:
        targets = {t for label in labels for t in self._thread.successors(label)}
        exits = targets - set(labels)
        if len(exits) != 1 or root in targets:
            return False
        if any(self._divergence.strides.get(phi.name) for phi in self._thread.phis(*exits)):
            return False  # the value of lane 0 is not known
        return all(self._is_copied(item) for item in self._items(labels))

    def _items(self, labels: Collection[str]) -> Iterator[Instruction]:
        for label in labels:
            yield from self._blocks[label].instructions

    def _is_copied(self, item: Instruction) -> bool:
        if item.name and self._slots.keeps(item.name):
            return False
        if item.opcode in ("br", "phi"):
            return True
        if item.opcode not in _COPIED:
            return False
        if item.opcode != "call":
            return item.opcode == "store" or is_scalar(item.type)
        if placeholders.is_marker(item.detail):
            return item.detail.startswith(placeholders.SHARED)
        return not refusal(item)

    # -- writing -----------------------------------------------------------------------------------

    def write(
        self,
        root: str,
        labels: Collection[str],
        mask: Mask,
        phis: dict[str, Value],
        lanes: list[Lane],
    ) -> list[Edge]:
        """Write blocks for some lanes, all lanes of a mask; return the edge that leaves them.

        `phis` are the values of the phis of `root`, the entry.
        """
        writer = self._writer
        writer.notes["branches of one thread of a row are scalar code"] = None
        edges = [self._write_lane(root, labels, phis, lane) for lane in lanes]
        target = edges[0][0]
        incoming = {}
        for phi in self._thread.phis(target):
            if self._divergence.strides.get(phi.name) == 0:
                incoming[phi.name] = Value(phi.type, "scalar", edges[0][1][phi.name])
                continue
            vector, text = writer.vector_type(phi.type), "poison"
            for lane, (_, values) in zip(lanes, edges, strict=True):
                element = f"{phi.type} {values[phi.name]}"
                text = writer.op(f"insertelement {vector} {text}, {element}, i64 {lane}")
            incoming[phi.name] = Value(phi.type, "vector", text)
        return [Edge(target, "true", mask, incoming)]

    def _write_lane(
        self, root: str, labels: Collection[str], phis: dict[str, Value], lane: Lane
    ) -> tuple[str, dict[str, str]]:
        """Write the blocks for one lane; return the target and the values of its phis."""
        writer = self._writer
        names = self._names(labels, phis, lane)
        order = [root, *(label for label in self._blocks if label in labels and label != root)]
        starts = {label: writer.name("lane") for label in order[1:]}
        ends = {root: writer.label, **starts}
        after = writer.name("lane.end")
        leaving = []
        for label in order:
            if label != root:
                writer.start(starts[label])
                self._copy_phis(label, names, ends)
            self._copy(self._blocks[label], names)
            targets = self._thread.successors(label)
            leaving += [(target, label) for target in targets if target not in labels]
            texts = [starts.get(target, after) for target in targets]
            if len(texts) == 1:
                writer.go(texts[0])
            else:
                test = self._blocks[label].terminator.operands[0].text
                writer.choose(names.get(test, test), *texts)
        self._instructions.note_writes()
        writer.start(after)
        target = leaving[0][0]
        incoming = {}
        for phi in self._thread.phis(target):
            found = ((self._incoming(phi, label), ends[label]) for _, label in leaving)
            values = [(names.get(text, text), source) for text, source in found]
            incoming[phi.name] = writer.phi(phi.type, values)
        return target, incoming

    def _incoming(self, phi: Instruction, label: str) -> str:
        """Return the operand of a phi on the edge from a block."""
        text = phi.operands[phi.labels.index(label)].text
        return self._aliases.get(label, {}).get(text, text)

    def _copy_phis(self, label: str, names: dict[str, str], ends: dict[str, str]) -> None:
        for phi in self._thread.phis(label):
            found = ((self._incoming(phi, source), ends[source]) for source in phi.labels)
            pairs = ", ".join(f"[ {names.get(text, text)}, {source} ]" for text, source in found)
            self._writer.do(f"{names[phi.name]} = phi {phi.type} {pairs}")

    def _copy(self, block: BasicBlock, names: dict[str, str]) -> None:
        for item in block.instructions:
            if item.opcode == "phi" or item.is_terminator:
                continue
            if item.opcode == "call" and (
                placeholders.is_marker(item.detail) or item.detail.startswith(IGNORED_CALLS)
            ):
                continue
            if item.opcode in ("load", "store"):
                address = item.operands[-1].text
                self._instructions.prefetch(item, names.get(address, address))
            text = item.written(names)
            self._writer.do(f"{names[item.name]} = {text}" if item.name else text)

    # -- operands ----------------------------------------------------------------------------------

    def _names(self, labels: Collection[str], phis: dict[str, Value], lane: Lane) -> dict[str, str]:
        """Return the names that values have in the code of one lane.

        Values from outside are written here, in front of the code.
        """
        writer, values = self._writer, self._instructions.values
        names = {name: writer.lane(value, lane) for name, value in phis.items()}
        for item in self._items(labels):
            if item.opcode == "call" and placeholders.is_marker(item.detail):
                names[item.name] = values[item.name].text
            elif item.name and item.name not in names:
                names[item.name] = writer.name()
        for text in self._used(labels):
            if text.startswith("%") and text not in names:
                names[text] = self._lane(text, lane)
        return names

    def _used(self, labels: Collection[str]) -> Iterator[str]:
        """Iterate over the operands of blocks, with those of the phis behind them."""
        for label in labels:
            for item in self._blocks[label].instructions:
                if item.opcode == "call" and item.detail.startswith(IGNORED_CALLS):
                    continue
                if item.opcode != "phi":
                    yield from (operand.text for operand in item.operands)
            for target in self._thread.successors(label):
                for phi in self._thread.phis(target):
                    yield self._incoming(phi, label)

    def _lane(self, name: str, lane: Lane) -> str:
        """Return one lane of a value from outside, recomputed if that is cheap."""
        value = self._instructions.values[name]
        if value.kind == "vector" and value.write_lane is None:
            items: list[Instruction] = []
            if self._add_recomputed(name, items) and items:
                names: dict[str, str] = {}
                for item in items:
                    for operand in item.operands:
                        if operand.is_local and operand.text not in names:
                            known = self._instructions.values[operand.text]
                            names[operand.text] = self._writer.lane(known, lane)
                    names[item.name] = self._writer.op(item.written(names))
                return names[name]
        return self._writer.lane(value, lane)

    def _add_recomputed(self, name: str, items: list[Instruction]) -> bool:
        """Add the instructions that compute a value from parameters; return whether they are few.

        Values of parameters do not change, so the lane has the value of the vector. A lane that is
        active here has executed the instructions, so their flags hold.
        """
        item = self._divergence.definitions.get(name)
        if item is None:  # a parameter, or a value of an iteration
            return any(name == each.text for each in self._thread.function.parameters)
        if any(item.name == other.name for other in items):
            return True
        is_order = item.opcode == "call" and item.detail.startswith(_ORDERS)
        if item.opcode not in _RECOMPUTED and not is_order:
            return False
        for operand in item.operands:
            if operand.is_local and not self._add_recomputed(operand.text, items):
                return False
        items.append(item)
        return len(items) <= _MAX_RECOMPUTED
