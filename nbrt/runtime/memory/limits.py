"""Limits of the memory that the pools of a device hold."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING

import numpy as np

from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.runtime.memory.registry import allocator_for

if TYPE_CHECKING:
    from nbrt.runtime.memory.device_allocator import DeviceAllocator
    from nbrt.typing import DeviceLike

__all__ = [
    "checked_limit",
    "get_memory_limit",
    "get_per_process_memory_fraction",
    "set_memory_limit",
    "set_per_process_memory_fraction",
]


def checked_limit(limit: float | None, allocator: DeviceAllocator) -> int | None:
    """Return a limit in bytes: an int is bytes, a float is a fraction of the device's memory."""
    if limit is None:
        return None
    if isinstance(limit, numbers.Integral) and not isinstance(limit, bool):
        limit = int(limit)
    elif isinstance(limit, np.floating):
        limit = float(limit)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)):
        raise ArgumentTypeError(
            f"expected a limit in bytes (an int) or as a fraction (a float), got {limit!r} of type "
            f"{type(limit).__name__}"
        )
    if isinstance(limit, int):
        if limit < 0:
            raise ArgumentError(f"expected a limit of at least 0 bytes, got {limit}")
        return limit
    if not 0.0 <= limit <= 1.0:
        raise ArgumentError(
            f"expected a fraction of the device's memory in [0, 1], got {limit}; pass bytes as "
            f"an int"
        )
    return int(limit * allocator.interface.mem_get_info(allocator.device.index)[1])


def set_memory_limit(limit: float | None, device: DeviceLike = None) -> None:
    """Limit the memory that the pools of a device hold from the system.

    Parameters
    ----------
    limit : int, float or None
        Bytes, or a fraction of the device's memory in [0, 1]; None: no limit. A limit below the
        bytes already held releases nothing, and refuses every growth.
    device : Device, str, int or None
        The device; the current one by default. The initial limit of CPU devices is
        ``NBRT_CPU_MEMORY_LIMIT``.

    Examples
    --------
    >>> import nbrt
    >>> from nbrt import memory
    >>> memory.set_memory_limit(1 << 30, "cpu:3")
    >>> try:
    ...     nbrt.empty(2 << 30, "uint8", device="cpu:3")
    ... except nbrt.errors.OutOfMemoryError as error:
    ...     print(str(error).splitlines()[0][:53])
    expected room for 2147483648 bytes on cpu:3, got 0 in
    >>> memory.set_memory_limit(None, "cpu:3")
    """
    allocator = allocator_for(device)
    bound = checked_limit(limit, allocator)
    with allocator.lock:
        allocator.limit = bound


def get_memory_limit(device: DeviceLike = None) -> int | None:
    """Return the limit of the bytes that the pools of a device hold; None if there is none."""
    return allocator_for(device).limit


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limit a device's pools to a fraction in [0, 1] of its memory, as ``torch.cuda`` does."""
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
        raise ArgumentTypeError(f"expected a fraction as a float, got {fraction!r}")
    set_memory_limit(float(fraction), device)


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """Return the limit of a device's pools as a fraction of its memory; 1.0 without a limit."""
    allocator = allocator_for(device)
    total = allocator.interface.mem_get_info(allocator.device.index)[1]
    return 1.0 if allocator.limit is None else min(1.0, allocator.limit / total)
