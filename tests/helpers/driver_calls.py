"""Calls of the CUDA driver API for tests: checked results, and streams that wait for the test."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Latch", "call", "host_function", "status"]

# Longer than any machine needs, so that a test that waits for ever fails instead.
_MAX_SECONDS = 60

HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def status(result: tuple[Any, ...]) -> str:
    """Return the status of a driver call without its prefix, e.g. ``"INVALID_VALUE"``."""
    name: str = driver.CUresult(result[0]).name
    return name.removeprefix("CUDA_").removeprefix("ERROR_")


def call(result: tuple[Any, ...]) -> Any:
    """Return the value of a driver call, or a tuple of several; fail if it returns an error."""
    assert status(result) == "SUCCESS", f"the driver returned {status(result)}"
    return result[1] if len(result) == 2 else result[1:] or None


def host_function(function: Callable[[], object]) -> Any:
    """Return a C function without arguments; the caller keeps it alive until it was called."""
    return HostFunction(lambda _: function())


def pointer(function: Any) -> driver.CUhostFn:
    """Return the form of a C function that the driver API takes."""
    return driver.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value)


class Latch:
    """A host function that stops a stream until the test opens it."""

    def __init__(self) -> None:
        self._reached, self._opened = threading.Event(), threading.Event()
        self._function = host_function(self._stop)

    def hold(self, stream: Any) -> Latch:
        """Enqueue the function on a stream."""
        call(driver.cuLaunchHostFunc(stream, pointer(self._function), 0))
        return self

    def wait_until_reached(self) -> None:
        """Wait until the stream runs the function."""
        assert self._reached.wait(_MAX_SECONDS), "the stream does not run its host function"

    def open(self) -> None:
        """Let the stream go on."""
        self._opened.set()

    @property
    def is_reached(self) -> bool:
        return self._reached.is_set()

    def _stop(self) -> None:
        self._reached.set()
        assert self._opened.wait(_MAX_SECONDS), "the test does not open the latch"
