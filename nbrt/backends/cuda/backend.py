"""`CudaInterface`: CUDA devices through numba-cuda, CuPy and the CUDA bindings."""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.code_store.compiler_info import CompilerInfo
from nbrt.backends.cuda import discovery
from nbrt.backends.cuda.memory.blocks import CudaBlock, array_over, device_owner_of, index_of
from nbrt.backends.cuda.memory.pinned import pinned_owner_of
from nbrt.backends.interface import Capabilities, DeviceInterface, DeviceProperties
from nbrt.errors import ArgumentError, BackendUnavailableError, CaptureError, GraphError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nbrt.backends.compile_jobs import CompileJob
    from nbrt.backends.cuda.compile_worker import CudaWorker
    from nbrt.backends.cuda.compiler import KernelCompiler
    from nbrt.backends.cuda.copies import Copier
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.events import CudaEvent
    from nbrt.backends.cuda.graphs.capture import CudaCapture
    from nbrt.backends.cuda.graphs.factory import CudaGraphs
    from nbrt.backends.cuda.launch import CudaProgram
    from nbrt.backends.cuda.memory.base import CudaPool
    from nbrt.backends.cuda.nccl import NcclTransport, TcpStore
    from nbrt.backends.cuda.ptx import CudaCode
    from nbrt.backends.cuda.queues import CudaQueue
    from nbrt.backends.draw import Draw
    from nbrt.backends.driver_capture import CaptureErrorMode
    from nbrt.backends.graphs import GraphBuffer, GraphNode, GraphProgram
    from nbrt.backends.interface import Block
    from nbrt.backends.queue import EventOptions, Queue
    from nbrt.backends.random_filler import RandomFiller
    from nbrt.typing import Array, Dim3

__all__ = ["CudaInterface"]

_LOWEST_CUDA = 12000
_PTDS_VARIABLES = (
    "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM",
    "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM",
)


