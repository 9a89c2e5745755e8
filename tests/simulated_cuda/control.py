"""Control of the loaded simulated driver by tests: failing calls, memory, counters, reports."""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING

from simulated_cuda import loader

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "call_count",
    "clear",
    "failing",
    "inject",
    "limited_memory",
    "schedule",
    "stubs",
    "take_report",
]

_REPORT_BYTES = 1 << 20


def _driver() -> ctypes.CDLL:
    driver = loader.loaded()
    if driver is None:
        raise RuntimeError("the simulated CUDA driver is not loaded")
    return driver


def inject(function: str, status: int, *, skip: int = 0, times: int = 1) -> None:
    """Let calls of a driver function fail.

    Parameters
    ----------
    function : str
        Its name in cuda-bindings, such as ``cuMemAlloc``.
    status : int
        The result of the calls, a ``CUresult``.
    skip : int
        Number of calls that succeed first.
    times : int
        Number of calls that fail then; 0: all.
    """
    entry = _driver().sim_inject
    entry.restype = ctypes.c_bool
    entry.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int]
    if not entry(function.encode(), skip, times, int(status)):
        raise ValueError(f"{function} is no function of the driver, or too many are to fail")


def clear() -> None:
    """Undo every `inject`."""
    _driver().sim_clear_injections()


@contextlib.contextmanager
def failing(function: str, status: int, *, skip: int = 0, times: int = 1) -> Iterator[None]:
    """Let calls of a driver function fail within the block; see `inject`."""
    inject(function, status, skip=skip, times=times)
    try:
        yield
    finally:
        clear()


@contextlib.contextmanager
def limited_memory(size: int, device: int = 0) -> Iterator[None]:
    """Limit the memory of a device to `size` bytes within the block."""
    entry = _driver().sim_set_memory
    entry.restype = ctypes.c_size_t
    entry.argtypes = [ctypes.c_int, ctypes.c_size_t]
    before = entry(device, size)
    try:
        yield
    finally:
        entry(device, before)


@contextlib.contextmanager
def schedule(name: str, *, seed: int = 0, hold_seconds: float = 0.001) -> Iterator[None]:
    """Choose within the block when operations of streams run.

    Parameters
    ----------
    name : {"eager", "random", "late"}
        No operation, some (by the seed), or every operation is held back until something waits
        for it.
    seed : int
        Of the choices of ``random``, and of the order of independent nodes of graphs.
    hold_seconds : float
        An operation runs after this time even if nothing waits for it.
    """
    entry = _driver().sim_set_schedule
    entry.restype = ctypes.c_bool
    entry.argtypes = [ctypes.c_char_p, ctypes.c_ulonglong, ctypes.c_ulonglong]
    if not entry(name.encode(), seed, round(hold_seconds * 1e6)):
        raise ValueError(f"expected eager, random or late, got {name!r}")
    try:
        yield
    finally:
        entry(None, 0, 0)


def call_count(function: str) -> int:
    """Return how often this process has called a driver function."""
    entry = _driver().sim_call_count
    entry.restype = ctypes.c_long
    entry.argtypes = [ctypes.c_char_p]
    return int(entry(function.encode()))


def stubs() -> dict[str, int]:
    """Return how often this process has called each function that is not simulated."""
    entry = _driver().sim_stub
    entry.restype = ctypes.c_char_p
    entry.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_long)]
    found: dict[str, int] = {}
    count = ctypes.c_long()
    index = 0
    while (name := entry(index, ctypes.byref(count))) is not None:
        if count.value:
            found[name.decode()] = count.value
        index += 1
    return found


def take_report() -> str:
    """Return what kernels did wrong since the last call, one line for each fault."""
    entry = _driver().sim_take_report
    entry.restype = ctypes.c_size_t
    entry.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    buffer = ctypes.create_string_buffer(_REPORT_BYTES)
    size = entry(buffer, len(buffer))
    return buffer.raw[:size].decode(errors="replace")
