"""CUDA on paper: streams, events and memory of two devices, simulated in host memory.

`FakeDriver` is the real `Driver` over a simulated CuPy runtime, so the real driver layer and all
above it run. Device memory is host memory; work waits in its stream until a synchronisation, or
runs at once with ``simulation.is_eager``. Arrays are real `cupy.ndarray` objects over that memory.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from nbrt.backends.cuda.driver import Driver
from unit.cuda.fake_memory import (
    FakeAllocators,
    FakeMemory,
    FakePinnedPointer,
    FakePinnedPool,
    FakePool,
    MemorySimulation,
)


class CudaError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"fake CUDA error {status}")
        self.status = status


class Record:
    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.is_done = False

    def reach(self) -> None:
        self.is_done = True


class FakeStream:
    """Stand-in for `cupy.cuda.Stream`."""

    def __init__(self, simulation: Simulation, ptr: int, device_id: int) -> None:
        self.simulation, self.ptr, self.device_id = simulation, ptr, device_id

    def use(self) -> FakeStream:
        current = self.simulation.get_device()
        assert self.device_id in (-1, current), "the stream's device must be current"
        self.simulation.current_streams[current] = self
        return self

    def launch_host_func(self, function: Any, argument: Any) -> None:
        self.simulation.enqueue(self.ptr, lambda: function(argument))

    def add_callback(self, function: Any, argument: Any) -> None:
        self.simulation.enqueue(self.ptr, lambda: function(self, self.simulation.status, argument))


class Simulation(MemorySimulation):
    """Also plays `cupy.cuda.runtime`, `cupy.cuda.driver` and `cuda.bindings.driver`."""

    CUDARuntimeError = CUDADriverError = CudaError

    def __init__(self, count: int = 2) -> None:
        super().__init__(CudaError)
        self.count = count
        self.is_eager = True
        self.status = 0
        self.launches: list[Any] = []
        self.contexts: set[int] = set()
        self.events: dict[int, Record | None] = {}
        self.queues: dict[int, deque[Any]] = {0: deque()}
        self.null = FakeStream(self, 0, -1)
        self.current_streams = dict.fromkeys(range(count), self.null)
        self.capturing: set[int] = set()
        self._thread = threading.local()
        self._next = 100
        self._buffers: list[Any] = []

    # -- streams
    def enqueue(self, stream: int, work: Any) -> None:
        self.queues[stream].append(work)
        if self.is_eager:
            self.streamSynchronize(stream)

    def streamSynchronize(self, stream: int) -> None:
        if self.status:
            raise CudaError(self.status)
        queue = self.queues[stream]
        while queue:
            work = queue.popleft()
            if isinstance(work, Record):
                if not work.is_done:
                    self.streamSynchronize(work.stream)
                continue
            work()

    def streamQuery(self, stream: int) -> int:
        return self.status or (600 if self.queues[stream] else 0)

    def streamIsCapturing(self, stream: int) -> bool:
        return stream in self.capturing

    def streamWaitEvent(self, stream: int, event: int) -> None:
        self.log.append(("wait", stream, event))
        record = self.events[event]
        if record is not None and not record.is_done:
            self.queues[stream].append(record)

    def new_stream(self, priority: int) -> FakeStream:
        self._next += 1
        self.queues[self._next] = deque()
        return FakeStream(self, self._next, self.get_device())

    # -- devices
    def getDevice(self) -> int:
        return getattr(self._thread, "device", 0)

    get_device = getDevice

    def setDevice(self, index: int) -> None:
        if index >= self.count:
            raise CudaError(101)
        self.contexts.add(index)
        self._thread.device = index

    def ctxGetCurrent(self) -> int:
        return int(hasattr(self._thread, "device"))

    def getDeviceCount(self) -> int:
        return self.count

    def driverGetVersion(self) -> int:
        return 13000

    def runtimeGetVersion(self) -> int:
        return 12090

    def deviceSynchronize(self) -> None:
        for stream in list(self.queues):
            self.streamSynchronize(stream)

    def deviceCanAccessPeer(self, index: int, peer: int) -> int:
        return 1

    def deviceEnablePeerAccess(self, peer: int) -> None:
        key = ("peer", self.get_device(), peer)
        if key in self.log:
            raise CudaError(704)
        self.log.append(key)

    def memGetInfo(self) -> tuple[int, int]:
        return 1000, 2000

    def getDeviceProperties(self, index: int) -> dict[str, Any]:
        return {
            "name": b"Paper GPU", "totalGlobalMem": 64 << 20, "multiProcessorCount": 4,
            "maxThreadsPerBlock": 1024, "maxThreadsDim": (1024, 1024, 64),
            "maxGridSize": (2**31 - 1, 65535, 65535), "maxThreadsPerMultiProcessor": 2048,
            "sharedMemPerBlock": 49152, "sharedMemPerBlockOptin": 232448, "warpSize": 32,
            "major": 9, "minor": 0, "l2CacheSize": 1 << 20, "uuid": bytes(range(1, 17)),
        }  # fmt: skip

    # -- events
    def eventCreateWithFlags(self, flags: int) -> int:
        self._next += 1
        self.events[self._next] = None
        self.log.append(("event", flags, self.get_device()))
        return self._next

    def eventDestroy(self, event: int) -> None:
        del self.events[event]

    def eventRecord(self, event: int, stream: int) -> None:
        record = self.events[event] = Record(stream)
        self.enqueue(stream, record.reach)

    def eventQuery(self, event: int) -> int:
        record = self.events[event]
        return 0 if record is None or record.is_done else 600

    def eventSynchronize(self, event: int) -> None:
        self.deviceSynchronize()

    def eventElapsedTime(self, start: int, end: int) -> float:
        if self.eventQuery(start) or self.eventQuery(end):
            raise CudaError(600)
        return 1.5

    def ipcGetEventHandle(self, event: int) -> bytes:
        return bytes(64)

    def ipcOpenEventHandle(self, handle: bytes) -> int:
        return self.eventCreateWithFlags(0)

    # -- memory
    def memory(self, nbytes: int) -> Any:
        buffer = ctypes.create_string_buffer(max(nbytes, 1))
        self._buffers.append(buffer)
        ptr = ctypes.addressof(buffer) if nbytes else 0
        return SimpleNamespace(ptr=ptr, mem=SimpleNamespace(size=nbytes))

    def memcpyAsync(self, to: int, origin: int, nbytes: int, kind: int, stream: int) -> None:
        self.log.append(("copy", kind, stream))
        self.enqueue(stream, lambda: ctypes.memmove(to, origin, nbytes))

    def memcpyPeerAsync(
        self, to: int, device: int, origin: int, peer: int, nbytes: int, stream: int
    ) -> None:
        self.log.append(("peer copy", device, peer, stream))
        self.enqueue(stream, lambda: ctypes.memmove(to, origin, nbytes))

    def memsetAsync(self, to: int, value: int, nbytes: int, stream: int) -> None:
        self.log.append(("memset", stream))
        self.enqueue(stream, lambda: ctypes.memset(to, value, nbytes))

    # -- kernels
    CUkernel = type("CUkernel", (), {})

    def cuDevicePrimaryCtxGetState(self, index: int) -> tuple[int, int, int]:
        return 0, 0, int(index in self.contexts)

    def launchKernel(self, function: int, *rest: Any) -> None:
        *configuration, shared, stream, parameters, extra = rest
        assert extra == 0
        self.launches.append(
            SimpleNamespace(
                function=function, configuration=tuple(configuration), shared=shared,
                stream=stream, parameters=parameters, device=self.get_device(),
            )
        )  # fmt: skip

    def funcSetAttribute(self, function: int, attribute: int, value: int) -> None:
        self.log.append(("attribute", function, attribute, value))


class FakeCupy:
    """The few CuPy functions that the backend calls, on host memory, in stream order."""

    def __init__(self, simulation: Simulation) -> None:
        import cupy

        self.real = cupy
        self.ndarray = cupy.ndarray
        self.simulation = simulation
        allocators = FakeAllocators(self._memory)
        memory = partial(FakeMemory, simulation)
        stream_type = SimpleNamespace(null=simulation.null, from_external=self._from_external)
        self.cuda = SimpleNamespace(
            UnownedMemory=cupy.cuda.UnownedMemory,
            MemoryPointer=cupy.cuda.MemoryPointer,
            Memory=partial(memory, "device"),
            ManagedMemory=partial(memory, "managed"),
            PinnedMemory=lambda nbytes, flags: memory("pinned", nbytes),
            memory=SimpleNamespace(SystemMemory=partial(memory, "system")),
            MemoryPool=partial(FakePool, simulation),
            PinnedMemoryPool=self._pinned_pool,
            PinnedMemoryPointer=FakePinnedPointer,
            Stream=_Streams(simulation, stream_type),
            get_current_stream=lambda: simulation.current_streams[simulation.get_device()],
            get_allocator=allocators.get_allocator,
            using_allocator=allocators.using_allocator,
            runtime=simulation,
        )

    def _pinned_pool(self, allocator: Any = None) -> FakePinnedPool:
        def lock(nbytes: int) -> Any:
            return FakePinnedPointer(FakeMemory(self.simulation, "pinned", nbytes))

        return FakePinnedPool(allocator or lock)

    def _memory(self, nbytes: int) -> Any:
        memory = self.simulation.memory(nbytes)
        unowned = self.real.cuda.UnownedMemory(
            memory.ptr, nbytes, memory, self.simulation.get_device()
        )
        return self.real.cuda.MemoryPointer(unowned, 0)

    def _from_external(self, owner: Any) -> FakeStream:
        version, handle = owner.__cuda_stream__()
        assert version == 0
        self.simulation.queues.setdefault(handle, deque())
        stream = FakeStream(self.simulation, handle, -1)
        stream.owner = owner  # type: ignore[attr-defined]
        return stream

    def empty(self, shape: Any, dtype: Any) -> Any:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.real.ndarray(shape, dtype, memptr=self.cuda.get_allocator()(nbytes))

    def copyto(self, destination: Any, source: Any) -> None:
        values = host_view(source) if isinstance(source, self.ndarray) else source
        stream = self.simulation.current_streams[self.simulation.get_device()]
        self.simulation.log.append(("kernel copy", stream.ptr))
        self.simulation.enqueue(stream.ptr, lambda: np.copyto(host_view(destination), values))

    def ascontiguousarray(self, array: Any) -> Any:
        packed = self.empty(array.shape, array.dtype)
        self.copyto(packed, array)
        return packed


class _Streams:
    def __init__(self, simulation: Simulation, functions: Any) -> None:
        self._simulation = simulation
        self.null = functions.null
        self.from_external = functions.from_external

    def __call__(self, *, non_blocking: bool, priority: int) -> FakeStream:
        assert non_blocking
        return self._simulation.new_stream(priority)


class FakeDriver(Driver):
    """The real driver layer over a simulation."""

    def __init__(self, count: int = 2, simulation: Simulation | None = None) -> None:
        self.simulation = simulation or Simulation(count)
        self.cupy = FakeCupy(self.simulation)
        self._runtime = self._driver = self._bindings = self.simulation
        self.errors = (CudaError,)
        self.staging = self.cupy.cuda.PinnedMemoryPool()
        self.get_device = self.simulation.getDevice


def host_view(array: Any) -> Any:
    """Return a NumPy array over the memory of a simulated device array."""
    memory = array.data.mem
    raw = (ctypes.c_char * max(1, memory.size)).from_address(memory.ptr)
    offset = array.data.ptr - memory.ptr
    return np.ndarray(array.shape, array.dtype, raw, offset, array.strides)
