"""Fixtures: a context of the simulated driver, and streams and events in it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from cuda.bindings import driver

from helpers.driver_calls import call, host_function, pointer
from simulated_cuda import control
from simulated_cuda.loader import load

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Iterator
    from types import ModuleType


@pytest.fixture
def library(initialised: ModuleType) -> ctypes.CDLL:
    return load()


@pytest.fixture
def context(primary: driver.CUcontext) -> Iterator[driver.CUcontext]:
    yield primary
    driver.cuCtxSynchronize()


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
def set_schedule(initialised: ModuleType) -> Iterator[Callable[[str, float], None]]:
    """Choose when operations run, for the rest of one test."""
    with contextlib.ExitStack() as stack:

        def choose(name: str, hold_seconds: float) -> None:
            stack.enter_context(control.schedule(name, seed=1, hold_seconds=hold_seconds))

        yield choose


@pytest.fixture(params=["eager", "random", "late"])
def schedule(request: pytest.FixtureRequest, set_schedule: Callable[[str, float], None]) -> str:
    """Run a test with each schedule."""
    set_schedule(request.param, 0.0005)
    return str(request.param)
