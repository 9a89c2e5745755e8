"""Device memory: blocks from CuPy's pools, arrays over them, page-locked host memory."""

from __future__ import annotations

import math
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cuda.failures import translate
from nbrt.errors import ArgumentError, OutOfMemoryError

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.queues import CudaQueue
    from nbrt.typing import Array, HostArray

__all__ = ["CudaBlock", "CudaMemory", "OwnerLink"]


class CudaBlock:
    """A piece of a pool.

    Attributes
    ----------
    address : int
        First byte on the device.
    nbytes : int
        Bytes reserved: what was asked for, rounded up to the pool's 512.
    index : int
        The device.
    queue : CudaQueue
        The queue it was allocated for, whose arena it returns to.
    pointer : cupy.cuda.MemoryPointer or None
        What keeps it out of the pool; None once it was given back.
    """

    __slots__ = ("address", "index", "nbytes", "pointer", "queue")

    def __init__(self, pointer: Any, index: int, queue: CudaQueue) -> None:
        self.pointer = pointer
        self.address = int(pointer.ptr)
        self.nbytes = int(pointer.mem.size)
        self.index = index
        self.queue = queue


class OwnerLink:
    """The owner of an array's memory, told apart from owners that other libraries leave there."""

    __slots__ = ("owner",)

    def __init__(self, owner: object) -> None:
        self.owner = owner


class CudaMemory:
    """The memory of all CUDA devices.

    Parameters
    ----------
    driver : Driver
        CUDA.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        # One pool of CuPy's per device, ours alone: CuPy's global pool is the user's to limit, to
        # replace and to empty, and its bytes are not ours to report.
        self._pools: dict[int, Any] = {}
        self._pinned: Any = None
        self._lock = threading.Lock()

    def allocate(self, queue: CudaQueue, nbytes: int) -> CudaBlock:
        """Reserve memory in the arena of the queue's stream."""
        pool = self._pools.get(queue.index)
        if pool is None:
            pool = self._make_pool(queue.index)
        try:
            # CuPy keys arenas by the stream that is current now.
            with queue.entered():
                pointer = pool.malloc(nbytes)
        except MemoryError as error:
            raise self._out_of_memory(queue.index, nbytes, error) from error
        except self._driver.errors as error:
            raise translate(error, f"allocating {nbytes} bytes on cuda:{queue.index}") from error
        return CudaBlock(pointer, queue.index, queue)

    def deallocate(self, queue: CudaQueue, block: CudaBlock) -> None:
        """Give a block back to the arena of its own queue, behind the work that `queue` has so far.

        CuPy returns a chunk to the arena it came from and may hand it out at once, to work on that
        stream. So a free on another queue first makes that stream wait.
        """
        if block.pointer is None:
            return
        if queue.handle != block.queue.handle or queue.index != block.queue.index:
            block.queue.join(queue)
        block.pointer = None

    def info(self, index: int) -> tuple[int, int]:
        """Return (free, total) bytes of a device, as the driver counts."""
        return self._driver.memory_info(index)

    def reserved(self, index: int) -> int:
        """Return the bytes that our pool holds from the driver."""
        pool = self._pools.get(index)
        if pool is None:
            return 0
        with self._driver.on_device(index):
            return int(pool.total_bytes())

    def empty_cache(self, index: int) -> None:
        """Give the pool's unused blocks back to the driver, and unused page-locked memory."""
        pool = self._pools.get(index)
        if pool is not None:
            with self._driver.on_device(index):
                pool.free_all_blocks()
        if self._pinned is not None:
            self._pinned.free_all_blocks()

    def as_array(
        self, block: CudaBlock, shape: tuple[int, ...], dtype: Any, owner: object
    ) -> Array:
        """Return a CuPy array over a block; it and its views keep `owner` alive."""
        cupy = self._driver.cupy
        memory = cupy.cuda.UnownedMemory(block.address, block.nbytes, OwnerLink(owner), block.index)
        return cupy.ndarray(shape, dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))

    def empty_pinned(self, shape: tuple[int, ...], dtype: Any) -> HostArray:
        """Return page-locked host memory from a pool."""
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise ArgumentError(f"expected a dtype of plain bytes, got {kind}")
        count = math.prod(shape)
        if count * kind.itemsize == 0:
            return np.empty(shape, kind)
        if self._pinned is None:
            with self._lock:
                if self._pinned is None:
                    self._pinned = self._driver.cupy.cuda.PinnedMemoryPool()
        try:
            pointer = self._pinned.malloc(count * kind.itemsize)
        except self._driver.errors as error:
            raise translate(error, f"page-locking {count * kind.itemsize} bytes") from error
        return np.frombuffer(pointer, kind, count).reshape(shape)

    def _make_pool(self, index: int) -> Any:
        with self._lock:
            if index not in self._pools:
                self._pools[index] = self._driver.cupy.cuda.MemoryPool()
            return self._pools[index]

    def _out_of_memory(self, index: int, nbytes: int, error: BaseException) -> OutOfMemoryError:
        reserved = self.reserved(index)
        with self._driver.on_device(index):
            in_use = int(self._pools[index].used_bytes())
            limit = int(self._pools[index].get_limit())
        try:
            free, total = self._driver.memory_info(index)
            room = f"{free} of {total} bytes free on the device"
        except Exception:  # noqa: BLE001  # the message must come out of a broken device as well
            room = "an unknown amount free on the device"
        limited = f", limited to {limit} by CUPY_GPU_MEMORY_LIMIT" if limit else ""
        return OutOfMemoryError(
            f"expected room for {nbytes} bytes on cuda:{index}, got {room}; nbrt's pool holds "
            f"{reserved} bytes{limited}, {in_use} of them in use by arrays, after its cache was "
            f"emptied. Free arrays, ask for less, or close other programs that use the device "
            f"({error})"
        )


def owner_of(array: object) -> object | None:
    """Return the owner that `CudaMemory.as_array` was given, for an array or a view of it."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not isinstance(array, cupy.ndarray):
        return None
    memory = array.data.mem
    # `_owner` is CuPy's, readable since UnownedMemory exists; there is no public name for it.
    link = getattr(memory, "_owner", None)
    return link.owner if type(link) is OwnerLink else None


def index_of(array: object) -> int | None:
    """Return the device of a CuPy array; None for anything else."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not isinstance(array, cupy.ndarray):
        return None
    return int(array.data.device_id)
