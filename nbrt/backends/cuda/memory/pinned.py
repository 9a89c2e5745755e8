"""`PinnedPool`: page-locked host memory, and the NumPy arrays over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cuda.memory.pooled import TrackedPool

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.memory.segment_tracker import SegmentTracker
    from nbrt.backends.cuda.queues import CudaQueue
    from nbrt.typing import HostArray

__all__ = ["PinnedBlock", "PinnedPool", "pinned_owner_of"]


class PinnedBytes(np.ndarray[Any, np.dtype[Any]]):
    """The memory of a block, and its owner.

    NumPy collapses chains of views, but never through another class. So every array over a block
    has its handle and this object below it.
    """

    __slots__ = ("owner",)

    owner: object


class PinnedBlock:
    """A block of page-locked host memory; see `CudaBlock`.

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

    def handle(self, owner: object) -> HostArray:
        """Return the bytes as a new array, which every array made over it keeps."""
        self.raw.owner = owner
        return np.ndarray((self.nbytes,), np.uint8, self.raw.data)


class PinnedPool(TrackedPool):
    """Page-locked memory cached by `cupy.cuda.PinnedMemoryPool`, in powers of two.

    The host reuses freed memory at once. So a queued copy keeps its arrays alive until it is done,
    and freed memory is idle.
    """

    stream_ordered = False

    def __init__(self, driver: Driver, index: int, tracker: SegmentTracker) -> None:
        super().__init__(driver, index, "pinned", tracker)
        cuda = driver.cupy.cuda
        self._pool = cuda.PinnedMemoryPool(
            lambda nbytes: cuda.PinnedMemoryPointer(tracker.take(nbytes), 0)
        )

    def _take(self, queue: CudaQueue, nbytes: int) -> PinnedBlock:
        return PinnedBlock(self._pool.malloc(nbytes), self._index, queue)

    def _give(self, queue: CudaQueue, block: Any) -> None:
        block.raw = block.kept = None

    def _drop(self) -> None:
        self._pool.free_all_blocks()


def pinned_owner_of(array: object) -> object | None:
    """Return the owner of the block under a NumPy array; None if there is no block."""
    while isinstance(array, np.ndarray):
        if type(array) is PinnedBytes:
            return array.owner
        array = array.base
    return None
