"""`AsyncCompile`: worker processes that compile kernels, and the default pool of the process."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading
import time
import weakref
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from nbrt.backends import in_flight
from nbrt.backends.code_store.store import CodeStore
from nbrt.backends.in_flight import Outcome
from nbrt.backends.registry import get_interface_for_device
from nbrt.compilation.environment import Environment
from nbrt.compilation.future import CompileFuture, end_here
from nbrt.compilation.processes import can_fork
from nbrt.compilation.scheduler import Scheduler, Task
from nbrt.compilation.worker import Request
from nbrt.config import settings
from nbrt.errors import ArgumentError, NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from nbrt.backends.compile_jobs import CompileJob
    from nbrt.backends.in_flight import InFlightJob

__all__ = ["AsyncCompile", "current_pool", "default_pool", "launch_pool"]

T = TypeVar("T")

_MAX_WORKERS = 32


class AsyncCompile:
    """Worker processes that compile kernels for launches to come.

    Inside its ``with`` block, `nbrt.compile` uses it. The block ends when all its compilations have
    ended; after an exception they are cancelled.

    Parameters
    ----------
    workers : int, optional
        Most worker processes. 0: kernels compile in this process, in the thread that asks. None:
        ``NBRT_COMPILE_WORKERS``, else as many as the process may use CPUs, at most 32.
    clock : callable
        Returns the time in seconds.

    Attributes
    ----------
    workers : int
        Most worker processes.
    is_closed : bool
        Whether the processes have ended for good.

    Raises
    ------
    ArgumentError
        If `workers` is not an integer of at least 0.
    NotSupportedError
        In a daemonic process of `multiprocessing`, which must not have children.

    Notes
    -----
    The processes start with the first compilation and end after a minute without one. A process
    that ends unexpectedly or is stuck is replaced, and its kernel compiles in this process. All end
    with this process, in whichever way it ends. They import none of the program's modules.
    """

    def __init__(
        self, workers: int | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if workers is None:
            workers = _default_workers()
        if type(workers) is not int or workers < 0:
            raise ArgumentError(
                f"expected workers to be an integer of at least 0 or None, got {workers!r}"
            )
        if workers and _is_daemonic():
            raise NotSupportedError(
                "expected compile processes to start in a process that may have children, got a "
                "daemonic one of multiprocessing; set NBRT_COMPILE_WORKERS=0 there to compile in "
                "the process, or start it with daemon=False, or use "
                "concurrent.futures.ProcessPoolExecutor in the place of multiprocessing.Pool"
            )
        self.is_closed = False
        self._scheduler = None
        if workers and can_fork():
            with suppress(OSError):  # no more files can be opened
                self._scheduler = Scheduler(workers, clock)
        self.workers = 0 if self._scheduler is None else workers
        self._futures: weakref.WeakSet[CompileFuture[Any]] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._backends: dict[str, tuple[bytes, tuple[str, ...]]] = {}
        _pools.add(self)

    def __repr__(self) -> str:
        return f"<AsyncCompile, {self.workers} workers>"

    def __enter__(self) -> AsyncCompile:
        self._check_open()
        _current.set((*_current.get(), self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        outer = list(_current.get())
        if self in outer:  # not in a block that was entered in another context
            del outer[max(index for index, pool in enumerate(outer) if pool is self)]
            _current.set(tuple(outer))
        try:
            if kind is None:
                for future in self._pending():
                    if len(self.processes()) <= 1:  # no worker runs yet
                        future.help()
                    future.wait()
        finally:
            self.close()

    def compile(self, kernel: Any, *specs: Any, **options: Any) -> CompileFuture[Any]:
        """Compile a kernel in the processes of this pool; see `nbrt.compile`.

        Parameters
        ----------
        kernel, *specs, **options
            As for `nbrt.compile`.

        Examples
        --------
        >>> import nbrt
        >>> from numba import cuda
        >>> @nbrt.kernel
        ... def negate(x):
        ...     i = cuda.grid(1)
        ...     if i < x.size:
        ...         x[i] = -x[i]
        >>> with nbrt.AsyncCompile(workers=0) as pool:
        ...     futures = [pool.compile(negate, f"{t}[::1]", device="cpu") for t in ("i4", "f8")]
        >>> all(future.done() for future in futures)
        True
        """
        token = _current.set((*_current.get(), self))
        try:
            future: CompileFuture[Any] = kernel.compile(*specs, **options)
        finally:
            _current.reset(token)
        return future

    def submit(
        self, jobs: Sequence[CompileJob], load: Callable[[], T], label: str
    ) -> CompileFuture[T]:
        """Compile jobs, and return the future of what `load` returns when they have ended.

        Parameters
        ----------
        jobs : sequence of CompileJob
            The compilations; those whose key is in flight join it.
        load : callable
            Loads the code from the code store, or compiles it if it is not there.
        label : str
            Name of the future in texts.

        Raises
        ------
        ArgumentError
            If the pool is closed.
        """
        self._check_open()
        entries: list[InFlightJob] = []
        try:
            for job in jobs:
                entry, is_new = in_flight.join(job)
                entries.append(entry)
                if is_new:
                    self._start(entry)
            future = CompileFuture(label, entries, load, self._stop)
        except BaseException:  # an interrupt
            for entry in entries:
                if entry.release():
                    self._stop(entry)
            raise
        with self._lock:
            self._futures.add(future)
        return future

    def _check_open(self) -> None:
        if self.is_closed:
            message = "expected an open pool of compile processes, got a closed one; make a new one"
            raise ArgumentError(message)

    def _start(self, entry: InFlightJob) -> None:
        """Compile a new job, in a worker process if there are any and they can store the code."""
        try:
            if not CodeStore(entry.job.kind).is_writable():
                entry.end(Outcome("unstored", reason="the folder of compiled code is not usable"))
                return
            if self._scheduler is None:
                entry.begin(here=True)
                end_here(entry)
                return
            backend, preload = self._backend(entry.job.kind)
            environment = Environment.of_this_process()
            request = Request(backend, environment, entry.job.key, entry.job.payload)
            self._scheduler.submit(Task(entry, request, preload))
        except BaseException:
            entry.end(Outcome("cancelled"))
            raise

    def close(self) -> None:
        """Cancel compilations that have not ended, and end the processes."""
        self.is_closed = True
        for future in self._pending():
            future.cancel()
        _pools.discard(self)
        if self._scheduler is not None:
            self._scheduler.close()

    def processes(self) -> list[int]:
        """Return the ids of the processes that run: the server, then the workers."""
        return [] if self._scheduler is None else self._scheduler.processes()

    def _pending(self) -> list[CompileFuture[Any]]:
        with self._lock:
            return [future for future in self._futures if not future.done()]

    def wake(self) -> None:
        """Let the pool look at its clock."""
        if self._scheduler is not None:
            self._scheduler.wake()

    def _stop(self, entry: InFlightJob) -> None:
        if self._scheduler is not None:
            with suppress(ArgumentError):  # closed
                self._scheduler.stop(entry)
        elif entry.begin(here=True):
            entry.end(Outcome("cancelled"))

    def _backend(self, kind: str) -> tuple[bytes, tuple[str, ...]]:
        """Return the pickled `Worker` of a kind of device, and the modules it needs."""
        known = self._backends.get(kind)
        if known is None:
            from numba import cloudpickle

            worker = get_interface_for_device(kind).worker()
            known = self._backends[kind] = cloudpickle.dumps(worker), worker.preload
        return known

    def _after_fork_in_child(self) -> None:
        """Compile in place from now on."""
        self.workers = 0
        self._lock = threading.Lock()
        self._futures.clear()
        if self._scheduler is not None:
            self._scheduler.abandon()
            self._scheduler = None


def _is_daemonic() -> bool:
    return multiprocessing.current_process().daemon


def _default_workers() -> int:
    if _is_ending:
        return 0
    chosen = settings().compile_workers
    if chosen is not None:
        return chosen
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(_MAX_WORKERS, usable or 1)


_current: ContextVar[tuple[AsyncCompile, ...]] = ContextVar("nbrt.compilation.pool", default=())
_pools: weakref.WeakSet[AsyncCompile] = weakref.WeakSet()
_defaults: dict[int, AsyncCompile] = {}
_lock = threading.Lock()
_is_ending = False


def default_pool() -> AsyncCompile:
    """Return the pool of the process, with the number of workers by the settings."""
    workers = _default_workers()
    with _lock:
        pool = _defaults.get(workers)
        if pool is None or pool.is_closed:
            pool = _defaults[workers] = AsyncCompile(workers)
        return pool


def current_pool() -> AsyncCompile:
    """Return the pool of the innermost ``with AsyncCompile()`` of the context, or the default."""
    pools = _current.get()
    return pools[-1] if pools else default_pool()


def launch_pool() -> AsyncCompile | None:
    """Return `current_pool`, or None if launches must compile in this process and thread."""
    if not _current.get() and (not _default_workers() or _is_daemonic()):
        return None
    pool = current_pool()
    return pool if pool.workers and not pool.is_closed else None


def _close_all() -> None:
    global _is_ending
    _is_ending = True
    for pool in list(_pools):
        pool.close()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _defaults.clear()
    _current.set(())
    for pool in list(_pools):
        pool._after_fork_in_child()
    _pools.clear()


atexit.register(_close_all)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)
