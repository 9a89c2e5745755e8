"""`MessagePacker`: converts arrays to the flat bytes that transports move, and back."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.distributed.communicators.checks import reduced
from nbrt.errors import ArgumentError
from nbrt.runtime.array import device_of, to, to_host
from nbrt.runtime.creation import empty
from nbrt.runtime.guard import OptionalStreamGuard
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt._internal.device import Device
    from nbrt.distributed.communicators.base import ReduceOp
    from nbrt.typing import Array

__all__ = ["MessagePacker", "counts_of"]

_NOTHING: AbstractContextManager[None] = nullcontext()


class MessagePacker:
    """Allocates and fills the buffers of one rank, in order with its current stream.

    Parameters
    ----------
    device : Device
        The device of the arrays.
    is_staged : bool
        Whether buffers are in host memory and arrays are not.

    Attributes
    ----------
    is_host : bool
        Whether the memory of the device is host memory.
    """

    def __init__(self, device: Device, is_staged: bool = False) -> None:
        self.device = device
        self.is_staged = is_staged
        self.is_host = current_stream(device).interface.capabilities.host_addressable

    def new(self, nbytes: int) -> Array:
        """Return a buffer of arbitrary bytes."""
        if self.is_staged:
            return np.empty(nbytes, np.uint8)
        return empty((nbytes,), np.uint8, device=self.device)

    def pack(self, arrays: Sequence[Array], is_copy: bool = False) -> Array:
        """Return the elements of arrays, one array after the other, as bytes.

        A single contiguous array is not copied, unless `is_copy`.
        """
        if self.is_staged:
            stream = current_stream(self.device)
            arrays = [to_host(array, stream=stream, copy=None) for array in arrays]
        elif self.is_host:
            current_stream(self.device).synchronize()
        else:
            self._check_devices(arrays)
        with self._on_stream():
            flat = [array.ravel().view(np.uint8) for array in arrays]
            return flat[0] if len(flat) == 1 and not is_copy else np.concatenate(flat)

    def unpack(self, buffer: Array, shapes: Sequence[tuple[int, ...]], dtype: Any) -> list[Array]:
        """Return arrays over the bytes of a buffer."""
        if self.is_staged:
            buffer = to(buffer, self.device, stream=current_stream(self.device), copy=None)
        if len(shapes) == 1:
            with self._on_stream():
                return [buffer.view(dtype).reshape(shapes[0])]
        arrays, start = [], 0
        with self._on_stream():
            for shape, nbytes in zip(shapes, counts_of(shapes, dtype), strict=True):
                arrays.append(buffer[start : start + nbytes].view(dtype).reshape(shape))
                start += nbytes
        return arrays

    def reduce(self, arrays: Sequence[Array], op: ReduceOp) -> Array:
        """Return the reduction of arrays, in their order."""
        with self._on_stream():
            return reduced(arrays, op)

    def _check_devices(self, arrays: Sequence[Array]) -> None:
        for array in arrays:
            if device_of(array) != self.device:
                raise ArgumentError(
                    f"expected arrays on {self.device}, the device of this rank, got one on "
                    f"{device_of(array)}; copy it with nbrt.to(array, '{self.device}')"
                )

    def _on_stream(self) -> AbstractContextManager[object]:
        """Return a guard that sets the stream of the array library; NumPy needs none."""
        return _NOTHING if self.is_host else OptionalStreamGuard(current_stream(self.device))


def counts_of(shapes: Sequence[tuple[int, ...]], dtype: Any) -> list[int]:
    """Return the bytes of arrays of these shapes."""
    return [math.prod(shape) * dtype.itemsize for shape in shapes]
