"""`Allocator`: somebody else's memory as a pool's source."""

from __future__ import annotations

import operator
import warnings
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nbrt.backends.pools import SMALL_LIMIT, SegmentInfo
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
    """What hands out memory of a device by address: RMM, torch, a test."""

    def allocate(self, nbytes: int, device: Device, stream: Stream) -> int:
        """Return the address of `nbytes` >= 1 for use on `stream`; MemoryError if there is none."""
        ...

    def deallocate(self, address: int, nbytes: int, device: Device, stream: Stream) -> None:
        """Take memory back, behind the work that `stream` has so far."""
        ...


class AllocatorPool:
    """A backend pool over an `Allocator`; every block is a segment of its own.

    Parameters
    ----------
    interface : DeviceInterface
        The kind of device, which makes blocks of addresses.
    device : Device
        The device.
    allocator : Allocator
        The source.
    """

    kind = "allocator"
    stream_ordered = True
    caches = False

    def __init__(self, interface: DeviceInterface, device: Device, allocator: Allocator) -> None:
        self._interface = interface
        self._device = device
        self._allocator = allocator
        self._limit: int | None = None
        self._out: dict[int, SegmentInfo] = {}
        self._streams: dict[int, Stream] = {}
        self._bytes = 0
        self._count = 0

    def allocate(self, queue: Queue, nbytes: int) -> Block:
        """Ask the allocator."""
        if self._limit is not None and self._bytes + nbytes > self._limit:
            raise OutOfMemoryError(
                f"expected {nbytes} bytes within the limit of {self._limit}, got {self._bytes} used"
            )
        stream = stream_of(queue)
        address = self._ask(nbytes, stream)
        try:
            block = self._interface.block_at(self._device.index, address, nbytes, self._allocator)
        except BaseException:
            self._allocator.deallocate(address, nbytes, self._device, stream)
            raise
        self._out[address] = SegmentInfo(address, nbytes, queue.handle, nbytes <= SMALL_LIMIT)
        self._streams[address] = stream
        self._bytes += nbytes
        self._count += 1
        return block

    def _ask(self, nbytes: int, stream: Stream) -> int:
        """Return the address that the allocator hands out, if it is one."""
        name = type(self._allocator).__name__
        try:
            address = operator.index(self._allocator.allocate(nbytes, self._device, stream))
        except MemoryError as error:
            raise OutOfMemoryError(f"{name}: {error}") from error
        except NbrtError:
            raise
        except Exception as error:
            raise DeviceError(f"expected {name} to return an address, got {error!r}") from error
        if not 0 < address < 1 << 64 or address in self._out:
            raise DeviceError(
                f"expected {name} to return the address of free memory, got {address}"
            )
        return address

    def deallocate(self, queue: Queue, block: Block) -> None:  # noqa: ARG002  # of its own stream
        """Give memory back to the allocator; what that raises only warns: the arrays are gone."""
        info = self._out.pop(block.address)
        stream = self._streams.pop(block.address)
        self._bytes -= info.nbytes
        try:
            self._allocator.deallocate(block.address, info.nbytes, self._device, stream)
        except Exception as error:  # noqa: BLE001  # whoever reads the log has no part in it
            name = type(self._allocator).__name__
            message = f"{name} failed to take {info.nbytes} bytes back: {error!r}"
            warnings.warn(message, NbrtCleanupWarning, stacklevel=2)

    def reserved(self) -> int:
        """Return the bytes of the blocks that are out."""
        return self._bytes

    def segments(self) -> list[SegmentInfo]:
        """Return the blocks that are out."""
        return list(self._out.values())

    def segment_counts(self) -> tuple[int, int]:
        """Return how many blocks were ever handed out, and given back."""
        return self._count, self._count - len(self._out)

    def set_limit(self, nbytes: int | None) -> None:
        """Bound the bytes that are out."""
        self._limit = nbytes

    def empty_cache(self) -> None:
        """Drop what the allocator caches, if it has a method of that name."""
        drop: Any = getattr(self._allocator, "empty_cache", None)
        if drop is not None:
            try:
                drop()
            except Exception as error:  # noqa: BLE001  # the other pools are to be emptied as well
                name = type(self._allocator).__name__
                message = f"{name} failed to empty its cache: {error!r}"
                warnings.warn(message, NbrtCleanupWarning, stacklevel=2)

    def close(self) -> None:
        """Do nothing: nothing is cached here."""
