"""`Driver`: every call into CUDA, on raw handles as ints.

Most calls use CuPy's bindings, because CuPy holds the memory and the current stream; the others
use cuda-bindings. Tests replace this class by a simulation that needs no GPU.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from nbrt.backends.cuda.failures import NOT_READY, translate, translate_status
from nbrt.backends.cuda.live_captures import LiveCaptures
from nbrt.backends.cuda.retired import Retired

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from nbrt.typing import Dim3

__all__ = ["DEVICE_TO_DEVICE", "DEVICE_TO_HOST", "HOST_TO_DEVICE", "Driver", "OnDevice"]

P = ParamSpec("P")
R = TypeVar("R")

# cudaMemcpyKind
HOST_TO_DEVICE = 1
DEVICE_TO_HOST = 2
DEVICE_TO_DEVICE = 3

# cudaEventDefault's flags
_BLOCKING_SYNC = 1
_DISABLE_TIMING = 2
_INTERPROCESS = 4

_PAGE_LOCKED = 1  # cudaMemoryTypeHost
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_PEER_ALREADY_ENABLED = 704
_ALL = 2**64 - 1  # a threshold that no pool reaches


def _translated(
    doing: str,
) -> Callable[[Callable[Concatenate[Driver, P], R]], Callable[Concatenate[Driver, P], R]]:
    """Translate the CUDA errors of a method into exceptions of nbrt."""

    def decorate(
        method: Callable[Concatenate[Driver, P], R],
    ) -> Callable[Concatenate[Driver, P], R]:
        @functools.wraps(method)
        def call(self: Driver, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(self, *args, **kwargs)
            except self.errors as error:
                raise translate(error, doing) from error

        return call

    return decorate


class OnDevice:
    """Make a device current in the driver for a block; one query if it is current already.

    Each thread has its own current device in the driver, so every operation enters this guard.
    """

    __slots__ = ("_before", "_driver", "_index")

    def __init__(self, driver: Driver, index: int) -> None:
        self._driver = driver
        self._index = index

    def __enter__(self) -> None:
        self._before = self._driver.get_device()
        if not self._driver.is_current(self._index):
            self._driver.set_device(self._index)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # This must not create a context on the previous device (pytorch PR #94864).
        if self._before != self._index and self._driver.has_context(self._before):
            self._driver.set_device(self._before)


class Driver:
    """The CUDA calls of the backend.

    Attributes
    ----------
    cupy : module
        The array library.
    errors : tuple of exception types
        CuPy's exceptions for CUDA's error codes.
    staging : cupy.cuda.PinnedMemoryPool
        Page-locked memory for copies between the host and a device.
    bindings : module
        ``cuda.bindings.driver``.
    captures : LiveCaptures
        The captures under way.
    relaxed : callable
        Returns a guard for calls that captures exclude; see `LiveCaptures.relaxed`.
    retired : Retired
        Objects that running work uses, without an owner.
    """

    def __init__(self) -> None:
        import cupy
        from cuda.bindings import driver as bindings

        self.cupy: Any = cupy
        self._runtime: Any = cupy.cuda.runtime
        self._driver: Any = cupy.cuda.driver
        self.bindings: Any = bindings
        self.captures = LiveCaptures.shared(bindings)
        self.relaxed = self.captures.relaxed
        self.retired = Retired(self)
        self.errors: tuple[type[BaseException], ...] = (
            cupy.cuda.runtime.CUDARuntimeError,
            cupy.cuda.driver.CUDADriverError,
        )
        self.staging: Any = cupy.cuda.PinnedMemoryPool()
        self.get_device: Callable[[], int] = cupy.cuda.runtime.getDevice

    # -- devices ---------------------------------------------------------------------------------

    @_translated("counting CUDA devices")
    def device_count(self) -> int:
        """Return the number of devices; initialises CUDA."""
        return int(self._runtime.getDeviceCount())

    @_translated("reading CUDA's versions")
    def versions(self) -> tuple[int, int]:
        """Return the CUDA versions of the driver and of CuPy, as 12040 for CUDA 12.4."""
        return int(self._runtime.driverGetVersion()), int(self._runtime.runtimeGetVersion())

    @_translated("making a device current")
    def set_device(self, index: int) -> None:
        """Make a device current in this thread; since CUDA 12 this creates its context."""
        self._runtime.setDevice(index)

    def is_current(self, index: int) -> bool:
        """Return whether a device is current in this thread, with its context.

        In a new thread CUDA's runtime returns device 0 while the driver has no context. Launches
        and numba-cuda use the driver's.
        """
        try:
            is_index: bool = self._runtime.getDevice() == index
            return is_index and self._driver.ctxGetCurrent() != 0
        except self.errors as error:
            raise translate(error, "asking for the current device") from error

    def has_context(self, index: int) -> bool:
        """Return whether the device's primary context exists; creates none."""
        status, _, is_active = self.bindings.cuDevicePrimaryCtxGetState(index)
        return int(status) == 0 and bool(is_active)

    def on_device(self, index: int) -> OnDevice:
        """Return a guard that makes a device current for a block."""
        return OnDevice(self, index)

    @_translated("reading device properties")
    def properties(self, index: int) -> dict[str, Any]:
        """Return cudaDeviceProp with CuPy's names; creates no context."""
        properties: dict[str, Any] = self._runtime.getDeviceProperties(index)
        return properties

    @_translated("asking for peer access")
    def can_access_peer(self, index: int, peer: int) -> bool:
        """Return whether a device can read another's memory."""
        return index == peer or bool(self._runtime.deviceCanAccessPeer(index, peer))

    @_translated("enabling peer access")
    def enable_peer(self, index: int, peer: int) -> None:
        """Let kernels and copies of a device read another's memory; idempotent."""
        with self.on_device(index):
            try:
                self._runtime.deviceEnablePeerAccess(peer)
            except self.errors as error:
                if getattr(error, "status", 0) != _PEER_ALREADY_ENABLED:
                    raise

    @_translated("waiting for a device")
    def synchronize_device(self, index: int) -> None:
        """Wait until all work on a device is done."""
        with self.on_device(index):
            self._runtime.deviceSynchronize()

    @_translated("reading free memory")
    def memory_info(self, index: int) -> tuple[int, int]:
        """Return (free, total) bytes."""
        with self.on_device(index):
            free, total = self._runtime.memGetInfo()
        return int(free), int(total)

    # -- streams ---------------------------------------------------------------------------------

    @_translated("creating a stream")
    def new_stream(self, index: int, priority: int) -> Any:
        """Return a new CuPy stream that does not wait for the default one and owns its handle."""
        with self.on_device(index):
            return self.cupy.cuda.Stream(non_blocking=True, priority=priority)

    def null_stream(self) -> Any:
        """Return CuPy's object for the legacy default stream."""
        return self.cupy.cuda.Stream.null

    def external_stream(self, owner: object) -> Any:
        """Return a CuPy stream over one with ``__cuda_stream__``; keeps `owner` alive."""
        return self.cupy.cuda.Stream.from_external(owner)

    def current_stream(self) -> Any:
        """Return CuPy's current stream of the current device and thread."""
        return self.cupy.cuda.get_current_stream()

    def query_stream(self, handle: int) -> bool:
        """Return whether everything on a stream is done."""
        return self._is_done(self._runtime.streamQuery(handle), "asking whether a stream is done")

    @_translated("waiting for a stream")
    def synchronize_stream(self, handle: int) -> None:
        """Wait for everything on a stream."""
        self._runtime.streamSynchronize(handle)

    @_translated("asking whether a stream is captured")
    def is_capturing(self, handle: int) -> bool:
        """Return whether a stream is being captured into a graph."""
        return bool(self._runtime.streamIsCapturing(handle))

    # -- events ----------------------------------------------------------------------------------

    @_translated("creating an event")
    def new_event(self, index: int, timing: bool, blocking: bool, interprocess: bool) -> int:
        """Return the handle of a new event; release it with `destroy_event`."""
        flags = (
            (0 if timing else _DISABLE_TIMING)
            | (_BLOCKING_SYNC if blocking else 0)
            | (_INTERPROCESS if interprocess else 0)
        )
        with self.on_device(index):
            return int(self._runtime.eventCreateWithFlags(flags))

    @_translated("destroying an event")
    def destroy_event(self, handle: int) -> None:
        """Destroy an event."""
        self._runtime.eventDestroy(handle)

    @_translated("recording an event")
    def record_event(self, handle: int, stream: int) -> None:
        """Record an event on a stream."""
        self._runtime.eventRecord(handle, stream)

    @_translated("making a stream wait for an event")
    def wait_event(self, stream: int, handle: int) -> None:
        """Make later work of a stream wait for an event."""
        self._runtime.streamWaitEvent(stream, handle)

    def query_event(self, handle: int) -> bool:
        """Return whether the last record is done."""
        if self.captures:
            with self.relaxed():
                status = self._runtime.eventQuery(handle)
        else:
            status = self._runtime.eventQuery(handle)
        return self._is_done(status, "asking whether an event is done")

    @_translated("waiting for an event")
    def synchronize_event(self, handle: int) -> None:
        """Wait on the host for the last record."""
        self._runtime.eventSynchronize(handle)

    @_translated("timing between two events")
    def elapsed(self, start: int, end: int) -> float:
        """Return the milliseconds between two records."""
        return float(self._runtime.eventElapsedTime(start, end))

    @_translated("exporting an event")
    def event_ipc_handle(self, handle: int) -> bytes:
        """Return the handle with which another process opens an event."""
        return bytes(self._runtime.ipcGetEventHandle(handle))

    @_translated("opening another process's event")
    def open_event(self, index: int, ipc_handle: bytes) -> int:
        """Return the handle of another process's event."""
        with self.on_device(index):
            return int(self._runtime.ipcOpenEventHandle(ipc_handle))

    # -- memory ----------------------------------------------------------------------------------

    @_translated("copying memory")
    def copy(self, destination: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        """Enqueue a copy; to or from pageable host memory it may wait."""
        self._runtime.memcpyAsync(destination, source, nbytes, kind, stream)

    @_translated("copying memory between devices")
    def copy_peer(
        self, destination: int, to: int, source: int, origin: int, nbytes: int, stream: int
    ) -> None:
        """Enqueue a copy between two devices."""
        self._runtime.memcpyPeerAsync(destination, to, source, origin, nbytes, stream)

    @_translated("filling memory")
    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Enqueue a fill with zero bytes."""
        self._runtime.memsetAsync(address, 0, nbytes, stream)

    def is_page_locked(self, address: int) -> bool:
        """Return whether host memory is page-locked, by any library."""
        try:
            return int(self._runtime.pointerGetAttributes(address).type) == _PAGE_LOCKED
        except self.errors:
            return False

    # -- memory pools of the driver --------------------------------------------------------------

    @_translated("reading a device attribute")
    def attribute(self, name: str, index: int) -> int:
        """Return an attribute of a device by CuPy's name for it, such as ``"ManagedMemory"``."""
        number = getattr(self._runtime, f"cudaDevAttr{name}")
        return int(self._runtime.deviceGetAttribute(number, index))

    @_translated("creating a memory pool")
    def create_pool(self, index: int) -> int:
        """Return the handle of a new pool of device memory that peer devices can access."""
        runtime = self._runtime
        properties = runtime.MemPoolProps(
            runtime.cudaMemAllocationTypePinned,
            runtime.cudaMemHandleTypeNone,
            runtime.cudaMemLocationTypeDevice,
            index,
        )
        pool = int(runtime.memPoolCreate(properties))
        try:
            peers = self._access_of_peers(index)
            if peers:
                doing = "opening a memory pool to peer devices"
                self.call(doing, "cuMemPoolSetAccess", pool, peers, len(peers))
        except BaseException:
            runtime.memPoolDestroy(pool)
            raise
        return pool

    @_translated("destroying a memory pool")
    def destroy_pool(self, pool: int) -> None:
        """Destroy a pool; CUDA keeps it until its last allocation is freed."""
        self._runtime.memPoolDestroy(pool)

    @_translated("setting a memory pool's threshold")
    def set_pool_threshold(self, pool: int, nbytes: int | None) -> None:
        """Set the bytes that a pool keeps at a synchronisation; None: all."""
        attribute = self._runtime.cudaMemPoolAttrReleaseThreshold
        self._runtime.memPoolSetAttribute(pool, attribute, _ALL if nbytes is None else nbytes)

    @_translated("reading a memory pool's size")
    def pool_reserved(self, pool: int) -> int:
        """Return the bytes that a pool holds."""
        attribute = self._runtime.cudaMemPoolAttrReservedMemCurrent
        return int(self._runtime.memPoolGetAttribute(pool, attribute))

    @_translated("trimming a memory pool")
    def trim_pool(self, pool: int) -> None:
        """Release the memory that no allocation uses."""
        self._runtime.memPoolTrimTo(pool, 0)

    @_translated("allocating from a memory pool")
    def allocate_from_pool(self, pool: int, nbytes: int, stream: int) -> int:
        """Return the address of memory for later work on a stream."""
        return int(self._runtime.mallocFromPoolAsync(nbytes, pool, stream))

    @_translated("freeing memory in stream order")
    def free_in_order(self, address: int, stream: int) -> None:
        """Free memory of a pool after the work queued on a stream so far."""
        self._runtime.freeAsync(address, stream)

    # -- virtual memory --------------------------------------------------------------------------

    def can_map(self, index: int) -> bool:
        """Return whether a device has virtual memory management."""
        attribute = self.bindings.CUdevice_attribute
        number = attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        return bool(self.call("asking for virtual memory", "cuDeviceGetAttribute", number, index))

    def granularity(self, index: int) -> int:
        """Return the granularity of mappings in bytes."""
        minimum = self.bindings.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        name = "cuMemGetAllocationGranularity"
        return int(self.call("asking for a page's size", name, self._page_kind(index), minimum))

    def reserve_range(self, nbytes: int) -> int:
        """Reserve a range of `nbytes` addresses; return its first address."""
        return int(self.call("reserving addresses", "cuMemAddressReserve", nbytes, 0, 0, 0))

    def release_range(self, address: int, nbytes: int) -> None:
        """Release reserved addresses without mappings."""
        self.call("releasing addresses", "cuMemAddressFree", address, nbytes)

    def map_range(self, index: int, address: int, nbytes: int) -> None:
        """Map new memory of a device to addresses, for it and its peers."""
        doing = f"mapping {nbytes} bytes on cuda:{index}"
        handle = self.call(doing, "cuMemCreate", nbytes, self._page_kind(index), 0)
        try:
            self.call(doing, "cuMemMap", address, nbytes, 0, handle, 0)
        finally:
            # A mapping keeps the memory; without one it is freed here.
            self.call(doing, "cuMemRelease", handle)
        try:
            access = [self._access_of(index), *self._access_of_peers(index)]
            self.call(doing, "cuMemSetAccess", address, nbytes, access, len(access))
        except BaseException:
            self.unmap_range(address, nbytes)
            raise

    def unmap_range(self, address: int, nbytes: int) -> None:
        """Unmap the addresses of one call of `map_range`."""
        self.call("unmapping memory", "cuMemUnmap", address, nbytes)

    def _page_kind(self, index: int) -> Any:
        kind = self.bindings.CUmemAllocationProp()
        kind.type = self.bindings.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        kind.location.type = self.bindings.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        kind.location.id = index
        return kind

    def _access_of(self, index: int) -> Any:
        access = self.bindings.CUmemAccessDesc()
        access.location.type = self.bindings.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = index
        access.flags = self.bindings.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return access

    def _access_of_peers(self, index: int) -> list[Any]:
        return [
            self._access_of(other)
            for other in range(self.device_count())
            if other != index and self.can_access_peer(other, index)
        ]

    def call(self, doing: str, name: str, *args: Any) -> Any:
        """Call a function of the driver's bindings; return its result without the status."""
        status, *results = getattr(self.bindings, name)(*args)
        if int(status) != 0:
            raise translate_status(int(status), str(status), doing)
        return results[0] if results else None

    # -- kernels ---------------------------------------------------------------------------------

    def function_of(self, kernel: Any) -> int:
        """Return the function of a cuda-core kernel in the current context."""
        if not isinstance(kernel, self.bindings.CUkernel):
            return int(kernel)
        return int(self.call("looking up a kernel", "cuKernelGetFunction", kernel))

    @_translated("raising a kernel's shared memory limit")
    def allow_shared(self, function: int, nbytes: int) -> None:
        """Allow a function more than 48 KiB of dynamic shared memory."""
        self._driver.funcSetAttribute(function, _MAX_DYNAMIC_SHARED, nbytes)

    def launch(
        self, function: int, grid: Dim3, block: Dim3, shared: int, stream: int, parameters: int
    ) -> None:
        """Enqueue a kernel; `parameters` is the address of the table of argument addresses."""
        try:
            self._driver.launchKernel(function, *grid, *block, shared, stream, parameters, 0)
        except self.errors as error:
            raise translate(error, "launching a kernel") from error

    @_translated("launching a cooperative kernel")
    def launch_cooperative(
        self, function: int, grid: Dim3, block: Dim3, shared: int, stream: int, parameters: int
    ) -> None:
        """Enqueue a kernel whose blocks wait for each other."""
        self._driver.launchCooperativeKernel(function, *grid, *block, shared, stream, parameters)

    def _is_done(self, status: int, doing: str) -> bool:
        if status == 0:
            return True
        if status == NOT_READY:
            return False
        raise translate_status(status, f"CUDA error {status}", doing)
