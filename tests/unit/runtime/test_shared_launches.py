"""Threads that share a launch wait for each other awake, then asleep; nothing depends on which."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.backends.cpu import block_scheduler, helpers, launch, shared_launches, spinning
from nbrt.backends.cpu.block_scheduler import LaunchRecord, get_num_threads, run_shared
from nbrt.backends.cpu.interrupts import main_runner
from nbrt.backends.cpu.shared_launches import SharedLaunches
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
    _renew_helpers(monkeypatch)
    monkeypatch.setattr(launch, "MIN_SHARED_NS", 0)
    monkeypatch.setattr(shared_launches, "_PAUSE", 0)
    monkeypatch.setattr(block_scheduler, "_MIN_CHUNK_NS", 1)
    monkeypatch.setattr(block_scheduler, "_num_threads", 3)
    assert get_num_threads() == 3


def _renew_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = helpers._Helpers()
    helpers._kept.append(renewed)  # its threads never end
    monkeypatch.setattr(helpers, "_helpers", renewed)


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
    monkeypatch.setattr(helpers, "SPIN_NS", nanoseconds)
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


@nbrt.kernel
def count(x: Any) -> None:
    x[cuda.grid(1)] += 1


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("wakes", [0, 1 << 60])
def test_each_block_runs_once(monkeypatch: pytest.MonkeyPatch, wakes: int) -> None:
    """For any number of threads, also of more threads than blocks, and of sleeping helpers."""
    monkeypatch.setattr(shared_launches, "_MIN_WAKE_NS", wakes)
    for threads in (2, 3, 5, 8):
        monkeypatch.setattr(block_scheduler, "_num_threads", threads)
        for blocks in (2, 3, 7, 64, 1001):
            x, configured = np.zeros(blocks * 4), count[blocks, 4]
            for _ in range(60):
                configured(x)
            assert (x == 60).all()


@pytest.mark.usefixtures("pool")
def test_threads_that_launch_at_once_share_the_helpers() -> None:
    arrays = [np.zeros(129 * 4) for _ in range(5)]
    configured = count[129, 4]
    configured(arrays[0])

    def launches(x: Any) -> None:
        for _ in range(200):
            configured(x)

    threads = [threading.Thread(target=launches, args=(x,)) for x in arrays[1:]]
    for thread in threads:
        thread.start()
    launches(arrays[0])
    for thread in threads:
        thread.join(HANG_TIMEOUT)
    assert (arrays[0] == 201).all()
    assert all((x == 200).all() for x in arrays[1:])


@pytest.mark.usefixtures("pool")
def test_every_thread_of_a_launch_may_fail() -> None:
    for _ in range(50):
        with pytest.raises(ZeroDivisionError) as caught:
            divides[100, 8](np.ones(800), np.zeros(800))
        assert len(caught.value.__notes__) == 1
        assert not helpers._helpers.errors
    x = np.ones(800)
    divides[100, 8](x, np.full(800, 2.0))
    assert (x == 0.5).all()


@nbrt.kernel
def count_then_wait(x: Any, turns: int) -> None:
    total = 0.0
    for turn in range(turns):
        total = total * 0.5 + 1.0 / (turn + 1)
    x[cuda.grid(1)] += 1 if total >= 0 else 0


@pytest.mark.usefixtures("pool")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_a_signal_handler_launches_the_plan_that_it_interrupts() -> None:
    """The launch inside must not reset the blocks of the one around it."""
    x, seen = np.zeros(64 * 4), np.zeros(64 * 4)
    configured = count_then_wait[64, 4]
    configured(x, 100)
    configured(x, 100)
    are_inside: list[bool] = []

    def handler(_signal: int, _frame: object) -> None:
        are_inside.append(main_runner.record is not None)
        configured(seen, 1)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.2)
    try:
        launches = 2
        while not any(are_inside):
            configured(x, 1_000_000)
            launches += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (x == launches).all()
    assert (seen == len(are_inside)).all()


@pytest.mark.usefixtures("pool")
@pytest.mark.skipif(sys.platform != "linux", reason="needs the processors of threads")
def test_a_helper_leaves_the_processor_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) == 1:
        pytest.skip("needs two processors")
    monkeypatch.setattr(block_scheduler, "_num_threads", 2)
    x, configured = np.zeros(64 * 4), count[64, 4]
    configured(x)
    configured(x)
    slot = helpers._helpers.slots[0]
    deadline = time.monotonic() + HANG_TIMEOUT
    for cpu in allowed:
        while not slot.thread:
            configured(x)
        os.sched_setaffinity(slot.thread, {cpu})
        while os.sched_getaffinity(slot.thread) == {cpu}:
            # The caller is sooner or later on this processor: there is no other one to run on.
            os.sched_setaffinity(0, {cpu})
            os.sched_setaffinity(0, allowed)
            configured(x)
            assert time.monotonic() < deadline
        assert os.sched_getaffinity(slot.thread) == allowed - {cpu}
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize(
    ("expected", "elapsed", "pauses"),
    [(100_000, 400_000, 12), (100_000, 99_000, 0), (50_000_000, 90_000_000, 0)],
)
def test_launches_after_one_that_lost_time_are_not_shared(
    monkeypatch: pytest.MonkeyPatch, expected: int, elapsed: int, pauses: int
) -> None:
    """The time lost, 300 µs in the first case, is a quarter of that of the launches behind it."""
    monkeypatch.setattr(shared_launches, "_PAUSE", 4)
    records = []

    def entry(address: int) -> None:
        record = LaunchRecord.from_address(address)
        record.elapsed_ns, record.work_ns = elapsed, 5 * expected
        records.append(record)

    launches = SharedLaunches(entry, lambda *counts: LaunchRecord(8, 1, 1, *counts, 0), 8)
    assert not launches.is_paused(expected)
    assert launches.run((), expected) == 2 * expected
    assert [launches.is_paused(expected) for _ in range(20)] == [True] * pauses + [False] * (
        20 - pauses
    )
    assert len(records) == 1


@pytest.mark.usefixtures("pool")
def test_a_launch_begins_while_another_decides_on_its_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chunks, asked = list[int](), list[int]()

    def entry(address: int) -> None:
        chunks.append(LaunchRecord.from_address(address).chunk)

    def decide(total: int, nanoseconds: float) -> int:
        asked.append(total)
        if len(asked) == 1:
            launches.run((), nanoseconds)
        return 3

    monkeypatch.setattr(shared_launches, "chunk_size", decide)
    launches = SharedLaunches(entry, lambda *counts: LaunchRecord(8, 1, 1, *counts, 0), 8)
    launches.run((), 100_000.0)
    assert chunks == [3, 3]


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
