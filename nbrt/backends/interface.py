"""`DeviceInterface`: the contract of a kind of device.

A backend is one object. Its operations take a `Queue`, the backend's form of a stream, as first
argument and run in the caller's thread: they check, then enqueue. Guards, stream pools, events,
memory statistics and the dispatch of commands are written once over this contract. A backend must
define the abstract methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal import scopes
from nbrt._internal.device import Device
from nbrt.backends.compile_jobs import CompileJob, Worker
from nbrt.backends.device_properties import DeviceProperties
from nbrt.backends.graphs import QueueProgram, arrays_of
from nbrt.backends.lazy import LazyInitializer
from nbrt.backends.pools import Block, InterfacePool
from nbrt.backends.programs import (
    CapturingProgram,
    Check,
    CheckableProgram,
    Plan,
    PlanWithSource,
    PreparablePlan,
    Program,
)
from nbrt.backends.synchronous import SynchronousEvent, SynchronousQueue
from nbrt.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nbrt.backends.code_store.compiler_info import CompilerInfo
    from nbrt.backends.draw import Draw
    from nbrt.backends.driver_capture import CaptureErrorMode, DriverCapture
    from nbrt.backends.graphs import ArrayView, GraphBuffer, GraphNode, GraphProgram
    from nbrt.backends.graphs import ReplayValues as Values
    from nbrt.backends.pools import BackendPool
    from nbrt.backends.queue import EventHandle, EventOptions, Queue
    from nbrt.backends.transport import Store, Transport
    from nbrt.typing import Array, Dim3, HostArray

__all__ = [
    "Block",
    "Capabilities",
    "CapturingProgram",
    "Check",
    "CheckableProgram",
    "CompileJob",
    "DeviceInterface",
    "DeviceProperties",
    "Plan",
    "PlanWithSource",
    "PreparablePlan",
    "Program",
    "Worker",
]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a kind of device; the runtime tests these, never a backend's name.

    Attributes
    ----------
    computes : bool
        Arrays have values, which work changes.
    concurrent_streams : bool
        Work of two streams can overlap.
    cuda_stream_protocol : bool
        Raw handles are CUDA streams, so streams offer ``__cuda_stream__``.
    host_addressable : bool
        The host reads and writes the memory directly.
    interprocess_events : bool
        Events have IPC handles.
    packs_graph_memory : bool
        Arrays that die during a capture share bytes in replays.
    pinned_memory : bool
        Page-locked host memory makes copies to and from it asynchronous.
    stream_priorities : tuple of (int, int)
        Lowest and highest priority; lower numbers are more urgent, as in CUDA.
    driver_state : bool
        The driver has a current device and stream, which guards must set as well.
    retains_arguments : bool
        Queued work keeps its arrays alive until it is done, so freed memory is idle.
    dlpack_device_types : tuple of int
        The kinds of memory that `DeviceInterface.adopt` takes, as numbers of dlpack.h.
    more_devices : str
        How to get more devices of this kind, for the error of an index that is too high.
    """

    computes: bool = True
    concurrent_streams: bool = False
    cuda_stream_protocol: bool = False
    host_addressable: bool = True
    interprocess_events: bool = False
    packs_graph_memory: bool = True
    pinned_memory: bool = False
    stream_priorities: tuple[int, int] = (0, 0)
    driver_state: bool = False
    retains_arguments: bool = True
    dlpack_device_types: tuple[int, ...] = ()
    more_devices: str = ""


