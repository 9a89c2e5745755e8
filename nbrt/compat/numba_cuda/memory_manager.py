"""`MemoryManager`: numba-cuda allocates from the pools of nbrt, on CUDA devices too.

``NUMBA_CUDA_MEMORY_MANAGER=nbrt.compat.numba_cuda.memory_manager`` selects it as well.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.cuda.cudadrv import driver

from nbrt._internal.device import Device
from nbrt.compat.numba_cuda.driver.binding import Binding
from nbrt.compat.numba_cuda.driver.results import api_error
from nbrt.errors import OutOfMemoryError
from nbrt.runtime.creation import empty
from nbrt.runtime.stream import default_stream

if TYPE_CHECKING:
    from nbrt.compat.numba_cuda.patches import Patches
    from nbrt.typing import Array

__all__ = ["MemoryManager", "select"]


class MemoryManager(driver.NumbaCUDAMemoryManager):  # type: ignore[misc]  # not annotated
    """An external memory manager of numba-cuda whose device memory comes from nbrt.

    Pass the class to ``numba.cuda.set_memory_manager`` before the first use of a device. Arrays of
    numba-cuda and nbrt then share a pool with its limit, statistics and history. A freed array
    returns to the pool at once, on the default stream of its device.

    Where `install` runs programs on CPU devices, all of numba-cuda's memory is nbrt's, with any
    memory manager.

    Examples
    --------
    >>> from numba import cuda
    >>> from nbrt.compat.numba_cuda.memory_manager import MemoryManager
    >>> cuda.set_memory_manager(MemoryManager)
    """

    def memalloc(self, size: int) -> Any:
        """Allocate memory of the context's device."""
        if isinstance(driver.binding, Binding):
            return super().memalloc(size)
        array = self._attempt_allocation(lambda: _allocate(size, self.context.device.id))
        address = int(array.data.ptr)
        allocations, held = self.allocations, [array]

        def free() -> None:
            allocations.pop(address, None)
            held.clear()

        pointer = driver.binding.CUdeviceptr(address)
        context = weakref.proxy(self.context)
        memory = driver.AutoFreePointer(context, pointer, size, finalizer=free)
        allocations[address] = memory
        return memory.own()


def select(patches: Patches) -> None:
    """Let numba-cuda use the memory manager for devices that it has not used, unless it has one."""
    if driver._memory_manager is None and driver.config.CUDA_MEMORY_MANAGER == "default":
        patches.set(driver, "_memory_manager", MemoryManager)


def _allocate(nbytes: int, index: int) -> Array:
    """Allocate on a CUDA device, with numba-cuda's error if there is too little memory."""
    try:
        return empty(nbytes, np.uint8, stream=default_stream(Device("cuda", index)))
    except OutOfMemoryError as error:
        raise api_error("OUT_OF_MEMORY", "cuMemAlloc", error) from error


_numba_memory_manager = MemoryManager
