"""Cutting a thread at its barriers into regions, and what has to be kept from one to another."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.llvm.errors import CannotLowerError
from nbrt.backends.cpu.simt.llvm.graph import END, Level, dominates, dominators, reverse_postorder
from nbrt.backends.cpu.simt.llvm.model import Block, Instruction, Operand, renamed

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.divergence import Shapes
    from nbrt.backends.cpu.simt.llvm.model import Function

__all__ = [
    "DONE",
    "FAILED",
    "NEVER",
    "Barrier",
    "Cut",
    "Region",
    "alias_of",
    "check_loops",
    "check_uniform",
    "cut",
    "find_regions",
    "keep_values",
    "with_aliases",
]

DONE = "%nbrt.done"
FAILED = "%nbrt.failed"
NEVER = "%nbrt.never"
"""Where threads go that return, that return an error, and that cannot exist."""

_STATUS = "%nbrt.status"
_REMADE_LENGTH = 10
_REMADE = frozenset(
    [
        "add",
        "sub",
        "mul",
        "shl",
        "lshr",
        "ashr",
        "and",
        "or",
        "xor",
        "icmp",
        "select",
        "zext",
        "sext",
        "trunc",
        "getelementptr",
        "fadd",
        "fsub",
        "fmul",
        "fneg",
        "sitofp",
        "uitofp",
        "freeze",
    ]
)
_MAX_REGIONS = 64


@dataclass(frozen=True)
class Barrier:
    """A place where the threads of a block wait for each other."""

    wait: str
    """Label that stands for waiting there."""

    after: str
    """The block that they go on with."""

    kind: str
    """What is found out about all threads: empty, ``count``, ``and`` or ``or``."""

    result: str = ""
    """Name of what was found out."""

    test: Instruction | None = None
    """The thread's contribution to that, as a phi of the label."""


@dataclass
class Region:
    """What is reached from where threads start together, up to where they wait or end."""

    root: str
    level: Level
    wait: str
    """The label of waiting that it goes on from, empty for the first."""
    loads: list[str] = field(default_factory=list)
    """Values to be fetched at its start."""
    remade: list[Instruction] = field(default_factory=list)
    """Values to be computed anew at its start, in this order."""
    aliases: dict[str, dict[str, str]] = field(default_factory=dict)
    """For a block: names under which it means the value from before the region."""


