"""`WorkerQueue`: a CPU stream, a FIFO with its own thread, and `Completion`, a point in it."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from nbrt._internal.callsite import CallSite
from nbrt.backends.cpu.interrupts import Runner, runners
from nbrt.backends.stream_failure import StreamFailure
from nbrt.config import settings
from nbrt.errors import NbrtCleanupWarning, StreamError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Completion", "WorkerQueue"]

_IDLE_SECONDS = 5.0
_POLL_SECONDS = 0.05
"""The period at which a waiting thread checks for cancellation."""

_CANCEL_SECONDS = 1.0
"""The time that interpreter exit waits for cancelled streams after Ctrl-C."""

_queues: weakref.WeakSet[WorkerQueue] = weakref.WeakSet()


class Completion:
    """A point in a CPU queue, completed once when the queue reaches it.

    Attributes
    ----------
    is_done : bool
        Whether the queue has reached the point.
    seconds : float
        When it did, on the clock of `time.perf_counter`.
    failure : StreamFailure or None
        The queue's failure at that time that no synchronisation point had raised yet.
    """

    __slots__ = ("_lock", "failure", "is_done", "seconds")

    def __init__(self) -> None:
        self.is_done = False
        self.seconds = 0.0
        self.failure: StreamFailure | None = None
        # A held lock is the cheapest latch: threading.Event costs ten times as much.
        self._lock = threading.Lock()
        self._lock.acquire()

    def complete(self, failure: StreamFailure | None = None) -> None:
        """Complete the point; called once."""
        self.seconds = time.perf_counter()
        self.failure = failure
        self.is_done = True
        self._lock.release()

    def wait(self) -> None:
        """Block until the point is completed."""
        if not self.is_done:
            with self._lock:
                pass

    def wait_for(self, seconds: float) -> bool:
        """Block until completion, for some seconds at most; return whether it is completed."""
        if not self.is_done and self._lock.acquire(timeout=seconds):
            self._lock.release()
        return self.is_done


class _QueuedWork:
    __slots__ = ("args", "function", "site")

    def __init__(self, function: Callable[..., object], args: tuple[Any, ...], site: CallSite):
        self.function = function
        self.args = args
        self.site = site


class _Callback:
    """A function to call with the queue's failure, which it takes over unless it returns False."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[StreamFailure | None], object]) -> None:
        self.callback = callback


class _Wait:
    __slots__ = ("completion",)

    def __init__(self, completion: Completion) -> None:
        self.completion = completion


class _Stop:
    __slots__ = ()


