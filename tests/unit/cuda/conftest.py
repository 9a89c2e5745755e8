"""Tests of the CUDA backend; without a GPU, on the simulated driver."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from helpers.cuda_graphs import SIZE, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt.backends.cuda.backend import CudaInterface
    from nbrt.backends.cuda.queues import CudaQueue


@pytest.fixture
def interface(cuda_interface: CudaInterface) -> Iterator[CudaInterface]:
    """A CUDA backend of the test's own, initialised, with device 0 current before and after."""
    made = type(cuda_interface)()
    made.lazy.ensure()
    made.exchange_device(0)
    yield made
    for index in range(made.device_count()):
        made.maybe_exchange_device(index)
        made.synchronize(index)
    made.exchange_device(0)


@pytest.fixture
def cupy(interface: CudaInterface) -> Any:
    return interface._driver.cupy


@pytest.fixture
def queue(interface: CudaInterface) -> CudaQueue:
    return interface.create_queue(0, 0)


@pytest.fixture
def arrays(cupy: Any) -> tuple[Any, Any]:
    """0, 1, 2, ... and as many zeros."""
    made = cupy.arange(SIZE, dtype="float64"), cupy.zeros(SIZE)
    cupy.cuda.Device().synchronize()
    return made


@pytest.fixture
def z(cupy: Any) -> Any:
    made = cupy.zeros(SIZE)
    cupy.cuda.Device().synchronize()
    return made


@pytest.fixture
def new_recorder(interface: CudaInterface) -> Iterator[Callable[..., Recorder]]:
    """A function that begins a capture of a queue, which ends with the test."""
    made: list[Recorder] = []
    gc.collect()  # the pinned memory of other tests' backends, which a capture must not free

    def begin(queue: CudaQueue, mode: str = "thread_local") -> Recorder:
        made.append(Recorder(interface, queue, mode))
        return made[-1]

    yield begin
    for recorder in reversed(made):
        recorder.close()
    assert not interface._driver.captures


@pytest.fixture
def recorder(
    queue: CudaQueue, arrays: tuple[Any, Any], z: Any, new_recorder: Callable[..., Recorder]
) -> Recorder:
    return new_recorder(queue)


@pytest.fixture
def no_overloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep overloads that other tests have registered with Numba out of the keys of code."""
    monkeypatch.setattr("nbrt.backends.cuda.kernel_images.hash_overloads", lambda *_: b"")
