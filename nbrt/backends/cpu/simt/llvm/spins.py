"""Loops that spin: that go round, unchanged, until another thread writes what they read.

A turn of a loop follows a path from its header back to it. The thread *waits* on a path if the
next turn takes the same path as long as memory stays as it is: all that the path's branches depend
on is the same in the next turn, or read from memory at an address that is the same. A loop that
counts, walks along an array, follows pointers or retries a compare-and-swap with what it has just
read makes progress by itself, and is no spin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.llvm.errors import NotReducibleError
from nbrt.backends.cpu.simt.llvm.graph import find_loops
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

    from nbrt.backends.cpu.simt.llvm.graph import Loop
    from nbrt.backends.cpu.simt.llvm.model import Function, Instruction

__all__ = ["Spin", "find_spins"]

_MAX_PATHS = 256
"""Paths of one loop that are looked at; a loop with more waits if an atomic operation decides."""


@dataclass(frozen=True)
class Spin:
    """A loop in which a thread may wait for memory to change.

    Attributes
    ----------
    header : str
        Label of its first block.
    latches : tuple of str
        Labels of the blocks that lead back to it.
    blocks : frozenset of str
        Labels of all its blocks.
    state : tuple of str
        Phis of the header that decide where a turn goes.
    place : str
        Where it is in the source, ``FILE:LINE``.
    """

    header: str
    latches: tuple[str, ...]
    blocks: frozenset[str]
    state: tuple[str, ...]
    place: str


def find_spins(function: Function) -> list[Spin]:
    """Find the loops of a thread's function that spin, among those with the marker of a place.

    Parameters
    ----------
    function : Function
        One thread, with the markers of places.

    Returns
    -------
    list of Spin
        Outer loops and inner ones, each that spins.
    """

    def successors(label: str) -> list[str]:
        return function.blocks[label].successors

    try:
        loops = find_loops(function.entry, set(function.blocks), successors)
    except NotReducibleError:
        return []
    found = []
    for loop in loops.values():
        place = _place(function, loop, loops)
        if place is not None:
            spin = _Spinning(function, loop).spin(place)
            if spin is not None:
                found.append(spin)
    return found


def _place(function: Function, loop: Loop, loops: dict[str, Loop]) -> str | None:
    """Return the place of a loop itself, not that of a loop or a barrier inside it."""
    inner = set[str]().union(
        *(each.blocks for each in loops.values() if each is not loop and each.header in loop.blocks)
    )
    for label in [loop.header, *sorted(loop.blocks - inner - {loop.header})]:
        for item in function.blocks[label].instructions:
            if item.opcode == "call" and item.detail.startswith(PLACE):
                return place_of(item.detail)
    return None


class _Spinning:
    """Looks at the paths of one loop."""

    def __init__(self, function: Function, loop: Loop) -> None:
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
        """Describe the loop if it spins."""
        header, blocks = self._loop.header, self._loop.blocks
        latches = [b for b in sorted(blocks) if header in self._function.blocks[b].successors]
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
        return Spin(header, tuple(latches), frozenset(blocks), tuple(state), place)

    def _paths(self) -> Iterator[list[str]]:
        """Go through the ways from the header back to it that meet no block twice."""
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
        """Return the conditions of the branches on a path, and how they come out."""
        taken = {}
        for label, following in zip(labels, [*labels[1:], self._loop.header], strict=True):
            end = self._function.blocks[label].terminator
            if end.operands and end.operands[0].is_local and len(set(end.labels)) == 2:
                taken[end.operands[0].text] = end.labels[0] == following
        return taken

    def _has_deciding_atomic(self) -> bool:
        return any(item.opcode in ("atomicrmw", "cmpxchg") for item in self._items)

    def _waits(self, path: Path, labels: list[str]) -> bool:
        """Return whether a thread that goes along a path waits."""
        items = [item for label in labels for item in self._function.blocks[label].instructions]
        calls = {item.detail for item in items if item.opcode == "call"}
        # The threads of a block that meet at a barrier in each turn make progress together, unless
        # other blocks write what decides.
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
                continue  # takes its share of the work, and does it
            if reads:
                return True
        return any(
            item.opcode != "load" and not changes_itself(item) for item in path.timed_reads()
        )

    def _roots(self, written: list[Instruction]) -> set[str]:
        return {root(item.operands[1].text, self._definitions) for item in written}

    def _only_others_write(self, reads: list[Instruction]) -> bool:
        """Return whether reads are of memory outside of the block that the loop does not write."""
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
        found = self._definitions.get(place)
        return found is not None and found.opcode == "call" and found.detail.startswith(SHARED)