class CudaInterface(DeviceInterface):
    """CUDA devices.

    The constructor and `device_count` load neither CuPy nor Numba and do not initialise CUDA.

    Parameters
    ----------
    make_driver : callable, optional
        Creates the layer that calls CUDA; tests pass a fake.
    """

    # Every device since compute capability 7.0 has these priorities. Reading the range would create
    # a context; CUDA clamps a priority outside the range.
    capabilities = Capabilities(
        concurrent_streams=True,
        cuda_stream_protocol=True,
        host_addressable=False,
        interprocess_events=True,
        pinned_memory=True,
        stream_priorities=(0, -5),
        driver_state=True,
        retains_arguments=False,
        dlpack_device_types=(2, 13),  # kDLCUDA, kDLCUDAManaged
    )
    pool_kinds = ("caching", "async", "managed", "system", "plain", "expandable", "pinned")

    def __init__(self, make_driver: Callable[[], Driver] | None = None) -> None:
        super().__init__("cuda")
        self._make_driver = make_driver
        self._count: int | None = None
        self._properties: dict[int, DeviceProperties] = {}
        self._side_queues: dict[int, CudaQueue] = {}
        self._compiler: KernelCompiler | None = None
        self._lock = threading.RLock()
        self._driver: Driver
        self._copier: Copier
        self._random_filler: RandomFiller | None = None
        self._graphs: CudaGraphs | None = None

    # -- discovery -------------------------------------------------------------------------------

    def device_count(self) -> int:
        """Return the number of visible CUDA devices."""
        if self._count is not None:
            return self._count
        return 0 if self.unavailable_reason() is not None else discovery.count_visible_devices()

    def unavailable_reason(self) -> str | None:
        """Return the missing component and the way to install it."""
        if self._count is not None and self._count > 0:
            return None
        return None if self._make_driver is not None else discovery.why_unavailable()

    def initialize(self) -> None:
        """Load CuPy, check versions, count the devices."""
        from nbrt.backends.cuda.copies import Copier

        reason = self.unavailable_reason()
        if reason is not None:
            raise BackendUnavailableError(f"expected a usable CUDA device, got: {reason}")
        for variable in _PTDS_VARIABLES:
            if os.environ.get(variable, "0") not in ("", "0"):
                raise BackendUnavailableError(
                    f"expected CUDA's legacy default stream, got {variable}="
                    f"{os.environ[variable]}, under which each thread has another stream; unset "
                    f"the variable and use nbrt.Stream() for concurrency"
                )
        driver = _load_driver() if self._make_driver is None else self._make_driver()
        supported, used = driver.versions()
        if min(supported, used) < _LOWEST_CUDA or supported // 1000 < used // 1000:
            raise BackendUnavailableError(
                f"expected a driver and a compatible CuPy for CUDA 12 or newer, got a driver "
                f"for CUDA {_version(supported)} and a CuPy for CUDA {_version(used)}; install "
                f"nbrt[cuda{min(supported, used) // 1000}] or update the driver"
            )
        self._driver = driver
        self._copier = Copier(driver, self._side_queue)
        self._count = driver.device_count()

    # -- devices ---------------------------------------------------------------------------------

    def get_device_properties(self, index: int) -> DeviceProperties:
        """Describe a device; creates no context."""
        properties = self._properties.get(index)
        if properties is None:
            from nbrt.backends.cuda.properties import device_properties

            properties = device_properties(self._ready().properties(index))
            self._properties[index] = properties
        return properties

    def compiler_info(self) -> CompilerInfo | None:
        """Return the versions of the compilers and the targets of the visible devices."""
        try:
            from nbrt.backends.cuda.kernel_images import target_of, versions

            known = versions()
        except ImportError:
            return None
        capabilities = {self.get_compute_capability(i) for i in range(self.device_count())}
        names = ["sm_{}{}{}".format(*target_of(found)) for found in capabilities if found]
        return CompilerInfo(known, dict.fromkeys(sorted(names), ""))

    def current_device(self) -> int:
        """Return the device that is current in the driver, for this thread.

        Before initialisation it is the one that guards have chosen.
        """
        return self._driver.get_device() if self.lazy.is_ready else super().current_device()

    def exchange_device(self, index: int) -> int:
        """Make a device current in the driver, with its context; return the previous one."""
        before = self._ready().get_device()
        if not self._driver.is_current(index):
            self._driver.set_device(index)
        return before

    def maybe_exchange_device(self, index: int) -> int:
        """Make a device current if it has a context; return the previous one."""
        before = self._ready().get_device()
        if before != index and self._driver.has_context(index):
            self._driver.set_device(index)
        return before

    def can_access_peer(self, index: int, peer: int) -> bool:
        """Return whether a device can read another's memory directly."""
        return self._ready().can_access_peer(index, peer)

    def synchronize(self, index: int) -> None:
        """Wait until all work on a device is done, that of other libraries included.

        Raises
        ------
        CaptureError
            If a stream of the device is captured, which the wait would make invalid.
        """
        driver = self._ready()
        if driver.captures.on_device(index):
            raise CaptureError(
                f"expected a device without captured streams, got a synchronisation of "
                f"cuda:{index} during a capture, which it would make invalid; synchronise the "
                f"streams that are needed, or wait for the end of the capture"
            )
        driver.synchronize_device(index)

    # -- queues and events -----------------------------------------------------------------------

    def default_queue(self, index: int) -> CudaQueue:
        """Return a queue over the legacy default stream, which waits for blocking streams."""
        from nbrt.backends.cuda.queues import CudaQueue

        driver = self._ready()
        return CudaQueue(driver, index, driver.null_stream())

    def create_queue(self, index: int, priority: int) -> CudaQueue:
        """Create a stream that does not wait for the default one."""
        from nbrt.backends.cuda.queues import CudaQueue

        driver = self._ready()
        return CudaQueue(driver, index, driver.new_stream(index, priority), priority)

    def borrow_queue(self, index: int, handle: int, owner: object) -> CudaQueue:
        """Wrap another library's stream."""
        from nbrt.backends.cuda.queues import BorrowedStream, CudaQueue, canonical_handle

        driver = self._ready()
        borrowed = BorrowedStream(canonical_handle(handle), owner)
        return CudaQueue(driver, index, driver.external_stream(borrowed))

    def enter_queue(self, queue: Any) -> Callable[[], None]:
        """Make a queue's device and stream current, so that plain CuPy code follows them."""
        driver = self._ready()
        device_before = self.exchange_device(queue.index)
        try:
            stream_before = driver.current_stream()
            queue.stream.use()
        except BaseException:
            self.maybe_exchange_device(device_before)
            raise

        def undo() -> None:
            with driver.on_device(queue.index):
                stream_before.use()
            self.maybe_exchange_device(device_before)

        return undo

    def create_event(self, index: int, options: EventOptions) -> CudaEvent:
        """Create an event."""
        from nbrt.backends.cuda.events import CudaEvent

        return CudaEvent.create(self._ready(), index, options)

    def open_event(self, index: int, ipc_handle: bytes) -> CudaEvent:
        """Open an event of another process."""
        from nbrt.backends.cuda.events import CudaEvent
        from nbrt.backends.queue import EventOptions

        handle = self._ready().open_event(index, ipc_handle)
        return CudaEvent(self._driver, index, handle, EventOptions(interprocess=True))

    # -- memory ----------------------------------------------------------------------------------

    def create_pool(self, index: int, kind: str, options: Mapping[str, Any]) -> CudaPool:
        """Make a pool over CuPy's pool, the driver's pool or virtual memory."""
        from nbrt.backends.cuda.memory.factory import make_pool

        pool = None if options else make_pool(self._ready(), index, kind)
        if pool is None:
            raise self.no_pool(index, kind, options)
        return pool

    def block_at(self, index: int, address: int, nbytes: int, keep: object) -> CudaBlock:
        """Return another allocator's memory as a block."""
        return CudaBlock(address, nbytes, index, None, keep)

    def enter_allocator(
        self, index: int, allocate: Callable[[int], tuple[Block, object]]
    ) -> Callable[[], None]:
        """Make CuPy allocate through `allocate` in this thread."""
        from nbrt.backends.cuda.memory.cupy_hook import CupyAllocatorHook

        redirection = CupyAllocatorHook(self._ready(), index, allocate)
        redirection.enter()
        return redirection.leave

    def external_owner(self, array: Any) -> object:
        """Return the pointer of a CuPy array, which keeps its memory from its pool."""
        return getattr(array, "data", array)

    def mem_get_info(self, index: int) -> tuple[int, int]:
        """Return the driver's (free, total) bytes, over all processes."""
        return self._ready().memory_info(index)

    def initial_memory_limit(self, index: int) -> int | None:
        """Return CuPy's limit for a device, in bytes or per cent of its memory."""
        limit = os.environ.get("CUPY_GPU_MEMORY_LIMIT") or "0"
        try:
            if limit.endswith("%"):
                total = self.get_device_properties(index).total_memory
                return int(float(limit[:-1]) / 100 * total)
            return int(limit) or None
        except ValueError:
            raise ArgumentError(
                f"expected CUPY_GPU_MEMORY_LIMIT to be bytes, or like 80%, got {limit!r}"
            ) from None

    def as_array(self, block: Any, shape: tuple[int, ...], dtype: Any, handle: Any) -> Array:
        """Return a CuPy array over a block; a NumPy array over page-locked memory."""
        if type(block) is CudaBlock:
            return array_over(self._driver.cupy, block, shape, dtype, handle)
        return np.ndarray(shape, dtype, handle)

    def owner_of(self, array: object) -> object | None:
        """Return the owner of the block under an array or a view of it."""
        if isinstance(array, np.ndarray):
            return pinned_owner_of(array)
        return device_owner_of(array)

    def index_of(self, array: object) -> int | None:
        """Return the device of a CuPy array."""
        return index_of(array)

    def adopt(self, array: object) -> Array:
        """Return a CuPy array over another library's."""
        from nbrt.backends.cuda.copies import adopt_array

        return adopt_array(self._ready(), array)

    def copy(self, queue: Any, destination: Any, source: Any) -> None:
        """Enqueue a copy."""
        self._copier.copy(queue, destination, source)

    def fill(self, queue: Any, array: Any, value: Any) -> None:
        """Enqueue a fill."""
        self._copier.fill(queue, array, value)

    # -- kernels and draws -----------------------------------------------------------------------

    def program(self, function: Callable[..., object]) -> CudaProgram:
        """Return a program, which numba-cuda compiles at its first launch."""
        from nbrt.backends.cuda.launch import CudaProgram

        driver = self._ready()
        return CudaProgram(
            driver, self._get_compiler(), function, self.get_device_properties, self.adopt
        )

    def inspect(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        grid: Dim3,
        block: Dim3,
        shared: int,
        target: str | None,
    ) -> CudaCode:
        """Return the code that numba-cuda and ptxas generate for a kernel; needs no GPU."""
        from nbrt.backends.cuda.ptx import CudaCode

        return CudaCode(function, args, block, shared, target)

    def worker(self) -> CudaWorker:
        """Return the compiler for a compile process."""
        from nbrt.backends.cuda.compile_worker import CudaWorker

        count = range(self.device_count())
        properties = tuple(map(self.get_device_properties, count))
        return CudaWorker(self.name, properties, self.current_device() if count else 0)

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
        """Return the jobs that put code for GPUs into the code store.

        Parameters
        ----------
        program : CudaProgram or callable
            The kernel; its function where CUDA has no device, which a program needs.
        index : int
            The device to compile for if there are no `targets`.
        grid, block, shared
            Code does not depend on them.
        args : tuple
            Host values of the arguments' types.
        targets : sequence of str
            Names or compute capabilities of GPUs, which need not exist.
        stored : bool
            Include jobs for code that is in the code store.
        """
        from nbrt.backends.cuda.compile_worker import compile_jobs, target_of, targets_of

        chosen = targets_of(targets)
        if not chosen and (own := self.get_device_properties(index).compute_capability):
            chosen = [target_of(own)]
        return compile_jobs(getattr(program, "source", program), args, chosen, stored=stored)

    def draw(self, queue: Any, out: Any, draw: Draw) -> None:
        """Launch the fill kernels of a draw."""
        if self._random_filler is None:
            from nbrt.backends.random_filler import RandomFiller
            from nbrt_kernels.random.requests import fills_of

            self._random_filler = RandomFiller(self.program, functools.partial(fills_of, gpu=True))
        # Parameters that are arrays are checked with CuPy's functions.
        with queue.entered():
            self._random_filler.draw(queue, out, draw)

    # -- graphs ----------------------------------------------------------------------------------

    def begin_capture(self, queue: Queue, mode: CaptureErrorMode) -> CudaCapture:
        """Begin a capture by CUDA."""
        return self._get_graphs().begin_capture(queue, mode)

    def graph_program(
        self, nodes: Sequence[GraphNode], buffers: Sequence[GraphBuffer], *, deterministic: bool
    ) -> GraphProgram:
        """Raise GraphError: programs of CUDA come from `begin_capture`."""
        raise GraphError(
            "expected a graph that CUDA has captured, got nodes only; repeat their work in "
            "nbrt.graph"
        )

    # -- ranks -----------------------------------------------------------------------------------

    def connect_ranks(
        self, index: int, rank: int, size: int, share: Callable[[Any], Any]
    ) -> NcclTransport:
        """Return a communicator of NCCL."""
        from nbrt.backends.cuda.nccl import NcclTransport, load_nccl

        return NcclTransport(self._ready(), load_nccl(), index, rank, size, share)

    def open_store(self, host: str, port: int, is_server: bool) -> TcpStore:
        """Return CuPy's store."""
        from nbrt.backends.cuda.nccl import TcpStore, load_nccl

        load_nccl()  # raises here if missing, before ranks wait for each other
        return TcpStore(host, port, is_server)

    def _ready(self) -> Driver:
        if not self.lazy.is_ready:
            self.lazy.ensure()
        return self._driver

    def _get_compiler(self) -> KernelCompiler:
        with self._lock:
            if self._compiler is None:
                from nbrt.backends.cuda.numba_compiler import NumbaCudaCompiler

                self._compiler = NumbaCudaCompiler(self._driver)
            return self._compiler

    def _get_graphs(self) -> CudaGraphs:
        with self._lock:
            if self._graphs is None:
                from nbrt.backends.cuda.graphs.factory import CudaGraphs

                self._graphs = CudaGraphs(self._ready())
            return self._graphs

    def _side_queue(self, index: int) -> CudaQueue:
        with self._lock:
            if index not in self._side_queues:
                self._side_queues[index] = self.create_queue(index, 0)
            return self._side_queues[index]


def _load_driver() -> Driver:
    try:
        from nbrt.backends.cuda.driver import Driver

        return Driver()
    except Exception as error:
        raise BackendUnavailableError(
            f"expected CuPy and the CUDA bindings to load, got {type(error).__name__}: {error}; "
            f'reinstall them with pip install "nbrt[cuda12]" or "nbrt[cuda13]"'
        ) from error


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
