"""Kernels compile in the process and thread of the caller where no worker process can."""

from __future__ import annotations

import errno
import itertools
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.clocks import ManualClock
from helpers.scripted_backend import FORKLESS_KIND, registered, scripted_job
from nbrt.backends.cpu.simt.runtime.dispatcher import EntryDispatcher
from nbrt.compilation import pool as pools
from nbrt.compilation import processes, scheduler
from nbrt.compilation.pool import AsyncCompile
from nbrt.config import override
from nbrt.errors import CompileError, NotSupportedError, StreamError, UntrustedCacheWarning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nbrt.compilation.future import CompileFuture

_limits = itertools.count(1000)

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """Put compiled kernels in an empty folder; return it."""
    with override(cache_dir=str(tmp_path / "cache"), async_=True):
        yield tmp_path / "cache"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads of this process that compile kernels for CPU devices."""
    found: list[threading.Thread] = []
    compile_entry = EntryDispatcher._compile

    def observed(self: Any, arguments: Any) -> Any:
        found.append(threading.current_thread())
        return compile_entry(self, arguments)

    monkeypatch.setattr(EntryDispatcher, "_compile", observed)
    return found


def new_kernel() -> nbrt.Kernel:
    """Return a kernel that doubles arrays of few elements, and that no code is stored for."""
    limit = next(_limits)

    @nbrt.kernel
    def double(x: Any) -> None:
        i = cuda.grid(1)
        if i < x.size and i < limit:
            x[i] = x[i] * 2

    return double


def wrong_kernel() -> nbrt.Kernel:
    @nbrt.kernel
    def wrong(x: Any) -> None:
        x[0] = x.missing_attribute

    return wrong


def launched(kernel: nbrt.Kernel) -> np.ndarray:
    x = np.arange(8.0)
    with nbrt.device("cpu:0"):
        kernel[1, 32](x)
        nbrt.current_stream().synchronize()
    return x


def compiled(kernel: nbrt.Kernel) -> CompileFuture[Any]:
    return nbrt.compile(kernel, "float64[::1]", block=32, device="cpu")


MAIN = [threading.main_thread()]


def test_daemonic_process(
    compilations: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_is_daemonic", lambda: True)
    monkeypatch.setattr(pools, "_defaults", {})
    np.testing.assert_array_equal(launched(new_kernel()), np.arange(8.0) * 2)
    assert compilations == MAIN
    with pytest.raises(NotSupportedError, match="NBRT_COMPILE_WORKERS=0"):
        compiled(new_kernel())
    with override(compile_workers=0):
        assert compiled(new_kernel()).done()


def test_system_without_another_thread(
    compilations: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if self.name == "nbrt-compile":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with AsyncCompile(1) as pool:
        np.testing.assert_array_equal(launched(new_kernel()), np.arange(8.0) * 2)
        assert compilations == MAIN
        assert compiled(new_kernel()).result() is not None
        assert pool.processes() == []
    monkeypatch.undo()
    with AsyncCompile(1) as pool:
        assert compiled(new_kernel()).result() is not None


def refuse(*_: object, **__: object) -> Any:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.mark.parametrize(("owner", "name"), [(subprocess, "Popen"), (processes.Server, "fork")])
def test_system_without_another_process(
    compilations: list[threading.Thread], monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    with AsyncCompile(1, clock=ManualClock().monotonic) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, refuse)
            np.testing.assert_array_equal(launched(new_kernel()), np.arange(8.0) * 2)
            assert len(compilations) == 1
            future = compiled(wrong_kernel())
            assert future.wait()
            with pytest.raises(CompileError, match=r"test_in_place.py:\d+.*missing_attribute"):
                future.result()
            assert [end and end.status for end in future.outcomes] == ["lost"]
        # The next request tries again.
        future = pool.submit([], int, "")
        with registered():
            future = pool.submit([scripted_job("store")], int, "")
            assert future.wait()
        assert [end and end.status for end in future.outcomes] == ["stored"]


@pytest.mark.skipif(sys.platform == "win32", reason="has no worker processes")
def test_server_without_another_process() -> None:
    clock = ManualClock()
    with registered(), AsyncCompile(2, clock=clock.monotonic) as pool:

        def status(kind: str) -> str:
            future = pool.submit([scripted_job("store", str(clock.monotonic()), kind)], int, "")
            assert future.wait()
            (end,) = future.outcomes
            assert end is not None
            return end.status

        assert status(FORKLESS_KIND) == "lost"  # after two attempts
        clock.advance(scheduler.IDLE_SECONDS / 2)
        assert status(FORKLESS_KIND) == "lost"  # without an attempt
        clock.advance(scheduler.IDLE_SECONDS / 2)
        assert status(FORKLESS_KIND) == "stored"


def test_no_workers(compilations: list[threading.Thread]) -> None:
    with override(compile_workers=0):
        launched(new_kernel())
        assert compilations == MAIN
        future = compiled(new_kernel())
        assert compilations == MAIN * 2  # in the call, for debuggers
        future.result()
        wrong = compiled(wrong_kernel())
        with pytest.raises(CompileError):
            wrong.result()
    assert compilations == MAIN * 3


@pytest.mark.parametrize("workers", [0, 2])
def test_unusable_folder(compilations: list[threading.Thread], cache: Path, workers: int) -> None:
    cache.write_text("a file in the way")
    with AsyncCompile(workers) as pool:
        np.testing.assert_array_equal(launched(new_kernel()), np.arange(8.0) * 2)
        assert compilations == MAIN
        kernel = new_kernel()
        future = compiled(kernel)
        assert compilations == MAIN * 2
        assert future.result() is not None
        launched(kernel)
        assert compilations == MAIN * 2
        assert pool.processes() == []


def test_full_disk(compilations: list[threading.Thread], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr("nbrt.backends.code_store.store._write", full)
    np.testing.assert_array_equal(launched_in_place(new_kernel()), np.arange(8.0) * 2)
    with override(compile_workers=0):
        kernel = new_kernel()
        assert compiled(kernel).result() is not None
    np.testing.assert_array_equal(launched_in_place(kernel), np.arange(8.0) * 2)
    assert set(compilations) == set(MAIN)


def launched_in_place(kernel: nbrt.Kernel) -> np.ndarray:
    with override(compile_workers=0):
        return launched(kernel)


@pytest.mark.parametrize("is_async", [False, True])
def test_warnings_as_errors_come_out_as_themselves(cache: Path, *, is_async: bool) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    kernel = new_kernel()
    with override(async_=is_async), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UntrustedCacheWarning):
            launched(kernel)
        np.testing.assert_array_equal(launched(kernel), np.arange(8.0) * 2)


def test_warnings_as_errors_leave_nothing_in_flight(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    kernel = new_kernel()
    with AsyncCompile(1), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UntrustedCacheWarning):
            compiled(kernel).result()
        assert compiled(kernel).result() is not None


def test_launch_raises_the_error_of_its_worker(compilations: list[threading.Thread]) -> None:
    kernel = wrong_kernel()
    with AsyncCompile(1), pytest.raises(StreamError) as caught:
        launched(kernel)
    assert isinstance(caught.value.__cause__, CompileError)
    assert "missing_attribute" in str(caught.value.__cause__)
    assert "test_in_place.py" in str(caught.value.__cause__)
    assert compilations == []
    with override(async_=False), pytest.raises(CompileError, match="missing_attribute"):
        launched(kernel)
    assert compilations == MAIN  # the error is raised once without a compilation


def test_error_that_result_has_raised_is_compiled_for_once_more(
    compilations: list[threading.Thread],
) -> None:
    kernel = wrong_kernel()
    with AsyncCompile(1):
        future = compiled(kernel)
        assert future.wait()
        for _ in range(2):
            with pytest.raises(CompileError, match="missing_attribute"):
                future.result()
    assert compilations in ([], MAIN)  # `result` takes over what is queued
    before = len(compilations)
    with override(async_=False), suppress(CompileError):
        launched(kernel)
    assert len(compilations) == before + 1


def test_error_of_the_machine_is_none_of_the_kernel() -> None:
    with registered(), AsyncCompile(1, clock=ManualClock().monotonic) as pool:
        future = pool.submit([scripted_job("no memory")], lambda: "loaded", "")
        assert future.wait()
        assert [end and end.status for end in future.outcomes] == ["lost"]
