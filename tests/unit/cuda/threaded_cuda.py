"""The simulation with a thread per stream, so that streams run alongside the host.

As a pytest plugin (``-p unit.cuda.threaded_cuda``) it stands in for the CUDA backend, which puts
the contract suite on the real driver layer, queues, events, memory and launches, without a GPU.
Python runs the kernels; draws and CuPy's own arithmetic cannot run there.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from typing import Any

from unit.cuda.fake_cuda import FakeDriver, Simulation
from unit.cuda.fake_kernels import Interpreter


class ThreadedRecord:
    def __init__(self) -> None:
        self._event = threading.Event()
        self.seconds = 0.0

    @property
    def is_done(self) -> bool:
        return self._event.is_set()

    def reach(self) -> None:
        self.seconds = time.perf_counter()
        self._event.set()

    def wait(self) -> None:
        self._event.wait()


class ThreadedSimulation(Simulation):
    """Every stream is a thread that works off a queue."""

    def __init__(self, count: int = 2) -> None:
        super().__init__(count)
        self.events: dict[int, Any] = {}
        self.homes: dict[int, int] = {}
        self._pending: defaultdict[int, int] = defaultdict(int)
        self._lock = threading.Lock()
        self._work: defaultdict[int, Any] = defaultdict(self._start)

    def _start(self) -> Any:
        work: Any = queue.SimpleQueue()

        def run() -> None:
            while True:
                work.get()()

        threading.Thread(target=run, daemon=True).start()
        return work

    def new_stream(self, priority: int) -> Any:
        stream = super().new_stream(priority)
        self.homes[stream.ptr] = stream.device_id
        return stream

    def enqueue(self, stream: int, work: Any) -> None:
        def run() -> None:
            try:
                work()
            finally:
                with self._lock:
                    self._pending[stream] -= 1

        with self._lock:
            self._pending[stream] += 1
            self._work[stream].put(run)

    def _last(self, stream: int) -> ThreadedRecord:
        record = ThreadedRecord()
        with self._lock:
            self._work[stream].put(record.reach)
        return record

    def streamSynchronize(self, stream: int) -> None:
        self._last(stream).wait()

    def streamQuery(self, stream: int) -> int:
        return 600 if self._pending[stream] else 0

    def streamWaitEvent(self, stream: int, event: int) -> None:
        record = self.events[event]
        if record is not None:
            self.enqueue(stream, record.wait)

    def eventRecord(self, event: int, stream: int) -> None:
        self.events[event] = self._last(stream)

    def eventElapsedTime(self, start: int, end: int) -> float:
        return float(1e3 * (self.events[end].seconds - self.events[start].seconds))

    def eventSynchronize(self, event: int) -> None:
        if self.events[event] is not None:
            self.events[event].wait()

    def deviceSynchronize(self) -> None:
        for stream in list(self._work):
            if self.homes.get(stream, self.get_device()) == self.get_device():
                self.streamSynchronize(stream)


class ThreadedFakeDriver(FakeDriver):
    def __init__(self) -> None:
        super().__init__(simulation=ThreadedSimulation())


def pytest_configure(config: Any) -> None:
    """Put the simulation in the CUDA backend's place."""
    import nbrt
    from nbrt.backends.cuda.backend import CudaInterface

    interface = CudaInterface(ThreadedFakeDriver)
    interface.lazy.ensure()
    interface._compiler = Interpreter(interface._driver.simulation)  # type: ignore[attr-defined]
    nbrt.register_interface_for_device("cuda", interface, replace=True)
