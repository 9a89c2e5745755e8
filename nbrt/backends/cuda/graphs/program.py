"""`CudaGraphProgram`: an executable graph, and its replays."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.driver import DEVICE_TO_HOST, HOST_TO_DEVICE
from nbrt.backends.cuda.graphs.cells import CellRing, ReplayOrder, locked
from nbrt.backends.cuda.graphs.copies import NodeCopies
from nbrt.backends.cuda.graphs.executable import Executable
from nbrt.backends.cuda.queues import CudaQueue
from nbrt.errors import CaptureError, DeviceMismatchError, GraphError, KernelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nbrt.backends.cuda.graphs.cells import Cell
    from nbrt.backends.cuda.graphs.control_record import LoopCounter
    from nbrt.backends.cuda.graphs.graph import CudaGraph
    from nbrt.backends.cuda.graphs.region import Region
    from nbrt.backends.graphs import GraphBuffer, GraphNode, GraphProgram, ReplayValues
    from nbrt.backends.queue import Queue

__all__ = ["CudaGraphProgram"]

_STATE_WORDS = 2
_STATE_BYTES = 16
_FAILED = 8
"""The offset of the second word of a loop's counter."""


class CudaGraphProgram:
    """An instantiated graph, as a `DriverProgram`.

    Parameters
    ----------
    graph : CudaGraph
        The captured graph, which the program owns.
    nodes, buffers
        As of the graph.
    deterministic : bool
        Whether nodes run one after the other in the order of `nodes`.

    Attributes
    ----------
    graph : CudaGraph
        As given.
    nodes, buffers : list
        As given.
    """

    def __init__(
        self,
        graph: CudaGraph,
        nodes: Sequence[GraphNode],
        buffers: Sequence[GraphBuffer],
        *,
        deterministic: bool,
    ) -> None:
        self.graph = graph
        self.nodes = list(nodes)
        self._state = graph.state
        self._driver = graph.state.driver
        self.buffers = list(buffers)
        self._by_number = {node.index: node for node in self.nodes}
        self._enabled = [True] * len(self.nodes)
        self._lock = threading.Lock()
        self._orders = [ReplayOrder(), *graph.state.orders]
        self._is_closed = False
        self._cells = CellRing(self._driver, graph.index)
        self._loops = self._named_loops()
        with self._driver.on_device(graph.index), self._driver.relaxed():
            if deterministic:
                graph.serialize([handle for node in self.nodes for handle in node.handles])
            self._executable = Executable(graph)

    # -- replays ---------------------------------------------------------------------------------

    def replay(self, queue: Queue, values: ReplayValues) -> None:
        """Launch the graph behind the work of a queue and behind its own last replay."""
        self._check(queue)
        assert isinstance(queue, CudaQueue)
        if values.times is not None:
            values.times[:] = self._measure(queue, values)
            return
        with self._lock, locked(self._orders), self._driver.on_device(queue.index):
            self._apply(values)
            cell = self._cells.take(_STATE_WORDS * len(values.states) + len(self._loops))
            self._launch(queue, values, cell)
            self._cells.add(cell, queue)
            for order in self._orders:
                order.last = cell
        if values.owners:
            queue.hold(values.owners)

    @property
    def measures_nodes(self) -> bool:
        """Return True: replays fill `ReplayValues.times`."""
        return True

    def _measure(self, queue: CudaQueue, values: ReplayValues) -> list[float]:
        """Replay a copy with events between the nodes; return the seconds of each node."""
        from nbrt.backends.cuda.graphs.measurement import Measurement

        with self._lock, locked(self._orders):
            with self._driver.on_device(queue.index):
                self._wait_for_others(queue)
            return Measurement(self, self._changes(values)).run(queue, values)

    def _launch(self, queue: CudaQueue, values: ReplayValues, cell: Cell) -> None:
        self._wait_for_others(queue)
        address = cell.values.ctypes.data
        for number, (buffer, seed, offset) in enumerate(values.states):
            cell.values[_STATE_WORDS * number : _STATE_WORDS * (number + 1)] = (seed, offset)
            target = values.addresses.get(buffer, self.buffers[buffer].address)
            source = address + number * _STATE_BYTES
            self._driver.copy(target, source, _STATE_BYTES, HOST_TO_DEVICE, queue.handle)
        for counter, _ in self._loops:
            self._driver.clear(counter.address + _FAILED, 8, queue.handle)
        self._start(queue)
        flags = cell.values[_STATE_WORDS * len(values.states) :]
        for number, (counter, name) in enumerate(self._loops):
            target, source = flags.ctypes.data + 8 * number, counter.address + _FAILED
            self._driver.copy(target, source, 8, DEVICE_TO_HOST, queue.handle)
            queue.put(_check_turns, flags, number, counter.limit, name)

    def _wait_for_others(self, queue: CudaQueue) -> None:
        """Wait for the replays on other queues that use memory of this graph."""
        # The driver orders replays of this graph, but not the writes before them.
        lasts = {order.last for order in self._orders}
        for last in lasts:
            if last is not None and last.queue is not queue:
                self._driver.wait_event(queue.handle, last.event.handle)

    def _start(self, queue: CudaQueue) -> None:
        calls, replays = self._state.calls, self._state.replays
        if not self._state.host_calls:
            calls.launch(self._executable.handle, queue.handle)
            return
        replays.begin(queue)
        try:
            calls.launch(self._executable.handle, queue.handle)
        except BaseException:
            replays.cancel()
            raise
        replays.end(calls, queue)

    def _check(self, queue: Queue) -> None:
        if self._is_closed:
            raise _closed()
        if not isinstance(queue, CudaQueue) or queue.index != self.graph.index:
            raise DeviceMismatchError(
                f"expected a stream of cuda:{self.graph.index}, where the graph was captured, got "
                f"{queue.name}; replay it on a stream of that device"
            )
        if queue.is_capturing():
            raise CaptureError(
                f"expected a stream that is not captured by other code, got {queue.name}; replay "
                f"the graph in a capture by nbrt.graph, or before this one"
            )

    # -- changes ---------------------------------------------------------------------------------

    def set_enabled(self, node: GraphNode, is_enabled: bool) -> None:
        """Let later replays run a node or leave it out."""
        handles = [self.graph.node(handle) for handle in node.handles]
        for handle in handles:
            if not self._executable.can_disable(handle):
                raise GraphError(
                    f"expected a launch, copy or fill to leave out, got node {node.index} "
                    f"({node.kind} {node.label}), which CUDA cannot; capture the graph without it"
                )
        with self._lock, self._driver.on_device(self.graph.index):
            for handle in handles:
                self._state.calls.set_enabled(self._executable.handle, handle, is_enabled)
            node.is_enabled = is_enabled
            self._enabled = [other.is_enabled for other in self.nodes]

    def update(self, other: GraphProgram) -> None:
        """Take over the parameters of all nodes of a program with the same topology."""
        if not isinstance(other, CudaGraphProgram) or other.graph.index != self.graph.index:
            raise GraphError(
                f"expected a graph of cuda:{self.graph.index} to update from, got another kind of "
                f"graph; capture it on a stream of that device"
            )
        if self._state.controls or other._state.controls:
            raise GraphError(
                "expected graphs without branches and loops, which CUDA cannot update, got one "
                "with some; replay the new graph instead"
            )
        pairs = list(zip(self._handles(), other._handles(), strict=False))
        with self._lock, self._driver.on_device(self.graph.index):
            if not self._executable.update(other.graph, pairs):
                raise GraphError(
                    f"expected a graph with the same nodes and dependencies, got "
                    f"{self._difference(other, pairs)}; replay the new graph instead"
                )
            self._orders = [self._orders[0], *other._orders]
            for node in self.nodes:
                if not node.is_enabled:
                    for handle in node.handles:
                        self._executable.set_enabled(self.graph.node(handle), False)
        self.buffers = list(other.buffers)
        self._state.kept.append(other.graph)

    def _difference(self, other: CudaGraphProgram, pairs: list[tuple[int, int]]) -> str:
        """Return how another graph differs."""
        difference = self._executable.first_difference(pairs)
        if difference is not None:
            reason, handle = difference
            found = next(node for node in other.nodes if handle in node.handles)
            return f"{reason} at {_described(found)}"
        ours, theirs = len(self._handles()), len(other._handles())
        if ours != theirs:
            return f"{theirs} nodes of the driver instead of {ours}"
        return "a change that CUDA does not make, such as a kernel of another context"

    def copy_into(self, region: Region, queue: CudaQueue, values: ReplayValues) -> list[int]:
        """Copy the nodes into a capture behind the work of a queue; return the last ones."""
        if self._is_closed:
            raise _closed()
        if region.is_body and self._state.host_calls:
            raise CaptureError(
                "expected a graph of launches, copies and fills in a branch or loop, got one with "
                "host calls, which CUDA does not run there; replay it outside"
            )
        copies = NodeCopies(self._state, region.state, *self._changes(values))
        calls, into = self._state.calls, region.graph()
        tails = list(region.tails(queue))
        made = copies.copy(self.graph.handle, into).values()
        edges = [edge for edge in calls.edges(into) if edge[1] in made or edge[0] in made]
        roots = set(made) - {target for _, target, _ in edges}
        calls.add_edges(into, [(tail, root, None) for tail in tails for root in sorted(roots)])
        region.keep((self.graph, self.buffers, values.owners))
        orders = region.state.orders
        orders += [order for order in self._orders if order not in orders]
        leaves = set(made) - {source for source, _, _ in edges}
        return sorted(leaves) or tails

    def _changes(
        self, values: ReplayValues
    ) -> tuple[list[tuple[int, int, int]], dict[int, dict[int, Any]], set[int]]:
        """Return what differs from the capture, for `NodeCopies`."""
        disabled = {
            self.graph.node(handle)
            for node in self.nodes
            if not node.is_enabled
            for handle in node.handles
        }
        return self._ranges(values), self._scalars(values), disabled

    def _apply(self, values: ReplayValues) -> None:
        """Set the parameters of this replay, and restore those of the one before."""
        enabled = [node.is_enabled for node in self.nodes]
        if enabled != self._enabled:
            for node, before in zip(self.nodes, self._enabled, strict=True):
                if node.is_enabled != before:
                    for handle in node.handles:
                        self._executable.set_enabled(self.graph.node(handle), node.is_enabled)
            self._enabled = enabled
        self._executable.apply(self._ranges(values), self._scalars(values))

    def _ranges(self, values: ReplayValues) -> list[tuple[int, int, int]]:
        return [
            (self.buffers[number].address, self.buffers[number].nbytes, address)
            for number, address in values.addresses.items()
        ]

    def _scalars(self, values: ReplayValues) -> dict[int, dict[int, Any]]:
        """Return the replaced scalars by node of the driver and number of the argument."""
        found: dict[int, dict[int, Any]] = {}
        for (number, work, argument), value in values.scalars.items():
            node = self._by_number[number]
            handles = [self.graph.node(handle) for handle in node.handles]
            kernels = [handle for handle in handles if handle in self._state.layouts]
            if work >= len(kernels):
                raise GraphError(
                    f"expected the launch of an nbrt kernel whose scalars CUDA can replace, got "
                    f"{_described(node)}; pass the value in an array"
                )
            found.setdefault(kernels[work], {})[argument] = value
        return found

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the graph after the replays and captures under way; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._driver.captures.put_off(self._release)

    def _release(self) -> None:
        # The driver ends running launches before it destroys a graph, but frees no memory of ours.
        kept = (self._state, list(self._state.kept), self.buffers, self.nodes)
        self._cells.retire(kept)
        with self._driver.on_device(self.graph.index):
            self._executable.close()
        self.graph.close()
        self.buffers = []
        self.nodes = []

    def _handles(self) -> list[int]:
        return [self.graph.node(handle) for node in self.nodes for handle in node.handles]

    def _named_loops(self) -> list[tuple[LoopCounter, str]]:
        """Return the counters of the loops, each with the name of its node."""
        names = {
            record.counter: _described(node)
            for node in _all_nodes(self.nodes)
            for handle in node.handles
            if (record := self._state.controls.get(self.graph.node(handle))) is not None
        }
        return [(counter, names.get(counter, "a loop")) for counter in self._state.counters]


def _all_nodes(nodes: Sequence[GraphNode]) -> Iterator[GraphNode]:
    for node in nodes:
        yield node
        for branch in node.branches:
            yield from _all_nodes(branch.nodes)


def _described(node: GraphNode) -> str:
    where = "" if node.site is None else f", captured here:\n{node.site.format()}"
    return f"node {node.index} ({node.kind} {node.label}){where}"


def _closed() -> GraphError:
    return GraphError("expected a graph with its memory, got one after reset(); capture it again")


def _check_turns(flags: Any, number: int, limit: int, name: str) -> None:
    """Raise KernelError if a loop had more turns than its limit."""
    if flags[number]:
        raise KernelError(
            f"expected at most {limit} turns of {name}, got more; the loop was ended there: raise "
            f"limit, or let the flag become 0"
        )
