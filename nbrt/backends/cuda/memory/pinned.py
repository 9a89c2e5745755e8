"""`PinnedPool`: page-locked host memory, and the NumPy arrays over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cuda.memory.pooled import TrackedPool

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.memory.segment_tracker import Ledger
    from nbrt.backends.cuda.queues import CudaQueue
    from nbrt.typing import HostArray

__all__ = ["PinnedBlock", "PinnedPool", "pinned_owner_of"]


class PinnedBytes(np.ndarray[Any, np.dtype[Any]]):
    """The memory of a block, which knows who uses it.

    NumPy collapses chains of views, but never through another class; so every array over a block
    has its lease and this below it.
    """

    __slots__ = ("tenant",)

    tenant: object


class PinnedBlock:
    """A piece of page-locked host memory; see `CudaBlock`.

    Attributes
    ----------
    raw : PinnedBytes
        Its bytes.
    """

    __slots__ = ("address", "index", "kept", "nbytes", "queue", "raw")

    def __init__(self, pointer: Any, index: int, queue: CudaQueue) -> None:
        self.address = int(pointer.ptr)
        self.nbytes = int(pointer.size())
        self.index = index
        self.queue = queue
        self.kept = pointer
        self.raw = PinnedBytes((self.nbytes,), np.uint8, pointer)

    def lease(self, tenant: object) -> HostArray:
        """Return the bytes as a new array, which every array made over it keeps."""
        self.raw.tenant = tenant
        return np.ndarray((self.nbytes,), np.uint8, self.raw.data)


class PinnedPool(TrackedPool):
    """Page-locked memory cached by `cupy.cuda.PinnedMemoryPool`, in powers of two.

    The host uses freed memory again at once, whatever streams do. So whoever queues a copy keeps
    its arrays alive until the copy is done, and what dies is idle.
    """

    stream_ordered = False

    def __init__(self, driver: Driver, index: int, ledger: Ledger) -> None:
        super().__init__(driver, index, "pinned", ledger)
        cuda = driver.cupy.cuda
        self._pool = cuda.PinnedMemoryPool(
            lambda nbytes: cuda.PinnedMemoryPointer(ledger.take(nbytes), 0)
        )

    def _take(self, queue: CudaQueue, nbytes: int) -> PinnedBlock:
        return PinnedBlock(self._pool.malloc(nbytes), self._index, queue)

    def _give(self, queue: CudaQueue, block: Any) -> None:
        block.raw = block.kept = None

    def _drop(self) -> None:
        self._pool.free_all_blocks()


def pinned_owner_of(array: object) -> object | None:
    """Return the tenant of the block under a NumPy array; None for memory that is not ours."""
    while isinstance(array, np.ndarray):
        if type(array) is PinnedBytes:
            return array.tenant
        array = array.base
    return None
