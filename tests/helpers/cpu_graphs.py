"""`Graph`: builds the nodes of a graph of CPU devices without a capture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.callsite import CallSite
from nbrt.backends.cpu.graphs.program import CpuGraphProgram
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.graphs import (
    ArrayView,
    Branch,
    GraphBuffer,
    GraphNode,
    ReplayValues,
    StateAdvance,
    Work,
)
from nbrt.backends.synchronous import SynchronousQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Graph:
    """Nodes, each behind the one before unless `after` says otherwise, and their buffers."""

    def __init__(self) -> None:
        self.nodes: list[GraphNode] = []
        self.buffers: list[GraphBuffer] = []
        self._lists = [self.nodes]

    # -- nodes -------------------------------------------------------------------------------------

    def launch(self, kernel, grid, block, *args: Any, shared: int = 0, after=None) -> GraphNode:
        program = kernel if isinstance(kernel, CpuProgram) else CpuProgram(kernel)
        plan = program.plan(0, _dim3(grid), _dim3(block), shared)
        return self._add("launch", program.function.__name__, [(plan, args)], after)

    def copy(self, target, source, after=None) -> GraphNode:
        return self._add("copy", "", [(np.copyto, (target, source))], after)

    def call(self, function: Callable[..., object], *args: Any, after=None) -> GraphNode:
        return self._add("call", function.__qualname__, [(function, args)], after)

    def control(self, kind, flag, bodies, *, limit=0, advances=(), label="", after=None):
        """Add control flow; each body is a function that adds nodes."""
        branches = []
        for body in bodies:
            nodes: list[GraphNode] = []
            self._lists.append(nodes)
            body()
            self._lists.pop()
            words = tuple(StateAdvance(self.number_of(a), count) for a, count in advances)
            branches.append(Branch(nodes, words))
        node = self._add(kind, label or kind, [], after)
        node.flag, node.branches, node.limit = self.view(flag), tuple(branches), limit
        return node

    def child(self, body, after=None) -> GraphNode:
        """Add a graph whose nodes a function adds."""
        nodes: list[GraphNode] = []
        self._lists.append(nodes)
        body()
        self._lists.pop()
        node = self._add("graph", "graph", [], after)
        node.branches = (Branch(nodes),)
        return node

    def _add(self, kind, label: str, work: list, after) -> GraphNode:
        nodes = self._lists[-1]
        before = (len(nodes) - 1,) if nodes else ()
        if after is not None:
            before = tuple(node.index for node in after)
        works = tuple(Work(function, self._viewed(args)) for function, args in work)
        site = CallSite.here(depth=2)
        nodes.append(GraphNode(len(nodes), kind, label, 0, 0, works, before, site))
        return nodes[-1]

    # -- buffers -----------------------------------------------------------------------------------

    def number_of(self, array: np.ndarray) -> int:
        """Return the number of the buffer of an array; add the buffer if it is new."""
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        for buffer in self.buffers:
            if buffer.owner is base:
                return buffer.number
        low, high = np.lib.array_utils.byte_bounds(base)
        self.buffers.append(GraphBuffer(len(self.buffers), low, high - low, base))
        return len(self.buffers) - 1

    def view(self, array: np.ndarray) -> ArrayView:
        """Return an array as nodes have it."""
        number = self.number_of(array)
        offset = array.ctypes.data - self.buffers[number].address
        return ArrayView(number, offset, array.shape, array.strides, array.dtype)

    def _viewed(self, args: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(
            self.view(arg)
            if isinstance(arg, np.ndarray)
            else _like(arg, self._viewed(arg))
            if isinstance(arg, tuple)
            else arg
            for arg in args
        )

    # -- programs ----------------------------------------------------------------------------------

    def program(self, *, deterministic: bool = False) -> CpuGraphProgram:
        return CpuGraphProgram(self.nodes, self.buffers, deterministic=deterministic)

    def replay(self, program: CpuGraphProgram, values: ReplayValues | None = None) -> None:
        """Replay in this thread."""
        program.replay(SynchronousQueue(0), values or ReplayValues())


def _like(given: tuple, items: tuple[Any, ...]) -> tuple[Any, ...]:
    return type(given)(*items) if hasattr(given, "_fields") else items


def _dim3(value: int | tuple[int, ...]) -> tuple[int, int, int]:
    sizes = (value,) if isinstance(value, int) else value
    return (*sizes, 1, 1)[:3]  # type: ignore[return-value]
