"""One definition for each use in a region: values from before a barrier merge with later ones.

If an outer loop computes `v` and ``while b: use(v); barrier()`` is inside, the region behind the
barrier reaches the use on two paths: with the `v` from before the barrier, and with one that the
region itself computes. Such a value gets a copy behind each barrier, and phis where copies and the
original meet. This is SSA construction for one variable with several definitions (Cytron et
al., 1991), so each use has one definition in each region, and the copies are what a region loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.analysis.regions import uses_of
from nbrt.backends.cpu.simt.llvm.graph import dominates, dominator_tree, reachable
from nbrt.backends.cpu.simt.llvm.model import Instruction, Operand, renamed

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.analysis.regions import SplitThread

__all__ = ["merge_reaching_values"]


def merge_reaching_values(thread: SplitThread) -> None:
    """Rewrite the values that a region may know from before a barrier or compute itself."""
    home = {item.name: block.label for block, item in thread.function.instructions() if item.name}
    types = {item.name: item.type for _, item in thread.function.instructions() if item.name}
    results = {barrier.result for barrier in thread.barriers.values()}
    for name in _ambiguous(thread, home):
        if name not in results:
            _Rewriter(thread, Operand(types[name], name), home[name]).rewrite()


def _ambiguous(thread: SplitThread, home: dict[str, str]) -> list[str]:
    """Return the values that reach a use from before a barrier, and from behind it."""
    found: dict[str, None] = {}
    for barrier in thread.barriers.values():
        root = barrier.after
        blocks = {root, *reachable([root], thread.inner_successors)}
        idom = dominator_tree(root, thread.inner_successors)
        behind: dict[str, set[str]] = {}
        for user, operand in uses_of(thread, blocks):
            block = home.get(operand.text)
            if block not in blocks or block is None or dominates(idom, block, user):
                continue
            if block not in behind:
                behind[block] = reachable([block], thread.inner_successors)
            if user in behind[block]:
                found[operand.text] = None
    return list(found)


class _Rewriter:
    """Rewrites the uses of one value.

    `value` is defined in the block `home`.
    """

    def __init__(self, thread: SplitThread, value: Operand, home: str) -> None:
        self._thread = thread
        self._blocks = thread.function.blocks
        self._value = value
        self._home = home
        self._idom = dominator_tree(thread.function.entry, self._successors)
        self._sources: dict[str, list[str]] = {label: [] for label in self._blocks}
        for label in self._blocks:
            for target in self._successors(label):
                self._sources[target].append(label)
        self._names: dict[str, str] = {}
        """Blocks that begin with a copy or a phi of the value, and its name."""

    def rewrite(self) -> None:
        """Add copies behind barriers and phis, and rename the uses."""
        live = self._live()
        copies = [b.after for b in self._thread.barriers.values() if b.after in live]
        for after in copies:
            self._names[after] = self._name(len(self._names))
        phis = []
        pending = [self._home, *copies]
        while pending:
            for label in self._frontier(pending.pop()):
                if label in live and label not in self._names:
                    self._names[label] = self._name(len(self._names))
                    phis.append(label)
                    pending.append(label)
        self._rename()
        for label in copies:
            self._add_copy(label)
        for label in phis:
            self._add_phi(label)

    def _successors(self, label: str) -> list[str]:
        return [item for item in self._blocks[label].successors if item in self._blocks]

    def _name(self, number: int) -> str:
        return f'%"{self._value.text[1:].strip(chr(34))}@{number}"'

    def _live(self) -> set[str]:
        """Return the blocks that begin with the value alive."""
        name, live = self._value.text, set[str]()
        pending = [
            user for user, operand in uses_of(self._thread, self._blocks) if operand.text == name
        ]
        while pending:
            label = pending.pop()
            if label != self._home and label not in live:
                live.add(label)
                pending += self._sources[label]
        return live

    def _frontier(self, label: str) -> list[str]:
        """Return the dominance frontier of a block."""
        return [
            target
            for target, sources in self._sources.items()
            if any(dominates(self._idom, label, s) for s in sources if s in self._idom)
            and (target == label or not dominates(self._idom, label, target))
        ]

    def _at_end(self, label: str) -> str:
        """Return the name of the value at the end of a block."""
        return self._value.text if label == self._home else self._at_start(label)

    def _at_start(self, label: str) -> str:
        """Return the name of the value at the start of a block, behind its phis and its copy."""
        return self._names.get(label) or self._at_end(self._idom[label])

    def _rename(self) -> None:
        old = self._value.text
        for block in self._blocks.values():
            for item in block.instructions:
                if item.opcode == "phi":
                    self._rename_sources(item)
                elif any(operand.text == old for operand in item.operands):
                    new = self._at_end(block.label)
                    item.operands = [
                        Operand(o.type, new) if o.text == old else o for o in item.operands
                    ]
                    item.text = renamed(item.text, {old: new})
        for phi in self._thread.all_phis():
            self._rename_sources(phi)

    def _rename_sources(self, phi: Instruction) -> None:
        phi.operands = [
            Operand(o.type, self._at_end(label)) if o.text == self._value.text else o
            for o, label in zip(phi.operands, phi.labels, strict=True)
        ]

    def _add_copy(self, label: str) -> None:
        (source,) = self._sources[label]
        operand = Operand(self._value.type, self._at_end(source))
        text = f"freeze {operand.type} {operand.text}"
        copy = Instruction(self._names[label], "freeze", operand.type, [operand], text=text)
        self._blocks[label].instructions.insert(0, copy)

    def _add_phi(self, label: str) -> None:
        sources = self._sources[label]
        kind = self._value.type
        operands = [Operand(kind, self._at_end(source)) for source in sources]
        phi = Instruction(self._names[label], "phi", kind, operands, labels=list(sources))
        self._blocks[label].instructions.insert(0, phi)
