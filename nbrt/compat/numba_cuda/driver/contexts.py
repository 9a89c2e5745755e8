"""Devices and the stack of current contexts of each thread."""

from __future__ import annotations

import itertools
import threading
import uuid
from typing import Any

from nbrt._internal.device import Device
from nbrt.backends import registry
from nbrt.compat.numba_cuda.driver.handles import CUcontext
from nbrt.compat.numba_cuda.driver.results import DriverCallError

__all__ = ["COMPUTE_CAPABILITY", "KIND", "Contexts", "attribute_of"]

KIND = "cpu"
"""The kind of device that programs run on."""

COMPUTE_CAPABILITY = (9, 0)
"""The compute capability that programs see: everything that a kernel can name is available."""

_FIRST_HANDLE = 0x10000
"""Of the contexts that are not primary: above the numbers of devices."""

_MEMORY_FEATURES = (  # noqa: SIM905  # shorter
    "UNIFIED_ADDRESSING CAN_MAP_HOST_MEMORY MANAGED_MEMORY CONCURRENT_MANAGED_ACCESS "
    "PAGEABLE_MEMORY_ACCESS HOST_REGISTER_SUPPORTED CONCURRENT_KERNELS COOPERATIVE_LAUNCH "
    "STREAM_PRIORITIES_SUPPORTED CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM MEMORY_POOLS_SUPPORTED "
    "COMPUTE_PREEMPTION_SUPPORTED INTEGRATED PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES "
    "DIRECT_MANAGED_MEM_ACCESS_FROM_HOST"
).split()


def attribute_of(index: int, name: str) -> int:
    """Return an attribute of a device by the driver's name without ``CU_DEVICE_ATTRIBUTE_``.

    0 for features that the device does not have, as the driver returns.
    """
    limits = registry.get_interface_for_device(KIND).get_device_properties(index)
    if name in _MEMORY_FEATURES:
        return 1
    values = {
        "MAX_THREADS_PER_BLOCK": limits.max_threads_per_block,
        "MAX_SHARED_MEMORY_PER_BLOCK": limits.shared_memory_per_block,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": limits.shared_memory_per_block,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": limits.shared_memory_per_block,
        "TOTAL_CONSTANT_MEMORY": 64 * 1024,
        "WARP_SIZE": limits.warp_size,
        "MAX_REGISTERS_PER_BLOCK": 64 * 1024,
        "MAX_REGISTERS_PER_MULTIPROCESSOR": 64 * 1024,
        "MULTIPROCESSOR_COUNT": limits.multi_processor_count,
        "MAX_THREADS_PER_MULTIPROCESSOR": limits.max_threads_per_multi_processor,
        "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
        "COMPUTE_CAPABILITY_MAJOR": COMPUTE_CAPABILITY[0],
        "COMPUTE_CAPABILITY_MINOR": COMPUTE_CAPABILITY[1],
        "PCI_BUS_ID": index + 1,
        "MAX_PITCH": 2**31 - 1,
        "TEXTURE_ALIGNMENT": 512,
        "ASYNC_ENGINE_COUNT": 1,
        "CLOCK_RATE": 1_000_000,
        "MEMORY_CLOCK_RATE": 1_000_000,
        "GLOBAL_MEMORY_BUS_WIDTH": 64,
        "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 2,
        "MAX_REGISTERS_PER_THREAD": 255,
        **{f"MAX_BLOCK_DIM_{axis}": limits.max_block_dim[i] for i, axis in enumerate("XYZ")},
        **{f"MAX_GRID_DIM_{axis}": limits.max_grid_dim[i] for i, axis in enumerate("XYZ")},
    }
    return values.get(name, 0)


class Contexts:
    """The stacks of contexts, one for each thread; device i has the primary context i + 1."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._handles = itertools.count(_FIRST_HANDLE)
        self._created: dict[int, int] = {}

    @property
    def stack(self) -> list[int]:
        """The contexts that this thread has pushed."""
        try:
            stack: list[int] = self._local.stack
        except AttributeError:
            stack = self._local.stack = []
        return stack

    def forget_threads(self) -> None:
        """Empty the stacks of all threads."""
        self._local = threading.local()

    def count(self) -> int:
        """Return the number of devices."""
        return registry.get_interface_for_device(KIND).device_count()

    def current_index(self) -> int:
        """Return the device of the current context; 0 without one."""
        stack = self.stack
        return self._device_of(stack[-1]) if stack else 0

    def current_device(self) -> Device:
        """Return the same as a device of nbrt."""
        return Device(KIND, self.current_index())

    def checked_index(self, device: Any) -> int:
        """Return the number of a device; raise for one that does not exist."""
        index = int(device)
        if not 0 <= index < self.count():
            raise DriverCallError("INVALID_DEVICE")
        return index

    def primary(self, device: Any) -> CUcontext:
        """Return the primary context of a device."""
        return CUcontext(self.checked_index(device) + 1)

    def create(self, *args: Any) -> CUcontext:
        """Create a context for the device that is the last argument, and make it current."""
        handle = next(self._handles)
        self._created[handle] = self.checked_index(args[-1])
        self.stack.append(handle)
        return CUcontext(handle)

    def destroy(self, context: Any) -> None:
        """Forget a context that `create` made."""
        handle = int(context)
        if self._created.pop(handle, None) is None:
            raise DriverCallError("INVALID_CONTEXT")
        if self.stack[-1:] == [handle]:
            self.stack.pop()

    def current(self) -> CUcontext:
        """Return the current context, or the null handle."""
        return CUcontext(self.stack[-1] if self.stack else 0)

    def push(self, context: Any) -> None:
        """Make a context current."""
        self._device_of(int(context))
        self.stack.append(int(context))

    def pop(self) -> CUcontext:
        """Remove the current context from the stack and return it."""
        if not self.stack:
            raise DriverCallError("INVALID_CONTEXT")
        return CUcontext(self.stack.pop())

    def replace(self, context: Any) -> None:
        """Replace the current context."""
        self._device_of(int(context))
        self.stack[-1:] = [int(context)]

    def _device_of(self, context: int) -> int:
        index = self._created.get(context, context - 1)
        if not 0 <= index < self.count():
            raise DriverCallError("INVALID_CONTEXT")
        return index

    def uuid(self, index: int) -> uuid.UUID:
        """Return an identifier of a device that is the same in every process of the machine."""
        return uuid.uuid5(uuid.NAMESPACE_OID, f"nbrt {uuid.getnode()} {KIND}:{index}")
