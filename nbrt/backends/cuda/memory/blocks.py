"""`CudaBlock`: a block of device memory, and the CuPy arrays over it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbrt.backends.pools import AllocationHandle
from nbrt.errors import ArgumentTypeError

if TYPE_CHECKING:
    from nbrt.backends.cuda.queues import CudaQueue
    from nbrt.typing import Array

__all__ = ["CudaBlock", "array_over", "device_owner_of", "index_of"]


class CudaBlock:
    """A block of device memory.

    Attributes
    ----------
    address : int
        First byte on the device.
    nbytes : int
        Bytes reserved: the requested bytes, rounded up as the pool does.
    index : int
        The device.
    queue : CudaQueue or None
        The queue it was allocated for; None for memory of another allocator.
    kept : object
        The memory in the pool's terms; None once the block is free.
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

    def handle(self, owner: object) -> AllocationHandle:
        """Return the object that stands for one use of the block."""
        return AllocationHandle(owner)


def array_over(
    cupy: Any, block: CudaBlock, shape: tuple[int, ...], dtype: Any, handle: object
) -> Array:
    """Return a CuPy array over a block; it and its views keep `handle` alive.

    Raises
    ------
    ArgumentTypeError
        If the bytes of the dtype are in another order than the GPU's.
    """
    if dtype.subdtype is not None:
        # NumPy does the same; CuPy keeps such a dtype.
        dtype, inner = dtype.subdtype
        shape = (*shape, *inner)
    # CuPy accepts such a dtype, and its kernels ignore the order.
    if not dtype.isnative:
        raise ArgumentTypeError(
            f"expected a dtype in the byte order of the GPU, got {dtype!r}; use "
            f"{dtype.newbyteorder('=')!r}"
        )
    memory = cupy.cuda.UnownedMemory(block.address, block.nbytes, handle, block.index)
    return cupy.ndarray(shape, dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))


def device_owner_of(array: object) -> object | None:
    """Return the owner of the block under a CuPy array; None if there is no block."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not isinstance(array, cupy.ndarray):
        return None
    # `_owner` is CuPy's, readable since UnownedMemory exists; there is no public name for it.
    handle = getattr(array.data.mem, "_owner", None)
    return handle.owner if type(handle) is AllocationHandle else None


def index_of(array: object) -> int | None:
    """Return the device of a CuPy array; None for anything else."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not isinstance(array, cupy.ndarray):
        return None
    return int(array.data.device_id)
