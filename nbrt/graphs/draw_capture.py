"""`DrawCapture`: the words that a capture takes from generators."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from nbrt.errors import CaptureError
from nbrt.graphs.buffers import views_in
from nbrt.graphs.generators import GeneratorUse, new_state
from nbrt.random.state import PhiloxState
from nbrt.random.stream_position import StreamPosition
from nbrt.runtime.capturing import DrawState

if TYPE_CHECKING:
    from nbrt._internal.callsite import CallSite
    from nbrt.backends.graphs import GraphNode
    from nbrt.graphs.buffers import BufferTable
    from nbrt.runtime.stream import Stream

__all__ = ["DrawCapture", "Level", "buffers_of_node", "union"]


class Level:
    """The nodes of the graph, or of one body of control flow, under construction."""

    def __init__(self) -> None:
        self.nodes: list[GraphNode] = []
        self.tails: dict[Stream, tuple[int, ...]] = {}
        # Where a stream joined the capture: the call, by stream.
        self.forks: dict[Stream, CallSite] = {}
        self.words: dict[StreamPosition, int] = {}
        self.dynamic: set[StreamPosition] = set()
        # The last replay of another graph that uses a memory.
        self.children: dict[Any, tuple[int, ...]] = {}

    def bodies(self) -> int:
        """Return the number of nodes that may move the states of generators."""
        return sum(bool(node.branches) for node in self.nodes)


class _SplitPosition(StreamPosition):
    """A position of one capture: words at a fixed distance behind those of another position."""

    def __init__(self, state: DrawState, level: Level) -> None:
        super().__init__(PhiloxState(0))
        self.array, self.next_offset = state
        self.level = level
        self.bodies = level.bodies()


class DrawCapture:
    """The draws of a capture.

    Parameters
    ----------
    table : BufferTable
        The memory that the nodes use.

    Attributes
    ----------
    table : BufferTable
        As given.
    uses : dict of StreamPosition to GeneratorUse
        The generators that were drawn from.
    """

    def __init__(self, table: BufferTable) -> None:
        self.table = table
        self.uses: dict[StreamPosition, GeneratorUse] = {}
        self._levels = [Level()]
        self._sources: dict[StreamPosition, StreamPosition] = {}
        self._new: weakref.WeakSet[StreamPosition] = weakref.WeakSet()
        self._lock = threading.RLock()

    def refuse(self, tried: str, remedy: str) -> NoReturn:
        """Raise `CaptureError`."""
        raise CaptureError(
            f"expected only work that can be captured, got {tried}: nothing runs during a capture; "
            f"{remedy}"
        )

    def reserve(self, stream: Any, position: StreamPosition, words: int) -> DrawState:
        """Return the state of a draw, whose words follow those of the graph so far."""
        with self._lock:
            if isinstance(position, _SplitPosition):
                return self._reserve_split(position, words)
            position = self.source_of(position)
            if position in self._new:
                self.refuse(
                    "a draw from a generator that the captured code has made, which each run "
                    "would make again",
                    "make it before the capture; replays draw its next numbers",
                )
            use = self.uses.get(position)
            if use is None:
                use = self._use(stream, position)
            offset = sum(level.words.get(position, 0) for level in self._levels)
            level = self._levels[-1]
            level.words[position] = level.words.get(position, 0) + words
            return DrawState(use.array, offset)

    def unreserve(self, position: StreamPosition, words: int) -> None:
        """Undo `reserve`."""
        with self._lock:
            self.rewind(position, self.mark(position) - words)

    def mark(self, position: StreamPosition) -> int:
        """Return the words that were reserved from a position in this body so far."""
        if isinstance(position, _SplitPosition):
            return position.next_offset
        return self._levels[-1].words.get(self.source_of(position), 0)

    def rewind(self, position: StreamPosition, mark: int) -> None:
        """Let later draws take the words that were reserved since `mark` again."""
        if isinstance(position, _SplitPosition):
            position.next_offset = mark
            return
        source = self.source_of(position)
        if source in self._levels[-1].words:
            self._levels[-1].words[source] = mark

    def split_off(
        self, stream: Any, position: StreamPosition, skipped: int, words: int
    ) -> StreamPosition:
        """Reserve words; return a position that begins `skipped` words behind the first one."""
        with self._lock:
            array, offset = self.reserve(stream, position, words)
            split = _SplitPosition(DrawState(array, offset + skipped), self._levels[-1])
            split.before_use = self._refuse_state
            return split

    def _reserve_split(self, split: _SplitPosition, words: int) -> DrawState:
        level = self._levels[-1]
        if split.level is not level or split.bodies != level.bodies():
            self.refuse(
                "a draw inside or behind control flow from a generator that was split off before",
                "enter the region of the draw inside of the body, or behind the control flow",
            )
        offset = split.next_offset
        split.next_offset += words
        return DrawState(split.array, offset)

    def redirect(
        self, position: StreamPosition, source: StreamPosition | None
    ) -> StreamPosition | None:
        """Let later draws from a position be draws from `source`; return the previous source."""
        previous = self._sources.pop(position, None)
        if source is not None:
            self._sources[position] = source
        return previous

    def source_of(self, position: StreamPosition) -> StreamPosition:
        """Return the position whose words the draws from a position take."""
        return self._sources.get(position, position)

    def _use(self, stream: Stream, position: StreamPosition) -> GeneratorUse:
        if position.before_use is not None:
            position.before_use()  # an earlier replay may still draw
        array = new_state(stream)
        view = self.table.view_of(array)
        use = self.uses[position] = GeneratorUse(position, array, view.buffer)
        return use

    def draws_from(self, position: StreamPosition) -> bool:
        """Return whether the graph has draws from a position."""
        return position in self.uses

    def note_new(self, position: StreamPosition) -> None:
        """Note that a position was made by the captured code."""
        self._new.add(position)

    def _refuse_state(self) -> None:
        self.refuse(
            "the state of a generator that the capture draws from",
            "read or set it before or after the capture, or between replays",
        )

    def _order_draws(self, node: GraphNode) -> None:
        """Order a draw behind the control flow that moves the state of its generator."""
        level = self._levels[-1]
        moving = {self.uses[position].buffer for position in level.dynamic}
        if moving and not moving.isdisjoint(buffers_of_node(node)):
            earlier = [other.index for other in level.nodes[: node.index] if other.branches]
            node.dependencies = union(node.dependencies, tuple(earlier))

    def finished_uses(self) -> list[GeneratorUse]:
        """Return the generators that the graph draws from, with the words of a replay."""
        for position, use in self.uses.items():
            use.words = self._levels[0].words.get(position, 0)
        return list(self.uses.values())


def buffers_of_node(node: GraphNode) -> set[int]:
    """Return the buffers of a node, also of its branches."""
    found = {view.buffer for work in node.work for view in views_in(work.args)}
    for branch in node.branches:
        for inner in branch.nodes:
            found |= buffers_of_node(inner)
    return found


def union(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers of both, in ascending order."""
    return first if first == second else tuple(sorted({*first, *second}))
