"""`StreamOrderedPool`: a memory pool of the driver, which allocates and frees in stream order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.memory.base import CudaPool, round_up
from nbrt.backends.cuda.memory.blocks import CudaBlock
from nbrt.errors import CaptureError

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.queues import CudaQueue

__all__ = ["StreamOrderedPool"]


class StreamOrderedPool(CudaPool):
    """The kind ``"async"``: a pool of the driver, which reuses memory across streams.

    CuPy's ``MemoryAsyncPool`` replaces the current pool of every device in the process, and creates
    a context on each. So this class uses a separate pool of the driver. The driver does not report
    where the memory lies: the segments are the blocks in use, while `reserved` is the driver's.
    """

    caches = False

    def __init__(self, driver: Driver, index: int) -> None:
        super().__init__(driver, index, "async")
        self._handle: int | None = None

    def reserved(self) -> int:
        """Return the bytes of the driver's pool; once closed, of the blocks in use."""
        if self._handle is None:
            return self._reserved
        return self._driver.pool_reserved(self._handle)

    def set_limit(self, nbytes: int | None) -> None:
        """Limit the bytes in use; the driver returns what it caches above when it synchronises."""
        changed, self._limit = nbytes != self._limit, nbytes
        if changed and self._handle is not None:
            self._driver.set_pool_threshold(self._handle, nbytes)

    def close(self) -> None:
        """Destroy the driver's pool, which lives until its last block is freed."""
        super().close()
        handle, self._handle = self._handle, None
        if handle is not None:
            self._driver.destroy_pool(handle)

    def _take(self, queue: CudaQueue, nbytes: int) -> CudaBlock:
        if queue.capture is not None:
            raise CaptureError(
                "expected a pool whose memory a graph keeps, got one of the kind 'async', whose "
                "allocations would become nodes; capture with a pool of the kind 'caching'"
            )
        size = round_up(nbytes)
        if self._limit is not None and self._reserved + size > self._limit:
            raise self._out_of_memory(size, f"a limit of {self._limit} bytes")
        if self._handle is None:
            with self._driver.relaxed():
                self._handle = self._driver.create_pool(self._index)
                self._driver.set_pool_threshold(self._handle, self._limit)
        address = self._driver.allocate_from_pool(self._handle, size, queue.handle)
        self._add_block(address, size, queue.handle)
        return CudaBlock(address, size, self._index, queue, self)

    def _give(self, queue: CudaQueue, block: Any) -> None:
        with self._driver.on_device(self._index):
            self._driver.free_in_order(block.address, queue.handle)
        block.kept = None
        self._remove_block(block.address)

    def _drop(self) -> None:
        if self._handle is not None:
            # Frees that the streams have not reached yet cannot be trimmed.
            self._driver.synchronize_device(self._index)
            self._driver.trim_pool(self._handle)
