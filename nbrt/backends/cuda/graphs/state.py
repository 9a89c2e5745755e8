"""`CaptureState`: the objects that the capture of a graph collects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.graphs.control_record import LoopCounter
from nbrt.backends.cuda.graphs.host_calls import Replays
from nbrt.backends.cuda.queues import CudaQueue

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.graphs.calls import GraphCalls
    from nbrt.backends.cuda.graphs.cells import ReplayOrder
    from nbrt.backends.cuda.graphs.control_record import ControlRecord
    from nbrt.backends.cuda.graphs.host_calls import HostCall
    from nbrt.backends.cuda.graphs.kernels import GraphKernels

__all__ = ["CaptureState"]


@dataclass(eq=False)
class CaptureState:
    """The objects that the capture of a graph collects, shared by its regions.

    Attributes
    ----------
    driver, calls, kernels
        CUDA.
    replays : Replays
        The replays of the graph to be.
    indices : dict of int to int
        The device of each node.
    layouts : dict of int to tuple of ArgumentShape
        The layout of the arguments of each launch by nbrt.
    host_calls : dict of int to HostCall
        Of the nodes that call the host.
    controls : dict of int to ControlRecord
        Control flow, by the empty node that stands for it.
    kept : list
        Objects that live as long as the graph.
    counters : list of LoopCounter
        Of the loops.
    side_queues : dict of int to CudaQueue
        Internal queues by device.
    orders : list of ReplayOrder
        Of the graphs inside.
    """

    driver: Driver
    calls: GraphCalls
    kernels: GraphKernels
    replays: Replays = field(default_factory=Replays)
    indices: dict[int, int] = field(default_factory=dict)
    layouts: dict[int, Any] = field(default_factory=dict)
    host_calls: dict[int, HostCall] = field(default_factory=dict)
    controls: dict[int, ControlRecord] = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)
    counters: list[LoopCounter] = field(default_factory=list)
    side_queues: dict[int, CudaQueue] = field(default_factory=dict)
    orders: list[ReplayOrder] = field(default_factory=list)

    def new_queue(self, index: int) -> CudaQueue:
        """Return a queue over a stream that nothing else uses.

        Streams of nbrt's pool come back after 32 requests; two bodies on one stream would collide
        (pytorch PR #185836).
        """
        with self.driver.relaxed():
            return CudaQueue(self.driver, index, self.driver.new_stream(index, 0))

    def new_counter(self, index: int, limit: int) -> LoopCounter:
        """Return a new counter for a loop."""
        counter = LoopCounter(self.driver, index, limit)
        self.counters.append(counter)
        return counter

    def side_queue(self, index: int) -> CudaQueue:
        """Return an internal queue of a device for this capture."""
        queue = self.side_queues.get(index)
        if queue is None:
            queue = self.side_queues[index] = self.new_queue(index)
        return queue
