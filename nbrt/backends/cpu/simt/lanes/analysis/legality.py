"""Legality checks: whether the lanes of a block may run in step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.analysis.regions import (
    DONE,
    NEVER,
    final_targets,
    region_targets,
)
from nbrt.backends.cpu.simt.llvm.graph import END, Level, dominators
from nbrt.backends.cpu.simt.llvm.model import CannotLowerError

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.analysis.divergence import Divergence
    from nbrt.backends.cpu.simt.lanes.analysis.regions import SplitThread
    from nbrt.backends.cpu.simt.llvm.model import Function, Instruction

__all__ = [
    "check_loops",
    "check_spins",
    "check_uniform",
    "may_leave_iterations_apart",
    "may_return_before_others",
    "uses_local_arrays",
]

_ATOMIC = ("atomicrmw", "cmpxchg")


def check_loops(thread: SplitThread, divergence: Divergence) -> None:
    """Raise `CannotLowerError` if a loop of a region is not a loop of the thread.

    Its barrier is then on some paths through the loop only.
    """
    whole = {level.root: level.blocks for level in divergence.levels[1:]}
    for region in thread.regions:
        pending = [region.level]
        while pending:
            for loop in pending.pop().loops.values():
                if whole.get(loop.header) != loop.blocks:
                    raise CannotLowerError("a barrier is on only one way through a loop")
                pending.append(Level(loop.header, loop.blocks, thread.successors))


def check_uniform(thread: SplitThread, divergence: Divergence) -> None:
    """Raise `CannotLowerError` if threads of a block may wait at different barriers.

    Threads that have ended count at every barrier. `divergence` is that of the whole block.
    """
    for region in thread.regions:
        level = region.level
        ipdom = _barrier_postdominators(thread, level)
        if any(divergence.diverges(level, node) and ipdom.get(node) == END for node in level.order):
            raise CannotLowerError("threads of a block may wait at different barriers")


def may_return_before_others(thread: SplitThread, divergence: Divergence) -> bool:
    """Return whether some threads of a block may return while others go on to a barrier.

    The groups must then keep masks, even where all lanes of a group return together.
    `divergence` is that of the whole block.
    """
    for region in thread.regions:
        level = region.level
        exits = _exits(level)
        for node in level.order:
            reached = exits[node]
            if (
                DONE in reached
                and not reached.isdisjoint(thread.barriers)
                and level.ipdom[node] == END
                and divergence.diverges(level, node)
            ):
                return True
    return False


def may_leave_iterations_apart(thread: SplitThread) -> bool:
    """Return whether threads of a region with interchanged loops may continue at several places.

    Otherwise all of them are at one place when none starts another iteration: each thread leaves
    the region or one of its loops for that place. The place where threads fail counts as well,
    since LLVM merges returns with a status with those without one.
    """
    for region in thread.regions:
        if not thread.interchanged.keys().isdisjoint(region_targets(thread, region)):
            places = final_targets(thread, region).keys() - {NEVER}
            if len(places) > 1:
                return True
    return False


def _exits(level: Level) -> dict[str, set[str]]:
    """Return the targets outside of a level that each of its nodes may reach."""
    exits: dict[str, set[str]] = {}
    for node in reversed(level.order):
        found: set[str] = set()
        for _, target in level.edges(node):
            inner = level.node_of(target) if target in level.blocks else None
            found |= {target} if inner is None else exits.get(inner, set())
        exits[node] = found
    return exits


def _barrier_postdominators(thread: SplitThread, level: Level) -> dict[str, str]:
    """Return immediate postdominators over the paths that reach a barrier.

    It is `END` for a node that reaches several barriers. Nodes that reach none are left out.
    """
    targets: dict[str, list[str]] = {}
    for node in reversed(level.order):
        inside = [level.node_of(t) for _, t in level.edges(node) if t in level.blocks]
        waits = [t for _, t in level.edges(node) if t in thread.barriers]
        following = list(dict.fromkeys([*(n for n in inside if n in targets), *waits]))
        if following:
            targets[node] = following
    reached = [t for following in targets.values() for t in following if t not in targets]
    waits = list(dict.fromkeys(reached))
    return dominators([END, *waits, *targets], targets | {wait: [END] for wait in waits})


def uses_local_arrays(function: Function, divergence: Divergence) -> bool:
    """Return whether a divergent loop accesses local arrays.

    The arrays of the lanes lie one behind the other, so each access is a gather or single stores,
    which cost more than lanes save.
    """
    inside = {
        label
        for level in divergence.levels[1:]
        if level.root in divergence.divergent_loops
        for label in level.blocks
    }
    return any(
        item.opcode in ("load", "store") and _is_in_local_array(item.operands[-1].text, divergence)
        for block, item in function.instructions()
        if block.label in inside
    )


def _is_in_local_array(name: str, divergence: Divergence) -> bool:
    item = divergence.definitions.get(name)
    while item is not None and item.opcode == "getelementptr":
        item = divergence.definitions.get(item.operands[0].text)
    return item is not None and item.opcode == "alloca"


def check_spins(function: Function, divergence: Divergence) -> None:
    """Raise `CannotLowerError` if a loop waits for a lock or a flag.

    The lane that holds the lock would wait for the lanes that want it. Such a loop repeats an
    atomic operation with the same operands until the result changes; a loop that retries with the
    value that it has read (a maximum by compare-and-swap) makes progress by itself.
    """
    for level in divergence.levels[1:]:
        for item in _exit_conditions(function, divergence, level):
            if item.opcode in _ATOMIC and not _changes(item, function, level):
                raise CannotLowerError("a loop waits for other threads (a lock or a flag)")


def _exit_conditions(function: Function, divergence: Divergence, level: Level) -> list[Instruction]:
    """Return the instructions of a loop that its exit conditions depend on."""
    home = {i.name: b.label for b, i in function.instructions() if i.name}
    pending = [
        operand.text
        for label in level.blocks
        for operand in function.blocks[label].terminator.operands
        if set(function.blocks[label].successors) - level.blocks
    ]
    items: dict[str, Instruction] = {}
    while pending:
        name = pending.pop()
        if home.get(name) in level.blocks and name not in items:
            items[name] = divergence.definitions[name]
            pending += [operand.text for operand in items[name].operands]
    return list(items.values())


def _changes(item: Instruction, function: Function, level: Level) -> bool:
    """Return whether an operand other than the address changes in each iteration."""
    inside = {i.name for label in level.blocks for i in function.blocks[label].instructions}
    return any(operand.text in inside for operand in item.operands[1:] if operand.is_local)
