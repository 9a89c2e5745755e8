"""A thread split at its barriers into regions, and the values that regions keep for others."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.llvm.graph import Level, dominates, dominator_tree, reachable
from nbrt.backends.cpu.simt.llvm.model import (
    BasicBlock,
    CannotLowerError,
    Instruction,
    Operand,
    renamed,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nbrt.backends.cpu.simt.llvm.model import Function

__all__ = [
    "DONE",
    "FAILED",
    "NEVER",
    "Barrier",
    "BarrierRegion",
    "SplitThread",
    "alias_of",
    "final_targets",
    "find_regions",
    "keep_values",
    "region_targets",
    "split_at_barriers",
    "uses_of",
    "with_aliases",
]

DONE = "%nbrt.done"
FAILED = "%nbrt.failed"
NEVER = "%nbrt.never"
"""Targets of threads that return, that return an error, and that cannot exist."""

_STATUS = "%nbrt.status"
_MAX_RECOMPUTED = 10
"""Maximum number of instructions that recompute a value."""
_RECOMPUTED = frozenset(
    (
        *("add", "sub", "mul", "shl", "lshr", "ashr", "and", "or", "xor", "icmp", "select"),
        *("zext", "sext", "trunc", "getelementptr", "sitofp", "uitofp", "freeze"),
        *("fadd", "fsub", "fmul", "fneg", "insertelement", "shufflevector"),
    )
)
_MAX_BARRIERS = 64


@dataclass(frozen=True)
class Barrier:
    """A barrier of the block."""

    wait: str
    """Label of the place where threads wait."""

    after: str
    """Block where they continue."""

    kind: str
    """Reduction over the threads: empty, ``count``, ``and`` or ``or``."""

    result: str = ""
    """Name of the result of the reduction."""

    test: Instruction | None = None
    """Operand of the reduction, as a phi of the label."""


@dataclass
class BarrierRegion:
    """The blocks between places where the threads of a block are together."""

    root: str
    level: Level
    wait: str
    """Label of the place that it continues from; empty for the first region."""
    loads: list[str] = field(default_factory=list)
    """Values to load at its start."""
    recomputed: list[Instruction] = field(default_factory=list)
    """Instructions to repeat at its start, in this order."""
    aliases: dict[str, dict[str, str]] = field(default_factory=dict)
    """By block: other names of values from before the region."""


class SplitThread:
    """A thread split at its barriers.

    Attributes
    ----------
    function : Function
        The thread; every barrier ends a block, and returns are branches to one of three labels.
    barriers : dict
        Barriers by the labels where threads wait.
    interchanged : dict
        Headers of loops whose iterations are regions, by labels that stand for the next iteration.
    regions : list of BarrierRegion
        The regions; the first begins at the entry.
    spilled : set of str
        Values that a region keeps for another.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.barriers: dict[str, Barrier] = {}
        self.interchanged: dict[str, str] = {}
        self.regions: list[BarrierRegion] = []
        self.spilled: set[str] = set()
        self._phis: dict[str, list[Instruction]] = {}
        self._iterations: dict[str, str] = {}
        self._by_block: dict[str, str] = {}

    def phis(self, label: str) -> list[Instruction]:
        """Return the phis of a block, or of a label where threads wait or end."""
        block = self.function.blocks.get(self.interchanged.get(label, label))
        return block.phis if block is not None else self._phis.get(label, [])

    def all_phis(self) -> list[Instruction]:
        """Return the phis of the labels that are not blocks."""
        return [phi for phis in self._phis.values() for phi in phis]

    def add_phi(self, label: str, phi: Instruction) -> None:
        """Add a phi to a label that is not a block."""
        self._phis.setdefault(label, []).append(phi)

    def successors(self, block: str) -> list[str]:
        """Return the successors of a block within its region: blocks and labels."""
        wait = self._by_block.get(block)
        if wait is not None:
            return [wait]
        targets = self.function.blocks[block].successors
        return [self._iterations.get(target, target) for target in targets]

    def inner_successors(self, block: str) -> list[str]:
        """Return the successors of a block that are blocks of its region."""
        return [item for item in self.successors(block) if item in self.function.blocks]

    def interchange(self, headers: list[str]) -> None:
        """Make the iterations of some loops regions."""
        self.interchanged = {f"%nbrt.turn.{i}": header for i, header in enumerate(headers)}
        self._iterations = {header: label for label, header in self.interchanged.items()}

    def is_at_barrier(self, block: str) -> bool:
        """Return whether a block ends at a barrier."""
        return block in self._by_block

    def add_barrier(self, block: str, barrier: Barrier) -> None:
        """Add the barrier at the end of a block."""
        self.barriers[barrier.wait] = barrier
        self._by_block[block] = barrier.wait
        if barrier.test is not None:
            self.add_phi(barrier.wait, barrier.test)


