"""``NBRT_ASYNC=1``: launches whose kernel is being compiled, on every device."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.backends.compile_jobs import CompileJob
from nbrt.config import override
from nbrt.errors import ArgumentTypeError, CompileError, LaunchError, StreamError
from nbrt.runtime import compiling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


class HeldFuture:
    def __init__(self, pool: HeldPool) -> None:
        self._pool = pool

    def done(self) -> bool:
        return self._pool.is_open

    def wait(self) -> None:
        assert self._pool.opened.wait(HANG_TIMEOUT)


class HeldPool:
    """In the place of the pool: its compilations end when the test opens it."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.jobs: list[CompileJob] = []

    @property
    def is_open(self) -> bool:
        return self.opened.is_set()

    def open(self) -> None:
        self.opened.set()

    def submit(
        self,
        jobs: Sequence[CompileJob],
        load: Callable[[], object],
        label: str,
    ) -> HeldFuture:
        self.jobs += jobs
        return HeldFuture(self)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldPool]:
    made = HeldPool()
    monkeypatch.setattr(compiling, "launch_pool", lambda: made)
    yield made
    made.open()


@pytest.fixture(autouse=True)
def asynchronous(
    tmp_path: Path, device: nbrt.Device, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Launches that do not wait, without compiled code."""
    interface = nbrt.get_interface_for_device(device)
    if device.kind == "sample":
        monkeypatch.setattr(interface, "compile_jobs", SampleJobs(), raising=False)
    with override(async_=True, cache_dir=str(tmp_path)):
        yield


class SampleJobs:
    """The jobs of a backend that tells new argument types by itself."""

    def __init__(self) -> None:
        self._known: set[Any] = set()

    def __call__(
        self, program: Any, index: int, grid: Any, block: Any, shared: int, args: Any, targets=()
    ) -> list[CompileJob]:
        key = program, tuple(np.asarray(argument).dtype for argument in args)
        if key in self._known:
            return []
        self._known.add(key)
        return [CompileJob("sample", str(key), "kernel", b"")]


def new_kernel() -> nbrt.Kernel:
    """Return a kernel that no code is loaded for."""

    @nbrt.kernel
    def add(out, step):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < out.size:
            out[i] = out[i] * 2 + step

    return add


def needs_jobs(device: nbrt.Device) -> None:
    """Skip on kinds of devices that compile in the process only."""
    interface = nbrt.get_interface_for_device(device)
    program, example = new_kernel().program(interface), np.zeros(1, np.int64)
    if not interface.compile_jobs(program, 0, (1, 1, 1), (1, 1, 1), 0, (example, 1)):
        pytest.skip(f"{device.kind} compiles in the process")


def test_the_caller_goes_on(any_stream: nbrt.Stream, pool: HeldPool) -> None:
    needs_jobs(any_stream.device)
    kernel = new_kernel()
    with nbrt.stream(any_stream):
        out = nbrt.full(4, 1, "int64")
        any_stream.synchronize()
        kernel[1, 4](out, 1)
        kernel[1, 4](out, 2)
        assert not any_stream.query()
        pool.open()
        assert nbrt.to_host(out).tolist() == [8] * 4
        assert any_stream.deferral is None
        kernel[1, 4](out, 1)  # the code is loaded
        assert any_stream.deferral is None
        assert nbrt.to_host(out).tolist() == [17] * 4


def test_other_streams_go_on(device: nbrt.Device, pool: HeldPool) -> None:
    needs_jobs(device)
    waiting, other = nbrt.Stream(device), nbrt.Stream(device)
    kernel, seen = new_kernel(), []
    with nbrt.stream(waiting):
        out = nbrt.full(4, 1, "int64")
        kernel[1, 4](out, 1)
        waiting.call(seen.append, 1)
    other.call(seen.append, 2)
    other.synchronize()
    assert seen == [2]
    other.wait_stream(waiting)
    other.call(seen.append, 3)
    pool.open()
    other.synchronize()
    assert seen == [2, 1, 3]
    waiting.synchronize()


def test_a_compile_error_arrives_with_both_stacks(device: nbrt.Device, pool: HeldPool) -> None:
    needs_jobs(device)
    if device.kind == "sample":
        pytest.skip("the sample backend interprets kernels")

    @nbrt.kernel
    def broken(out):  # type: ignore[no-untyped-def]
        out[0] = out.nonsense

    stream = nbrt.Stream(device)
    with nbrt.stream(stream):
        out = nbrt.zeros(4, "int64")
        launch_it(broken, out)
        pool.open()
        with pytest.raises(StreamError) as caught:
            stream.synchronize()
    text = str(caught.value)
    assert isinstance(caught.value.__cause__, CompileError)
    line = broken.py_func.__code__.co_firstlineno + 2
    assert f"{__file__}:{line}" in text
    assert "nonsense" in text
    assert "in launch_it" in text
    assert f"{nbrt.runtime.__path__[0]}" not in text
    stream.synchronize()


def launch_it(kernel: nbrt.Kernel, *args: Any) -> None:
    kernel[1, 4](*args)


def test_wrong_arguments_are_refused_by_the_call(device: nbrt.Device, pool: HeldPool) -> None:
    needs_jobs(device)
    if device.kind == "sample":
        pytest.skip("the sample backend does not check arguments")
    stream = nbrt.Stream(device)
    with nbrt.stream(stream):
        out = nbrt.zeros(4, "int64")
        stream.synchronize()
        with pytest.raises(ArgumentTypeError):
            new_kernel()[1, 4](out, object())
        with pytest.raises(ArgumentTypeError):
            new_kernel()[1, 4](out)
        with pytest.raises(LaunchError):
            new_kernel()[1, 1 << 20](out, 1)
        assert stream.deferral is None
    assert pool.jobs == []


def test_an_empty_grid_compiles_nothing(device: nbrt.Device, pool: HeldPool) -> None:
    with nbrt.device(device):
        new_kernel()[0, 4](nbrt.zeros(4, "int64"), 1)
    assert pool.jobs == []


def test_a_capture_compiles_in_place(device: nbrt.Device, pool: HeldPool) -> None:
    kernel, stream = new_kernel(), nbrt.Stream(device)
    with nbrt.stream(stream):
        out = nbrt.full(4, 1, "int64")
        with nbrt.graph(stream=stream) as graph:
            kernel[1, 4](out, 1)
        graph.replay()
        assert nbrt.to_host(out).tolist() == [3] * 4
    assert pool.jobs == []


def test_changed_globals_are_compiled_again(device: nbrt.Device, pool: HeldPool) -> None:
    needs_jobs(device)
    if device.kind == "sample":
        pytest.skip("the sample backend interprets kernels")
    factor = 2

    @nbrt.kernel
    def scale(out):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < out.size:
            out[i] *= factor

    with nbrt.stream(nbrt.Stream(device)):
        out = nbrt.full(4, 1, "int64")
        scale[1, 4](out)
        factor = 3
        scale[1, 4](out)
        pool.open()
        assert nbrt.to_host(out).tolist() == [6] * 4
    assert len({job.key for job in pool.jobs}) == 2


def test_without_workers_a_launch_compiles_in_place(device: nbrt.Device) -> None:
    stream = nbrt.Stream(device)
    with override(compile_workers=0), nbrt.stream(stream):
        out = nbrt.full(4, 1, "int64")
        new_kernel()[1, 4](out, 1)
        assert stream.deferral is None
        assert nbrt.to_host(out).tolist() == [3] * 4


def test_worker_processes(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend interprets kernels")
    kernel = new_kernel()
    with nbrt.AsyncCompile(1), nbrt.stream(nbrt.default_stream(device)):
        out = nbrt.full(4, 1, "int64")
        kernel[1, 4](out, 1)
        kernel[2, 2](out, 1)
        assert nbrt.to_host(out).tolist() == [7] * 4
