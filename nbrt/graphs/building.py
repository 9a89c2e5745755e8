"""`GraphBuilder`: adds nodes to a graph one by one, each with the nodes that it follows."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nbrt.errors import ArgumentError, ArgumentTypeError, GraphError
from nbrt.runtime.adoption import numpy_scalar
from nbrt.runtime.array import copy
from nbrt.runtime.configured_kernel import ConfiguredKernel
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt._internal.device import Device
    from nbrt.backends.graphs import GraphNode
    from nbrt.graphs.capture import StreamCapture
    from nbrt.typing import Array

__all__ = ["GraphBuilder", "NodeRef"]

_After: TypeAlias = "NodeRef | Iterable[NodeRef] | None"


class NodeRef:
    """A node of a graph.

    Attributes
    ----------
    kind, label : str
        Its operation, and the name of the kernel or of the distribution.
    """

    __slots__ = ("_graph", "_node", "kind", "label")

    def __init__(self, graph: Any, node: GraphNode) -> None:
        self._graph = graph
        self._node = node
        self.kind: str = node.kind
        self.label = node.label

    @property
    def index(self) -> int:
        """The number of the node."""
        return self._node.index

    @property
    def is_enabled(self) -> bool:
        """Whether replays run the node."""
        return self._node.is_enabled

    def enable(self, is_enabled: bool = True) -> None:
        """Let later replays run the node, or leave it out."""
        if not isinstance(is_enabled, bool):
            raise ArgumentTypeError(f"expected True or False, got {is_enabled!r}")
        self._graph._enable(self._node, is_enabled)

    def __repr__(self) -> str:
        state = "" if self.is_enabled else ", disabled"
        return f"<node {self.index}: {' '.join((self.kind, self.label)).strip()}{state}>"


class GraphBuilder:
    """The methods of a graph that add nodes, inside of the block that captures it.

    Each takes `after`: the node or nodes that the new one follows, of the same body of control
    flow. ``after=()`` lets it run from the begin of a replay, beside all others. By default it
    follows the captured work so far. Work that is captured later follows all nodes.

    Examples
    --------
    >>> import nbrt
    >>> with nbrt.device("cpu:0"):
    ...     x, y, z = (nbrt.zeros(2) for _ in range(3))
    ...     with nbrt.graph() as g:
    ...         a = g.fill(x, 1.0, after=())
    ...         b = g.fill(y, 2.0, after=())
    ...         c = g.copy(z, y, after=[b])
    >>> g.edges
    [('1', '2')]
    """

    device: Device
    _capture: StreamCapture | None = None

    def launch(self, configured: ConfiguredKernel, *args: Any, after: _After = None) -> NodeRef:
        """Add a launch of ``kernel[grid, block]``."""
        if not isinstance(configured, ConfiguredKernel):
            raise ArgumentTypeError(
                f"expected a configured kernel, kernel[grid, block], got {configured!r}"
            )
        return self.add(configured, *args, after=after)

    def copy(self, destination: Array, source: Any, *, after: _After = None) -> NodeRef:
        """Add a copy; see `nbrt.copy`."""
        return self.add(copy, destination, source, after=after)

    def fill(self, array: Array, value: Any, *, after: _After = None) -> NodeRef:
        """Add a fill of an array of the device with one value."""
        return self.add(functools.partial(self._fill, array, value), after=after)

    def call(self, function: Callable[..., object], *args: Any, after: _After = None) -> NodeRef:
        """Add a call of a function on the host."""
        return self.add(functools.partial(self._call, function, args), after=after)

    def add(
        self,
        function: Callable[..., object],
        *args: Any,
        after: _After = None,
        **options: Any,
    ) -> NodeRef:
        """Add what a function submits to the current stream: draws, replays of graphs, and others.

        Returns
        -------
        node : NodeRef
            The last of its nodes.

        Raises
        ------
        GraphError
            If the graph is not being captured.
        ArgumentError
            If the function submits nothing, or `after` has a node of another graph.
        """
        capture = self._capture
        if capture is None:
            raise GraphError(
                "expected a graph that is being captured, got one outside of its block; add nodes "
                "inside of 'with nbrt.graph() as g:'"
            )
        stream = current_stream(self.device)
        if stream.capture is not self._capture:
            raise GraphError(
                f"expected a captured stream to be current, got {stream!r}; leave the block of "
                f"that stream first"
            )
        numbers = None if after is None else self._numbers(after, capture)
        call = functools.partial(function, *args, **options)
        nodes = capture.add_after(stream, numbers, call)
        if not nodes:
            raise ArgumentError(
                f"expected a function that submits work to the current stream, got {function!r}, "
                f"which submitted none"
            )
        return NodeRef(self, nodes[-1])

    def _numbers(self, after: Any, capture: StreamCapture) -> list[int]:
        """Return the numbers of nodes of the body that is captured."""
        nodes = (after,) if isinstance(after, NodeRef) else after
        if not isinstance(nodes, Iterable) or isinstance(nodes, str):
            raise ArgumentTypeError(
                f"expected a node or nodes of this graph as after, got {after!r}"
            )
        return [self._number(node, capture) for node in nodes]

    def _number(self, node: Any, capture: StreamCapture) -> int:
        if not isinstance(node, NodeRef):
            raise ArgumentTypeError(f"expected nodes of this graph as after, got {node!r}")
        if node._graph is not self:
            raise ArgumentError(f"expected nodes of this graph as after, got {node!r} of another")
        if not capture.is_in_body(node._node):
            raise ArgumentError(
                f"expected nodes of the same body of control flow as after, got {node!r} of "
                f"another one; a body follows all earlier work of the stream"
            )
        return node.index

    def _fill(self, array: Array, value: Any) -> None:
        stream = current_stream(self.device)
        if stream.interface.index_of(array) is None or isinstance(array, np.generic):
            raise ArgumentTypeError(
                f"expected an array of {stream.interface.name} to fill, got {array!r} of type "
                f"{type(array).__name__}"
            )
        if not getattr(array.flags, "writeable", True):
            raise ArgumentError("expected a writable array to fill, got a read-only one")
        scalar = numpy_scalar(value, array.dtype)
        given = scalar[()] if hasattr(value, "shape") else value
        stream.enqueue("fill", stream.interface.fill, (array, given))

    def _call(self, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        current_stream(self.device).call(function, *args)
