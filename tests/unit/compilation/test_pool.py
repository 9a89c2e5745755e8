"""Compilation in worker processes: the parent loads the code that they store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.compilation import compiled, jobs_of
from nbrt.backends import in_flight
from nbrt.backends.cpu.simt.runtime.dispatcher import EntryDispatcher
from nbrt.compilation.future import compile_here
from nbrt.compilation.pool import AsyncCompile
from nbrt.config import override
from nbrt.errors import UntrustedCacheWarning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[None]:
    """Put compiled kernels in an empty folder."""
    with override(cache_dir=str(tmp_path)):
        yield


@pytest.fixture(scope="module")
def pool() -> Iterator[AsyncCompile]:
    made = AsyncCompile(2)
    yield made
    made.close()


@cuda.jit(device=True)
def doubled(value: float) -> float:
    return value * 2


def scaled_kernel(factor: float) -> nbrt.Kernel:
    """Return a kernel with a captured value and a device function."""

    @nbrt.kernel
    def scale(x: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            x[i] = doubled(x[i]) * factor

    return scale


def launched(kernel: nbrt.Kernel) -> np.ndarray:
    x = np.arange(32.0)
    with nbrt.device("cpu:0"):
        kernel[1, 32](x)
    return x


def test_worker_compiles_what_a_launch_computes_with(pool: AsyncCompile) -> None:
    kernel = scaled_kernel(3.5)
    future = compiled(pool, kernel, np.zeros(1))

    assert future.wait()
    assert jobs_of(kernel, np.zeros(1)) == []  # the code is stored, and not yet loaded
    assert future.result() is not None
    np.testing.assert_array_equal(launched(kernel), np.arange(32.0) * 7)


def test_same_key_in_flight_is_one_job() -> None:
    with AsyncCompile(1) as pool:
        first = compiled(pool, scaled_kernel(4.5), np.zeros(1))
        second = compiled(pool, scaled_kernel(4.5), np.zeros(1))

        assert first.jobs[0].key == second.jobs[0].key
        first.result(), second.result()

    assert in_flight.find(first.jobs[0].key) is None


def test_compile_error_is_that_of_the_kernel(pool: AsyncCompile) -> None:
    @nbrt.kernel
    def wrong(x: Any) -> None:
        x[0] = x.missing_attribute

    future = compiled(pool, wrong, np.zeros(1))
    assert future.wait()

    with pytest.raises(nbrt.errors.CompileError, match=r"test_pool.py:\d+.*missing_attribute") as a:
        future.result()
    with pytest.raises(nbrt.errors.CompileError) as b, nbrt.device("cpu:0"):
        wrong[1, 1](np.zeros(1))
    assert str(a.value) == str(b.value)


def test_no_workers_compile_in_place() -> None:
    with AsyncCompile(0) as pool:
        future = compiled(pool, scaled_kernel(5.5), np.zeros(1))

        assert future.done()
        assert pool.processes() == []


def test_code_that_no_worker_could_store_compiles_in_place(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    kernel = scaled_kernel(5.5)
    with override(cache_dir=str(folder)), AsyncCompile(2) as pool:
        with pytest.warns(UntrustedCacheWarning) as caught:
            assert compiled(pool, kernel, np.zeros(1)).result() is not None
        assert len(caught) == 1
        assert pool.processes() == []
    np.testing.assert_array_equal(launched(kernel), np.arange(32.0) * 11)
    assert list(folder.iterdir()) == []


def test_launch_waits_for_its_code_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = scaled_kernel(6.5)
    (job,) = jobs_of(kernel, np.zeros(1))
    entry, is_new = in_flight.join(job)
    assert is_new
    assert entry.begin(here=True)
    waits, compilers = threading.Event(), []
    wait, compile_entry = in_flight.InFlightJob.wait, EntryDispatcher._compile

    def observed_wait(self: Any, timeout: float | None = None) -> bool:
        waits.set()
        return wait(self, timeout)

    def observed_compile(self: Any, arguments: Any) -> Any:
        compilers.append(threading.current_thread())
        return compile_entry(self, arguments)

    monkeypatch.setattr(in_flight.InFlightJob, "wait", observed_wait)
    monkeypatch.setattr(EntryDispatcher, "_compile", observed_compile)
    with ThreadPoolExecutor(1) as threads:
        launch = threads.submit(launched, kernel)
        assert waits.wait(HANG_TIMEOUT)
        assert compile_here(job).status == "stored"
        entry.end(in_flight.Outcome("stored"))
        np.testing.assert_array_equal(launch.result(), np.arange(32.0) * 13)

    assert compilers == [threading.main_thread()]  # the launch has loaded the code


def test_launch_takes_over_a_queued_compilation() -> None:
    kernel = scaled_kernel(7.5)
    (job,) = jobs_of(kernel, np.zeros(1))
    entry, _ = in_flight.join(job)

    np.testing.assert_array_equal(launched(kernel), np.arange(32.0) * 15)
    assert entry.state == "stored"
    assert in_flight.find(job.key) is None