class Cut:
    """A thread cut at its barriers.

    Attributes
    ----------
    function : Function
        The thread; every barrier ends a block, and threads end in one of three places.
    barriers : dict
        By the label of their waiting.
    turns : dict
        Headers of loops whose turns are regions too, by the label that stands for another turn.
    outside : dict
        Phis of the labels that are not blocks.
    regions : list of Region
        The first is where threads begin.
    slots : set of str
        Values that are kept from one region for another.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.barriers: dict[str, Barrier] = {}
        self.turns: dict[str, str] = {}
        self.outside: dict[str, list[Instruction]] = {}
        self.regions: list[Region] = []
        self.slots: set[str] = set()
        self._turn_of: dict[str, str] = {}
        self._by_block: dict[str, str] = {}

    def phis(self, label: str) -> list[Instruction]:
        """Give the phis of a block or of a place where threads wait or end."""
        block = self.function.blocks.get(self.turns.get(label, label))
        return block.phis if block is not None else self.outside.get(label, [])

    def successors(self, block: str) -> list[str]:
        """Give where a block leads, not past a barrier or into a turn of a loop."""
        wait = self._by_block.get(block)
        if wait is not None:
            return [wait]
        found = self.function.blocks[block].successors
        return [self._turn_of.get(target, target) for target in found]

    def add_turns(self, headers: list[str]) -> None:
        """Make every turn of some loops, named by their headers, something to be come back to."""
        self.turns = {f"%nbrt.turn.{i}": header for i, header in enumerate(headers)}
        self._turn_of = {header: turn for turn, header in self.turns.items()}

    def is_at_barrier(self, block: str) -> bool:
        """Tell whether a block ends at a barrier."""
        return block in self._by_block

    def add_barrier(self, block: str, barrier: Barrier) -> None:
        """Note that a block ends at a barrier."""
        self.barriers[barrier.wait] = barrier
        self._by_block[block] = barrier.wait
        if barrier.test is not None:
            self.outside[barrier.wait] = [barrier.test]


def cut(function: Function) -> Cut:
    """Cut a thread at its barriers.

    Raises
    ------
    CannotLowerError
        If there are too many of them.
    """
    made = Cut(function)
    for label in list(function.blocks):
        _cut_block(made, function.blocks[label])
    _mark_ends(made)
    if len(made.barriers) >= _MAX_REGIONS:
        raise CannotLowerError(f"{len(made.barriers)} barriers are more than {_MAX_REGIONS}")
    return made


def find_regions(made: Cut, turns: list[str]) -> None:
    """Find the regions, with every turn of some loops, named by their headers, a region as well."""
    function = made.function
    made.add_turns(turns)
    starts = [("", function.entry), *made.turns.items()]
    starts += [(wait, barrier.after) for wait, barrier in made.barriers.items()]
    for wait, root in starts:
        blocks, pending = {root}, [root]
        while pending:
            for target in made.successors(pending.pop()):
                if target in function.blocks and target not in blocks:
                    blocks.add(target)
                    pending.append(target)
        made.regions.append(Region(root, Level(root, blocks, made.successors), wait))


def _cut_block(made: Cut, block: Block) -> None:
    """Split a block behind each of its barriers."""
    function = made.function
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
    number = len(made.barriers)
    wait, after = f"%nbrt.wait.{number}", f"%nbrt.after.{number}"
    rest = Block(after, block.instructions[at + 1 :])
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
    made.add_barrier(block.label, Barrier(wait, after, kind, call.name, test))
    _cut_block(made, rest)


def _mark_ends(made: Cut) -> None:
    status = Instruction(_STATUS, "phi", "i32", [])
    made.outside[FAILED] = [status]
    for block in made.function.blocks.values():
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


# -- may it be cut? -------------------------------------------------------------------------------


def check_loops(made: Cut, shapes: Shapes) -> None:
    """Check that the loops of the regions are loops of the thread.

    Raises
    ------
    CannotLowerError
        If a cycle only appears where a barrier is not on the way.
    """
    whole = {level.root: level.blocks for level in shapes.levels[1:]}
    for region in made.regions:
        pending = [region.level]
        while pending:
            for loop in pending.pop().loops.values():
                if whole.get(loop.header) != loop.blocks:
                    raise CannotLowerError("a barrier is on only one way through a loop")
                pending.append(Level(loop.header, loop.blocks, made.successors))


def check_uniform(made: Cut, shapes: Shapes) -> None:
    """Check that the threads of a block always wait for each other at one barrier.

    Threads that have ended need not come. `shapes` tells what is the same in the whole block.

    Raises
    ------
    CannotLowerError
        If threads may go to different barriers.
    """
    for region in made.regions:
        level = region.level
        meets = _meeting_points(made, level)
        if any(shapes.differs(level, node) and meets.get(node) == END for node in level.order):
            raise CannotLowerError("threads of a block may wait at different barriers")


def _meeting_points(made: Cut, level: Level) -> dict[str, str]:
    """Give where threads that wait at a barrier later all come by after a node: nodes or waits.

    It is `END` if they may go to several barriers. Nodes that lead to none are left out.
    """
    ways: dict[str, list[str]] = {}
    for node in reversed(level.order):
        inside = [level.node_of(t) for _, t in level.ways(node) if t in level.blocks]
        waits = [t for _, t in level.ways(node) if t in made.barriers]
        found = list(dict.fromkeys([*(n for n in inside if n in ways), *waits]))
        if found:
            ways[node] = found
    waits = list(dict.fromkeys(t for found in ways.values() for t in found if t not in ways))
    return dominators([END, *waits, *ways], ways | {wait: [END] for wait in waits})


# -- what is kept ----------------------------------------------------------------------------------


def keep_values(made: Cut, definitions: dict[str, Instruction]) -> None:
    """Find out for each region what it needs from before, and how it gets that."""
    home = {i.name: b.label for b, i in made.function.instructions() if i.name}
    results = {barrier.result for barrier in made.barriers.values() if barrier.result}
    for region in made.regions:
        inside = region.level.blocks
        above = _block_dominators(region, made)
        aliases: dict[str, dict[str, str]] = {}
        for user, operand in _uses(made, inside):
            name = operand.text
            place = home.get(name)
            if name in results or place is None:
                continue
            if place not in inside:
                aliases.setdefault(name, {})
            elif not dominates(above, place, user):
                if user in _reached(made, place, inside):
                    raise CannotLowerError("a value may be from before a barrier or after it")
                aliases.setdefault(name, {})[user] = alias_of(name)
        for name, users in aliases.items():
            if _remakes(made, region, name, definitions):
                continue
            made.slots.add(name)
            region.loads.append(name)
            for user, alias in users.items():
                region.aliases.setdefault(user, {})[name] = alias


def _reached(made: Cut, block: str, inside: set[str]) -> set[str]:
    """Give the blocks of a region that can follow a block."""
    seen: set[str] = set()
    pending = [block]
    while pending:
        for target in made.successors(pending.pop()):
            if target in inside and target not in seen:
                seen.add(target)
                pending.append(target)
    return seen


def alias_of(name: str) -> str:
    """Name what a value was before the region."""
    return f'%"{name[1:].strip(chr(34))}@before"'


def _block_dominators(region: Region, made: Cut) -> dict[str, str]:
    inside = region.level.blocks

    def successors(block: str) -> list[str]:
        return [item for item in made.successors(block) if item in inside]

    order = reverse_postorder(region.root, successors)
    predecessors: dict[str, list[str]] = {block: [] for block in order}
    for block in order:
        for item in successors(block):
            predecessors[item].append(block)
    return dominators(order, predecessors)


def _uses(made: Cut, inside: set[str]) -> list[tuple[str, Operand]]:
    """Give what blocks use: for a phi, at the end of the block that it comes from."""
    found = []
    for label in inside:
        block = made.function.blocks[label]
        targets = made.successors(label)
        for item in block.instructions:
            if item.opcode != "phi":
                found += [(label, operand) for operand in item.operands if operand.is_local]
        for target in targets:
            for phi in made.phis(target):
                if label in phi.labels:
                    operand = phi.operands[phi.labels.index(label)]
                    if operand.is_local:
                        found.append((label, operand))
    return found


def _remakes(made: Cut, region: Region, name: str, definitions: dict[str, Instruction]) -> bool:
    """Arrange for a value to be computed anew at the start of a region, if that is cheap."""
    found: list[Instruction] = []
    if not _remake(name, definitions, found):
        return False
    known = {item.name for item in region.remade}
    region.remade += [item for item in found if item.name not in known]
    return True


def _remake(name: str, definitions: dict[str, Instruction], found: list[Instruction]) -> bool:
    """List what computes a value from arguments alone, if that is cheap."""
    item = definitions.get(name)
    if item is None or any(item.name == other.name for other in found):
        return True
    if item.opcode == "alloca" or (
        item.opcode == "call" and item.detail.startswith(placeholders.SHARED)
    ):
        return True  # known everywhere
    if item.opcode not in _REMADE or len(found) > _REMADE_LENGTH:
        return False
    for operand in item.operands:
        if operand.is_local and not _remake(operand.text, definitions, found):
            return False
    found.append(item)
    return len(found) <= _REMADE_LENGTH


def with_aliases(block: Block, names: dict[str, str]) -> Block:
    """Copy a block in which some names mean values from before the region."""
    if not names:
        return block
    copies = []
    for item in block.instructions:
        if item.opcode == "phi":
            copies.append(item)
            continue
        operands = [Operand(o.type, names.get(o.text, o.text)) for o in item.operands]
        copies.append(replace(item, operands=operands, text=renamed(item.text, names)))
    return Block(block.label, copies)
