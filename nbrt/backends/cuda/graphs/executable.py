"""`Executable`: an executable graph of the driver, and the present parameters of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.graphs.parameters import Relocation, read_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.cuda.graphs.graph import CudaGraph
    from nbrt.backends.cuda.graphs.parameters import NodeParameters
    from nbrt.backends.cuda.graphs.state import CaptureState

__all__ = ["Executable"]


class Executable:
    """An executable graph.

    Parameters
    ----------
    graph : CudaGraph
        The graph to instantiate.

    Attributes
    ----------
    handle : int
        The driver's handle.
    """

    def __init__(self, graph: CudaGraph) -> None:
        self._graph = graph
        self._state = graph.state
        self._calls = graph.state.calls
        self.handle = self._calls.instantiate(graph.handle)
        self._parameters: list[NodeParameters] | None = None
        # What differs from the parameters of the capture, by node; None: unknown.
        self._applied: dict[int, tuple[object, ...] | None] = {}

    def apply(self, ranges: list[tuple[int, int, int]], scalars: dict[int, dict[int, Any]]) -> None:
        """Let the next launch use other memory and scalars than the capture, and no others."""
        if not (ranges or scalars or self._applied):
            return
        relocation = Relocation(ranges)
        for parameters in self._all_parameters():
            node = parameters.node
            key, make = parameters.changed(relocation, scalars.get(node, {}))
            if self._applied.get(node, ()) == key:
                continue
            params = make() if key else parameters.params
            self._applied[node] = None
            self._set(parameters, params)
            if key:
                self._applied[node] = key
            else:
                del self._applied[node]

    def can_disable(self, node: int) -> bool:
        """Return whether launches can leave out a node."""
        calls = self._calls
        return calls.type_of(node) in (calls.kernel, calls.memcpy, calls.memset)

    def set_enabled(self, node: int, is_enabled: bool) -> None:
        """Let later launches run a node, or leave it out."""
        self._calls.set_enabled(self.handle, node, is_enabled)

    def update(self, other: CudaGraph, pairs: list[tuple[int, int]]) -> bool:
        """Take over the parameters of another graph; return whether that was possible.

        `pairs` are the nodes of this graph, each with that of the other in its place.
        """
        if not self._calls.update(self.handle, other.handle):
            return False
        self._applied.clear()
        self._parameters = None
        for node, source in pairs:
            self._take_params(node, source, other.state)
        return True

    def first_difference(self, pairs: list[tuple[int, int]]) -> tuple[str, int] | None:
        """Return the first pair of nodes that differ, as (difference, node of the other graph).

        cuda-bindings drops what the driver returns of a failed update.
        """
        calls, places = self._calls, dict(pairs)
        for node, other in pairs:
            kinds = calls.type_of(node), calls.type_of(other)
            if kinds[0] != kinds[1]:
                return f"a {calls.name_of(kinds[1])} in place of a {calls.name_of(kinds[0])}", other
            before = {places.get(each) for each in calls.dependencies(node)}
            if before != set(calls.dependencies(other)):
                return "other dependencies", other
        return None

    def close(self) -> None:
        """Destroy the executable graph; running launches end first."""
        self._calls.destroy_executable(self.handle)

    def _take_params(self, node: int, source: int, other: CaptureState) -> None:
        """Set the parameters of a node of the graph to those that the executable graph has now."""
        state, calls = self._state, self._calls
        kind = calls.type_of(node)
        call = other.host_calls.get(source)
        with state.driver.on_device(other.indices.get(source, 0)):
            if call is not None:
                # Replays under way still make the call before.
                state.kept.append(state.host_calls.get(node))
                state.host_calls[node] = call = call.of(state.replays)
                params = calls.host_params(call.address)
                calls.set_params(node, kind, params)
                calls.set_executable_params(self.handle, node, kind, params)
            elif kind in (calls.kernel, calls.memcpy, calls.memset):
                calls.set_params(node, kind, calls.params(source, kind))
        if kind == calls.kernel:
            calls.copy_attributes(node, source)
            state.layouts.pop(node, None)
            if source in other.layouts:
                state.layouts[node] = other.layouts[source]

    def _all_parameters(self) -> list[NodeParameters]:
        if self._parameters is None:
            self._parameters = [
                parameters
                for node in self._nodes(self._graph.handle)
                if (
                    parameters := read_parameters(
                        self._calls,
                        node,
                        self._state.indices.get(node, 0),
                        self._state.layouts.get(node),
                    )
                )
                is not None
            ]
        return self._parameters

    def _nodes(self, graph: int) -> Iterator[int]:
        """Return the nodes of a graph and of its branches and loops."""
        for node in self._calls.nodes(graph):
            yield node
            record = self._state.controls.get(node)
            for body in () if record is None else record.bodies:
                yield from self._nodes(body)

    def _set(self, parameters: NodeParameters, params: Any) -> None:
        with self._state.driver.on_device(parameters.index):
            self._calls.set_executable_params(self.handle, parameters.node, parameters.kind, params)
