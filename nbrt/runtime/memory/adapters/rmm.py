"""`RmmAllocator`: RMM's memory resources as a pool's source."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nbrt.errors import BackendUnavailableError, DeviceMismatchError
from nbrt.runtime.guard import DeviceGuard

if TYPE_CHECKING:
    from nbrt._internal.device import Device
    from nbrt.runtime.stream import Stream

__all__ = ["RmmAllocator"]


class RmmAllocator:
    """Memory of a CUDA device from RMM: ``nbrt.MemoryPool(allocator=RmmAllocator())``.

    Parameters
    ----------
    mr : rmm.mr.DeviceMemoryResource, optional
        The resource; by default RMM's current one of the device, at every allocation.

    Raises
    ------
    BackendUnavailableError
        If RMM is not installed.
    """

    def __init__(self, mr: Any = None) -> None:
        try:
            resources: Any = importlib.import_module("rmm.mr")
            streams: Any = importlib.import_module("rmm.pylibrmm.stream")
        except ImportError as error:
            raise BackendUnavailableError(
                f"expected RMM to be installed, got {error}; pip install rmm-cu12 or rmm-cu13"
            ) from error
        self._current: Any = resources.get_per_device_resource
        self._stream: Any = streams.Stream
        self._mr = mr
        self._sources: dict[int, Any] = {}

    def allocate(self, nbytes: int, device: Device, stream: Stream) -> int:
        """Return the address of new memory; MemoryError if there is none.

        Raises
        ------
        DeviceMismatchError
            If `device` is no CUDA device.
        """
        if not hasattr(stream, "__cuda_stream__"):
            raise DeviceMismatchError(f"expected a CUDA device for memory of RMM, got {device}")
        mr = self._current(device.index) if self._mr is None else self._mr
        with DeviceGuard(device):  # RMM's resources use the current device
            address = int(mr.allocate(nbytes, self._stream(stream)))
        # RMM's current resource may have changed when this memory is freed.
        self._sources[address] = mr
        return address

    def deallocate(self, address: int, nbytes: int, device: Device, stream: Stream) -> None:
        """Return memory to RMM, behind the work that `stream` has so far."""
        with DeviceGuard(device):
            self._sources.pop(address).deallocate(address, nbytes, self._stream(stream))
