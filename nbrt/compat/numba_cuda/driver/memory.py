"""Memory of the driver: blocks of nbrt's pools by their addresses, and copies between them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.pools import SMALL_LIMIT
from nbrt.compat.numba_cuda.driver.blocks import Blocks
from nbrt.compat.numba_cuda.driver.handles import CUdeviceptr
from nbrt.compat.numba_cuda.driver.ipc import PAGE, SharedBlocks
from nbrt.compat.numba_cuda.driver.results import DriverCallError
from nbrt.runtime.creation import empty, empty_pinned
from nbrt.runtime.memory.functions import mem_get_info
from nbrt.runtime.stream import default_stream

if TYPE_CHECKING:
    from nbrt.compat.numba_cuda.driver.contexts import Contexts
    from nbrt.compat.numba_cuda.driver.streams import Streams
    from nbrt.runtime.stream import Stream

__all__ = ["Memory"]

_ALIGNMENT = 64
"""Least alignment of the arrays of nbrt, see `nbrt.empty`."""


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
    shared : SharedBlocks
        Memory shared with other processes.
    """

    def __init__(self, contexts: Contexts, streams: Streams) -> None:
        self._contexts = contexts
        self._streams = streams
        self.device = Blocks()
        self.pinned = Blocks()
        self.shared = SharedBlocks(self.device, streams)

    # -- allocation --------------------------------------------------------------------------------

    def allocate(self, nbytes: Any) -> CUdeviceptr:
        """Allocate memory of the current device."""
        size = int(nbytes)
        if size <= 0:
            raise DriverCallError("INVALID_VALUE")
        stream = default_stream(self._contexts.current_device())
        block = empty(_with_whole_pages(size), np.uint8, stream=stream)
        skipped = -block.ctypes.data % PAGE if block.size > size else 0
        block = block[skipped : skipped + size]
        assert block.size == size, "the block is too small for its alignment"
        address = block.ctypes.data
        self.device.add(address, size, block)
        return CUdeviceptr(address)

    def allocate_managed(self, nbytes: Any, flags: Any) -> CUdeviceptr:  # noqa: ARG002
        """Allocate memory that the host may use, as all memory of CPU devices."""
        return self.allocate(nbytes)

    def free(self, address: Any) -> None:
        """Free memory; work that is queued may still use it."""
        if int(address):
            self.shared.withdraw(int(address), self.device.remove(int(address)))

    def free_at_end(self, address: Any) -> None:
        """Free memory of any kind, if it is not freed."""
        for blocks in (self.device, self.pinned):
            if blocks.starts_at(int(address)):
                blocks.remove(int(address))

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

    def bytes_at(self, address: Any, nbytes: Any, *, of_device: bool = False) -> Any:
        """Return memory as an array of bytes, which keeps its block alive.

        Memory that the driver did not allocate is the program's, and taken as it is.
        """
        start, size = int(address), int(nbytes)
        found = self.device.find(start) or self.pinned.find(start)
        if found is not None and found[2] is not None:
            offset = start - found[0]
            if offset + size > found[1]:
                raise DriverCallError("INVALID_VALUE")
            return found[2][offset : offset + size]
        if of_device and (start == 0 or self.device.is_freed(start)):
            raise DriverCallError("INVALID_VALUE")
        return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(start)), np.uint8)

    def _copy(self, stream: Stream, target: Any, source: Any) -> None:
        stream.enqueue("copy", stream.interface.copy, (target, source))
        self._streams.submitted(stream)

    def copy(self, target: Any, source: Any, nbytes: Any) -> None:
        """Copy between memory of devices on the default stream."""
        if int(nbytes):
            self.copy_async(target, source, nbytes, 0)

    def copy_async(self, target: Any, source: Any, nbytes: Any, stream: Any) -> None:
        """Copy between memory of devices on a stream."""
        self._copy(
            self._streams.ordered(stream),
            self.bytes_at(target, nbytes, of_device=True),
            self.bytes_at(source, nbytes, of_device=True),
        )

    def copy_to_device(self, target: Any, source: Any, nbytes: Any) -> None:
        """Copy from the host on the default stream."""
        if int(nbytes):
            self.copy_to_device_async(target, source, nbytes, 0)

    def copy_to_device_async(self, target: Any, source: Any, nbytes: Any, stream: Any) -> None:
        """Copy from the host on a stream; pageable memory is read before the call returns."""
        queue = self._streams.ordered(stream)
        into = self.bytes_at(target, nbytes, of_device=True)
        values = self.bytes_at(source, nbytes)
        if self.pinned.find(int(source)) is None and queue is not default_stream(queue.device):
            values = values.copy()
        self._copy(queue, into, values)

    def copy_to_host(self, target: Any, source: Any, nbytes: Any) -> None:
        """Copy to the host on the default stream."""
        if int(nbytes):
            self.copy_to_host_async(target, source, nbytes, 0)

    def copy_to_host_async(self, target: Any, source: Any, nbytes: Any, stream: Any) -> None:
        """Copy to the host on a stream; pageable memory is written before the call returns."""
        queue = self._streams.ordered(stream)
        values = self.bytes_at(source, nbytes, of_device=True)
        self._copy(queue, self.bytes_at(target, nbytes), values)
        if self.pinned.find(int(target)) is None:
            queue.synchronize()

    def fill(self, address: Any, value: Any, nbytes: Any) -> None:
        """Set bytes on the default stream."""
        self.fill_async(address, value, nbytes, 0)

    def fill_async(self, address: Any, value: Any, nbytes: Any, stream: Any) -> None:
        """Set bytes on a stream."""
        queue = self._streams.ordered(stream)
        target = self.bytes_at(address, nbytes, of_device=True)
        queue.enqueue("fill", queue.interface.fill, (target, int(value) & 0xFF))
        self._streams.submitted(queue)


def _with_whole_pages(nbytes: int) -> int:
    """Return the size to allocate so that the pages of a block hold nothing else.

    Then the block can be shared with other processes. Larger blocks of nbrt have whole pages.
    """
    return nbytes if nbytes > SMALL_LIMIT else (-(-nbytes // PAGE) + 1) * PAGE - _ALIGNMENT