def split_at_barriers(function: Function) -> SplitThread:
    """Split a thread at its barriers.

    Raises
    ------
    CannotLowerError
        If it has too many.
    """
    thread = SplitThread(function)
    _remove_results(function)
    for label in list(function.blocks):
        _split_block(thread, function.blocks[label])
    _mark_ends(thread)
    if len(thread.barriers) >= _MAX_BARRIERS:
        raise CannotLowerError(f"{len(thread.barriers)} barriers are more than {_MAX_BARRIERS}")
    return thread


def _remove_results(function: Function) -> None:
    """Remove the stores of the result, which is ``None`` for all kernels, and is not read."""
    result = function.parameters[0].text
    for block in function.blocks.values():
        block.instructions = [
            item
            for item in block.instructions
            if item.opcode != "store" or item.operands[1].text != result
        ]


def find_regions(thread: SplitThread, interchanged: list[str]) -> None:
    """Find the regions; the iterations of the interchanged loops, given by header, are regions."""
    function = thread.function
    thread.interchange(interchanged)
    starts = [("", function.entry), *thread.interchanged.items()]
    starts += [(wait, barrier.after) for wait, barrier in thread.barriers.items()]
    for wait, root in starts:
        blocks = {root, *reachable([root], thread.inner_successors)}
        thread.regions.append(BarrierRegion(root, Level(root, blocks, thread.successors), wait))


def region_targets(thread: SplitThread, region: BarrierRegion) -> dict[str, None]:
    """Return the labels at which the threads of a region wait or end."""
    blocks = thread.function.blocks
    targets = [t for label in sorted(region.level.blocks) for t in thread.successors(label)]
    return dict.fromkeys(target for target in targets if target not in blocks)


def final_targets(thread: SplitThread, region: BarrierRegion) -> dict[str, None]:
    """Return the labels at which they wait or end after all iterations of interchanged loops."""
    by_wait = {each.wait: each for each in thread.regions}
    found: dict[str, None] = {}
    pending = [*region_targets(thread, region)]
    while pending:
        target = pending.pop(0)
        if target not in found:
            found[target] = None
            if target in thread.interchanged:
                pending += region_targets(thread, by_wait[target])
    return {target: None for target in found if target not in thread.interchanged}


def _split_block(thread: SplitThread, block: BasicBlock) -> None:
    """Split a block behind each of its barriers."""
    function = thread.function
    at = next(
        (
            i
            for i, item in enumerate(block.instructions)
            if item.opcode == "call" and item.detail.startswith(placeholders.BARRIER)
        ),
        None,
    )
    if at is None:
        return
    call = block.instructions[at]
    number = len(thread.barriers)
    wait, after = f"%nbrt.wait.{number}", f"%nbrt.after.{number}"
    rest = BasicBlock(after, block.instructions[at + 1 :])
    jump = Instruction("", "br", "void", [], labels=[after], text=f"br label {after}")
    block.instructions[at:] = [jump]
    function.blocks[after] = rest
    for target in rest.successors:
        for phi in function.blocks[target].phis:
            phi.labels = [after if label == block.label else label for label in phi.labels]
    kind = call.detail.removeprefix(placeholders.BARRIER).removeprefix(".")
    test = None
    if kind:
        operand = call.operands[0]
        test = Instruction(f"%nbrt.test.{number}", "phi", "i32", [operand], labels=[block.label])
    thread.add_barrier(block.label, Barrier(wait, after, kind, call.name, test))
    _split_block(thread, rest)


