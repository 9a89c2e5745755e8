"""`Measurement`: a copy of a graph for one replay, with timed events between its nodes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.graphs.copies import NodeCopies
from nbrt.backends.cuda.graphs.graph import CudaGraph
from nbrt.backends.cuda.graphs.state import CaptureState
from nbrt.backends.graphs import ReplayValues

if TYPE_CHECKING:
    from nbrt.backends.cuda.graphs.program import CudaGraphProgram
    from nbrt.backends.cuda.queues import CudaQueue

__all__ = ["Measurement"]


class Measurement:
    """A graph whose nodes run one after the other, with an event between two of them.

    Parameters
    ----------
    program : CudaGraphProgram
        The program to measure.
    copies : tuple
        The changes of its nodes for this replay, as `NodeCopies` takes them.
    """

    def __init__(self, program: CudaGraphProgram, copies: tuple[Any, Any, Any]) -> None:
        source = program.graph.state
        self._driver, self._calls = source.driver, source.calls
        index = program.graph.index
        state = CaptureState(source.driver, source.calls, source.kernels)
        self._events: list[int] = []
        with self._driver.on_device(index):
            made = NodeCopies(source, state, *copies)
            handle = self._calls.create()
            made.copy(program.graph.handle, handle)
            graph = CudaGraph(state, handle, index)
            try:
                nodes = [
                    dataclasses.replace(
                        node,
                        is_enabled=True,
                        handles=tuple(
                            made.nodes[program.graph.node(each)] for each in node.handles
                        ),
                    )
                    for node in program.nodes
                ]
                self._add_events(graph, [node.handles for node in nodes])
            except BaseException:
                self._drop_events()
                graph.close()
                raise
        self._program = graph.program(nodes, program.buffers, deterministic=False)

    def run(self, queue: CudaQueue, values: ReplayValues) -> list[float]:
        """Replay once, wait for the end, and return the seconds of each node."""
        try:
            self._program.replay(
                queue, ReplayValues(values.states, values.addresses, values.owners)
            )
            queue.synchronize()
            return [
                self._driver.elapsed(start, end) / 1000
                for start, end in zip(self._events, self._events[1:], strict=False)
            ]
        finally:
            self._program.close()
            self._drop_events()

    def _add_events(self, graph: CudaGraph, nodes: list[tuple[int, ...]]) -> None:
        """Order the nodes one behind the other, each between two events."""
        calls, controls = self._calls, graph.state.controls
        before: list[int] = []
        for handles in [*nodes, ()]:
            event = self._driver.new_event(
                graph.index, timing=True, blocking=False, interprocess=False
            )
            self._events.append(event)
            place = calls.add_event(graph.handle, event, before)
            calls.add_edges(graph.handle, [(place, handle, None) for handle in handles])
            ends = [controls[each].node if each in controls else each for each in handles]
            before = [place, *ends]

    def _drop_events(self) -> None:
        events, self._events = self._events, []
        for event in events:
            self._driver.destroy_event(event)
