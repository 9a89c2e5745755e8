"""The compilations in flight in this process, by the key of their code.

A compiler enters `joined` before it takes its locks: it waits if a worker process compiles the same
code, and then loads that code from disk. A compilation that waits in the queue of the pool is taken
over instead. A second request for a key joins the first. The error of a kernel is raised once
without a second compilation: by the future of the request, or by the next launch.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt.backends.compile_jobs import CompileJob

__all__ = [
    "InFlightJob",
    "Outcome",
    "Status",
    "copy_error",
    "find",
    "is_empty",
    "join",
    "joined",
    "take_failure",
]

Status = Literal["stored", "failed", "unstored", "lost", "cancelled"]

_MAX_FAILURES = 64
"""Errors that no caller has seen; a launch of an older one compiles."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a compilation.

    Attributes
    ----------
    status : str
        ``"stored"``: the code is in the code store. ``"failed"``: the kernel does not compile.
        ``"unstored"``: it compiles, but the code cannot be stored: launches compile it.
        ``"lost"``: no worker has compiled it, so it compiles where it is needed.
        ``"cancelled"``: no caller wants it any more.
    error : Exception or None
        The error of the kernel, if it failed.
    reason : str
        Why it is not stored, or was lost.
    seconds : float
        The time of the compilation.
    warnings : tuple of callable
        Each raises a warning that the compiler raised in a worker.
    """

    status: Status
    error: Exception | None = None
    reason: str = ""
    seconds: float = 0.0
    warnings: tuple[Callable[[], None], ...] = ()


class InFlightJob:
    """A compilation from its submission to its end; made by `join`.

    Attributes
    ----------
    job : CompileJob
        What is compiled.
    outcome : Outcome or None
        Its end; None before.
    """

    def __init__(self, job: CompileJob) -> None:
        self.job = job
        self.outcome: Outcome | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._owner: int | None = None  # the thread that has taken it; 0: a worker process
        self._wanted = 1
        self._callbacks: list[Callable[[InFlightJob], object]] = []
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<InFlightJob {self.job.label}, {self.state}>"

    @property
    def state(self) -> str:
        """``"queued"``, ``"running"``, or the status of the outcome."""
        if self.outcome is not None:
            return self.outcome.status
        return "queued" if self._owner is None else "running"

    @property
    def is_of_this_process(self) -> bool:
        """Whether the process has not been forked since, so that the job can end in it."""
        return self._process == os.getpid()

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread compiles it."""
        return self._owner == threading.get_ident()

    def acquire(self) -> bool:
        """Count one more caller that wants the code; return False if the job has ended."""
        with self._lock:
            if self.outcome is None:
                self._wanted += 1
            return self.outcome is None

    def release(self) -> bool:
        """Count one caller less; return whether none is left, so that the job can be cancelled."""
        with self._lock:
            self._wanted -= 1
            return self._wanted == 0

    def begin(self, *, here: bool) -> bool:
        """Change from queued to running; return False if it was not queued.

        Parameters
        ----------
        here : bool
            Whether the calling thread compiles it; False: a worker process.
        """
        with self._lock:
            if self._owner is not None or self.outcome is not None:
                return False
            self._owner = threading.get_ident() if here else 0
            return True

    def end(self, outcome: Outcome) -> bool:
        """Set the outcome, unless there is one; return whether it was set."""
        with self._lock:
            if self.outcome is not None:
                return False
            self.outcome = outcome
            callbacks, self._callbacks = self._callbacks, []
        key = self.job.key
        with _lock:
            if outcome.error is not None:
                _failures[key] = outcome.error
                while len(_failures) > _MAX_FAILURES:
                    del _failures[next(iter(_failures))]
            if _jobs.get(key) is self:
                del _jobs[key]
        self._ended.set()
        for callback in callbacks:
            callback(self)
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; return whether it has come."""
        return not self.is_of_this_process or self._ended.wait(timeout)

    def add_callback(self, callback: Callable[[InFlightJob], object]) -> None:
        """Call ``callback(self)`` at the end, in the thread that ends it, or now."""
        with self._lock:
            if self.outcome is None:
                self._callbacks.append(callback)
                return
        callback(self)


_jobs: dict[str, InFlightJob] = {}
_failures: dict[str, Exception] = {}
_lock = threading.Lock()


def is_empty() -> bool:
    """Return whether `joined` has nothing to do, which saves compilers the computation of a key."""
    return not _jobs and not _failures


def take_failure(key: str) -> Exception | None:
    """Return and forget the error of the latest compilation of a key, if it failed."""
    with _lock:
        return _failures.pop(key, None)


def copy_error(error: Exception) -> Exception:
    """Return a copy to raise, so that the error that is kept does not refer to callers' frames."""
    try:
        copied = copy.copy(error)
    except Exception:  # noqa: BLE001  # the class of another library
        return error
    copied.__cause__ = error.__cause__
    copied.__suppress_context__ = error.__suppress_context__
    return copied.with_traceback(error.__traceback__)


def find(key: str) -> InFlightJob | None:
    """Return the compilation of a key in flight; None if there is none."""
    return _jobs.get(key)


def join(job: CompileJob) -> tuple[InFlightJob, bool]:
    """Return the compilation of a key in flight, and whether it is new.

    The caller calls `InFlightJob.release` if it no longer wants the code.
    """
    with _lock:
        known = _jobs.get(job.key)
        if known is not None and known.acquire():
            return known, False
        new = _jobs[job.key] = InFlightJob(job)
        return new, True


@contextmanager
def joined(key: str | None) -> Iterator[None]:
    """Wait until no other thread or process compiles a key, then run the block.

    The block looks for the code in the code store before it compiles. If the key was queued, the
    block is its compilation. If the compilation failed, the block does not run.

    Parameters
    ----------
    key : str or None
        Key of the code; None: run the block at once.

    Raises
    ------
    Exception
        The error of the kernel, if the compilation failed.
    """
    entry = None if key is None else find(key)
    if entry is not None and entry.is_mine:
        yield
    elif entry is not None and entry.begin(here=True):
        outcome = Outcome("lost", reason="the launch that took it over failed")
        try:
            yield
            outcome = Outcome("stored")
        finally:
            entry.end(outcome)
    else:
        failure = None
        if entry is not None:
            entry.wait()
            failure = entry.outcome.error if entry.outcome is not None else None
        if key is not None:
            failure = take_failure(key) or failure
        if failure is not None:
            raise copy_error(failure)
        yield


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _jobs.clear()
    _failures.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)
