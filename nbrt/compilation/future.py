"""`CompileFuture`: the result of a compilation that other processes run."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from nbrt.backends.compile_jobs import NotStoredError
from nbrt.backends.in_flight import Outcome, copy_error, take_failure
from nbrt.backends.registry import get_interface_for_device
from nbrt.errors import ArgumentTypeError, NbrtError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from nbrt.backends.compile_jobs import CompileJob
    from nbrt.backends.in_flight import InFlightJob, Status

__all__ = ["CompileFuture", "compile_here", "end_here"]

T = TypeVar("T")

_LOG = logging.getLogger("concurrent.futures")
"""The log of errors of callbacks, as for all futures."""


class CompileFuture(Future[T], Generic[T]):
    """The result of a compilation, as `concurrent.futures.Future`.

    Functions of `concurrent.futures` and `asyncio.wrap_future` take it. ``await future`` waits as
    `result` does, in a thread of the event loop's executor.

    Parameters
    ----------
    label : str
        The kernel.
    entries : sequence of InFlightJob
        The compilations.
    load : callable
        Loads the code when all have ended, in the thread that calls `result` first, and returns the
        result.
    stop : callable
        Stops a compilation that no caller wants.

    Attributes
    ----------
    label : str
        As given.
    jobs : tuple of CompileJob
        What is compiled; empty if all code was in the store.
    """

    def __init__(
        self,
        label: str,
        entries: Sequence[InFlightJob],
        load: Callable[[], T],
        stop: Callable[[InFlightJob], object],
    ) -> None:
        super().__init__()
        self.label = label
        self.jobs: tuple[CompileJob, ...] = tuple(entry.job for entry in entries)
        self._entries = tuple(entries)
        self._load = load
        self._stop = stop
        self._settling = threading.RLock()
        self._counting = threading.Lock()
        self._settled: tuple[T | None, Exception | None] | None = None
        self._remaining = len(entries)
        if not entries:
            self._complete()
        for entry in entries:
            entry.add_callback(self._entry_ended)

    @property
    def outcomes(self) -> tuple[Outcome | None, ...]:
        """The ends of the jobs; None for one that has not ended."""
        return tuple(entry.outcome for entry in self._entries)

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else "done" if self.done() else "in flight"
        return f"<CompileFuture {self.label}, {state}>"

    def __await__(self) -> Generator[Any, None, T]:
        return self._awaited().__await__()

    async def _awaited(self) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, self.result)
        except asyncio.CancelledError:
            self.cancel()  # ends the wait of the thread
            raise

    def __copy__(self) -> CompileFuture[T]:
        return self

    def __deepcopy__(self, memo: object) -> CompileFuture[T]:
        return self

    def __reduce__(self) -> Any:
        raise ArgumentTypeError(
            f"expected something that can be pickled, got {self!r}; send the kernel to the other "
            f"process, which finds the code on disk"
        )

    def running(self) -> bool:
        """Return whether a process compiles."""
        return not self.done() and any(entry.state == "running" for entry in self._entries)

    def cancel(self) -> bool:
        """Cancel the compilations that no other caller wants; return False if they have ended."""
        if self.cancelled():
            return True
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()
        for entry in self._entries:
            if entry.release():
                self._stop(entry)
        return True

    def result(self, timeout: float | None = None) -> T:
        """Wait for the code, load it, and return the result.

        Compilations that no process has begun run in this thread.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for other processes.

        Raises
        ------
        CompileError
            If the kernel does not compile; the message names the kernel's line.
        TimeoutError
            If the code is not ready in time.
        concurrent.futures.CancelledError
            If the compilation was cancelled.
        """
        __tracebackhide__ = True
        try:
            if all(entry.is_of_this_process for entry in self._entries):
                if timeout is None and not self.cancelled():
                    self.help()
                super().result(timeout)
            value, error = self._settle()
        except KeyboardInterrupt:
            self.cancel()
            raise
        if error is not None:
            raise copy_error(error)
        return cast("T", value)

    def help(self) -> None:
        """Run the compilations that no process has begun, in this thread."""
        for entry in self._entries:
            if entry.begin(here=True):
                end_here(entry)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the compilation has ended, however it ends; return whether it has."""
        with suppress(CancelledError, TimeoutError):
            super().exception(timeout)
        return self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `result` does, and return its exception, or None."""
        try:
            self.result(timeout)
        except (CancelledError, TimeoutError):
            raise
        except Exception as error:  # noqa: BLE001  # returned
            return error
        return None

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call ``fn(self)`` in a thread when the compilation ends; at once if it has ended.

        As for all futures, an exception of `fn` is written to the log ``concurrent.futures``.
        """
        if self.done():
            super().add_done_callback(fn)
            return

        def run(future: Future[T]) -> None:
            try:
                fn(future)
            except Exception:  # noqa: BLE001  # logged
                _LOG.exception("exception calling callback for %r", future)

        def call(future: Future[T]) -> None:
            # The thread that ends compilations must not wait for one.
            threading.Thread(target=run, args=(future,), name="nbrt-compiled", daemon=True).start()

        super().add_done_callback(call)

    def _entry_ended(self, _: InFlightJob) -> None:
        with self._counting:
            self._remaining -= 1
            is_last = self._remaining == 0
        if is_last:
            self._complete()

    def _complete(self) -> None:
        if not self.done() and self.set_running_or_notify_cancel():
            self.set_result(cast("T", None))

    def _settle(self) -> tuple[T | None, Exception | None]:
        """Load the code once."""
        with self._settling:
            if self._settled is None:
                try:
                    for entry in self._entries:
                        _require(entry)
                    self._settled = self._load(), None
                except NbrtError as error:  # raised by each call of `result`
                    self._settled = None, error.with_traceback(None)
                except Exception as error:  # noqa: BLE001  # the same
                    self._settled = None, error
            return self._settled


def _require(entry: InFlightJob) -> None:
    """Raise the error of a kernel; compile it here if no worker has."""
    outcome = entry.outcome
    if outcome is None or outcome.status in ("lost", "cancelled"):
        outcome = compile_here(entry.job)
    for warn in outcome.warnings:
        warn()
    if outcome.error is not None:
        take_failure(entry.job.key)
        raise outcome.error


def end_here(entry: InFlightJob) -> None:
    """Compile an entry that this thread has begun."""
    outcome = Outcome("cancelled")
    try:
        outcome = compile_here(entry.job)
    finally:
        entry.end(outcome)


def compile_here(job: CompileJob) -> Outcome:
    """Compile a job in this process and thread."""
    begin = time.perf_counter()
    error, reason = None, ""
    status: Status = "stored"
    try:
        get_interface_for_device(job.kind).worker().compile(job.payload)
    except NbrtError as failure:
        status, error = "failed", failure
    except NotStoredError as failure:
        status, reason = "unstored", str(failure)
    except Exception as failure:  # noqa: BLE001  # the launch compiles, and raises it if it must
        status, reason = "lost", repr(failure)
    return Outcome(status, error, reason, time.perf_counter() - begin)
