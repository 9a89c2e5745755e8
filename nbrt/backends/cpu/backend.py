"""`CpuInterface`: native CPU devices, as many virtual ones as ``NBRT_CPU_DEVICES`` asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cpu.block_scheduler import set_num_threads
from nbrt.backends.cpu.events import CpuEvent
from nbrt.backends.cpu.memory import (
    CachingPool,
    ExpandablePool,
    PinnedPool,
    PlainPool,
    block_from_external,
    owner_of,
)
from nbrt.backends.cpu.properties import available_memory, cpu_properties, total_memory
from nbrt.backends.cpu.queues import WorkerQueue
from nbrt.backends.interface import Capabilities, DeviceInterface, DeviceProperties
from nbrt.config import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nbrt.backends.code_store.compiler_info import CompilerInfo
    from nbrt.backends.compile_jobs import CompileJob
    from nbrt.backends.cpu.compile_worker import CpuWorker
    from nbrt.backends.cpu.memory import HostBlock, HostPool
    from nbrt.backends.cpu.simt.runtime.inspection import CpuCode
    from nbrt.backends.draw import Draw
    from nbrt.backends.graphs import GraphBuffer, GraphNode, GraphProgram
    from nbrt.backends.interface import Program
    from nbrt.backends.queue import EventHandle, EventOptions, Queue
    from nbrt.backends.random_filler import RandomFiller
    from nbrt.typing import Dim3, HostArray

__all__ = ["CpuInterface"]

_MAX_BRIEF_NBYTES = 1 << 14
"""Larger copies take longer than handing them to the thread of a stream, at 1 GB/s if strided."""

_POOLS: dict[str, Callable[..., HostPool]] = {
    pool.kind: pool for pool in (CachingPool, ExpandablePool, PlainPool, PinnedPool)
}


class CpuInterface(DeviceInterface):
    """CPU devices: compiled kernels on OS threads, pools of host memory.

    The first kernel imports Numba; streams and arrays do not.
    """

    capabilities = Capabilities(
        concurrent_streams=True,
        stream_priorities=(0, -1),
        dlpack_device_types=(1, 3),  # kDLCPU, kDLCUDAHost
        more_devices="set NBRT_CPU_DEVICES for more virtual ones",
    )
    pool_kinds = tuple(_POOLS)

    def __init__(self) -> None:
        super().__init__("cpu")
        self._count = 0
        self._random_filler: RandomFiller | None = None

    def device_count(self) -> int:
        """Return the number of virtual devices; fixed once the backend is initialised."""
        return self._count or settings().cpu_devices

    def initialize(self) -> None:
        """Fix the number of devices, of threads, and the CPU that kernels compile for."""
        chosen = settings()
        if chosen.cpu is not None:
            from nbrt.backends.cpu.simt.processor import processor

            processor()
        if chosen.cpu_threads:
            set_num_threads(chosen.cpu_threads)
        self._count = chosen.cpu_devices

    def get_device_properties(self, index: int) -> DeviceProperties:
        """Describe the processor, which all virtual devices share."""
        return cpu_properties()

    def create_queue(self, index: int, priority: int) -> WorkerQueue:
        """Create a queue with its own thread."""
        return WorkerQueue(index, priority, f"a stream of cpu:{index}")

    def create_event(self, index: int, options: EventOptions) -> EventHandle:
        """Create an event that follows any CPU queue."""
        return CpuEvent(options)

    def create_pool(self, index: int, kind: str, options: Mapping[str, Any]) -> HostPool:
        """Make a pool of host memory; plain pools have the option ``guard``."""
        pool = _POOLS.get(kind)
        if pool is None or options.keys() - ({"guard"} if kind == "plain" else set()):
            raise self.no_pool(index, kind, options)
        return pool(**options)

    def block_at(self, index: int, address: int, nbytes: int, keep: object) -> HostBlock:
        """Return memory of another allocator as a block."""
        return block_from_external(address, nbytes, keep)

    def mem_get_info(self, index: int) -> tuple[int, int]:
        """Return (free, total) bytes of the machine."""
        return available_memory(), total_memory()

    def initial_memory_limit(self, index: int) -> int | None:
        """Return ``NBRT_CPU_MEMORY_LIMIT``."""
        return settings().cpu_memory_limit or None

    def as_array(
        self, block: HostBlock, shape: tuple[int, ...], dtype: Any, handle: Any
    ) -> HostArray:
        """Return a NumPy array over a block."""
        return np.ndarray(shape, dtype, handle)

    def owner_of(self, array: object) -> object | None:
        """Return the owner of the block under a NumPy array of nbrt."""
        return owner_of(array)

    def index_of(self, array: object) -> int | None:
        """Return the device whose pool holds an array; 0 for other host arrays."""
        if not isinstance(array, np.ndarray):
            return None
        return getattr(owner_of(array), "index", 0)

    def may_fill(self, array: object, index: int) -> bool:
        """Return whether an array is a NumPy array in plain host memory or that of the device."""
        if type(array) is not np.ndarray:
            return False
        return self._count == 1 or getattr(owner_of(array), "index", index) == index

    def adopt(self, array: Any) -> HostArray:
        """Return a NumPy array over another library's host memory."""
        return np.from_dlpack(array)

    def copy(self, queue: Queue, destination: Any, source: Any) -> None:
        """Enqueue a copy; dtypes are converted as by NumPy's ``same_kind`` rule."""
        _enqueue_copy(queue, destination, source)

    def fill(self, queue: Queue, array: Any, value: Any) -> None:
        """Enqueue a fill."""
        _enqueue_copy(queue, array, value)

    def program(self, function: Callable[..., object]) -> Program:
        """Compile a kernel with the SIMT compiler when it is first launched."""
        from nbrt.backends.cpu.launch import CpuProgram

        return CpuProgram(function, has_many_devices=self.device_count() > 1)

    def graph_program(
        self, nodes: Sequence[GraphNode], buffers: Sequence[GraphBuffer], *, deterministic: bool
    ) -> GraphProgram:
        """Return a program whose replays are calls of native code."""
        from nbrt.backends.cpu.graphs.program import CpuGraphProgram

        return CpuGraphProgram(nodes, buffers, deterministic=deterministic)

    def inspect(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        grid: Dim3,
        block: Dim3,
        shared: int,
        target: str | None,
    ) -> CpuCode:
        """Return the code that the SIMT compiler generates for a kernel."""
        from nbrt.backends.cpu.simt.runtime.inspection import CpuCode

        return CpuCode(function, args, block)

    def compiler_info(self) -> CompilerInfo:
        """Return the versions of the compiler and the processor of this machine."""
        from nbrt.backends.cpu.simt.runtime.cache import compiler_info

        return compiler_info()

    def worker(self) -> CpuWorker:
        """Return the compiler for a compile process."""
        from nbrt.backends.cpu.compile_worker import CpuWorker

        return CpuWorker(self.name, (cpu_properties(),), 0)

    def compile_jobs(
        self,
        program: Any,
        index: int,
        grid: Dim3,
        block: Dim3,
        shared: int,
        args: tuple[Any, ...],
        targets: Sequence[str] = (),
        *,
        stored: bool = False,
    ) -> list[CompileJob]:
        """Return the job that puts native code of a launch into the code store, if it is new."""
        from nbrt.backends.cpu.compile_worker import compile_jobs

        return compile_jobs(program, block, args, stored=stored)

    def draw(self, queue: Queue, out: Any, draw: Draw) -> None:
        """Launch the fill kernels of a draw."""
        if self._random_filler is None:
            from nbrt.backends.random_filler import RandomFiller
            from nbrt_kernels.random.requests import fills_of

            self._random_filler = RandomFiller(self.program, fills_of, repeats=True)
        self._random_filler.draw(queue, out, draw)


def _enqueue_copy(queue: Queue, destination: Any, source: Any) -> None:
    if type(queue) is WorkerQueue and destination.nbytes <= _MAX_BRIEF_NBYTES:
        queue.put_brief(np.copyto, destination, source)
    else:
        queue.put(np.copyto, destination, source)
