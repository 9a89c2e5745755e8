"""`ChildGraph`: the nodes of a graph that is replayed inside of a capture."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.backends.graphs import (
    ArrayView,
    Branch,
    GraphNode,
    NodeSource,
    StateAdvance,
    Work,
    with_arrays,
)
from nbrt.graphs.buffers import address_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.backends.graphs import ReplayValues
    from nbrt.graphs.buffers import BufferTable

__all__ = ["ChildGraph", "begin_state", "end_state"]


class ChildGraph:
    """Copies the nodes of a graph into another graph, with the arrays of one replay.

    Parameters
    ----------
    graph : Graph
        The graph that is replayed.
    values : ReplayValues
        The replacements of this replay.
    table : BufferTable
        The buffers of the graph under construction.
    states : mapping of int to array
        By buffer: the states of the generators of the copy.
    """

    def __init__(
        self, graph: Any, values: ReplayValues, table: BufferTable, states: Mapping[int, Any]
    ) -> None:
        self._nodes = graph._nodes
        self._values = values
        self._places: dict[int, _Place] = {}
        self._states: list[tuple[ArrayView, ArrayView, int, bool]] = []
        for number, array in {**values.owners, **states}.items():
            first = values.addresses.get(number)
            self._places[number] = _place_of(table, array, first)
        if graph._plan is not None and graph._plan.peak:
            # So the copy may run beside replays of the graph.
            device = graph.device.index
            block = table.add_private(graph._plan.peak, device).number
            for number, offset in graph._plan.offsets.items():
                self._places[number] = _Place(block, offset)
        for buffer in graph._buffers:
            if buffer.number not in self._places:
                owner = (graph,) if buffer.owner is None else buffer.owner
                copied = table.external_buffer(buffer.address, buffer.nbytes, owner, buffer.device)
                copied.is_writable |= buffer.is_writable
                self._places[buffer.number] = _Place(copied.number, 0)

    def add_state(self, buffer: int, outer: int, words: int, *, is_dynamic: bool) -> None:
        """Take the state of a generator from a buffer of the outer graph, `words` further.

        With `is_dynamic` the outer state moves as far as control flow moves that of this graph.
        """
        self._states.append((self._state_view(buffer), _state_view(outer), words, is_dynamic))

    def nodes(self, stream: int, device: int) -> list[GraphNode]:
        """Return the copies, between nodes that hand the states of generators over."""
        first = len(self._states) > 0
        copies = [self._copy(node, is_outer=True, shift=int(first)) for node in self._nodes]
        if not first:
            return copies
        begin = GraphNode(0, "call", "generator states", stream, device)
        begin.work = tuple(
            Work(begin_state, (inner, outer, np.uint64(words)))
            for inner, outer, words, _ in self._states
        )
        moved = tuple(
            Work(end_state, (inner, outer, np.uint64(words)))
            for inner, outer, words, is_dynamic in self._states
            if is_dynamic
        )
        nodes = [begin, *copies]
        if moved:
            end = GraphNode(len(nodes), "call", "generator states", stream, device, moved)
            end.dependencies = tuple(range(len(nodes)))
            nodes.append(end)
        return nodes

    def _copy(self, node: GraphNode, *, is_outer: bool, shift: int = 0) -> GraphNode:
        work = []
        for number, item in enumerate(node.work):
            args = self._replaced(node, number, item.args) if is_outer else item.args
            work.append(Work(item.function, with_arrays(args, self._view)))
        branches = tuple(
            Branch(
                [self._copy(inner, is_outer=False) for inner in branch.nodes],
                tuple(StateAdvance(self._state_view(b).buffer, w) for b, w in branch.advances),
            )
            for branch in node.branches
        )
        source = node.source
        if source is not None:
            args = source.args
            if is_outer and node.kind == "launch":
                args = self._replaced(node, 0, args)
            source = NodeSource(source.function, *with_arrays((args, source.result), self._view))
        after = tuple(number + shift for number in node.dependencies)
        return dataclasses.replace(
            node,
            index=node.index + shift,
            work=tuple(work),
            branches=branches,
            flag=None if node.flag is None else self._view(node.flag),
            dependencies=after or (0,) * shift,
            source=source,
        )

    def _replaced(self, node: GraphNode, number: int, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a piece of work with the numbers of the replay."""
        scalars = self._values.scalars
        if not scalars:
            return args
        return tuple(
            scalars.get((node.index, number, position), arg) for position, arg in enumerate(args)
        )

    def _view(self, view: ArrayView) -> ArrayView:
        place = self._places[view.buffer]
        return view._replace(buffer=place.buffer, offset=view.offset + place.offset)

    def _state_view(self, buffer: int) -> ArrayView:
        return self._view(_state_view(buffer))


class _Place(NamedTuple):
    """Where a buffer of the inner graph begins in a buffer of the outer one."""

    buffer: int
    offset: int


def _place_of(table: BufferTable, array: Any, first: int | None) -> _Place:
    """Return the place of a buffer with byte 0 at `first`, by default at the begin of `array`."""
    view = table.view_of(array)
    distance = 0 if first is None else address_of(array) - first
    return _Place(view.buffer, view.offset - distance)


def _state_view(buffer: int) -> ArrayView:
    return ArrayView(buffer, 0, (2,), (8,), np.dtype(np.uint64))


def begin_state(inner: Any, outer: Any, words: Any) -> None:
    """Set the state of an inner graph, `words` behind that of the outer one."""
    inner[0], inner[1] = outer[0], outer[1] + words


def end_state(inner: Any, outer: Any, words: Any) -> None:
    """Move the state of the outer graph as far as control flow moved that of the inner one."""
    outer[1] = inner[1] - words
