"""`Scheduler`: a thread that distributes jobs among worker processes and replaces lost ones."""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from nbrt import errors
from nbrt.backends.in_flight import Outcome
from nbrt.compilation.processes import Server, WorkerProcess, cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.in_flight import InFlightJob
    from nbrt.compilation.worker import Failure, Request

__all__ = ["IDLE_SECONDS", "MAX_RESIDENT", "STALL_SECONDS", "Scheduler", "Task"]

IDLE_SECONDS = 60.0
"""Workers without a job end after this time, and the server after the last worker."""

STALL_SECONDS = 30.0
"""A worker that uses no CPU for this time is stuck. A long compilation uses one."""

MAX_RESIDENT = 220 * 10**6
"""A worker that has taken more bytes of memory is replaced when its job has ended."""

_MAX_STALLED = 600.0
"""The same on systems that do not tell the CPU time of a process: the limit of a compilation."""

_MAX_FAILED_STARTS = 2
"""After more of them, jobs are lost at once until a pause of `IDLE_SECONDS` is over."""


class Task(NamedTuple):
    """A queued job.

    Attributes
    ----------
    entry : InFlightJob
        The job.
    request : Request
        The message for a worker.
    preload : tuple of str
        Modules to import before workers are forked.
    """

    entry: InFlightJob
    request: Request
    preload: tuple[str, ...]


