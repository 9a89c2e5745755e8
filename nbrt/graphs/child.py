"""`ChildGraph`: the nodes of a graph that is replayed inside of a capture."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.draw import Draw
from nbrt.backends.graphs import ArrayView, Branch, NodeSource, StateAdvance, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.graphs import GraphBuffer, GraphNode, ReplayValues
    from nbrt.graphs.buffers import BufferTable

__all__ = ["ChildGraph"]


class ChildGraph:
    """Copies the nodes of a graph into another graph, with the arrays of one replay.

    Parameters
    ----------
    graph : object
        The graph that is replayed; the buffers keep it alive.
    nodes, buffers : sequence of GraphNode, of GraphBuffer
        Its nodes and their memory.
    values : ReplayValues
        The replacements of this replay.
    table : BufferTable
        The buffers of the graph under construction.
    """

    def __init__(
        self,
        graph: object,
        nodes: Sequence[GraphNode],
        buffers: Sequence[GraphBuffer],
        values: ReplayValues,
        table: BufferTable,
    ) -> None:
        self._nodes = nodes
        self._values = values
        self._words: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        for buffer in buffers:
            address = values.addresses.get(buffer.number, buffer.address)
            owner = (graph, buffer.owner, values.owners)
            copied = table.add_external(address, buffer.nbytes, owner, buffer.device)
            self._numbers[buffer.number] = copied.number

    def move_state(self, buffer: int, target: int, words: int) -> None:
        """Let the draws from the state in a buffer read another one, `words` further."""
        self._numbers[buffer] = target
        self._words[target] = words

    def nodes(self) -> list[GraphNode]:
        """Return the copies."""
        return [self._copy(node, is_outer=True) for node in self._nodes]

    def _copy(self, node: GraphNode, *, is_outer: bool) -> GraphNode:
        work = []
        for number, item in enumerate(node.work):
            args = item.args
            if is_outer and self._values.scalars:
                args = tuple(
                    self._values.scalars.get((node.index, number, position), arg)
                    for position, arg in enumerate(args)
                )
            work.append(Work(item.function, self._moved(node, self._converted(args))))
        branches = tuple(
            Branch(
                [self._copy(inner, is_outer=False) for inner in branch.nodes],
                tuple(StateAdvance(self._numbers[b], words) for b, words in branch.advances),
            )
            for branch in node.branches
        )
        flag = None if node.flag is None else self._view(node.flag)
        source = node.source
        if source is not None:
            args, result = self._converted((source.args, source.result))
            source = NodeSource(source.function, args, result)
        return dataclasses.replace(
            node, work=tuple(work), branches=branches, flag=flag, source=source
        )

    def _moved(self, node: GraphNode, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Add the words before the graph to the blocks that a draw skips."""
        if node.kind != "draw":
            return args
        target, state, blocks, *rest = args  # as `FillLaunch.kernel` takes them
        words = self._words.get(state.buffer, 0) if type(state) is ArrayView else 0
        return (target, state, np.uint64(int(blocks) + words // 4), *rest)

    def _converted(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            self._view(arg)
            if type(arg) is ArrayView
            else self._converted(arg)
            if type(arg) is tuple
            else Draw(*self._converted(arg))
            if type(arg) is Draw
            else arg
            for arg in args
        )

    def _view(self, view: ArrayView) -> ArrayView:
        return view._replace(buffer=self._numbers[view.buffer])
