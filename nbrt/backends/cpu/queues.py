"""`WorkerQueue`: a CPU stream, a real FIFO with a thread of its own."""

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
from nbrt.backends.cpu.completion import Mark
from nbrt.backends.cpu.failures import Failure
from nbrt.backends.cpu.interrupts import Runner, runners
from nbrt.config import settings
from nbrt.errors import NbrtCleanupWarning, StreamError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WorkerQueue"]

_IDLE_SECONDS = 5.0
_LOOK_SECONDS = 0.05
"""How often a thread that waits for another looks whether it still should."""

_CANCEL_SECONDS = 1.0
"""How long the end of the interpreter waits for cancelled streams after Ctrl-C."""

_queues: weakref.WeakSet[WorkerQueue] = weakref.WeakSet()


class _Work:
    __slots__ = ("args", "function", "site")

    def __init__(self, function: Callable[..., object], args: tuple[Any, ...], site: CallSite):
        self.function = function
        self.args = args
        self.site = site


class _Notice:
    """Tells somebody when the worker gets here; takes the failure over unless it answers False."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[Failure | None], object]) -> None:
        self.callback = callback


class _Wait:
    __slots__ = ("mark",)

    def __init__(self, mark: Mark) -> None:
        self.mark = mark


class _Stop:
    __slots__ = ()


class WorkerQueue:
    """A FIFO whose work runs in its own thread, so that work of two queues overlaps.

    The thread starts with the first work and ends after some idle seconds. Compiled kernels release
    the GIL. When work raises, work behind it is dropped until a synchronisation point has raised
    the failure; marks and waits are never dropped, so other queues go on.

    Parameters
    ----------
    index : int
        The device.
    priority : int
        Recorded; the operating system schedules all threads alike.
    name : str
        What to call the queue in messages and its thread in debuggers.
    """

    def __init__(self, index: int, priority: int, name: str) -> None:
        self.index = index
        self.priority = priority
        self.handle = 0
        self.name = name
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Reentrant: a finalizer or a signal's handler that runs meanwhile may put marks on it.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._submitted = 0
        self._completed = 0
        self._failure: Failure | None = None
        self._is_closed = False
        self._runner = Runner()
        self._work: _Work | None = None
        self._works = self._begun = 0
        # Of the items and of the works submitted, how many had been when `cancel` was called last.
        self._cancelled = self._cancelled_works = 0
        self._pid = os.getpid()
        _queues.add(self)

    def put(self, function: Callable[..., object], *args: Any) -> None:
        """Run ``function(*args)`` after everything queued before."""
        self._push(_Work(function, args, CallSite.here(depth=1)), works=1)

    def put_mark(self, mark: Mark) -> None:
        """Open `mark` when everything queued before is done."""
        self._push(mark)

    def put_wait(self, mark: Mark) -> None:
        """Hold later work until `mark`, of another queue, is open."""
        self._push(_Wait(mark))

    def query(self) -> bool:
        """Return whether everything queued so far is done."""
        return self._completed == self._submitted

    def synchronize(self) -> None:
        """Wait for everything queued so far; raise what failed."""
        if self._thread is None and self._failure is None and self.query():
            return
        self.check_outside()
        mark = Mark()
        self._push(_Notice(mark.complete))
        mark.wait()
        if mark.failure is not None:
            raise mark.failure.as_error(self.name)

    def check_outside(self) -> None:
        """Raise if the caller is work of this queue, which would wait for itself."""
        if self._thread is threading.current_thread():
            raise StreamError(
                f"expected {self.name} to be synchronised from outside, got a call from work that "
                f"runs on it, which would wait for itself; wait on another stream or thread"
            )

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """Call back in the worker thread when everything queued so far is done."""

        def pass_on(failure: Failure | None) -> object:
            return callback(None if failure is None else failure.as_error(self.name))

        self._push(_Notice(pass_on))

    def surface(self, failure: Failure) -> None:
        """Raise `failure` on behalf of an event; work queued from now on runs again."""
        # A later failure is not this event's to take: it stays for its own synchronisation point.
        self._push(_Notice(lambda taken: taken is failure))
        raise failure.as_error(self.name)

    def cancel(self) -> int:
        """Drop the queued work and end the launch that runs; give how many commands were dropped.

        Marks stay in the queue, so that what waits for them goes on once the launch has ended.
        """
        with self._lock:
            dropped = self._works - max(self._begun, self._cancelled_works)
            self._cancelled, self._cancelled_works = self._submitted, self._works
            self._runner.stop_launches()
        return dropped

    def running_launch(self) -> tuple[object, str] | None:
        """Return the record and the name of the launch that runs, if one does."""
        record, work = self._runner.record, self._work
        return None if record is None or work is None else (record, _label(work.function))

    def cancel_overdue(self, launch: str, seconds: float) -> None:
        """Cancel a launch that keeps the interpreter from ending, and warn of it."""
        dropped = self.cancel()
        more = f", {dropped} command(s) behind it were dropped" if dropped else ""
        warnings.warn(
            f"{launch} was stopped on {self.name}: it ran for {seconds:g} s after the end of the "
            f"program{more}; synchronize the stream before, or raise NBRT_EXIT_TIMEOUT",
            NbrtCleanupWarning,
            stacklevel=2,
        )

    def end(self) -> threading.Thread | None:
        """Take no more work; return the thread, which ends once the queued work is done."""
        with self._lock:
            thread = self._thread
            if thread is not None and not self._is_closed:
                self._items.put(_Stop())
            self._is_closed = True
        return thread

    def close(self) -> None:
        """Finish the queued work and end the thread; warn of a failure that was not raised yet."""
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
        # Made before the lock is taken: making it may run finalizers, which start it themselves.
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
            if type(item) is Mark or type(item) is _Notice:
                # Whoever is told that all is done must find it so.
                self._completed += 1
                self._run(item)
                del item
            else:
                self._run(item)
                # Arguments must die before the work counts as done: their memory is free by then.
                del item
                self._completed += 1

    def _run(self, item: Any) -> None:
        kind = type(item)
        if kind is _Work:
            self._run_work(item)
        elif kind is Mark:
            item.complete(self._failure)
        elif kind is _Wait:
            while not item.mark.wait_for(_LOOK_SECONDS) and self._completed >= self._cancelled:
                pass
        else:
            failure, self._failure = self._failure, None
            try:
                if item.callback(failure) is False:
                    self._failure = failure
            except Exception as error:  # noqa: BLE001  # a callback has no caller to raise to
                warnings.warn(f"a callback failed: {error!r}", NbrtCleanupWarning, stacklevel=1)

    def _run_work(self, work: _Work) -> None:
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
        except BaseException as error:  # noqa: BLE001  # kept, and raised at synchronisation
            self._failure = Failure(error, _label(work.function), work.site)
        finally:
            self._work = None


def _label(function: object) -> str:
    name = getattr(function, "label", None) or getattr(function, "__qualname__", None)
    return str(name or type(function).__name__)


def _close_all() -> None:
    """Finish all work when the interpreter ends; no launch keeps it from ending for ever."""
    mine = [each for each in _queues if each._pid == os.getpid()]
    try:
        _wait_for(mine, settings().exit_timeout)
    except KeyboardInterrupt:
        # A second Ctrl-C ends all launches at once, without a message.
        with contextlib.suppress(KeyboardInterrupt):
            _cancel_all(mine)
        return
    for each in mine:
        _tell(each.close)


def _cancel_all(queues: list[WorkerQueue]) -> None:
    """Drop all work, and wait until launches have ended, but not for host functions."""
    for each in queues:
        each.cancel()
    limit = time.monotonic() + _CANCEL_SECONDS
    while any(each.running_launch() for each in queues) and time.monotonic() < limit:
        time.sleep(_LOOK_SECONDS)


def _wait_for(queues: list[WorkerQueue], limit: float) -> None:
    """Wait until the threads have ended; cancel a stream whose launch runs for `limit` seconds."""
    threads = [(each, thread) for each in queues if (thread := each.end()) is not None]
    since: dict[WorkerQueue, tuple[object, float]] = {}
    while threads:
        threads[0][1].join(_LOOK_SECONDS)
        threads = [(each, thread) for each, thread in threads if thread.is_alive()]
        for each, _ in threads:
            launch, now = each.running_launch(), time.monotonic()
            record = None if launch is None else launch[0]
            if each not in since or since[each][0] is not record:
                since[each] = (record, now)
            elif launch is not None and now - since[each][1] >= limit:
                since[each] = (None, now)
                _tell(each.cancel_overdue, launch[1], limit)


def _tell(function: Callable[..., object], *args: object) -> None:
    try:
        function(*args)
    except NbrtCleanupWarning as warning:
        # Warnings that are errors must not keep the other queues from being closed.
        sys.stderr.write(f"{type(warning).__name__}: {warning}\n")


atexit.register(_close_all)
