"""Memory for fake arrays in tests: addresses that no program may touch."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from nbrt import Device
from nbrt.backends.fake.array import FakeArray
from nbrt.errors import FakeReadError

_Room = ctypes.c_char * (1 << 60)
_next = 1 << 48  # beyond the addresses that x86-64 and ARM64 give to programs


class SampleMemory:
    """Memory of a device that exists on paper: each array has its own addresses."""

    def __init__(self, device: str = "cuda:0", *, reads: str = "error") -> None:
        self.device = Device(device)
        self.is_host = self.device.kind == "cpu"
        self.is_active = True
        self.is_current = True
        self.reads = reads
        self.results: list[FakeArray] = []

    def empty(self, shape: Any, dtype: Any = "f8", order: str = "C") -> FakeArray:
        return FakeArray(layout(shape, dtype, order), self, None)

    def result(self, shape: tuple[int, ...], dtype: Any, order: str = "C") -> FakeArray:
        self.results.append(self.empty(shape, dtype, order))
        return self.results[-1]

    def read(self, array: FakeArray) -> np.ndarray:
        if self.reads == "error":
            raise FakeReadError(f"{array!r} has no values")
        return np.zeros(array.shape, array.dtype)

    def to_host(self, array: FakeArray) -> FakeArray:
        return SampleMemory("cpu", reads=self.reads).empty(array.shape, array.dtype)

    def from_host(self, array: FakeArray, values: Any) -> None:
        self.results.append(array)

    def like(self, array: np.ndarray) -> FakeArray:
        """Return a fake array with the layout of a real one, over other addresses."""
        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (0, 1)
        start = array.__array_interface__["data"][0] - low if array.size else 0
        room = layout(high - low, "u1")
        view: Any = np.ndarray(array.shape, array.dtype, room, start, array.strides)
        view.flags.writeable = array.flags.writeable
        return FakeArray(view, self, None)


def layout(shape: Any, dtype: Any, order: Any = "C") -> np.ndarray:
    """Return an array over addresses that are not mapped: use of an element ends the process."""
    shape = (shape,) if isinstance(shape, int) else shape
    nbytes = max(math.prod(shape) * np.dtype(dtype).itemsize, 1)
    global _next
    address, _next = _next, _next + -(-nbytes // 512) * 512
    return np.ndarray(shape, dtype, _Room.from_address(address), order=order)
