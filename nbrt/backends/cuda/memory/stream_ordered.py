"""`StreamOrderedPool`: a memory pool of the driver's, which allocates and frees in stream order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.memory.base import UNIT, CudaPool
from nbrt.backends.cuda.memory.blocks import CudaBlock
from nbrt.backends.pools import SMALL_LIMIT, SegmentInfo
from nbrt.errors import OutOfMemoryError

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.queues import CudaQueue

__all__ = ["StreamOrderedPool"]


class StreamOrderedPool(CudaPool):
    """The kind ``"async"``: a pool of the driver's own, which reuses memory across streams.

    CuPy's ``MemoryAsyncPool`` replaces the current pool of every device in the process, and creates
    a context on each; so the driver is asked for a pool that is ours alone. It does not tell where
    its memory lies: the segments are the blocks that are out, while `reserved` is what
    the driver says.
    """

    caches = False

    def __init__(self, driver: Driver, index: int) -> None:
        super().__init__(driver, index, "async")
        self._handle: int | None = None
        self._limit: int | None = None
        self._out: dict[int, SegmentInfo] = {}
        self._out_bytes = 0
        self._made = 0

    def reserved(self) -> int:
        """Return what the driver's pool holds; once closed, the bytes of the blocks still out."""
        return self._out_bytes if self._handle is None else self._driver.pool_reserved(self._handle)

    def segments(self) -> list[SegmentInfo]:
        """Return the blocks that are out."""
        return list(self._out.values())

    def segment_counts(self) -> tuple[int, int]:
        """Return how many blocks were ever handed out, and given back."""
        return self._made, self._made - len(self._out)

    def set_limit(self, nbytes: int | None) -> None:
        """Bound the bytes that are out; what the driver caches above goes back as it waits."""
        changed, self._limit = nbytes != self._limit, nbytes
        if changed and self._handle is not None:
            self._driver.set_pool_threshold(self._handle, nbytes)

    def close(self) -> None:
        """Give the driver's pool up, which lives until its last block is back."""
        super().close()
        handle, self._handle = self._handle, None
        if handle is not None:
            self._driver.destroy_pool(handle)

    def _take(self, queue: CudaQueue, nbytes: int) -> CudaBlock:
        size = -(-nbytes // UNIT) * UNIT
        if self._limit is not None and self._out_bytes + size > self._limit:
            raise OutOfMemoryError(
                f"expected room for {size} bytes within a limit of {self._limit}, got "
                f"{self._out_bytes} bytes in use; free arrays or raise the limit"
            )
        if self._handle is None:
            self._handle = self._driver.create_pool(self._index)
            self._driver.set_pool_threshold(self._handle, self._limit)
        address = self._driver.allocate_from_pool(self._handle, size, queue.handle)
        self._out[address] = SegmentInfo(address, size, queue.handle, size <= SMALL_LIMIT)
        self._out_bytes += size
        self._made += 1
        return CudaBlock(address, size, self._index, queue, self)

    def _give(self, queue: CudaQueue, block: Any) -> None:
        with self._driver.on_device(self._index):
            self._driver.free_in_order(block.address, queue.handle)
        block.kept = None
        self._out_bytes -= self._out.pop(block.address).nbytes

    def _drop(self) -> None:
        if self._handle is not None:
            # Frees that the streams have not come to yet cannot be trimmed.
            self._driver.synchronize_device(self._index)
            self._driver.trim_pool(self._handle)
