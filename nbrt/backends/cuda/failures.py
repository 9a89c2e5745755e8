"""Translate CUDA's error codes into exceptions of nbrt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.errors import (
    ArgumentError,
    DeviceError,
    EventError,
    LaunchError,
    OutOfMemoryError,
    StreamError,
    UnknownDeviceError,
)

if TYPE_CHECKING:
    from nbrt.errors import NbrtError

__all__ = ["NOT_READY", "is_lost", "translate", "translate_status"]

NOT_READY = 600
"""The status of work that still runs; not a failure."""

# Codes of driver_types.h (cudaError); those of cuda.h (CUresult) are the same numbers here.
_MEMORY = {2}
_DEVICE = {100, 101, 201}
_LAUNCH = {9, 701, 720}
_HANDLE = {400}
_HOST_CALL = {800}
_CAPTURE = range(900, 911)
_LOST = {214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999}
"""Sticky codes: every later call of the process fails with the same code."""


def is_lost(status: int) -> bool:
    """Return whether a code means that the process can no longer use the device."""
    return status in _LOST


def translate(error: BaseException, doing: str) -> NbrtError:
    """Return the exception for a CUDA error.

    Parameters
    ----------
    error : CUDARuntimeError or CUDADriverError
        CuPy's exception; its ``status`` is CUDA's code.
    doing : str
        The failed operation, such as ``"copying memory"``.
    """
    return translate_status(int(getattr(error, "status", 0)), str(error), doing)


def translate_status(status: int, text: str, doing: str) -> NbrtError:
    """Return the exception for an error code with its text."""
    message = f"{doing} failed: {text}"
    if status in _MEMORY:
        return OutOfMemoryError(f"{message}; free arrays or call nbrt.empty_cache()")
    if status in _DEVICE:
        return UnknownDeviceError(f"{message}; nvidia-smi -L lists the devices")
    if status in _LAUNCH:
        return LaunchError(f"{message}; use fewer threads or less shared memory per block")
    if status in _LOST:
        # cudaDeviceReset does not repair it (cuda-python PR #781).
        return StreamError(
            f"{message}. An earlier kernel on this device failed, often by indexing "
            f"outside an array. The process cannot use the device any more: restart it (in a "
            f"notebook: Kernel, Restart); run the kernel on a cpu device, or the program under "
            f"compute-sanitizer, to find the cause"
        )
    if status in _CAPTURE:
        return StreamError(
            f"{message}; a stream in this process is being captured, where this is not allowed: do "
            f"it before or after the capture"
        )
    if status in _HOST_CALL:
        return StreamError(
            f"{message}; host calls of streams must not use CUDA: queue the work behind them "
            f"instead"
        )
    if status in _HANDLE:
        return EventError(f"{message}; an event or stream was closed, or belongs to another device")
    if status == NOT_READY:
        return EventError(f"{message}; the work before it is still running: synchronize first")
    if status == 1:
        return ArgumentError(message)
    return DeviceError(message)
