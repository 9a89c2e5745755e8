"""`NodeAccesses`: the memory that the nodes of a graph read and write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nbrt.backends.graphs import ArrayView, with_arrays
from nbrt.graphs.node_text import plan_of, views_of
from nbrt.observe.races.access_modes import argument_access_modes
from nbrt.observe.races.footprint import footprint_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from nbrt.backends.graphs import GraphBuffer, GraphNode
    from nbrt.observe.races.footprint import Footprint
    from nbrt.observe.races.shadow_blocks import AccessMode

__all__ = ["NodeAccess", "NodeAccesses"]

_MODES: dict[str, tuple[AccessMode, ...]] = {
    "copy": ("writes", "reads"),
    "fill": ("writes",),
    "draw": ("writes",),
    "collective": ("writes", "reads"),
}
"""The known modes of the first arguments of commands; the others only read."""


class NodeAccess(NamedTuple):
    """The access of a node to one array.

    Attributes
    ----------
    node : GraphNode
        The node, which may belong to a branch.
    mode : str
        As of a `MemoryAccess`; ``"uses"`` may write.
    buffer : int
        The buffer with the array.
    is_private : bool
        The buffer belongs to the graph.
    memory : int
        The number of the memory: two accesses can meet only in the same one.
    footprint : Footprint
        The bytes.
    """

    node: GraphNode
    mode: AccessMode
    buffer: int
    is_private: bool
    memory: int
    footprint: Footprint

    @property
    def may_write(self) -> bool:
        """Whether the node may change the bytes."""
        return self.mode != "reads"


class _Shape(NamedTuple):
    """An array as the analysis of kernels sees it."""

    ndim: int
    dtype: np.dtype[Any]


class _Array:
    """An argument for `argument_access_modes`, which takes a tuple for several arguments."""

    __slots__ = ("dtype", "ndim")

    def __init__(self, view: ArrayView) -> None:
        self.ndim, self.dtype = len(view.shape), view.dtype


class NodeAccesses:
    """The accesses of the nodes of one graph.

    Parameters
    ----------
    buffers : sequence of GraphBuffer
        The buffers, by number. Buffers with common addresses are one memory, also those of the
        graph that share bytes by its plan.
    """

    def __init__(self, buffers: Sequence[GraphBuffer]) -> None:
        self._buffers = buffers
        self._memories: dict[int, tuple[int, int]] = {}
        """Buffer -> number of its memory, and address of its first byte."""
        reached = 0
        memory = -1
        for buffer in sorted(buffers, key=lambda each: each.address):
            if memory < 0 or buffer.address >= reached:
                memory += 1
            reached = max(reached, buffer.address + buffer.nbytes)
            self._memories[buffer.number] = memory, buffer.address
        self._modes: dict[tuple[int, tuple[Any, ...]], list[AccessMode]] = {}

    def of(self, node: GraphNode) -> list[NodeAccess]:
        """Return the accesses of a node, and those of its branches."""
        found = list(self._own(node))
        for branch in node.branches:
            for inner in branch.nodes:
                found += self.of(inner)
        return found

    def _own(self, node: GraphNode) -> Iterator[NodeAccess]:
        for mode, value in self._operands(node):
            for view in views_of(value):
                memory, begin = self._memories[view.buffer]
                footprint = footprint_at(
                    begin + view.offset, view.shape, view.strides, view.dtype.itemsize
                )
                if footprint is not None:
                    private = self._buffers[view.buffer].is_private
                    yield NodeAccess(node, mode, view.buffer, private, memory, footprint)

    def _operands(self, node: GraphNode) -> Iterator[tuple[AccessMode, object]]:
        """Yield the arguments of a node with their modes."""
        if node.flag is not None:
            yield "reads", node.flag
        args: tuple[Any, ...] = ()
        if node.source is not None and node.kind != "collective":  # whose source has no result
            args = node.source.args
        elif len(node.work) == 1:
            args = node.work[0].args
        else:
            for work in node.work:
                yield "uses", work.args
        modes: Sequence[AccessMode] = _MODES.get(node.kind, ())
        plan = plan_of(node)
        if plan is not None:
            modes = self._modes_of(getattr(plan, "function", None), args)
        for place, value in enumerate(args):
            yield modes[place] if place < len(modes) else "reads", value

    def _modes_of(self, function: object, args: tuple[Any, ...]) -> list[AccessMode]:
        key = id(function), tuple(_kind(arg) for arg in args)
        modes = self._modes.get(key)
        if modes is None:
            modes = argument_access_modes(function, with_arrays(args, _Array))
            self._modes[key] = modes
        return modes


def _kind(argument: Any) -> Any:
    """Return the parts of an argument that decide how a kernel can access it."""
    if type(argument) is ArrayView:
        return _Shape(len(argument.shape), argument.dtype)
    if isinstance(argument, tuple):
        return tuple(map(_kind, argument))
    return type(argument)
