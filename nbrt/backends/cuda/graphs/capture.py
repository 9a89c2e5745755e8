"""`CudaCapture`: the capture of commands by CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.graphs.control import CudaControl
from nbrt.backends.cuda.graphs.graph import CudaGraph
from nbrt.backends.cuda.graphs.program import CudaGraphProgram
from nbrt.backends.cuda.graphs.region import Region
from nbrt.backends.cuda.queues import CudaQueue
from nbrt.errors import ArgumentError, CaptureError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cuda.graphs.state import CaptureState
    from nbrt.backends.driver_capture import CaptureErrorMode
    from nbrt.backends.graphs import ControlKind, GraphProgram, NodeKind, ReplayValues
    from nbrt.backends.queue import Queue

__all__ = ["CudaCapture"]

_MODES = ("global", "thread_local", "relaxed")


class CudaCapture:
    """A capture of a queue, as a `DriverCapture`.

    Each body of control flow is captured on another stream into another graph, and copied into its
    conditional node at the end. An invalid capture directly into the body of a conditional node
    would crash the process (cuda-python #2918, a fault of the driver).

    Parameters
    ----------
    state : CaptureState
        CUDA, and an empty collection.
    queue : CudaQueue
        The queue to capture.
    mode : {"global", "thread_local", "relaxed"}
        CUDA's mode of the capture.

    Raises
    ------
    CaptureError
        If the queue cannot be captured.
    """

    def __init__(self, state: CaptureState, queue: CudaQueue, mode: CaptureErrorMode) -> None:
        if mode not in _MODES:
            raise ArgumentError(
                f"expected one of {', '.join(map(repr, _MODES))} as mode of a capture, got {mode!r}"
            )
        self.state = state
        self.mode = mode
        self._region = Region(state, queue, mode)
        self._controls: list[CudaControl] = []

    def holds(self, queue: Queue) -> bool:
        """Return whether work of the queue is captured."""
        region = queue.capture if isinstance(queue, CudaQueue) else None
        return region is not None and region.state is self.state

    def nodes_since(self, queue: Queue) -> tuple[int, ...]:
        """Return the nodes that the queue got since the last call, in their order."""
        region, captured = self._part_of(queue)
        return region.nodes_since(captured)

    def describe(self, handle: int) -> tuple[NodeKind, str]:
        """Return the kind and the label of a node of another library."""
        calls = self.state.calls
        kind = calls.type_of(handle)
        if kind == calls.kernel:
            return "launch", calls.kernel_name(calls.params(handle, kind))
        names: dict[int, NodeKind] = {
            calls.memcpy: "copy",
            calls.memset: "fill",
            calls.host: "call",
            calls.child: "graph",
            calls.empty: "wait",
        }
        return names.get(kind, "call"), calls.name_of(kind)

    def tails(self, queue: Queue) -> tuple[int, ...]:
        """Return the nodes that the next work of the queue depends on."""
        region, captured = self._part_of(queue)
        return region.tails(captured)

    def wait(self, queue: Queue, tails: Sequence[int]) -> None:
        """Let the next work of the queue depend on nodes too; a new queue joins the capture."""
        assert isinstance(queue, CudaQueue)
        region = queue.capture if self.holds(queue) else self._current()
        assert region is not None
        region.wait(queue, tails)

    def depend(self, queue: Queue, tails: Sequence[int]) -> None:
        """Let the next work of a captured queue depend on these nodes only."""
        self._part_of(queue)
        self.state.calls.set_tails(queue.handle, tails)

    def control(self, queue: Queue, kind: ControlKind, flag: Any, limit: int) -> CudaControl:
        """Begin a control flow node."""
        region, captured = self._part_of(queue)
        control = CudaControl(self, region, captured, kind, flag, limit)
        self._controls.append(control)
        return control

    def ended(self, control: CudaControl) -> None:
        """Remove a control flow node that is complete."""
        self._controls.remove(control)

    def replay(self, queue: Queue, program: GraphProgram, values: ReplayValues) -> None:
        """Add the nodes of a program to the capture."""
        if not isinstance(program, CudaGraphProgram):
            raise CaptureError(
                f"expected a graph of cuda to replay in a capture of cuda:{queue.index}, got a "
                f"{type(program).__name__}; capture that graph on the same device"
            )
        region, captured = self._part_of(queue)
        with self.state.driver.on_device(queue.index):
            tails = program.copy_into(region, captured, values)
            self.state.calls.set_tails(queue.handle, tails)

    def derive_state(self, queue: Queue, target: int, source: int, words: int) -> None:
        """Add a node that writes the state of a generator, for the draws of another graph."""
        _, captured = self._part_of(queue)
        with self.state.driver.on_device(queue.index):
            self.state.kernels.derive_state(captured, target, source, words)

    def abort(self) -> None:
        """End the capture without a graph; idempotent."""
        try:
            # The innermost bodies first.
            for control in reversed(self._controls):
                control.abort()
            self._controls.clear()
        finally:
            self._region.abort()

    def end(self) -> CudaGraph:
        """End the capture; return its graph."""
        if self._controls:
            self.abort()
            raise CaptureError(
                "expected the end of all branches and loops before that of the capture, got a "
                "body that is still captured; end it first"
            )
        return CudaGraph(self.state, self._region.end(), self._region.queue.index)

    def _current(self) -> Region:
        """Return the innermost region."""
        for control in reversed(self._controls):
            if control.body is not None:
                return control.body
        return self._region

    def _part_of(self, queue: Queue) -> tuple[Region, CudaQueue]:
        """Return the region of a captured queue, and the queue."""
        region = queue.capture if isinstance(queue, CudaQueue) else None
        if region is None or region.state is not self.state:
            raise CaptureError(
                f"expected a stream of the capture, got {queue.name}; let it wait for an event of "
                f"the capture first"
            )
        assert isinstance(queue, CudaQueue)
        return region, queue
