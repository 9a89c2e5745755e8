"""Faults of worker processes, their environment and their lives."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from helpers.clocks import ManualClock
from helpers.scripted_backend import (
    KIND,
    OTHER_KIND,
    Gate,
    ProcessEnd,
    registered,
    scripted_job,
)
from nbrt import config
from nbrt.backends import in_flight
from nbrt.compilation import scheduler
from nbrt.compilation.pool import AsyncCompile
from nbrt.errors import ArgumentError, CompileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nbrt.backends.compile_jobs import CompileJob
    from nbrt.compilation.future import CompileFuture

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="waits for processes by pidfd")


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    with registered():
        yield


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def shared_pool(backend: None, clock: ManualClock) -> Iterator[AsyncCompile]:
    """A pool for all tests: processes start slowly."""
    pool = AsyncCompile(2, clock=clock.monotonic)
    yield pool
    pool.close()


@pytest.fixture
def pool(shared_pool: AsyncCompile) -> Iterator[AsyncCompile]:
    _submitted.clear()
    yield shared_pool
    assert not left()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


_numbers = itertools.count()
_submitted: list[CompileJob] = []


def left() -> list[str]:
    """Return the submitted jobs that are still in flight."""
    return [job.label for job in _submitted if in_flight.find(job.key)]


def stored_job() -> CompileJob:
    """Return a job that succeeds, with a new key."""
    return scripted_job("store", str(next(_numbers)))


def submit(pool: AsyncCompile, job: CompileJob) -> CompileFuture[str]:
    _submitted.append(job)
    return pool.submit([job], lambda: "loaded", job.label)


def status_of(future: CompileFuture[Any]) -> str:
    """Return how the only job has ended in its worker."""
    assert future.wait()
    (outcome,) = future.outcomes
    assert outcome is not None
    return outcome.status


def test_worker_runs_the_job(pool: AsyncCompile, gate: Gate) -> None:
    future = submit(pool, gate.job())

    assert gate.wait_until_begun() in pool.processes()[1:]
    assert future.running()
    assert not future.done()
    gate.open()
    assert status_of(future) == "stored"
    assert future.result() == "loaded"


def test_error_of_a_kernel_is_raised_with_its_class(pool: AsyncCompile) -> None:
    future = submit(pool, scripted_job("fail"))

    assert status_of(future) == "failed"
    with pytest.raises(CompileError, match="the kernel's own fault, line 7"):
        future.result()
    assert isinstance(future.exception(), CompileError)


def test_warning_of_the_compiler_is_raised_here(pool: AsyncCompile) -> None:
    future = submit(pool, scripted_job("warn"))

    with pytest.warns(RuntimeWarning, match="a slow kernel"):
        assert future.result() == "loaded"


@pytest.mark.parametrize("action", ["exit", "break"])
def test_job_of_a_lost_worker_compiles_here(
    pool: AsyncCompile, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = scripted_job(action)
    future = submit(pool, job)
    assert status_of(future) == "lost"

    compiled: list[bytes] = []
    monkeypatch.setattr("helpers.scripted_backend.ScriptedWorker.compile", keep(compiled))
    assert future.result() == "loaded"
    assert compiled == [job.payload]
    assert status_of(submit(pool, stored_job())) == "stored"  # in another worker


def keep(payloads: list[bytes]) -> Any:
    return lambda _, payload: payloads.append(payload)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_worker_is_replaced(pool: AsyncCompile, gate: Gate, signal_number: int) -> None:
    future = submit(pool, gate.job())
    pid = gate.wait_until_begun()
    end = ProcessEnd(pid)
    os.kill(pid, signal_number)
    end.wait()

    assert status_of(future) == "lost"
    assert status_of(submit(pool, stored_job())) == "stored"
    assert pid not in pool.processes()


def test_killed_server_is_replaced(pool: AsyncCompile, gate: Gate) -> None:
    future = submit(pool, gate.job())
    worker = ProcessEnd(gate.wait_until_begun())
    server = pool.processes()[0]
    os.kill(server, signal.SIGKILL)

    worker.wait()  # it ends with the server
    assert status_of(future) == "lost"
    assert status_of(submit(pool, stored_job())) == "stored"
    assert server not in pool.processes()


@pytest.mark.parametrize("action", ["hold", "stop"])
def test_stuck_worker_is_replaced(
    pool: AsyncCompile, gate: Gate, clock: ManualClock, action: str
) -> None:
    future = submit(pool, gate.job(action))
    gate.wait_until_begun()

    while not future.done():  # until the worker uses no CPU from one look to the next
        clock.advance(scheduler.STALL_SECONDS)
        assert status_of(submit(pool, stored_job())) == "stored"
    assert status_of(future) == "lost"


def test_long_compilation_is_not_stuck(
    pool: AsyncCompile, gate: Gate, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "cpu_seconds", lambda _: clock.monotonic())
    future = submit(pool, gate.job())
    gate.wait_until_begun()

    for _ in range(5):
        clock.advance(scheduler.STALL_SECONDS)
        assert status_of(submit(pool, stored_job())) == "stored"
    gate.open()
    assert status_of(future) == "stored"


def test_idle_processes_end(gate: Gate) -> None:
    clock = ManualClock()
    with AsyncCompile(1, clock=clock.monotonic) as pool:
        future = submit(pool, gate.job())
        gate.wait_until_begun()
        gate.open()
        future.wait()
        ends = [ProcessEnd(pid) for pid in pool.processes()]
        assert len(ends) == 2

        clock.advance(scheduler.IDLE_SECONDS)
        pool.wake()
        for end in ends:
            end.wait()
        assert status_of(submit(pool, stored_job())) == "stored"  # others start again


def test_closed_pool_leaves_no_process(gate: Gate) -> None:
    with AsyncCompile(1, clock=ManualClock().monotonic) as pool:
        futures = [submit(pool, gate.job()), submit(pool, stored_job())]
        gate.wait_until_begun()
        ends = [ProcessEnd(pid) for pid in pool.processes()]
        pool.close()
        for end in ends:
            end.wait()

    assert all(future.cancelled() for future in futures)
    assert not left()
    with pytest.raises(ArgumentError, match="closed"):
        submit(pool, stored_job())
    assert not left()


def test_exception_in_the_block_cancels(gate: Gate) -> None:
    ends: list[ProcessEnd] = []
    futures: list[CompileFuture[str]] = []

    def interrupted() -> None:
        with AsyncCompile(1, clock=ManualClock().monotonic) as pool:
            futures.append(submit(pool, gate.job()))
            gate.wait_until_begun()
            ends.extend(map(ProcessEnd, pool.processes()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (future,) = futures
    for end in ends:
        end.wait()
    assert future.cancelled()
    assert not left()


def test_cancelled_job_frees_its_worker(gate: Gate) -> None:
    with AsyncCompile(1, clock=ManualClock().monotonic) as pool:
        running, queued = submit(pool, gate.job()), submit(pool, stored_job())
        end = ProcessEnd(gate.wait_until_begun())

        assert running.cancel()
        end.wait()
        assert status_of(queued) == "stored"


def test_job_that_another_caller_wants_is_not_cancelled(pool: AsyncCompile, gate: Gate) -> None:
    first, second = submit(pool, gate.job()), submit(pool, gate.job())
    gate.wait_until_begun()

    assert first.cancel()
    gate.open()
    assert status_of(second) == "stored"
    assert second.result() == "loaded"


def test_result_takes_over_a_queued_job(gate: Gate) -> None:
    with AsyncCompile(1, clock=ManualClock().monotonic) as pool:
        held, queued = submit(pool, gate.job()), submit(pool, stored_job())
        gate.wait_until_begun()

        assert queued.result() == "loaded"  # in this thread: the worker is busy
        assert not held.done()
        gate.open()


def test_result_times_out(pool: AsyncCompile, gate: Gate) -> None:
    future = submit(pool, gate.job())
    gate.wait_until_begun()

    with pytest.raises(TimeoutError):
        future.result(timeout=0)
    gate.open()
    assert future.result() == "loaded"


def test_callback_may_wait_for_other_compilations(pool: AsyncCompile, gate: Gate) -> None:
    first = submit(pool, gate.job())
    gate.wait_until_begun()
    seen = pool.submit([], lambda: "stored before", "")
    results: list[str] = []
    ended = threading.Event()

    def callback(future: Any) -> None:
        results.extend([future.result(), submit(pool, stored_job()).result()])
        ended.set()

    first.add_done_callback(callback)
    seen.add_done_callback(lambda future: results.append(future.result()))
    gate.open()

    assert ended.wait()
    assert results == ["stored before", "loaded", "loaded"]


def pid_of(pool: AsyncCompile, file: Path, kind: str = KIND) -> int:
    """Return the process that runs a job."""
    future = submit(pool, scripted_job("report", str(next(_numbers)), kind, file=str(file)))
    assert status_of(future) == "stored"
    return int(json.loads(file.read_text())["pid"])


def test_worker_compiles_for_one_kind_of_device(tmp_path: Path) -> None:
    with AsyncCompile(1, clock=ManualClock().monotonic) as pool:
        first, second = pid_of(pool, tmp_path / "1"), pid_of(pool, tmp_path / "2")
        other = pid_of(pool, tmp_path / "3", OTHER_KIND)

        assert first == second != other
        assert len(pool.processes()) == 2  # the server, and the worker for the other kind


def test_server_prepares_once_for_all_workers(tmp_path: Path) -> None:
    with AsyncCompile(1, clock=ManualClock().monotonic) as pool:
        for kind in (KIND, OTHER_KIND):
            pid_of(pool, tmp_path / kind, kind)
        server = pool.processes()[0]

    for kind in (KIND, OTHER_KIND):
        assert json.loads((tmp_path / kind).read_text())["prepared"] == [server]


def test_worker_with_much_memory_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MAX_RESIDENT", 0)
    with AsyncCompile(1, clock=ManualClock().monotonic) as pool:
        assert pid_of(pool, tmp_path / "1") != pid_of(pool, tmp_path / "2")


def test_workers_have_the_environment_of_the_caller(
    pool: AsyncCompile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert status_of(submit(pool, stored_job())) == "stored"  # the processes run
    monkeypatch.setenv("NBRT_TEST_VARIABLE", "sent")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    with config.override(deadlock_timeout=77):
        future = submit(pool, scripted_job("report", file=str(tmp_path / "state")))

    assert status_of(future) == "stored"
    state = json.loads((tmp_path / "state").read_text())
    assert state["environ"]["NBRT_TEST_VARIABLE"] == "sent"
    assert state["folder"] == str(tmp_path)
    assert state["paths"] == sys.path
    assert state["settings"]["deadlock_timeout"] == 77
    assert state["settings"]["compile_workers"] == 0  # a worker starts no workers


def test_workers_are_single_threaded(pool: AsyncCompile, tmp_path: Path) -> None:
    future = submit(pool, scripted_job("report", file=str(tmp_path / "state")))

    assert status_of(future) == "stored"
    state = json.loads((tmp_path / "state").read_text())
    assert state["threads"] == 1
    for library in ("OMP", "NUMBA", "OPENBLAS"):
        assert state["environ"][f"{library}_NUM_THREADS"] == "1"