class DeviceInterface(ABC):
    """One kind of device.

    Parameters
    ----------
    name : str
        The kind, as in ``Device(name, index)``.
    """

    capabilities = Capabilities()
    pool_kinds: tuple[str, ...] = ("caching",)
    is_substitute = False  # of `registry.substitute_interface`

    def __init__(self, name: str) -> None:
        self.name = name
        self.lazy = LazyInitializer(name, self.initialize)

    # -- discovery: callable at any time, never initialises ----------------------------------------

    @abstractmethod
    def device_count(self) -> int:
        """Return how many devices there are; 0 if the backend is unavailable."""

    def unavailable_reason(self) -> str | None:
        """Return why no device is usable here, with the next step; None if one is."""
        return None if self.device_count() > 0 else f"the {self.name} backend found no device"

    def is_available(self) -> bool:
        """Return whether at least one device is usable."""
        return self.unavailable_reason() is None

    def initialize(self) -> None:  # optional: many backends have nothing to start
        """Start the backend; `lazy` calls this once, before the methods below."""

    # -- devices -----------------------------------------------------------------------------------

    @abstractmethod
    def get_device_properties(self, index: int) -> DeviceProperties:
        """Describe device `index`."""

    def get_compute_capability(self, index: int) -> tuple[int, int] | None:
        """Return (major, minor) for kinds with compute capabilities."""
        return self.get_device_properties(index).compute_capability

    def current_device(self) -> int:
        """Return the current index of this kind in the running context."""
        return scopes.current_index(self.name)

    def set_device(self, index: int) -> None:
        """Make `index` current for this kind, in the ambient state and in the driver."""
        self.exchange_device(index)
        scopes.replace(Device(self.name, index), None)

    def exchange_device(self, index: int) -> int:
        """Make `index` current in the driver; return the previous index, or `index` without one."""
        return index

    def maybe_exchange_device(self, index: int) -> int:
        """Do the same, but only if that creates no context on the device."""
        return index

    def can_access_peer(self, index: int, peer: int) -> bool:
        """Return whether device `index` can read the memory of device `peer` directly."""
        return index == peer or self.capabilities.host_addressable

    def synchronize(self, index: int) -> None:
        """Wait until all work on the device is done, after the runtime waited for nbrt's queues."""

    def worker(self) -> Worker:
        """Return the properties for a compile subprocess."""
        count = range(self.device_count())
        return Worker(
            self.name, tuple(map(self.get_device_properties, count)), self.current_device()
        )

    def compiler_info(self) -> CompilerInfo | None:
        """Return what compiled code of this kind must fit to be used here; None: unknown.

        Must work without devices. The code of kinds without it cannot be loaded from bundles.
        """
        return None

    # -- queues and events -------------------------------------------------------------------------

    def default_queue(self, index: int) -> Queue:
        """Return a queue over the device's default stream; called once per device."""
        return SynchronousQueue(index)

    def create_queue(self, index: int, priority: int) -> Queue:
        """Create a queue; the runtime clamps the priority to the capability's range."""
        return SynchronousQueue(index, priority)

    def borrow_queue(self, index: int, handle: int, owner: object) -> Queue:
        """Wrap a raw stream of another library; keep `owner` alive."""
        raise NotSupportedError(
            f"expected a kind of device with raw CUDA streams, got {self.name!r}; "
            f"make a stream with nbrt.Stream(device='{self.name}:{index}')"
        )

    def enter_queue(self, queue: Queue) -> Callable[[], None] | None:
        """Make `queue` current for other libraries of the device; return a function to undo it."""
        return None

    def create_event(self, index: int, options: EventOptions) -> EventHandle:
        """Create an event on device `index`."""
        return SynchronousEvent(options)

    def open_event(self, index: int, ipc_handle: bytes) -> EventHandle:
        """Open an event of another process from its IPC handle."""
        raise NotSupportedError(
            f"expected a kind of device whose events cross processes, got {self.name!r}; "
            f"ipc handles exist on cuda"
        )

    def call_host(self, queue: Queue, function: Callable[..., object], *args: Any) -> None:
        """Call `function` on the host after the work queued before."""
        queue.put(function, *args)

    # -- memory ------------------------------------------------------------------------------------

    def create_pool(self, index: int, kind: str, options: Mapping[str, Any]) -> BackendPool:
        """Make a memory pool of one of `pool_kinds` on device `index`.

        The default is a pool over `allocate` and `deallocate`.
        """
        if kind not in self.pool_kinds or options:
            raise self.no_pool(index, kind, options)
        return InterfacePool(self)

    def no_pool(self, index: int, kind: str, options: Mapping[str, Any]) -> NotSupportedError:
        """Return the error for an unknown kind of pool."""
        wanted = f"{kind!r} with {dict(options)}" if options else repr(kind)
        return NotSupportedError(
            f"expected a pool that {self.name}:{index} has ({', '.join(self.pool_kinds)}), got "
            f"{wanted}"
        )

    def allocate(self, queue: Queue, nbytes: int) -> Block:
        """Allocate device memory for use on `queue`; raise OutOfMemoryError."""
        raise NotImplementedError(f"{self.name} has neither allocate nor create_pool")

    def deallocate(self, queue: Queue, block: Any) -> None:
        """Free a block; its memory is reused on `queue` after the work queued there so far."""
        raise NotImplementedError(f"{self.name} has neither deallocate nor create_pool")

    def block_at(self, index: int, address: int, nbytes: int, keep: object) -> Block:
        """Return memory of another allocator as a block, which keeps `keep` alive."""
        raise NotSupportedError(
            f"expected a kind of device that takes other allocators' memory, got {self.name!r}"
        )

    def enter_allocator(
        self, index: int, allocate: Callable[[int], tuple[Block, object]]
    ) -> Callable[[], None] | None:
        """Make this kind's library allocate through ``allocate(nbytes) -> (block, handle)``.

        This holds for the calling thread until the returned function is called. None: the library
        has no allocator hook.
        """
        return None

    def external_owner(self, array: object) -> object:
        """Return the object that owns the memory of another library's array."""
        return array

    @abstractmethod
    def mem_get_info(self, index: int) -> tuple[int, int]:
        """Return (free, total) bytes of the device."""

    def initial_memory_limit(self, index: int) -> int | None:
        """Return the initial limit of the pools of device `index` in bytes; None: no limit."""
        return None

    @abstractmethod
    def as_array(self, block: Any, shape: tuple[int, ...], dtype: Any, handle: Any) -> Array:
        """Return this library's array over `block`; the array and its views keep `handle` alive."""

    def owner_of(self, array: object) -> object | None:
        """Return the owner of the block under an array or a view of it; None if there is none."""
        return None

    def index_of(self, array: object) -> int | None:
        """Return the device that holds `array`, or None if it is not an array of this kind."""
        return None

    def may_fill(self, array: object, index: int) -> bool:
        """Return whether device `index` may certainly write an array; False: it takes a look.

        It is called for each small draw, so it must be quick.
        """
        return False

    def is_host_array(self, array: object) -> bool:
        """Return whether an array of this kind is in host memory."""
        return self.capabilities.host_addressable

    def empty_host(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
        """Return an array of ordinary host memory, for values of this kind's arrays."""
        return np.empty(shape, dtype)

    def adopt(self, array: object) -> Array:
        """Return this library's array over another library's memory, without a copy."""
        raise NotSupportedError(
            f"expected an array of {self.name}'s own library, got {type(array).__name__}"
        )

    @abstractmethod
    def copy(self, queue: Queue, destination: Array, source: Array) -> None:
        """Enqueue a copy between arrays of this kind, or between one and a host array."""

    @abstractmethod
    def fill(self, queue: Queue, array: Array, value: Any) -> None:
        """Enqueue ``array[...] = value``."""

    # -- kernels and draws -------------------------------------------------------------------------

    @abstractmethod
    def program(self, function: Callable[..., object]) -> Program:
        """Take a kernel in the Numba CUDA dialect (a function or a dispatcher)."""

    def inspect(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        grid: Dim3,
        block: Dim3,
        shared: int,
        target: str | None,
    ) -> Any:
        """Return the compiled code of a kernel, see `nbrt.backends.inspection`; needs no device.

        `args` are host values of the types that the kernel is compiled for; `target` names the
        device's model if the code depends on it.
        """
        raise NotSupportedError(
            f"expected a kind of device whose code can be inspected, got {self.name!r}; "
            f"kernel.inspect is about cpu and cuda"
        )

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
        """Return the jobs that put the code of a launch into the code store.

        `program` is of this kind, `args` are as in `inspect`, and `targets` names the device's
        models, if the code depends on them. Code that is in the store needs no job; with `stored`
        it has one, without a payload. The default is no job: the kernel compiles where it is
        launched.
        """
        return []

    def draw(self, queue: Queue, out: Array, draw: Draw) -> None:
        """Enqueue a fill of contiguous `out` with elements of a draw.

        The value of an element depends on the draw and its index in it alone.
        """
        raise NotSupportedError(
            f"expected a kind of device with random draws, got {self.name!r}; "
            f"draw on cpu and copy with nbrt.to"
        )

    # -- graphs ------------------------------------------------------------------------------------

    def begin_capture(self, queue: Queue, mode: CaptureErrorMode) -> DriverCapture | None:
        """Let the driver capture the work of a queue; None: commands go to a `RecordingQueue`.

        Parameters
        ----------
        mode : {"global", "thread_local", "relaxed"}
            Whether calls that a capture excludes, such as an allocation by the driver, fail in all
            threads, in this one, or in none.

        Raises
        ------
        CaptureError
            If the queue cannot be captured, such as CUDA's default stream.
        """
        return None

    def graph_program(
        self, nodes: Sequence[GraphNode], buffers: Sequence[GraphBuffer], *, deterministic: bool
    ) -> GraphProgram:
        """Return a program that replays a captured graph.

        With `deterministic`, nodes that do not depend on each other run in one fixed order.
        """
        return QueueProgram(nodes, buffers)

    def replayed_arrays(
        self, buffers: Sequence[GraphBuffer], values: Values
    ) -> Callable[[ArrayView], Any] | None:
        """Return a function from the views of a replay to arrays for hooks; None: they see none."""
        return arrays_of(buffers, values) if self.capabilities.host_addressable else None

    def array_over(self, layout: HostArray, owner: object, index: int | None) -> Array:
        """Return the array with the layout of a NumPy array, for a kind that computes nothing."""
        raise NotImplementedError(f"arrays of {self.name} have values")

    # -- ranks -------------------------------------------------------------------------------------

    def connect_ranks(
        self, index: int, rank: int, size: int, share: Callable[[Any], Any]
    ) -> Transport:
        """Return a transport between this device and those of other ranks; all ranks call this.

        `share` returns the at most 128 bytes of rank 0 on every rank.
        """
        raise self._no_transport()

    def open_store(self, host: str, port: int, is_server: bool) -> Store:
        """Return a key-value store for `share` before ranks are connected; one rank serves it."""
        raise self._no_transport()

    def _no_transport(self) -> NotSupportedError:
        return NotSupportedError(
            f"expected a kind of device with a transport, got {self.name!r}; connect ranks "
            f"with arrays on {self.name} through threads or MPI"
        )
