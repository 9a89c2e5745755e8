"""`Recorder`: a capture of the CUDA backend without the runtime, for its tests."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.graphs import GraphBuffer, GraphNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cuda.backend import CudaInterface
    from nbrt.backends.cuda.graphs.capture import CudaCapture
    from nbrt.backends.cuda.graphs.program import CudaGraphProgram
    from nbrt.backends.cuda.queues import CudaQueue

__all__ = ["SIZE", "Recorder", "on_device", "values_of"]

SIZE = 100


_compiled: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


class Recorder:
    """A capture whose commands become nodes, as the runtime makes them."""

    def __init__(self, interface: CudaInterface, queue: CudaQueue, mode: Any = "thread_local"):
        self.interface = interface
        self.capture: CudaCapture = interface.begin_capture(queue, mode)
        self.nodes: list[GraphNode] = []
        self.buffers: list[GraphBuffer] = []
        self._programs: list[CudaGraphProgram] = []

    def run(self, kind: Any, function: Callable[..., object], queue: Any, *args: Any) -> GraphNode:
        function(queue, *args)
        node = GraphNode(len(self.nodes), kind, kind, 0, 0, handles=self.capture.nodes_since(queue))
        self.nodes.append(node)
        return node

    def launch(self, kernel: Any, queue: Any, *args: Any) -> GraphNode:
        programs = _compiled.setdefault(self.interface, {})
        if kernel not in programs:
            programs[kernel] = self.interface.program(kernel)
        plan = programs[kernel].plan(queue.index, (1, 1, 1), (128, 1, 1), 0)
        return self.run("launch", plan.launch, queue, *args)

    def buffer(self, array: Any) -> int:
        number = len(self.buffers)
        self.buffers.append(GraphBuffer(number, int(array.data.ptr), array.nbytes, array))
        return number

    def program(self, *, deterministic: bool = False) -> CudaGraphProgram:
        graph = self.capture.end()
        program = graph.program(self.nodes, self.buffers, deterministic=deterministic)
        self._programs.append(program)
        return program

    def close(self) -> None:
        """Abort the capture, or close the program."""
        self.capture.abort()
        for program in self._programs:
            program.close()


def values_of(queue: CudaQueue, array: Any) -> list[float]:
    queue.synchronize()
    return [float(value) for value in array.get()]


def on_device(cupy: Any, values: Any, dtype: str) -> Any:
    """Return an array of values on the current device, complete for all streams."""
    made = cupy.asarray(np.array(values, dtype))
    cupy.cuda.Device().synchronize()
    return made
