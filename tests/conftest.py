"""Fixtures and hooks of pytest; tests/README.md explains how the tests are sorted."""

from __future__ import annotations

import gc
import itertools
import os
import signal

os.environ["NBRT_CPU_DEVICES"] = "4"
# A test names the device that it needs, so that it runs alike with and without CUDA.
os.environ["NBRT_DEVICE"] = "cpu"

from types import ModuleType
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import HealthCheck, settings

import nbrt
from helpers.garbage import freeze_objects
from helpers.registrations import registrations_that_count
from helpers.sample_backend import SampleInterface
from helpers.verifier import verified_modules
from nbrt._internal import scopes
from nbrt.backends.registry import ready_interfaces
from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.cuda.backend import CudaInterface
    from nbrt.backends.interface import DeviceInterface

pytest_plugins = ["simulated_cuda.plugin"]

KINDS = ("cpu", "sample", "cuda")

# The time of an example depends on the load of the machine, so there is no deadline.
settings.register_profile("nbrt", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nbrt")

# A shell without job control starts background processes with SIGINT ignored, which children
# inherit. A handler makes it the default there, so that tests can interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_started = itertools.count(1)


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection.

    They are half a million objects, with which each `gc.collect` would take half a second.
    """
    freeze_objects()


def pytest_runtest_setup() -> None:
    """Exclude, every 100 tests, the permanent objects of compilers."""
    if next(_started) % 100 == 0:
        freeze_objects()


@pytest.fixture
def fresh() -> Iterator[ModuleType]:
    """An empty module that the garbage collector knows, unlike the frozen objects."""
    module = ModuleType("fresh")
    exec("", vars(module))  # adds `__builtins__`
    yield module
    vars(module).clear()


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """No array of an earlier test is freed during the test, as a collection may: hooks see it."""
    freeze_objects()  # so that the next collection does not look at the objects of compilers again
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, even if a script started the process in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def ambient_state_is_restored() -> Iterator[None]:
    """Restore the ambient state outside all guards after every test."""
    before = scopes.current()
    yield
    scopes._frame.set(before)
    for interface in ready_interfaces():
        if interface.name == "cuda":
            interface.maybe_exchange_device(0)  # `nbrt.set_device` sets that of CUDA, too


@pytest.fixture(autouse=True, scope="module")
def keys_of_kernels_are_restored() -> Iterator[None]:
    """Let no module leave registrations with Numba on which the keys of all kernels depend.

    The keys of this process would differ from those of others, and tests of the cache would fail.
    """
    yield
    assert registrations_that_count() == set(), "register in a child process (helpers.processes)"


@pytest.fixture(autouse=True, scope="session")
def modules_are_verified() -> Iterator[None]:
    """Let LLVM verify every module that this process compiles."""
    with verified_modules():
        yield


@pytest.fixture(scope="session")
def sample_backend() -> Iterator[DeviceInterface]:
    """The out-of-tree backend, registered for the session."""
    interface = SampleInterface()
    nbrt.register_interface_for_device("sample", interface)
    yield interface
    nbrt.unregister_interface_for_device("sample")


def device_of_kind(kind: str) -> nbrt.Device:
    """Return device 0 of a kind; skip the test with the backend's reason if there is none."""
    try:
        reason = nbrt.get_interface_for_device(kind).unavailable_reason()
    except BackendUnavailableError as error:
        reason = str(error)
    if reason is not None:
        pytest.skip(f"{kind} is unavailable: {reason}")
    return nbrt.Device(kind, 0)


@pytest.fixture(params=KINDS)
def device(request: pytest.FixtureRequest, sample_backend: DeviceInterface) -> nbrt.Device:
    """Device 0 of every kind."""
    return device_of_kind(request.param)


@pytest.fixture(scope="session")
def cuda_interface() -> CudaInterface:
    """The CUDA backend, initialised."""
    interface = nbrt.get_interface_for_device("cuda")
    reason = interface.unavailable_reason()
    if reason is not None:
        pytest.skip(f"cuda is unavailable: {reason}")
    interface.lazy.ensure()
    return cast("CudaInterface", interface)


@pytest.fixture
def other_device(device: nbrt.Device) -> nbrt.Device:
    """Another device of the same kind."""
    if nbrt.device_count(device.kind) < 2:
        pytest.skip(f"there is only one {device.kind} device")
    return nbrt.Device(device.kind, 1)


@pytest.fixture
def stream(device: nbrt.Device) -> Iterator[nbrt.Stream]:
    """An idle stream of the device; a failure of its work fails the test."""
    idle = nbrt.Stream(device)
    idle.synchronize()
    yield idle
    idle.synchronize()


@pytest.fixture
def side_streams(device: nbrt.Device) -> Iterator[tuple[nbrt.Stream, nbrt.Stream]]:
    """Two idle streams of the device that run alongside the caller and each other."""
    if not nbrt.get_interface_for_device(device).capabilities.concurrent_streams:
        pytest.skip(f"{device.kind} has no concurrent streams")
    pair = nbrt.Stream(device), nbrt.Stream(device)
    assert not any(isinstance(stream.queue, SynchronousQueue) for stream in pair)
    for stream in pair:
        stream.synchronize()
    yield pair
    for stream in pair:
        stream.synchronize()


@pytest.fixture
def side_stream(side_streams: tuple[nbrt.Stream, nbrt.Stream]) -> nbrt.Stream:
    """A stream that runs alongside the caller."""
    return side_streams[0]
