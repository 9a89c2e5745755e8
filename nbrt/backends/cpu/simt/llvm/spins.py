"""Loops that spin: they repeat unchanged until another thread writes the memory that they read.

An iteration follows a path from the header of the loop back to it. A thread *waits* on a path if
the next iteration takes the same path unless memory changes: everything that the branches of the
path depend on is invariant, or read from memory at an invariant address. A loop that counts, walks
along an array, follows pointers, or retries a compare-and-swap with the value that it has read,
makes progress by itself and does not spin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.llvm.graph import find_loops
from nbrt.backends.cpu.simt.llvm.model import NotReducibleError
from nbrt.backends.cpu.simt.llvm.paths import (
    ATOMIC_FUNCTION,
    Path,
    changes_itself,
    root,
    stores,
)
from nbrt.backends.cpu.simt.placeholders import BARRIER, GRID_SYNC, PLACE, SHARED, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.cpu.simt.llvm.graph import LoopInfo
    from nbrt.backends.cpu.simt.llvm.model import Function, Instruction

__all__ = ["Spin", "find_spins"]

_MAX_PATHS = 256
"""Maximum number of paths to examine; a loop with more waits if an atomic operation decides."""


@dataclass(frozen=True)
class Spin:
    """A loop in which a thread may wait for memory to change."""

    header: str
    latches: tuple[str, ...]
    """Labels of the blocks that branch to the header."""
    blocks: frozenset[str]
    state: tuple[str, ...]
    """Phis of the header on which the path of an iteration depends."""
    place: str
    """Source location, ``FILE:LINE``."""


def find_spins(function: Function) -> list[Spin]:
    """Return the loops of a thread function that spin, among those with a marker of a place."""

    def successors(label: str) -> list[str]:
        return function.blocks[label].successors

    try:
        loops = find_loops(function.entry, set(function.blocks), successors)
    except NotReducibleError:
        return []
    spins = []
    for loop in loops.values():
        place = _place(function, loop, loops)
        spin = _LoopPaths(function, loop).spin(place) if place is not None else None
        if spin is not None:
            spins.append(spin)
    return spins


def _place(function: Function, loop: LoopInfo, loops: dict[str, LoopInfo]) -> str | None:
    """Return the place of a loop, not that of an inner loop or barrier."""
    others = [other for other in loops.values() if other is not loop]
    inner = set[str]().union(*(o.blocks for o in others if o.header in loop.blocks))
    for label in [loop.header, *sorted(loop.blocks - inner - {loop.header})]:
        for item in function.blocks[label].instructions:
            if item.opcode == "call" and item.detail.startswith(PLACE):
                return place_of(item.detail)
    return None


class _LoopPaths:
    """Examines the paths of one loop."""

    def __init__(self, function: Function, loop: LoopInfo) -> None:
        self._function = function
        self._loop = loop
        self._definitions: dict[str, Instruction] = {}
        self._homes: dict[str, str] = {}
        for block, item in function.instructions():
            if item.name:
                self._definitions[item.name] = item
                self._homes[item.name] = block.label
        self._items = [i for label in loop.blocks for i in function.blocks[label].instructions]

    def spin(self, place: str) -> Spin | None:
        """Return the loop if it spins."""
        header, blocks = self._loop.header, self._loop.blocks
        leaves = any(set(self._function.blocks[b].successors) - blocks for b in blocks)
        state: dict[str, None] = {}
        waits = not leaves
        for number, labels in enumerate(self._paths()):
            if number == _MAX_PATHS:
                waits = waits or self._has_deciding_atomic()
                break
            taken = self._conditions(labels)
            path = Path(self._loop, labels, self._definitions, self._homes, taken)
            state.update(dict.fromkeys(path.state))
            waits = waits or self._waits(path, labels)
        if not waits:
            return None
        return Spin(
            header, tuple(sorted(self._loop.latches)), frozenset(blocks), tuple(state), place
        )

    def _paths(self) -> Iterator[list[str]]:
        """Iterate over the simple paths from the header back to it."""
        header, blocks = self._loop.header, self._loop.blocks
        stack = [[header]]
        while stack:
            labels = stack.pop()
            for following in self._function.blocks[labels[-1]].successors:
                if following == header:
                    yield labels
                elif following in blocks and following not in labels:
                    stack.append([*labels, following])

    def _conditions(self, labels: list[str]) -> dict[str, bool]:
        """Return the conditions of the branches on a path, and their outcomes."""
        taken = {}
        for label, following in zip(labels, [*labels[1:], self._loop.header], strict=True):
            end = self._function.blocks[label].terminator
            if end.operands and end.operands[0].is_local and len(set(end.labels)) == 2:
                taken[end.operands[0].text] = end.labels[0] == following
        return taken

    def _has_deciding_atomic(self) -> bool:
        return any(item.opcode in ("atomicrmw", "cmpxchg") for item in self._items)

    def _waits(self, path: Path, labels: list[str]) -> bool:
        """Return whether a thread waits on a path."""
        items = [item for label in labels for item in self._function.blocks[label].instructions]
        calls = {item.detail for item in items if item.opcode == "call"}
        # Threads that meet at a barrier in every iteration make progress together, unless the
        # path depends on memory that only other blocks write.
        meets = any(name.startswith((BARRIER, GRID_SYNC)) for name in calls)
        fenced = any(item.opcode == "fence" for item in self._items)
        written = [item for item in items if stores(item, self._definitions)]
        for reads, changes in path.waits(written):
            changed = self._roots(changes)
            plain = [item for item in reads if item.opcode == "load"]
            atomic = [item for item in reads if item.opcode != "load"]
            if meets and not fenced and not atomic and not self._only_others_write(plain):
                continue
            if any(root(item.operands[0].text, self._definitions) in changed for item in plain):
                continue
            if written and atomic and all(map(changes_itself, atomic)):
                continue  # the loop fetches an item of work and processes it
            if reads:
                return True
        return any(
            item.opcode != "load" and not changes_itself(item) for item in path.timed_reads()
        )

    def _roots(self, written: list[Instruction]) -> set[str]:
        return {root(item.operands[1].text, self._definitions) for item in written}

    def _only_others_write(self, reads: list[Instruction]) -> bool:
        """Return whether all reads are of global memory that the loop does not write."""
        places = {root(item.operands[0].text, self._definitions) for item in reads}
        if not places or any(self._is_shared(place) for place in places):
            return False
        written = self._roots([i for i in self._items if stores(i, self._definitions)])
        for item in self._items:
            if item.opcode in ("atomicrmw", "cmpxchg"):
                written.add(root(item.operands[0].text, self._definitions))
            elif item.opcode == "call" and item.detail.startswith(ATOMIC_FUNCTION):
                return False
        return not places & written

    def _is_shared(self, place: str) -> bool:
        item = self._definitions.get(place)
        return item is not None and item.opcode == "call" and item.detail.startswith(SHARED)
