"""Fixtures, and what pytest calls. Helpers are in tests/helpers and nbrt.testing."""

from __future__ import annotations

import gc
import itertools
import os
import signal

os.environ["NBRT_CPU_DEVICES"] = "4"
os.environ.pop("NBRT_DEVICE", None)

from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import nbrt
from helpers.sample_backend import SampleInterface
from nbrt._internal import scopes
from nbrt.backends.inline import SynchronousQueue
from nbrt.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.interface import DeviceInterface

KINDS = ("cpu", "sample", "cuda")

# How long an example takes says how loaded the machine is, and nothing about nbrt.
settings.register_profile("nbrt", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nbrt")

_started = itertools.count(1)


def pytest_collection_finish() -> None:
    """Take the tests themselves out of the garbage collector's way.

    They are half a million objects, and with them every `gc.collect` of a test takes half a second.
    """
    _set_aside()


def pytest_runtest_setup() -> None:
    """Do the same now and then with what compilers keep for good."""
    if next(_started) % 100 == 0:
        _set_aside()


def _set_aside() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture
def fresh() -> Iterator[ModuleType]:
    """An empty module, of which the garbage collector knows: it does not of what is set aside."""
    module = ModuleType("fresh")
    exec("", vars(module))  # gives it builtins
    yield module
    vars(module).clear()


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt: it does not in what a script started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def ambient_state_is_restored() -> Iterator[None]:
    """Every test starts from, and is put back to, the ambient state outside all guards."""
    before = scopes.current()
    yield
    scopes._frame.set(before)


@pytest.fixture(scope="session")
def sample_backend() -> Iterator[DeviceInterface]:
    """The out-of-tree backend, registered for the session."""
    interface = SampleInterface()
    nbrt.register_interface_for_device("sample", interface)
    yield interface
    nbrt.unregister_interface_for_device("sample")


@pytest.fixture(params=KINDS)
def device(request: pytest.FixtureRequest, sample_backend: DeviceInterface) -> nbrt.Device:
    """Device 0 of every kind; those that cannot run here are skipped with the backend's reason."""
    try:
        reason = nbrt.get_interface_for_device(request.param).unavailable_reason()
    except BackendUnavailableError as error:
        reason = str(error)
    if reason is not None:
        pytest.skip(f"{request.param} is unavailable: {reason}")
    return nbrt.Device(request.param, 0)


@pytest.fixture
def other_device(device: nbrt.Device) -> nbrt.Device:
    """Another device of the same kind."""
    if nbrt.device_count(device.kind) < 2:
        pytest.skip(f"there is one {device.kind} device only")
    return nbrt.Device(device.kind, 1)


@pytest.fixture
def stream(device: nbrt.Device) -> Iterator[nbrt.Stream]:
    """A stream of the device with nothing queued; failures that a test leaves behind are shown."""
    chosen = nbrt.Stream(device)
    chosen.synchronize()
    yield chosen
    chosen.synchronize()


@pytest.fixture
def side_streams(device: nbrt.Device) -> Iterator[tuple[nbrt.Stream, nbrt.Stream]]:
    """Two idle streams of the device that run alongside the caller and each other."""
    if not nbrt.get_interface_for_device(device).capabilities.concurrent_streams:
        pytest.skip(f"{device.kind} has no concurrent streams")
    pair = nbrt.Stream(device), nbrt.Stream(device)
    assert not any(isinstance(each.queue, SynchronousQueue) for each in pair)
    for each in pair:
        each.synchronize()
    yield pair
    for each in pair:
        each.synchronize()


@pytest.fixture
def side_stream(side_streams: tuple[nbrt.Stream, nbrt.Stream]) -> nbrt.Stream:
    """A stream that runs alongside the caller."""
    return side_streams[0]
