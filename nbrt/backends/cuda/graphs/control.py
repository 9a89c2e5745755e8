"""`CudaControl`: a branch or loop of a capture, whose bodies are captured apart."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.graphs.control_record import ControlRecord
from nbrt.backends.cuda.graphs.kernels import CONDITION_TYPES
from nbrt.backends.cuda.graphs.region import Region
from nbrt.errors import ArgumentTypeError, CaptureError, NbrtError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cuda.graphs.capture import CudaCapture
    from nbrt.backends.cuda.queues import CudaQueue
    from nbrt.backends.graphs import ControlKind

__all__ = ["CudaControl"]


class CudaControl:
    """A control flow node under capture, as a `DriverControl`.

    Parameters
    ----------
    capture : CudaCapture
        The capture.
    region : Region
        The part of it that the node is in.
    queue : CudaQueue
        The captured queue.
    kind : {"if", "while", "switch"}
        The kind of control flow.
    flag : cupy.ndarray
        One element of a bool or integer dtype.
    limit : int
        The largest number of turns of a loop.

    Attributes
    ----------
    body : Region or None
        The body that is being captured.
    """

    def __init__(
        self,
        capture: CudaCapture,
        region: Region,
        queue: CudaQueue,
        kind: ControlKind,
        flag: Any,
        limit: int,
    ) -> None:
        self._capture = capture
        self._region = region
        self._queue = queue
        self._flag = flag
        self._state = capture.state
        self._state.calls.check_control(kind)
        if flag.size != 1 or str(flag.dtype) not in CONDITION_TYPES:
            raise ArgumentTypeError(
                f"expected one element of a bool or integer dtype as flag, got an array of shape "
                f"{flag.shape} and dtype {flag.dtype}; compute a flag of that form in a kernel"
            )
        self.record = ControlRecord(kind, queue.index)
        if kind == "while":
            self.record.counter = self._state.new_counter(queue.index, limit)
        self._state.kept.append(flag)
        self.body: Region | None = None
        self._before = region.tails(queue)
        with self._state.driver.on_device(queue.index):
            if self.record.counter is not None:
                self._state.driver.clear(self.record.counter.address, 8, queue.handle)
            self._set_condition(queue)
        self._tails = region.tails(queue)

    def begin_body(self) -> CudaQueue:
        """Return the queue on which the commands of the next body run."""
        self._check_parent()
        if self.body is not None:
            raise CaptureError(
                "expected the end of a body before the next one begins, got two bodies at a time; "
                "end the first one"
            )
        self._state.calls.check_control(self.record.kind, len(self.record.bodies) + 1)
        queue = self._state.new_queue(self._queue.index)
        queue.name = f"a body of {self._queue.name}"
        self.body = Region(self._state, queue, self._capture.mode, is_body=True)
        return queue

    def end_body(self, advances: Sequence[tuple[int, int]]) -> None:
        """End the body; advance the generators that it draws from, and test a loop's flag."""
        body = self.body
        assert body is not None
        self._check_parent()
        with self._state.driver.on_device(body.queue.index):
            for state, words in advances:
                self._state.kernels.derive_state(body.queue, state, state, words)
            if self.record.kind == "while":
                self._set_condition(body.queue)
        body.nodes_since(body.queue)  # refuses memory nodes
        graph = body.end()
        self.body = None
        self.record.bodies.append(graph)
        # A stream with a foreign wrapper may be in use; it lives as long as the graph.
        self._state.kept.append(body.queue)
        calls = self._state.calls
        for node in calls.nodes(graph):
            calls.params(node, calls.type_of(node))  # refuses nodes that a body cannot have

    def end(self) -> tuple[int, ...]:
        """Put an empty node in the place of the control flow; return the handles of both."""
        self._check_parent()
        if self.body is not None or not self.record.bodies:
            raise CaptureError(
                "expected bodies that have ended, got control flow without a body, or in one; "
                "call end_body first"
            )
        place = self._region.add_empty(self._queue)
        self._state.controls[place] = self.record
        handles = self._region.nodes_since(self._queue)
        self._capture.ended(self)
        return handles

    def drop(self) -> None:
        """Leave the node out: the capture around it goes on."""
        self.abort()
        self._capture.ended(self)
        if self.record.counter is not None:
            self._state.counters.remove(self.record.counter)
        with contextlib.suppress(NbrtError):  # the capture is invalid: its end says why
            self._region.drop(self._queue, self._before)

    def abort(self) -> None:
        """End the body without a graph, and drop the graphs of the others."""
        body, self.body = self.body, None
        try:
            if body is not None:
                body.abort()
        finally:
            for graph in self.record.bodies:
                self._state.driver.captures.put_off(_Destruction(self._state, graph))
            self.record.bodies.clear()

    def _set_condition(self, queue: CudaQueue) -> None:
        counter = self.record.counter
        self._state.kernels.set_condition(
            queue,
            int(self._flag.data.ptr),
            str(self._flag.dtype),
            is_number=self.record.kind == "switch",
            counter=0 if counter is None else counter.address,
            limit=0 if counter is None else counter.limit,
        )
        region = queue.capture
        assert region is not None
        self.record.setters.append(region.tails(queue)[0])

    def _check_parent(self) -> None:
        """Raise CaptureError if the surrounding stream got work since the node began."""
        # CUDA would run it whatever the flag is (pytorch #194412).
        if self._region.tails(self._queue) != self._tails:
            raise CaptureError(
                f"expected no work on {self._queue.name} between the bodies of a branch or loop, "
                f"got some, which would run whatever the flag is; put it before or after, or on "
                f"the current stream of the body"
            )


class _Destruction:
    """The destruction of a graph, as a call without arguments."""

    def __init__(self, state: Any, graph: int) -> None:
        self._state = state
        self._graph = graph

    def __call__(self) -> None:
        self._state.calls.destroy(self._graph)
