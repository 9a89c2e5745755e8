"""`Allocator`: another library's memory as a pool's source."""

from __future__ import annotations

import operator
import warnings
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nbrt.backends.pools import PoolBase
from nbrt.errors import DeviceError, NbrtCleanupWarning, NbrtError, OutOfMemoryError
from nbrt.runtime.stream import stream_of

if TYPE_CHECKING:
    from nbrt._internal.device import Device
    from nbrt.backends.interface import Block, DeviceInterface
    from nbrt.backends.queue import Queue
    from nbrt.runtime.stream import Stream

__all__ = ["Allocator", "AllocatorPool"]


@runtime_checkable
class Allocator(Protocol):
    """A source of device memory by address: RMM, torch, a test."""

    def allocate(self, nbytes: int, device: Device, stream: Stream) -> int:
        """Return the address of `nbytes` >= 1 for use on `stream`; MemoryError if there is none."""
        ...

    def deallocate(self, address: int, nbytes: int, device: Device, stream: Stream) -> None:
        """Take memory back, behind the work that `stream` has so far."""
        ...


class AllocatorPool(PoolBase):
    """A backend pool over an `Allocator`; every block is a segment."""

    kind = "allocator"

    def __init__(self, interface: DeviceInterface, device: Device, allocator: Allocator) -> None:
        super().__init__()
        self._interface = interface
        self._device = device
        self._allocator = allocator
        self._streams: dict[int, Stream] = {}

    def allocate(self, queue: Queue, nbytes: int) -> Block:
        """Return a block of the allocator's memory."""
        self._check_limit(nbytes)
        stream = stream_of(queue)
        address = self._request(nbytes, stream)
        try:
            block = self._interface.block_at(self._device.index, address, nbytes, self._allocator)
        except BaseException:
            self._allocator.deallocate(address, nbytes, self._device, stream)
            raise
        self._add_block(address, nbytes, queue.handle)
        self._streams[address] = stream
        return block

    def _request(self, nbytes: int, stream: Stream) -> int:
        """Return the address that the allocator returns, if it is one."""
        name = type(self._allocator).__name__
        try:
            address = operator.index(self._allocator.allocate(nbytes, self._device, stream))
        except MemoryError as error:
            raise OutOfMemoryError(f"{name}: {error}") from error
        except NbrtError:
            raise
        except Exception as error:
            raise DeviceError(f"expected {name} to return an address, got {error!r}") from error
        if not 0 < address < 1 << 64 or address in self._segments:
            raise DeviceError(
                f"expected {name} to return the address of free memory, got {address}"
            )
        return address

    def deallocate(self, queue: Queue, block: Block) -> None:  # noqa: ARG002  # the stream of the allocation
        """Return memory to the allocator; an exception becomes a warning."""
        stream = self._streams.pop(block.address)
        nbytes = self._remove_block(block.address)
        try:
            self._allocator.deallocate(block.address, nbytes, self._device, stream)
        except Exception as error:  # noqa: BLE001  # the thread that processes the log is not at fault
            self._warn(f"take {nbytes} bytes back", error)

    def empty_cache(self) -> None:
        """Call the method of that name of the allocator, if it has one."""
        empty: Any = getattr(self._allocator, "empty_cache", None)
        if empty is not None:
            try:
                empty()
            except Exception as error:  # noqa: BLE001  # the other pools are emptied as well
                self._warn("empty its cache", error)

    def close(self) -> None:
        """Do nothing: nothing is cached here."""

    def _warn(self, action: str, error: Exception) -> None:
        message = f"{type(self._allocator).__name__} failed to {action}: {error!r}"
        warnings.warn(message, NbrtCleanupWarning, stacklevel=3)
