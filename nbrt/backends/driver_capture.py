"""Captures by the driver of a device, and the graphs that they make: CUDA's.

A backend whose driver can capture a stream implements `DeviceInterface.begin_capture`. Others
record commands with `nbrt.backends.graphs.RecordingQueue`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from nbrt.backends.graphs import GraphProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.graphs import ControlKind, GraphBuffer, GraphNode, NodeKind, ReplayValues
    from nbrt.backends.queue import Queue
    from nbrt.typing import Array

__all__ = [
    "CaptureErrorMode",
    "DriverCapture",
    "DriverControl",
    "DriverGraph",
    "DriverProgram",
]

CaptureErrorMode: TypeAlias = Literal["global", "thread_local", "relaxed"]


@runtime_checkable
class DriverProgram(GraphProgram, Protocol):
    """A program of the driver's own graph, whose nodes change without another instantiation."""

    def set_enabled(self, node: GraphNode, is_enabled: bool) -> None:
        """Let later replays run a node or leave it out; sets ``node.is_enabled``.

        Raises
        ------
        GraphError
            If the driver cannot leave out a node of this kind.
        """
        ...

    def update(self, other: GraphProgram) -> None:
        """Take over the parameters of all nodes of a program with the same topology.

        Raises
        ------
        GraphError
            If the topologies differ; names the first node that does. The program is unchanged.
        """
        ...


class DriverGraph(Protocol):
    """The graph that a `DriverCapture` makes."""

    def program(
        self, nodes: Sequence[GraphNode], buffers: Sequence[GraphBuffer], *, deterministic: bool
    ) -> DriverProgram:
        """Instantiate the graph; call it once. The nodes have the `handles` of the capture."""
        ...

    def close(self) -> None:
        """Drop the graph if it was not instantiated; idempotent."""
        ...


class DriverControl(Protocol):
    """A control flow node of a `DriverCapture`, whose bodies are captured one after the other."""

    def begin_body(self) -> Queue:
        """Return the queue on which the commands of the next body run.

        It takes the place of the queue that is captured, also as the current stream of other
        libraries (`DeviceInterface.enter_queue`), until `end_body`.
        """
        ...

    def end_body(self, advances: Sequence[tuple[int, int]]) -> None:
        """End the body: `advances` are the (address of the state, words) of its `StateAdvance`."""
        ...

    def end(self) -> tuple[int, ...]:
        """Return the handles of the node itself, for `GraphNode.handles`; ends the last body."""
        ...

    def drop(self) -> None:
        """Leave the node out: the body under capture ends, and the capture around it goes on."""
        ...


class DriverCapture(Protocol):
    """A capture by the driver: commands run on their own queue, and the driver keeps their work.

    So it also gets the work of other libraries. The runtime calls each command's function as
    without a capture, and `nodes_since` afterwards. Records and waits of events are not given to
    the driver: the runtime keeps the `tails` and passes them to `wait`.
    """

    def holds(self, queue: Queue) -> bool:
        """Return whether work of the queue is captured: of the first one, or one that waited."""
        ...

    def nodes_since(self, queue: Queue) -> tuple[int, ...]:
        """Return the nodes that the queue got since the last call, in their order.

        Called before a command, it returns the work of other libraries.

        Raises
        ------
        CaptureError
            If a call made the capture invalid.
        """
        ...

    def describe(self, handle: int) -> tuple[NodeKind, str]:
        """Return the kind and the label of a node of another library."""
        ...

    def tails(self, queue: Queue) -> tuple[int, ...]:
        """Return the nodes that the next work of the queue depends on."""
        ...

    def wait(self, queue: Queue, tails: Sequence[int]) -> None:
        """Let the next work of the queue depend on nodes too; a new queue joins the capture.

        Raises
        ------
        CaptureError
            If the queue cannot be captured, or is captured by another capture.
        """
        ...

    def depend(self, queue: Queue, tails: Sequence[int]) -> None:
        """Let the next work of a captured queue depend on these nodes only."""
        ...

    def control(self, queue: Queue, kind: ControlKind, flag: Array, limit: int) -> DriverControl:
        """Begin a control flow node; see `GraphNode` for flag and limit.

        Raises
        ------
        NotSupportedError
            If the driver has no such nodes.
        """
        ...

    def replay(self, queue: Queue, program: GraphProgram, values: ReplayValues) -> None:
        """Add the nodes of a program to the capture; of `values` the addresses and scalars."""
        ...

    def derive_state(self, queue: Queue, target: int, source: int, words: int) -> None:
        """Add a node that writes the state of a generator, for the draws of another graph.

        Seed and offset at address `target` become those at `source`, `words` further.
        """
        ...

    def abort(self) -> None:
        """End the capture without a graph; all queues can be used as before. Idempotent."""
        ...

    def end(self) -> DriverGraph:
        """End the capture.

        Raises
        ------
        CaptureError
            If a call made the capture invalid, or the work of a queue was not joined; the latter
            names the queue and the call that made it join. The capture is then aborted.
        """
        ...
