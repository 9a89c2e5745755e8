"""Compile processes that do not start: kernels compile here, and later ones try again."""

from __future__ import annotations

import errno
import itertools
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from helpers.clocks import ManualClock
from helpers.scripted_backend import registered, scripted_job
from nbrt.backends import in_flight
from nbrt.compilation import processes, scheduler
from nbrt.compilation.pool import AsyncCompile

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no compile processes")

_numbers = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    with registered():
        yield


@pytest.fixture
def pool() -> Iterator[AsyncCompile]:
    made = AsyncCompile(1, clock=ManualClock().monotonic)
    yield made
    made.close()


def status_of_a_job(pool: AsyncCompile) -> str:
    """Compile a job; return how it has ended."""
    job = scripted_job("store", f"starts {next(_numbers)}")
    future = pool.submit([job], lambda: "loaded", job.label)
    assert future.wait()
    assert future.result() == "loaded"
    assert in_flight.find(job.key) is None
    (outcome,) = future.outcomes
    assert outcome is not None
    return outcome.status


def raises(error: Exception) -> Any:
    def function(*_: object, **__: object) -> NoReturn:
        raise error

    return function


NO_FILES = OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (scheduler.threading.Thread, "start", RuntimeError("can't start new thread")),
        (processes.subprocess, "Popen", OSError(errno.EAGAIN, "Resource temporarily unavailable")),
        (processes.socket, "socketpair", NO_FILES),
        (processes.Server, "fork", NO_FILES),
        (sys, "executable", None),
    ],
)
def test_a_later_job_starts_the_processes(
    pool: AsyncCompile, owner: Any, name: str, error: Exception | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, error if error is None else raises(error))
        assert status_of_a_job(pool) == "lost"
    assert status_of_a_job(pool) == "stored"


def test_kernels_compile_in_the_process_after_a_fault_of_the_thread(pool: AsyncCompile) -> None:
    reported: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", reported.append)
        patch.setattr(scheduler.Scheduler, "_end_stalled", raises(ValueError("a fault")))
        assert status_of_a_job(pool) == "lost"
    assert [str(each.exc_value) for each in reported] == ["a fault"]
    assert status_of_a_job(pool) == "lost"
