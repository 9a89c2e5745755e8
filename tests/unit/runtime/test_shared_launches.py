"""Threads that share a launch wait for each other awake, then asleep; nothing depends on which."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.backends.cpu import block_scheduler, launch, spinning
from nbrt.backends.cpu.block_scheduler import LaunchRecord, get_num_threads, run_shared
from nbrt.backends.cpu.spinning import Signal

ALWAYS = 10**15


def test_a_wait_for_a_value_that_has_changed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spinning, "SPIN_NS", ALWAYS)
    signal = Signal()
    signal.send()
    signal.wait(0)


def test_a_wait_without_a_signal_ends() -> None:
    Signal().wait(0)


def test_a_signal_ends_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spinning, "SPIN_NS", ALWAYS)
    there, back = Signal(), Signal()

    def answer() -> None:
        for turn in range(100):
            there.wait(turn)
            back.send()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    for turn in range(100):
        there.send()
        back.wait(turn)
    thread.join(HANG_TIMEOUT)
    assert not thread.is_alive()
    assert (there.word.value, back.word.value) == (100, 100)


def test_a_platform_without_the_native_wait_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spinning, "_native_wait", lambda: None)
    monkeypatch.setattr(spinning, "SPIN_NS", ALWAYS)
    Signal().wait(0)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start with a new pool of helpers, and share all launches of several blocks by three."""
    monkeypatch.setattr(block_scheduler, "_pool", block_scheduler._WorkerPool())
    monkeypatch.setattr(launch, "MIN_SHARED_NS", 0)
    monkeypatch.setattr(block_scheduler, "_num_threads", 3)
    assert get_num_threads() == 3


@nbrt.kernel
def cubes(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * x[i] * x[i]


@nbrt.kernel
def divides(x: Any, by: Any) -> None:
    i = cuda.grid(1)
    if by[i] == 0:
        raise ZeroDivisionError("planned")
    x[i] /= by[i]


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("nanoseconds", [0, 20_000, 10**8])
def test_launches_of_three_threads(monkeypatch: pytest.MonkeyPatch, nanoseconds: int) -> None:
    monkeypatch.setattr(spinning, "SPIN_NS", nanoseconds)
    for size in (1, 33, 1000, 4097):
        x, out = np.arange(size, dtype=np.float64), np.zeros(size)
        for _ in range(10):
            out[:] = 0
            cubes[-(-size // 32), 32](x, out)
            np.testing.assert_array_equal(out, x * x * x)
    by = np.ones(1000)
    by[777] = 0
    for _ in range(5):
        with pytest.raises(ZeroDivisionError) as caught:
            divides[-(-1000 // 32), 32](np.ones(32 * 32), np.resize(by, 1024))
        assert "in block (24, 0, 0), thread (9, 0, 0)" in caught.value.__notes__


class _Work:
    """Stands in for an entry function: the helper stays until its release."""

    def __init__(self) -> None:
        self.caller = threading.get_ident()
        self.reached, self.released = threading.Event(), threading.Event()
        self.is_left = False

    def __call__(self, address: int) -> None:
        if threading.get_ident() == self.caller:
            assert self.reached.wait(HANG_TIMEOUT)
            return
        self.reached.set()
        assert self.released.wait(HANG_TIMEOUT)
        self.is_left = True


def _record() -> LaunchRecord:
    return LaunchRecord(2, 1, 1, 2, 1, 0, 0)


class _Release:
    """Stands in for the signal of helpers that left: releases the helper when it is waited for."""

    def __init__(self, work: _Work, error: BaseException | None) -> None:
        self.word = Signal().word
        self._work = work
        self._error = error
        self._timer: threading.Thread | None = None

    def send(self) -> None:
        self.word.value += 1

    def wait(self, seen: int) -> None:
        assert not self._work.is_left
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        self._work.released.set()


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_the_caller_sleeps_until_helpers_have_left(error: BaseException | None) -> None:
    """Also if a signal handler raises while it waits."""
    run_shared(lambda _: None, _record(), ())  # starts the helper
    work = _Work()
    block_scheduler._pool.left = _Release(work, error)  # type: ignore[assignment]
    if error is None:
        run_shared(work, _record(), ())
    else:
        with pytest.raises(KeyboardInterrupt):
            run_shared(work, _record(), ())
    assert work.is_left


@pytest.mark.usefixtures("pool")
def test_a_launch_of_one_chunk_needs_no_helper() -> None:
    done: list[int] = []
    run_shared(done.append, LaunchRecord(2, 1, 1, 2, 2, 0, 0), ())
    assert len(done) == 1
    assert block_scheduler._pool._size == 0
