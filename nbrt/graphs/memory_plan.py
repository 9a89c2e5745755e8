"""`plan_memory`: places the buffers of a graph in one block of memory."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbrt.graphs.buffer_lives import BufferLives

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from nbrt.backends.graphs import Branch, GraphBuffer, GraphNode
    from nbrt.graphs.buffer_lives import Conflicts

__all__ = ["MemoryPlan", "PlannedBuffer", "plan_memory"]

ALIGNMENT = 256
"""Of each buffer: that of ``cudaMalloc``."""

_MAX_SHOWN = 24
"""Buffers in the table of a plan; the others are summed up."""

_MAX_RETRIED = 3000
"""More buffers than that are placed in one order only."""


class PlannedBuffer(NamedTuple):
    """A buffer with its place.

    Attributes
    ----------
    number : int
        The number of the buffer in the graph.
    offset, nbytes : int
        First byte, and size, in the block of the plan; the size is rounded up to the alignment.
    first, last : int
        The first and the last node that uses it, in the order of the capture.
    """

    number: int
    offset: int
    nbytes: int
    first: int
    last: int


class MemoryPlan:
    """The places of the buffers of a graph in one block of memory.

    Attributes
    ----------
    buffers : tuple of PlannedBuffer
        The buffers, by offset. A buffer that no node uses has no place.
    offsets : dict of int to int
        Number of a buffer -> its offset.
    peak : int
        Size of the block.
    total : int
        Size of the block if no buffers shared bytes.
    bound : int
        No plan has a smaller peak: so many bytes are in use at once in some order of the nodes.
    """

    def __init__(self, buffers: Sequence[PlannedBuffer], bound: int) -> None:
        self.buffers = tuple(sorted(buffers, key=lambda each: (each.offset, each.first)))
        self.offsets = {each.number: each.offset for each in self.buffers}
        self.peak = max((each.offset + each.nbytes for each in self.buffers), default=0)
        self.total = sum(each.nbytes for each in self.buffers)
        self.bound = bound

    @property
    def saved(self) -> int:
        """The bytes saved by sharing."""
        return self.total - self.peak

    def __repr__(self) -> str:
        count = len(self.buffers)
        lines = [
            f"MemoryPlan: {count} buffer{'' if count == 1 else 's'} of {self.total} bytes in a "
            f"block of {self.peak} bytes, {self.saved} saved"
        ]
        if not count:
            return lines[0]
        largest = sorted(self.buffers, key=lambda each: -each.nbytes)[:_MAX_SHOWN]
        rows = [("buffer", "offset", "bytes", "nodes")]
        rows += [
            (str(each.number), str(each.offset), str(each.nbytes), f"{each.first} to {each.last}")
            for each in self.buffers
            if each in largest
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  " + "  ".join(cells))
        if count > len(largest):
            rest = self.total - sum(each.nbytes for each in largest)
            lines.append(f"  and {count - len(largest)} smaller buffers of {rest} bytes")
        return "\n".join(lines)


def plan_memory(
    nodes: Sequence[GraphNode],
    buffers: Sequence[GraphBuffer],
    *,
    numbers: Collection[int] | None = None,
    scopes: Mapping[int, Branch] | None = None,
    alignment: int = ALIGNMENT,
) -> MemoryPlan:
    """Place buffers of a graph in one block of memory, so that their lives may share bytes.

    Two buffers share bytes only if all uses of one precede all uses of the other in every order
    that the edges allow. A buffer that a body of control flow uses lives during the whole node.

    Parameters
    ----------
    nodes : sequence of GraphNode
        In an order that respects the dependencies.
    buffers : sequence of GraphBuffer
        The buffers, by number.
    numbers : collection of int, optional
        The buffers to place, all of one device; by default those with ``is_private``. The others
        keep their addresses.
    scopes : mapping of int to Branch, optional
        Buffers that were allocated and freed in one branch. Each lives in a single run of the
        branch only.
    alignment : int
        Offsets are multiples of it.

    Returns
    -------
    plan : MemoryPlan
        The plan; its `repr` is a table.

    Raises
    ------
    GraphError
        If a node outside of a buffer's scope uses it, or nodes depend on later ones.

    Examples
    --------
    >>> from nbrt.backends.graphs import ArrayView, GraphBuffer, GraphNode, Work
    >>> def use(index, *numbers):
    ...     views = tuple(ArrayView(each, 0, (4,), (1,), np.dtype("int8")) for each in numbers)
    ...     before = (index - 1,) if index else ()
    ...     return GraphNode(index, "fill", "", 0, 0, (Work(print, views),), before)
    >>> nodes = [use(0, 0), use(1, 0, 1), use(2, 1, 2)]
    >>> plan_memory(nodes, [GraphBuffer(each, 0, 4, is_private=True) for each in range(3)])
    MemoryPlan: 3 buffers of 768 bytes in a block of 512 bytes, 256 saved
      buffer  offset  bytes   nodes
           0       0    256  0 to 1
           2       0    256  2 to 2
           1     256    256  1 to 2
    """
    if numbers is None:
        numbers = [buffer.number for buffer in buffers if buffer.is_private]
    lives = BufferLives(nodes, sorted(numbers), scopes)
    sizes = {each: -(-buffers[each].nbytes // alignment) * alignment for each in lives.uses}
    bound = max((_peak(lives, order, sizes) for order in lives.orders()), default=0)
    offsets = _place(lives, sizes, bound)
    labels = lives.labels
    return MemoryPlan(
        [
            PlannedBuffer(each, offsets[each], sizes[each], labels[uses[0]], labels[uses[-1]])
            for each, uses in lives.uses.items()
        ],
        bound,
    )


def _peak(lives: BufferLives, order: list[int], sizes: Mapping[int, int]) -> int:
    """Return the most bytes in use at once if the nodes run one by one in this order."""
    if not order:
        return 0
    place = [0] * len(order)
    for index, node in enumerate(order):
        place[node] = index
    change = [0] * (len(order) + 1)
    for number, uses in lives.uses.items():
        places = [place[node] for node in uses]
        change[min(places)] += sizes[number]
        change[max(places) + 1] -= sizes[number]
    return max(itertools.accumulate(change))


def _place(lives: BufferLives, sizes: Mapping[int, int], bound: int) -> dict[int, int]:
    """Return offsets, from the best of several orders of placement."""
    conflicts = lives.conflicts()
    packer = _Packer(conflicts, sizes)
    numbers = conflicts.numbers
    spans = {each: uses[-1] - uses[0] + 1 for each, uses in lives.uses.items()}
    keys: list[Callable[[int], tuple[float, ...]]] = [
        lambda each: (-sizes[each], -spans[each]),
        lambda each: (-sizes[each] * spans[each] ** 0.5,),
        lambda each: (-sizes[each].bit_length(), -spans[each]),
        lambda each: (-sizes[each] * spans[each],),
    ]
    best: tuple[int, dict[int, int]] | None = None
    for key in keys:
        found = packer.place(sorted(range(len(numbers)), key=lambda index: key(numbers[index])))
        if best is None or found[0] < best[0]:
            best = found
        if best[0] == bound or len(numbers) > _MAX_RETRIED:
            break
    assert best is not None
    return best[1]


class _Packer:
    """Places buffers one after the other, each in the lowest gap between those in conflict."""

    def __init__(self, conflicts: Conflicts, sizes: Mapping[int, int]) -> None:
        self._numbers = conflicts.numbers
        self._sets = conflicts.sets
        self._sizes = np.array([sizes[each] for each in conflicts.numbers], np.int64)

    def place(self, order: list[int]) -> tuple[int, dict[int, int]]:
        """Place buffers in this order of positions; return the peak, and offsets by number."""
        count = len(order)
        offsets = np.zeros(count, np.int64)
        ends = np.zeros(count, np.int64)
        placed = 0
        for index in order:
            size = int(self._sizes[index])
            others = _members(self._sets[index] & placed, count)
            offset = 0
            if len(others):
                offset = _lowest_gap(offsets[others], ends[others], size)
            offsets[index], ends[index] = offset, offset + size
            placed |= 1 << index
        peak = int(ends.max(initial=0))
        return peak, dict(zip(self._numbers, offsets.tolist(), strict=True))


def _members(bits: int, count: int) -> NDArray[np.int64]:
    """Return the positions of the set bits."""
    if not bits:
        return np.empty(0, np.int64)
    data = np.frombuffer(bits.to_bytes(-(-count // 8), "little"), np.uint8)
    # A search in bools is several times faster than one in bytes.
    return np.flatnonzero(np.unpackbits(data, bitorder="little").view(np.bool_))


def _lowest_gap(begins: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> int:
    """Return the first byte of the lowest gap that is large enough, or the end of all ranges."""
    order = begins.argsort()
    begins = begins[order]
    reached = np.maximum.accumulate(ends[order])
    if begins[0] >= size:
        return 0
    fits = begins[1:] - reached[:-1] >= size
    lowest = int(fits.argmax()) if len(fits) else 0
    return int(reached[lowest] if len(fits) and fits[lowest] else reached[-1])
