"""Fixtures: a context of the simulated driver, and streams and events in it."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import pytest
from cuda.bindings import driver

from helpers.driver_calls import call, host_function, pointer
from simulated_cuda.loader import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    return load()


@pytest.fixture
def context(library: ctypes.CDLL) -> Iterator[driver.CUcontext]:
    call(driver.cuInit(0))
    device = call(driver.cuDeviceGet(0))
    context = call(driver.cuDevicePrimaryCtxRetain(device))
    call(driver.cuCtxSetCurrent(context))
    yield context
    driver.cuCtxSynchronize()
    driver.cuCtxSetCurrent(driver.CUcontext(0))
    driver.cuDevicePrimaryCtxRelease(device)


@pytest.fixture
def new_stream(context: driver.CUcontext) -> Iterator[Callable[..., driver.CUstream]]:
    """Create streams, which are destroyed after the test."""
    streams = []

    def create(flags: int = 1) -> driver.CUstream:
        streams.append(call(driver.cuStreamCreate(flags)))
        return streams[-1]

    yield create
    for stream in streams:
        driver.cuStreamDestroy(stream)


@pytest.fixture
def new_event(context: driver.CUcontext) -> Iterator[Callable[..., driver.CUevent]]:
    """Create events, which are destroyed after the test."""
    events = []

    def create(flags: int = 0) -> driver.CUevent:
        events.append(call(driver.cuEventCreate(flags)))
        return events[-1]

    yield create
    for event in events:
        driver.cuEventDestroy(event)


@pytest.fixture
def log(context: driver.CUcontext) -> Log:
    return Log()


class Log:
    """The order in which streams run the host functions that `note` makes."""

    def __init__(self) -> None:
        self.names: list[Any] = []
        self._functions: list[Any] = []

    def function(self, name: Any) -> Any:
        """Return a host function that appends `name`."""
        self._functions.append(host_function(lambda: self.names.append(name)))
        return pointer(self._functions[-1])

    def note(self, stream: driver.CUstream, name: Any) -> None:
        """Enqueue a function that appends `name`."""
        call(driver.cuLaunchHostFunc(stream, self.function(name), 0))


@pytest.fixture
def set_schedule(library: ctypes.CDLL) -> Iterator[Callable[[str, int], None]]:
    """Choose when operations run, for one test."""

    def choose(name: str, hold_microseconds: int) -> None:
        hold = ctypes.c_ulonglong(hold_microseconds)
        assert library.sim_set_schedule(name.encode(), ctypes.c_ulonglong(1), hold) == 0

    yield choose
    choose("random", 1000)


@pytest.fixture(params=["eager", "random", "late"])
def schedule(request: pytest.FixtureRequest, set_schedule: Callable[[str, int], None]) -> str:
    """Run a test with each schedule."""
    set_schedule(request.param, 500)
    return str(request.param)
