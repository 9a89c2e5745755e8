"""`CudaGraphs`: the captures of one backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cuda.graphs.calls import GraphCalls
from nbrt.backends.cuda.graphs.capture import CudaCapture
from nbrt.backends.cuda.graphs.kernels import GraphKernels
from nbrt.backends.cuda.graphs.state import CaptureState
from nbrt.backends.cuda.queues import CudaQueue
from nbrt.errors import CaptureError

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.driver_capture import CaptureErrorMode
    from nbrt.backends.queue import Queue

__all__ = ["CudaGraphs"]


class CudaGraphs:
    """Captures and graphs of CUDA.

    Parameters
    ----------
    driver : Driver
        CUDA.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._calls = GraphCalls(driver)
        self._kernels = GraphKernels(self._calls)

    def begin_capture(self, queue: Queue, mode: CaptureErrorMode) -> CudaCapture:
        """Begin the capture of a queue; see `DeviceInterface.begin_capture`."""
        if not isinstance(queue, CudaQueue):
            raise CaptureError(
                f"expected a stream of a CUDA device, got {queue.name}; capture it by its device"
            )
        state = CaptureState(self._driver, self._calls, self._kernels)
        return CudaCapture(state, queue, mode)