def _mark_ends(thread: SplitThread) -> None:
    status = Instruction(_STATUS, "phi", "i32", [])
    thread.add_phi(FAILED, status)
    for block in thread.function.blocks.values():
        last = block.terminator
        if last.opcode not in ("ret", "unreachable"):
            continue
        target = NEVER
        if last.opcode == "ret":
            target = DONE if last.operands[0].text == "0" else FAILED
        if target == FAILED:
            status.operands.append(last.operands[0])
            status.labels.append(block.label)
        text = f"br label {target}"
        block.instructions[-1] = Instruction("", "br", "void", [], labels=[target], text=text)


# -- kept values ----------------------------------------------------------------------------------


def keep_values(thread: SplitThread, definitions: Mapping[str, Instruction]) -> None:
    """Find the values that each region needs from earlier ones, and recompute or spill them."""
    home = {i.name: b.label for b, i in thread.function.instructions() if i.name}
    results = {barrier.result for barrier in thread.barriers.values() if barrier.result}
    for region in thread.regions:
        idom = dominator_tree(region.root, thread.inner_successors)
        aliases: dict[str, dict[str, str]] = {}
        for user, operand in uses_of(thread, region.level.blocks):
            name = operand.text
            block = home.get(name)
            if name in results or block is None:
                continue
            if block not in region.level.blocks:
                aliases.setdefault(name, {})
            elif not dominates(idom, block, user):
                if user in reachable([block], thread.inner_successors):
                    raise CannotLowerError("a value may be from before a barrier or after it")
                aliases.setdefault(name, {})[user] = alias_of(name)
        for name, users in aliases.items():
            if _recompute(region, name, definitions):
                continue
            thread.spilled.add(name)
            region.loads.append(name)
            for user, alias in users.items():
                region.aliases.setdefault(user, {})[name] = alias


def alias_of(name: str) -> str:
    """Return the name of a value from before the region."""
    return f'%"{name[1:].strip(chr(34))}@before"'


def uses_of(thread: SplitThread, labels: Iterable[str]) -> list[tuple[str, Operand]]:
    """Return the operands that blocks use; an operand of a phi is used in its incoming block."""
    uses = []
    for label in sorted(labels):
        block = thread.function.blocks[label]
        targets = thread.successors(label)
        for item in block.instructions:
            if item.opcode != "phi":
                uses += [(label, operand) for operand in item.operands if operand.is_local]
        for target in targets:
            for phi in thread.phis(target):
                if label in phi.labels:
                    operand = phi.operands[phi.labels.index(label)]
                    if operand.is_local:
                        uses.append((label, operand))
    return uses


def _recompute(region: BarrierRegion, name: str, definitions: Mapping[str, Instruction]) -> bool:
    """Let a region recompute a value at its start if that is cheap; return whether it is."""
    items: list[Instruction] = []
    if not _add_recomputed(name, definitions, items):
        return False
    known = {item.name for item in region.recomputed}
    region.recomputed += [item for item in items if item.name not in known]
    return True


def _add_recomputed(
    name: str, definitions: Mapping[str, Instruction], items: list[Instruction]
) -> bool:
    """Add the instructions that compute a value from arguments; return whether they are cheap."""
    item = definitions.get(name)
    if item is None or any(item.name == other.name for other in items):
        return True
    if item.opcode == "alloca" or (
        item.opcode == "call" and item.detail.startswith(placeholders.SHARED)
    ):
        return True  # the address is the same in all regions
    if item.opcode not in _RECOMPUTED or len(items) > _MAX_RECOMPUTED:
        return False
    for operand in item.operands:
        if operand.is_local and not _add_recomputed(operand.text, definitions, items):
            return False
    items.append(item)
    return len(items) <= _MAX_RECOMPUTED


def with_aliases(block: BasicBlock, names: dict[str, str]) -> BasicBlock:
    """Return a copy of a block with other names for values from before the region."""
    if not names:
        return block
    copies = []
    for item in block.instructions:
        if item.opcode == "phi":
            copies.append(item)
            continue
        operands = [Operand(o.type, names.get(o.text, o.text)) for o in item.operands]
        copies.append(replace(item, operands=operands, text=renamed(item.text, names)))
    return BasicBlock(block.label, copies)
