"""Memory of the driver: blocks of nbrt's pools by their addresses, and copies between them."""

from __future__ import annotations

import bisect
import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.compat.numba_cuda.driver.handles import CUdeviceptr
from nbrt.compat.numba_cuda.driver.results import DriverCallError
from nbrt.runtime.creation import empty, empty_pinned
from nbrt.runtime.memory.functions import mem_get_info

if TYPE_CHECKING:
    from nbrt.compat.numba_cuda.driver.contexts import Contexts
    from nbrt.compat.numba_cuda.driver.streams import Streams
    from nbrt.runtime.stream import Stream

__all__ = ["Blocks", "Memory"]


class Blocks:
    """Blocks of memory by address."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[int, Any]] = {}
        self._starts: list[int] = []

    def add(self, address: int, nbytes: int, owner: Any) -> None:
        """Enter a block and what keeps it alive."""
        bisect.insort(self._starts, address)
        self._owners[address] = nbytes, owner

    def remove(self, address: int) -> None:
        """Remove a block; raise if none starts at the address."""
        if self._owners.pop(address, None) is None:
            raise DriverCallError("INVALID_VALUE")
        del self._starts[bisect.bisect_left(self._starts, address)]

    def find(self, address: int) -> tuple[int, int, Any] | None:
        """Return start, size and owner of the block with an address, or None."""
        position = bisect.bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        start = self._starts[position]
        nbytes, owner = self._owners[start]
        return (start, nbytes, owner) if address < start + nbytes else None

    def starts_at(self, address: int) -> bool:
        """Return whether a block starts at an address."""
        return address in self._owners

    def clear(self) -> None:
        """Remove all blocks."""
        self._owners.clear()
        self._starts.clear()


class Memory:
    """Allocation and copies.

    Parameters
    ----------
    contexts : Contexts
        Supplies the current device.
    streams : Streams
        The streams that copies are submitted to.

    Attributes
    ----------
    device : Blocks
        Memory of devices.
    pinned : Blocks
        Page-locked host memory, allocated or registered.
    """

    def __init__(self, contexts: Contexts, streams: Streams) -> None:
        self._contexts = contexts
        self._streams = streams
        self.device = Blocks()
        self.pinned = Blocks()

    # -- allocation --------------------------------------------------------------------------------

    def allocate(self, nbytes: Any) -> CUdeviceptr:
        """Allocate memory of the current device."""
        size = int(nbytes)
        if size <= 0:
            raise DriverCallError("INVALID_VALUE")
        block = empty(size, np.uint8, device=self._contexts.current_device())
        address = block.ctypes.data
        self.device.add(address, size, block)
        return CUdeviceptr(address)

    def allocate_managed(self, nbytes: Any, flags: Any) -> CUdeviceptr:  # noqa: ARG002
        """Allocate memory that the host may use, as all memory of CPU devices."""
        return self.allocate(nbytes)

    def free(self, address: Any) -> None:
        """Free memory; work that is queued may still use it."""
        if int(address):
            self.device.remove(int(address))

    def allocate_host(self, nbytes: Any, flags: Any = 0) -> int:  # noqa: ARG002
        """Allocate page-locked host memory."""
        size = int(nbytes)
        if size <= 0:
            raise DriverCallError("INVALID_VALUE")
        block = empty_pinned(size, np.uint8, device=self._contexts.current_device())
        self.pinned.add(block.ctypes.data, size, block)
        return int(block.ctypes.data)

    def free_host(self, address: Any) -> None:
        """Free page-locked host memory."""
        self.pinned.remove(int(address))

    def register_host(self, address: Any, nbytes: Any, flags: Any = 0) -> None:  # noqa: ARG002
        """Mark host memory as page-locked."""
        if self.pinned.starts_at(int(address)):
            raise DriverCallError("HOST_MEMORY_ALREADY_REGISTERED")
        self.pinned.add(int(address), int(nbytes), None)

    def unregister_host(self, address: Any) -> None:
        """Undo `register_host`."""
        if not self.pinned.starts_at(int(address)):
            raise DriverCallError("HOST_MEMORY_NOT_REGISTERED")
        self.pinned.remove(int(address))

    def device_address(self, address: Any, flags: Any = 0) -> CUdeviceptr:  # noqa: ARG002
        """Return the address of page-locked host memory on the device: the same."""
        return CUdeviceptr(int(address))

    def address_range(self, address: Any) -> tuple[CUdeviceptr, int]:
        """Return the start and the size of the block with an address."""
        found = self.device.find(int(address)) or self.pinned.find(int(address))
        if found is None:
            raise DriverCallError("NOT_FOUND")
        return CUdeviceptr(found[0]), found[1]

    def information(self) -> tuple[int, int]:
        """Return (free, total) bytes of the current device."""
        free, total = mem_get_info(self._contexts.current_device())
        return free, total

    def pointer_attribute(self, attribute: Any, address: Any) -> CUdeviceptr:  # noqa: ARG002
        """Return the address on the device: host memory is device memory."""
        return CUdeviceptr(int(address))

    # -- copies ------------------------------------------------------------------------------------

    def bytes_at(self, address: Any, nbytes: Any) -> Any:
        """Return memory as an array of bytes, which keeps its block alive."""
        start, size = int(address), int(nbytes)
        found = self.device.find(start) or self.pinned.find(start)
        if found is not None and found[2] is not None:
            offset = start - found[0]
            return found[2][offset : offset + size]
        return np.frombuffer((ctypes.c_uint8 * size).from_address(start), np.uint8)

    def _copy(self, stream: Stream, target: Any, source: Any) -> None:
        stream.enqueue("copy", stream.interface.copy, (target, source))

    def copy(self, target: Any, source: Any, nbytes: Any) -> None:
        """Copy on the default stream."""
        if int(nbytes):
            self.copy_async(target, source, nbytes, 0)

    def copy_async(self, target: Any, source: Any, nbytes: Any, stream: Any) -> None:
        """Copy between memory of devices on a stream."""
        self._copy(
            self._streams.ordered(stream),
            self.bytes_at(target, nbytes),
            self.bytes_at(source, nbytes),
        )

    def copy_to_device_async(self, target: Any, source: Any, nbytes: Any, stream: Any) -> None:
        """Copy from the host on a stream; pageable memory is read before the call returns."""
        queue = self._streams.ordered(stream)
        values = self.bytes_at(source, nbytes)
        if self._is_pageable(source) and not queue.query():
            values = values.copy()
        self._copy(queue, self.bytes_at(target, nbytes), values)
        if self._is_pageable(source):
            self._wait_unless_copied(queue, values)

    def copy_to_host_async(self, target: Any, source: Any, nbytes: Any, stream: Any) -> None:
        """Copy to the host on a stream; pageable memory is written before the call returns."""
        queue = self._streams.ordered(stream)
        self._copy(queue, self.bytes_at(target, nbytes), self.bytes_at(source, nbytes))
        if self._is_pageable(target):
            queue.synchronize()

    def _is_pageable(self, address: Any) -> bool:
        return self.pinned.find(int(address)) is None

    def _wait_unless_copied(self, queue: Stream, values: Any) -> None:
        """Wait for a copy that reads memory of the caller."""
        if not values.flags.owndata:
            queue.synchronize()

    def fill(self, address: Any, value: Any, nbytes: Any) -> None:
        """Set bytes on the default stream."""
        self.fill_async(address, value, nbytes, 0)

    def fill_async(self, address: Any, value: Any, nbytes: Any, stream: Any) -> None:
        """Set bytes on a stream."""
        queue = self._streams.ordered(stream)
        target = self.bytes_at(address, nbytes)
        queue.enqueue("fill", queue.interface.fill, (target, int(value) & 0xFF))