class Scheduler:
    """Distribute jobs among worker processes, which start when there are jobs.

    One thread owns the processes: the system ends them when the thread that started them ends.

    Parameters
    ----------
    limit : int
        Most worker processes.
    clock : callable
        Returns the time in seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._incoming: deque[Task | InFlightJob] = deque()
        self._is_closing = False
        self._wake_end, self._woken = socket.socketpair()
        for end in (self._wake_end, self._woken):
            end.setblocking(False)
        # The thread's own:
        self._queue: deque[Task] = deque()
        self._server: Server | None = None
        self._workers: list[WorkerProcess] = []
        self._active = 0.0  # the time of the latest submission or end of a job
        self._failed_starts = 0
        self._failed_at = 0.0

    # -- called by any thread ----------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        """Queue a job; it is lost if the system allows no further thread."""
        try:
            self._put(task)
        except RuntimeError as error:
            _lose(task.entry, str(error))

    def stop(self, entry: InFlightJob) -> None:
        """Cancel a job; a worker that compiles it is ended."""
        is_queued = entry.begin(here=True)
        entry.end(Outcome("cancelled"))  # at once: the next request for the key is a new job
        if not is_queued:
            self._put(entry)

    def wake(self) -> None:
        """Let the thread look at the clock."""
        with suppress(OSError):  # it has not seen earlier bytes, or is closed
            self._wake_end.send(b"\0")

    def close(self) -> None:
        """End all processes and the thread; jobs that have not ended are lost."""
        with self._lock:
            self._is_closing = True
            thread = self._thread
        if thread is not None:
            self.wake()
            thread.join()
        self._wake_end.close()
        self._woken.close()

    def abandon(self) -> None:
        """Close the descriptors in a forked process, so that the processes see their parent end."""
        self._wake_end.close()
        self._woken.close()
        for worker in self._workers:
            worker.channel.close()
        if self._server is not None:
            self._server.abandon()

    def processes(self) -> list[int]:
        """Return the ids of the server, if it runs, and of its workers that have started."""
        server, workers = self._server, list(self._workers)
        started = [worker.pid for worker in workers if worker.pid is not None]
        return started if server is None else [server.pid, *started]

    def _put(self, item: Task | InFlightJob) -> None:
        with self._lock:
            if self._is_closing:
                message = "expected an open pool of compile processes, got a closed one"
                raise errors.ArgumentError(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="nbrt-compile", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:
                    self._thread = None
                    raise
            self._incoming.append(item)
        self.wake()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                while self._step():
                    pass
            except Exception:  # noqa: BLE001  # reported; kernels compile in this process for a while
                self._failed_starts, self._failed_at = _MAX_FAILED_STARTS, self._clock()
                thread = threading.current_thread()
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), thread)))
            finally:
                self._stop_processes()
                is_last = self._finish()
            if is_last:
                return

    def _finish(self) -> bool:
        """Leave the thread unless jobs have arrived; return whether it is left."""
        with self._lock:
            if self._incoming and not self._is_closing:
                return False
            self._thread = None
            rest = [*self._queue, *self._incoming]
            self._queue.clear()
            self._incoming.clear()
        for item in rest:
            if isinstance(item, Task):
                _lose(item.entry, "the compile processes ended")
        return True

    def _step(self) -> bool:
        """Do what can be done, and wait for an event; return False to end the thread."""
        with self._lock:
            if self._is_closing:
                return False
        self._take_incoming()
        self._assign()
        self._start_processes()
        self._end_stalled()
        if not self._end_idle():
            return False
        with selectors.PollSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            if self._server is not None:
                selector.register(self._server, selectors.EVENT_READ)
            for worker in self._workers:
                output = selectors.EVENT_WRITE if worker.channel.has_output else 0
                selector.register(worker, selectors.EVENT_READ | output)
            ready = [key.fileobj for key, _ in selector.select(self._timeout())]
        for each in ready:
            if each is self._woken:
                _drain(self._woken)
            elif isinstance(each, WorkerProcess):
                if each in self._workers:  # unless the server was lost just now
                    self._receive(each)
            else:
                self._lose_server()
        return True

    def _take_incoming(self) -> None:
        while self._incoming:
            item = self._incoming.popleft()
            if isinstance(item, Task):
                self._queue.append(item)
                self._active = self._clock()
                continue
            for worker in self._workers:
                if worker.entry is item:
                    self._end_worker(worker, Outcome("cancelled"))
                    break

    def _assign(self) -> None:
        """Send queued jobs to idle workers that have compiled for no other kind of device."""
        waiting: deque[Task] = deque()
        for task in self._queue:
            if task.entry.state != "queued":
                continue
            idle = [each for each in self._workers if each.is_idle]
            known = [each for each in idle if each.kind in (None, task.entry.job.kind)]
            if known and task.entry.begin(here=False):
                self._give(known[0], task)
                continue
            waiting.append(task)
            if idle and not known and len(self._workers) == self._limit:
                self._forget(idle[0], "")  # the compilers of both kinds would take much memory
        self._queue = waiting

    def _give(self, worker: WorkerProcess, task: Task) -> None:
        worker.entry, worker.kind = task.entry, task.entry.job.kind
        worker.since, worker.cpu_seconds = self._clock(), None
        worker.channel.send(task.request)

    def _start_processes(self) -> None:
        kinds = {None, *(task.entry.job.kind for task in self._queue)}
        idle = sum(worker.entry is None and worker.kind in kinds for worker in self._workers)
        new = min(len(self._queue) - idle, self._limit - len(self._workers))
        if new <= 0:
            return
        try:
            is_started = self._fork(new)
        except OSError:  # too many processes or open files
            is_started = False
        if not is_started:
            while self._queue:
                _lose(self._queue.popleft().entry, "the compile processes do not start")

    def _fork(self, number: int) -> bool:
        """Fork workers for the queue; return False after too many failures."""
        if self._failed_starts >= _MAX_FAILED_STARTS:
            if self._clock() - self._failed_at < IDLE_SECONDS:
                return False
            self._failed_starts = 0
        if self._server is None:
            self._server = Server()
        for task in self._queue:
            self._server.preload(task.preload)
        for _ in range(number):
            worker = self._server.fork()
            worker.since = self._clock()
            self._workers.append(worker)
        return True

    def _receive(self, worker: WorkerProcess) -> None:
        worker.channel.flush()
        try:
            replies = worker.channel.receive()
        except EOFError:
            if worker.pid is None:
                self._note_failed_start()
            self._forget(worker, "the compile process ended")
            return
        worker.since = self._active = self._clock()
        for status, value, resident in replies:
            if status == "ready":
                worker.pid = value
                self._failed_starts = 0
                continue
            entry, worker.entry = worker.entry, None
            if entry is not None:
                entry.end(_outcome(status, value))
            if resident > MAX_RESIDENT:
                self._forget(worker, "")

    def _end_stalled(self) -> None:
        """End workers that have used no CPU for a while although they have a job."""
        now = self._clock()
        for worker in list(self._workers):
            if worker.is_idle:
                continue
            pid = worker.pid or (self._server.pid if self._server is not None else os.getpid())
            used = cpu_seconds(pid)
            if used is not None and used != worker.cpu_seconds:
                worker.since, worker.cpu_seconds = now, used
            elif now - worker.since >= (_MAX_STALLED if used is None else STALL_SECONDS):
                self._end_worker(worker, Outcome("lost", reason="the compile process was stuck"))

    def _end_worker(self, worker: WorkerProcess, outcome: Outcome) -> None:
        if worker.pid is None:
            self._lose_server()
            return
        if self._server is not None:
            self._server.kill(worker.pid)
        entry, worker.entry = worker.entry, None
        self._forget(worker, "")
        if entry is not None:
            entry.end(outcome)

    def _end_idle(self) -> bool:
        """End processes that have been idle for a while; return False if none is left."""
        now = self._clock()
        for worker in list(self._workers):
            if worker.is_idle and now - worker.since >= IDLE_SECONDS:
                self._forget(worker, "")
        if self._workers or self._queue:
            return True
        return self._server is not None and now - self._active < IDLE_SECONDS

    def _timeout(self) -> float:
        """Return the seconds until the thread must look at the clock."""
        now = self._clock()
        ends = [self._active + IDLE_SECONDS] if not self._workers else []
        for worker in self._workers:
            is_idle = worker.is_idle
            ends.append(worker.since + IDLE_SECONDS if is_idle else now + STALL_SECONDS / 10)
        return max(0.0, min(ends) - now)

    def _forget(self, worker: WorkerProcess, reason: str) -> None:
        """Close the connection of a worker, which ends it if it waits for a job."""
        self._workers.remove(worker)
        worker.channel.close()
        if worker.entry is not None:
            _lose(worker.entry, reason)

    def _lose_server(self) -> None:
        if not any(worker.pid is not None for worker in self._workers):
            self._note_failed_start()
        self._stop_processes()

    def _note_failed_start(self) -> None:
        self._failed_starts += 1
        self._failed_at = self._clock()

    def _stop_processes(self) -> None:
        has_started = any(worker.pid is not None for worker in self._workers)
        for worker in list(self._workers):
            self._forget(worker, "the compile processes ended")
        if self._server is not None:
            self._server.close(at_once=not has_started)
            self._server = None


def _lose(entry: InFlightJob, reason: str) -> None:
    entry.begin(here=False)
    entry.end(Outcome("lost", reason=reason))


def _drain(end: socket.socket) -> None:
    with suppress(BlockingIOError):
        while end.recv(4096):
            pass


def _outcome(status: str, value: Any) -> Outcome:
    if status == "stored":
        seconds, cautions = value
        return Outcome("stored", seconds=seconds, warnings=tuple(each.show for each in cautions))
    if status == "failed":
        return Outcome("failed", _error(value))
    return Outcome("unstored" if status == "unstored" else "lost", reason=value)


class _CompilerError(Exception):
    """The message of the compiler's error in a worker process."""


def _error(failure: Failure) -> Exception:
    kind = getattr(errors, failure.name, errors.CompileError)
    error: Exception = kind(failure.message)
    if failure.cause:
        error.__cause__ = _CompilerError(failure.cause)
    return error
