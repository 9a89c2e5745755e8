"""`TorchAllocator`: torch's caching allocator as a pool's source."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nbrt.errors import BackendUnavailableError, DeviceMismatchError

if TYPE_CHECKING:
    from nbrt._internal.device import Device
    from nbrt.runtime.stream import Stream

__all__ = ["TorchAllocator"]


class TorchAllocator:
    """Memory of a CUDA device from torch's pool: ``nbrt.MemoryPool(allocator=TorchAllocator())``.

    Each library can use memory that the other frees. torch's statistics and snapshots include it.

    Raises
    ------
    BackendUnavailableError
        If torch is not installed, or was built without CUDA.
    """

    def __init__(self) -> None:
        try:
            torch: Any = importlib.import_module("torch")
        except ImportError as error:
            raise BackendUnavailableError(
                f"expected torch to be installed, got {error}; see https://pytorch.org"
            ) from error
        if not torch.cuda.is_available():
            raise BackendUnavailableError("expected torch to have CUDA, got one that finds no GPU")
        self._cuda: Any = torch.cuda

    def allocate(self, nbytes: int, device: Device, stream: Stream) -> int:
        """Return the address of new memory; MemoryError if there is none.

        Raises
        ------
        DeviceMismatchError
            If `device` is no CUDA device.
        """
        if not hasattr(stream, "__cuda_stream__"):
            raise DeviceMismatchError(f"expected a CUDA device for memory of torch, got {device}")
        try:
            return int(self._cuda.caching_allocator_alloc(nbytes, device.index, stream.handle))
        except self._cuda.OutOfMemoryError as error:  # a RuntimeError
            raise MemoryError(str(error)) from error

    def deallocate(
        self,
        address: int,
        nbytes: int,  # noqa: ARG002  # the protocol's
        device: Device,  # noqa: ARG002
        stream: Stream,  # noqa: ARG002
    ) -> None:
        """Return memory to torch, which knows its size, device and stream."""
        self._cuda.caching_allocator_delete(address)

    def empty_cache(self) -> None:
        """Return the memory that torch caches to the system."""
        self._cuda.empty_cache()
