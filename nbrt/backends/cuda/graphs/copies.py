"""`NodeCopies`: copies of the nodes of a graph in another one, with control flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.graphs.control_record import COUNTER_BYTES, ControlRecord
from nbrt.backends.cuda.graphs.parameters import Relocation, read_parameters

if TYPE_CHECKING:
    from nbrt.backends.cuda.graphs.control_record import LoopCounter
    from nbrt.backends.cuda.graphs.state import CaptureState

__all__ = ["NodeCopies"]


class NodeCopies:
    """Copies of nodes.

    CUDA has child graphs, but a child cannot have control flow.

    Parameters
    ----------
    source, target : CaptureState
        What is known of the nodes, and what becomes known of the copies. If they differ, the loops
        get new counters.
    ranges : list of (int, int, int)
        Memory that the copies use in place of that of the nodes, as for `Relocation`.
    scalars : dict of int to dict
        For nodes, other values of scalar arguments by position.
    disabled : set of int
        Nodes in whose place the copies do nothing.

    Attributes
    ----------
    nodes : dict of int to int
        The copy of each node.
    """

    def __init__(
        self,
        source: CaptureState,
        target: CaptureState,
        ranges: list[tuple[int, int, int]] | None = None,
        scalars: dict[int, dict[int, Any]] | None = None,
        disabled: set[int] | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._calls = target.calls
        self._scalars = scalars or {}
        self._disabled = disabled or set()
        self._counters: dict[LoopCounter, LoopCounter] = {}
        self.nodes: dict[int, int] = {}
        if source is not target:
            for record in source.controls.values():
                if record.counter is not None:
                    self._counters[record.counter] = target.new_counter(
                        record.counter.index, record.counter.limit
                    )
        moved = [(old.address, COUNTER_BYTES, new.address) for old, new in self._counters.items()]
        self._relocation = Relocation([*(ranges or ()), *moved])

    def copy(self, graph: int, into: int) -> dict[int, int]:
        """Copy all nodes of a graph but its conditional nodes; return the copies by node."""
        calls = self._calls
        made: dict[int, int] = {}
        for node in calls.nodes(graph):
            kind = calls.type_of(node)
            if kind != calls.conditional:
                with self._target.driver.on_device(self._source.indices.get(node, 0)):
                    made[node] = self._copy_node(node, kind, into)
        edges = [
            (made[source], made[target], data)
            for source, target, data in calls.edges(graph)
            if source in made and target in made
        ]
        calls.add_edges(into, edges)
        self.nodes.update(made)
        for node, copied in made.items():
            if node in self._source.controls:
                self._copy_control(node, copied)
        return made

    def _copy_control(self, place: int, copied: int) -> None:
        """Let a copied place stand for control flow, whose bodies are copied too."""
        if self._source is self._target:
            self._target.controls[copied] = self._source.controls.pop(place)
            return
        record = self._source.controls[place]
        bodies = []
        for body in record.bodies:
            bodies.append(self._calls.create())
            self.copy(body, bodies[-1])
        counter = None if record.counter is None else self._counters[record.counter]
        setters = [self.nodes[node] for node in record.setters]
        self._target.controls[copied] = ControlRecord(
            record.kind, record.index, setters, bodies, counter
        )

    def _copy_node(self, node: int, kind: int, into: int) -> int:
        source, target, calls = self._source, self._target, self._calls
        index = source.indices.get(node, 0)
        call = source.host_calls.get(node)
        if node in self._disabled:
            copied = calls.add(into, calls.empty, None)
        elif call is not None:
            call = call.of(target.replays)
            copied = calls.add(into, kind, calls.host_params(call.address))
            target.host_calls[copied] = call
        else:
            parameters = read_parameters(calls, node, index, source.layouts.get(node))
            if parameters is None:
                params = calls.params(node, kind)
            else:
                _, make = parameters.changed(self._relocation, self._scalars.get(node, {}))
                params = make()
            copied = calls.add(into, kind, params)
            if kind == calls.kernel:
                calls.copy_attributes(copied, node)
                if node in source.layouts:
                    target.layouts[copied] = source.layouts[node]
        target.indices[copied] = index
        return copied
