"""`CudaBlock`: a piece of device memory, and the CuPy arrays over it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbrt.backends.pools import Lease

if TYPE_CHECKING:
    from nbrt.backends.cuda.queues import CudaQueue
    from nbrt.typing import Array

__all__ = ["CudaBlock", "array_over", "device_owner_of", "index_of"]


class CudaBlock:
    """A piece of device memory.

    Attributes
    ----------
    address : int
        First byte on the device.
    nbytes : int
        Bytes reserved: what was asked for, rounded up as the pool does.
    index : int
        The device.
    queue : CudaQueue or None
        The queue it was allocated for, whose memory it returns to; None for another allocator's.
    kept : object
        What keeps it out of its pool; None once it was given back.
    """

    __slots__ = ("address", "index", "kept", "nbytes", "queue")

    def __init__(
        self, address: int, nbytes: int, index: int, queue: CudaQueue | None, kept: object
    ) -> None:
        self.address = address
        self.nbytes = nbytes
        self.index = index
        self.queue = queue
        self.kept = kept

    def lease(self, tenant: object) -> Lease:
        """Return what stands for one use of the block."""
        return Lease(tenant)


def array_over(
    cupy: Any, block: CudaBlock, shape: tuple[int, ...], dtype: Any, lease: object
) -> Array:
    """Return a CuPy array over a block; it and its views keep `lease` alive."""
    memory = cupy.cuda.UnownedMemory(block.address, block.nbytes, lease, block.index)
    return cupy.ndarray(shape, dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))


def device_owner_of(array: object) -> object | None:
    """Return the tenant of the block under a CuPy array; None for memory that is not ours."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not isinstance(array, cupy.ndarray):
        return None
    # `_owner` is CuPy's, readable since UnownedMemory exists; there is no public name for it.
    lease = getattr(array.data.mem, "_owner", None)
    return lease.tenant if type(lease) is Lease else None


def index_of(array: object) -> int | None:
    """Return the device of a CuPy array; None for anything else."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not isinstance(array, cupy.ndarray):
        return None
    return int(array.data.device_id)
