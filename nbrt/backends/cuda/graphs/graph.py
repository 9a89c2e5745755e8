"""`CudaGraph`: a captured graph, before and after its instantiation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cuda.graphs.copies import NodeCopies
from nbrt.backends.cuda.graphs.kernels import CONDITION_PARAMETER
from nbrt.backends.cuda.graphs.parameters import KernelParameters
from nbrt.backends.cuda.graphs.program import CudaGraphProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cuda.graphs.state import CaptureState
    from nbrt.backends.graphs import GraphBuffer, GraphNode

__all__ = ["CudaGraph"]


class CudaGraph:
    """A graph of CUDA, as a `DriverGraph`.

    Parameters
    ----------
    state : CaptureState
        What the capture collected.
    handle : int
        The graph, which this object owns.
    index : int
        The device of the first stream.
    """

    def __init__(self, state: CaptureState, handle: int, index: int) -> None:
        self.state = state
        self.handle = handle
        self.index = index
        self._moved: dict[int, int] = {}
        self._is_closed = False
        self._captured: list[int] = []
        try:
            with state.driver.on_device(index), state.driver.relaxed():
                for node in state.calls.nodes(handle):
                    if node in state.controls:
                        self._attach(handle, node)
                # Not before: a new node could have the handle of a destroyed one.
                for body in self._captured:
                    state.calls.destroy(body)
        except BaseException:
            self.close()
            raise

    def program(
        self, nodes: Sequence[GraphNode], buffers: Sequence[GraphBuffer], *, deterministic: bool
    ) -> CudaGraphProgram:
        """Instantiate the graph; a failure closes it."""
        try:
            return CudaGraphProgram(self, nodes, buffers, deterministic=deterministic)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Destroy the graph, after the captures under way; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self.state.driver.captures.put_off(self._destroy)

    def node(self, handle: int) -> int:
        """Return the node that the capture returned as `handle`."""
        return self._moved.get(handle, handle)

    def serialize(self, handles: Sequence[int]) -> None:
        """Let nodes run one after the other in this order, which respects their dependencies."""
        calls = self.state.calls
        known = {(source, target) for source, target, _ in calls.edges(self.handle)}
        edges: list[tuple[int, int, None]] = []
        before = 0
        for handle in handles:
            node = self.node(handle)
            if before and (before, node) not in known:
                edges.append((before, node, None))
            record = self.state.controls.get(node)
            before = node if record is None else record.node
        calls.add_edges(self.handle, edges)

    def _attach(self, graph: int, place: int) -> None:
        """Make the conditional node behind the empty node that stands for it."""
        state, calls = self.state, self.state.calls
        record = state.controls[place]
        behind = [edge for edge in calls.edges(graph) if edge[0] == place]
        condition = calls.new_condition(graph)
        node, bodies = calls.add_control(graph, record.kind, condition, len(record.bodies), [place])
        calls.add_edges(graph, [(node, target, None) for _, target, _ in behind])
        captured, record.bodies = record.bodies, bodies
        record.node = node
        for source, body in zip(captured, bodies, strict=True):
            copies = NodeCopies(state, state)
            self._moved.update(copies.copy(source, body))
            self._captured.append(source)
        record.setters = [self.node(setter) for setter in record.setters]
        for setter in record.setters:
            parameters = KernelParameters(calls, setter)
            value = condition.to_bytes(8, "little")
            changed = parameters.with_values({CONDITION_PARAMETER: value})
            calls.set_params(setter, calls.kernel, changed)
        for body in bodies:
            for inner in calls.nodes(body):
                if inner in state.controls:
                    self._attach(body, inner)

    def _destroy(self) -> None:
        calls = self.state.calls
        with self.state.driver.on_device(self.index):
            calls.destroy(self.handle)
        self.state.kept.clear()