class WorkerQueue:
    """A FIFO whose work runs in its own thread, so that work of two queues overlaps.

    The thread starts with the first work and ends after some idle seconds. Compiled kernels release
    the GIL. After work raises, later work is dropped until a synchronisation point has raised the
    failure. Completions and waits are not dropped, so other queues continue.

    Parameters
    ----------
    index : int
        The device.
    priority : int
        Recorded; the operating system schedules all threads alike.
    name : str
        The name of the queue in messages, and of its thread in debuggers.
    """

    def __init__(self, index: int, priority: int, name: str) -> None:
        self.index = index
        self.priority = priority
        self.handle = 0
        self.name = name
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Reentrant: a finalizer or signal handler in this thread may queue completions.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._submitted = 0
        self._completed = 0
        self._failure: StreamFailure | None = None
        self._is_closed = False
        self._runner = Runner()
        self._work: _QueuedWork | None = None
        self._works = self._begun = 0
        # The numbers of items and of works submitted before the last `cancel`.
        self._cancelled = self._cancelled_works = 0
        self._pid = os.getpid()
        _queues.add(self)

    def put(self, function: Callable[..., object], *args: Any) -> None:
        """Run ``function(*args)`` after everything queued before."""
        self._push(_QueuedWork(function, args, CallSite.here(depth=1)), works=1)

    def put_completion(self, completion: Completion) -> None:
        """Complete `completion` after everything queued before."""
        self._push(completion)

    def put_wait(self, completion: Completion) -> None:
        """Delay later work until another queue completes `completion`."""
        self._push(_Wait(completion))

    def query(self) -> bool:
        """Return whether everything queued so far is done."""
        return self._completed == self._submitted

    def synchronize(self) -> None:
        """Wait for everything queued so far; raise what failed."""
        if self._thread is None and self._failure is None and self.query():
            return
        self.check_outside()
        completion = Completion()
        self._push(_Callback(completion.complete))
        completion.wait()
        if completion.failure is not None:
            raise completion.failure.as_error(self.name)

    def check_outside(self) -> None:
        """Raise StreamError in work of this queue, which would wait for itself."""
        if self._thread is threading.current_thread():
            raise StreamError(
                f"expected {self.name} to be synchronised from outside, got a call from work that "
                f"runs on it, which would wait for itself; wait on another stream or thread"
            )

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """Call back in the worker thread when everything queued so far is done."""

        def call(failure: StreamFailure | None) -> object:
            return callback(None if failure is None else failure.as_error(self.name))

        self._push(_Callback(call))

    def raise_failure(self, failure: StreamFailure) -> None:
        """Raise the failure before an event; work queued later runs again."""
        # Another, later failure stays for its synchronisation point.
        self._push(_Callback(lambda current: current is failure))
        raise failure.as_error(self.name)

    def cancel(self) -> int:
        """Drop the queued work and end the running launch; return the number of dropped commands.

        Completions stay in the queue, so that waits for them end with the launch.
        """
        with self._lock:
            dropped = self._works - max(self._begun, self._cancelled_works)
            self._cancelled, self._cancelled_works = self._submitted, self._works
            self._runner.stop_launches()
        return dropped

    def running_launch(self) -> tuple[object, str] | None:
        """Return the record and the name of the running launch; None without one."""
        record, work = self._runner.record, self._work
        return None if record is None or work is None else (record, _label(work.function))

    def cancel_overdue(self, launch: str, seconds: float) -> None:
        """Cancel a launch that delays interpreter exit, and warn."""
        dropped = self.cancel()
        more = f", {dropped} command(s) behind it were dropped" if dropped else ""
        warnings.warn(
            f"{launch} was stopped on {self.name}: it ran for {seconds:g} s after the end of the "
            f"program{more}; synchronize the stream before, or raise NBRT_EXIT_TIMEOUT",
            NbrtCleanupWarning,
            stacklevel=2,
        )

    def end(self) -> threading.Thread | None:
        """Accept no more work; return the thread, which ends after the queued work."""
        with self._lock:
            thread = self._thread
            if thread is not None and not self._is_closed:
                self._items.put(_Stop())
            self._is_closed = True
        return thread

    def close(self) -> None:
        """Finish the queued work and end the thread; warn of a failure that was never raised."""
        thread = self.end()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            warnings.warn(str(failure.as_error(self.name)), NbrtCleanupWarning, stacklevel=2)

    def _push(self, item: Any, works: int = 0) -> None:
        with self._lock:
            if self._is_closed:
                raise StreamError(f"expected an open stream, got {self.name}, which was closed")
            self._submitted += 1
            self._works += works
            self._items.put(item)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        # Created before the lock is acquired: this may run finalizers, which start it themselves.
        thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
        with self._lock:
            if self._thread is not None:
                return
            self._thread = thread
        try:
            thread.start()
        except BaseException:
            if thread.ident is None:
                self._thread = None
            raise

    def _serve(self) -> None:
        runners[threading.get_ident()] = self._runner
        try:
            self._run_items()
        finally:
            del runners[threading.get_ident()]

    def _run_items(self) -> None:
        while True:
            try:
                item = self._items.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._completed == self._submitted and not self._is_closed:
                        self._thread = None
                        return
                continue
            if type(item) is _Stop:
                return
            if type(item) is Completion or type(item) is _Callback:
                # A thread that this item wakes must find the queue idle.
                self._completed += 1
                self._run(item)
                del item
            else:
                self._run(item)
                # The arguments must die before the work counts as done: then their memory is free.
                del item
                self._completed += 1

    def _run(self, item: Any) -> None:
        kind = type(item)
        if kind is _QueuedWork:
            self._run_work(item)
        elif kind is Completion:
            item.complete(self._failure)
        elif kind is _Wait:
            while (
                not item.completion.wait_for(_POLL_SECONDS) and self._completed >= self._cancelled
            ):
                pass
        else:
            failure, self._failure = self._failure, None
            try:
                if item.callback(failure) is False:
                    self._failure = failure
            except Exception as error:  # noqa: BLE001  # a callback has no caller
                warnings.warn(f"a callback failed: {error!r}", NbrtCleanupWarning, stacklevel=1)

    def _run_work(self, work: _QueuedWork) -> None:
        with self._lock:
            self._begun += 1
            if self._completed < self._cancelled:
                return
            self._runner.accept_launches()
        if self._failure is not None:
            self._failure.dropped.append(_label(work.function))
            return
        self._work = work
        try:
            work.function(*work.args)
        except BaseException as error:  # noqa: BLE001  # raised at synchronisation
            self._failure = StreamFailure(error, _label(work.function), work.site)
        finally:
            self._work = None


def _label(function: object) -> str:
    name = getattr(function, "label", None) or getattr(function, "__qualname__", None)
    return str(name or type(function).__name__)


def _close_all() -> None:
    """Finish all work at interpreter exit; cancel launches that exceed the time limit."""
    queues = [worker for worker in _queues if worker._pid == os.getpid()]
    try:
        _join(queues, settings().exit_timeout)
    except KeyboardInterrupt:
        # A second Ctrl-C ends all launches at once, without a message.
        with contextlib.suppress(KeyboardInterrupt):
            _cancel_all(queues)
        return
    for worker in queues:
        _call_printing_warnings(worker.close)


def _cancel_all(queues: list[WorkerQueue]) -> None:
    """Drop all work and wait for the running launches, but not for host functions."""
    for worker in queues:
        worker.cancel()
    limit = time.monotonic() + _CANCEL_SECONDS
    while any(worker.running_launch() for worker in queues) and time.monotonic() < limit:
        time.sleep(_POLL_SECONDS)


def _join(queues: list[WorkerQueue], limit: float) -> None:
    """Wait for the threads to end; cancel a stream whose launch runs for `limit` seconds."""
    threads = [(worker, thread) for worker in queues if (thread := worker.end()) is not None]
    running_since: dict[WorkerQueue, tuple[object, float]] = {}
    while threads:
        threads[0][1].join(_POLL_SECONDS)
        threads = [(worker, thread) for worker, thread in threads if thread.is_alive()]
        for worker, _ in threads:
            launch, now = worker.running_launch(), time.monotonic()
            record = None if launch is None else launch[0]
            if worker not in running_since or running_since[worker][0] is not record:
                running_since[worker] = (record, now)
            elif launch is not None and now - running_since[worker][1] >= limit:
                running_since[worker] = (None, now)
                _call_printing_warnings(worker.cancel_overdue, launch[1], limit)


def _call_printing_warnings(function: Callable[..., object], *args: object) -> None:
    try:
        function(*args)
    except NbrtCleanupWarning as warning:
        # A warning that is an error must not prevent the close of other queues.
        sys.stderr.write(f"{type(warning).__name__}: {warning}\n")


atexit.register(_close_all)
