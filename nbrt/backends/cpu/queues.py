"""`WorkerQueue`: a CPU stream, a FIFO with its own thread."""

from __future__ import annotations

import os
import queue
import threading
import time
import warnings
from _thread import get_ident
from itertools import starmap
from typing import TYPE_CHECKING, Any

from nbrt._internal.callsite import CallSite
from nbrt.backends.cpu.immediate_waits import ImmediateWaits
from nbrt.backends.cpu.interrupts import Runner, Watched, main_runner, runners
from nbrt.backends.cpu.queue_exit import close_at_exit
from nbrt.backends.cpu.queue_items import (
    BRIEF,
    Brevity,
    Callback,
    Completion,
    QueuedWork,
    Stop,
    Synchronization,
    Wait,
    label_of,
)
from nbrt.backends.cpu.turns import Turn, wait_for_owner
from nbrt.backends.stream_failure import StreamFailure
from nbrt.errors import NbrtCleanupWarning, StreamError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WorkerQueue"]

_IDLE_SECONDS = 5.0
_POLL_SECONDS = 0.05
"""The period at which a waiting thread checks for cancellation."""


class WorkerQueue:
    """A FIFO whose work runs in its own thread, so that work of two queues overlaps.

    The thread starts with the first work and ends after some idle seconds. After work raises, later
    work is dropped until a synchronisation point has raised the failure. Completions and waits are
    not dropped, so other queues continue. A thread may reserve the queue (`owner`) and run brief
    work while it is idle, or a launch that it waits for. Completions of an idle queue need none.

    Parameters
    ----------
    index : int
        The device.
    priority : int
        Recorded; the operating system schedules all threads alike.
    name : str
        The name of the queue in messages, and of its thread in debuggers.

    Attributes
    ----------
    is_ready : bool
        Whether all items have ended and the next work would run: open, no failure, not cancelled.
    pid : int
        The process that made the queue; the thread does not exist in forked children.
    owner : list of int or None
        An object of the thread that has reserved the queue, with its identifier. If `is_ready` and
        there is no owner, a thread may set it, run work, and set it to None; other items wait.
        Python switches threads and runs signal handlers only at calls and jumps back, so the tests
        and the assignment that follows them are one step.
    runner : Runner
        Ends the launches of the queue.
    last_end : int
        The clock at the end of the latest launch that its submitting thread ran.
    turn : Turn
        Makes threads that run launches of the queue themselves wait for each other.
    immediate_waits : ImmediateWaits
        Whether threads wait for each command as soon as it is submitted.
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
        self.owner: list[int] | None = None
        self.is_ready = True
        self.turn = Turn()
        self.last_end = 0
        self.immediate_waits = ImmediateWaits()
        # An item counts as completed just before those that wait for it wake, and as ended after.
        self._submitted = self._completed = self._ended = 0
        self._failure: StreamFailure | None = None
        self._is_closed = False
        self.runner = Runner()
        self._work: QueuedWork | None = None
        self._interrupted: StreamFailure | None = None  # of a launch that a signal handler ended
        self._last: QueuedWork | None = None
        self._works = self._begun = 0
        self._pending: dict[Brevity | None, int] = {}
        self._cancelled = self._cancelled_works = 0  # items and works submitted before `cancel`
        self.pid = os.getpid()
        close_at_exit(self)

    def put(self, function: Callable[..., object], *args: Any) -> None:
        """Run ``function(*args)`` after all before; its attribute ``brief`` may be a `Brevity`."""
        brief = getattr(function, "brief", None)
        brevity = brief if isinstance(brief, Brevity) else None
        self._push(QueuedWork(function, args, brevity, CallSite.here(depth=1)), works=1)
        self.immediate_waits.submitted()

    def put_brief(self, function: Callable[..., object], *args: Any) -> None:
        """Run ``function(*args)``, a short function in C, as `put` does; here if nothing else runs.

        The function calls back no Python code.
        """
        self.drain()
        results: list[object] = []
        calls = starmap(function, (args,))
        owner = [get_ident()]
        try:
            if self.is_ready and self.owner is None:
                self.owner = owner
                # Both in C: a signal handler that raises comes before the call or after its result.
                results.extend(calls)
                return
        except Exception as error:
            if results:
                raise
            self.fail(error, label_of(function))
            return
        finally:
            if self.owner is owner:
                self.owner = None
        self._push(QueuedWork(function, args, BRIEF, CallSite.here(depth=1)), works=1)

    def drain(self) -> None:
        """Wait until the queue is ready, if all that it has to do before is brief.

        Otherwise a thread that submits brief work, and has the GIL, would never find it ready.
        Threads that run work of a queue do not wait: finalizers of two could wait for each other.
        """
        if self.is_ready or self._failure is not None or self.runner.is_stopping:
            return
        with self._lock:
            for brevity in self._pending:
                if brevity is None or not brevity.are_expected:
                    return
        runner = runners.get(get_ident())
        if self.owner is None and self._thread is not None and runner in (None, main_runner):
            completion = Completion()
            self._push(Synchronization(completion, raises=False))
            completion.wait()

    def fail(self, error: Exception, label: str) -> None:
        """Keep the exception of work that ran while the queue was reserved, as its failure."""
        # The frames of the caller, which they refer to, would keep its arrays alive.
        error.__traceback__ = error.__context__ = None
        self.is_ready = False
        self._failure = StreamFailure(error, label, CallSite.here(depth=1))

    def put_completion(self, completion: Completion) -> None:
        """Complete `completion` after everything queued before."""
        if self.owner is None and self._ended == self._submitted and not self._is_closed:
            completion.complete(self._failure)
        else:
            self._push(completion)

    def put_wait(self, completion: Completion) -> None:
        """Delay later work until another queue completes `completion`."""
        self._push(Wait(completion))

    def query(self) -> bool:
        """Return whether everything queued so far is done."""
        return self._completed == self._submitted and self.owner is None

    def synchronize(self) -> None:
        """Wait for everything queued so far; raise what failed."""
        if self.immediate_waits.is_pending:
            self.immediate_waits.waited()
        if self.is_ready and self.owner is None:
            return
        self.check_outside()
        if (work := self._last) and work.number == self._ended + 1 and not work.is_claimed:
            # The thread of the queue has not begun it: two changes of threads cost more.
            if get_ident() != main_runner.ident:
                self._run_waiting(work)
            elif work.brevity is not None and work.brevity.are_short:
                self._run_interruptibly(work, work.brevity)
            del work
            if self.is_ready and self.owner is None:
                return
        completion = Completion()
        self._push(Synchronization(completion, raises=True))
        completion.wait()
        if completion.failure is not None:
            raise completion.failure.as_error(self.name)

    def check_outside(self) -> None:
        """Raise StreamError in work of this queue, which would wait for itself."""
        owner = self.owner
        if self._thread is threading.current_thread() or (owner and owner[0] == get_ident()):
            raise StreamError(
                f"expected {self.name} to be synchronised from outside, got a call from work that "
                f"runs on it, which would wait for itself; wait on another stream or thread"
            )

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """Call back in the worker thread when everything queued so far is done."""

        def call(failure: StreamFailure | None) -> object:
            return callback(None if failure is None else failure.as_error(self.name))

        self._push(Callback(call))

    def raise_failure(self, failure: StreamFailure) -> None:
        """Raise the failure before an event; work queued later runs again."""
        # Another, later failure stays for its synchronisation point.
        self._push(Callback(lambda current: current is failure))
        raise failure.as_error(self.name)

    def cancel(self) -> int:
        """Drop the queued work and end the running launch; return the number of dropped commands.

        Completions stay in the queue, so that waits for them end with the launch.
        """
        with self._lock:
            dropped = self._works - max(self._begun, self._cancelled_works)
            self.is_ready = False
            self._cancelled, self._cancelled_works = self._submitted, self._works
            self.runner.stop_launches()
            if self._failure is self._interrupted:
                self._failure = None
        return dropped

    def running_launch(self) -> tuple[object, str] | None:
        """Return the record and the name of the running launch; None without one."""
        record, work = self.runner.record, self._work
        return None if record is None or work is None else (record, work.label)

    def end(self) -> threading.Thread | None:
        """Accept no more work; return the thread, which ends after the queued work."""
        with self._lock:
            if (thread := self._thread) is not None and not self._is_closed:
                self._items.put(Stop())
            self._is_closed, self.is_ready = True, False
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
        kind = type(item)
        is_work = kind is not Completion and kind is not Synchronization
        brevity = item.brevity if kind is QueuedWork else None
        with self._lock:
            if self._is_closed:
                raise StreamError(f"expected an open stream, got {self.name}, which was closed")
            # No calls before the last line: a signal handler that raises would leave half of it.
            self.is_ready = False
            self._submitted += 1
            self._works += works
            if kind is QueuedWork:
                item.number = self._submitted
                self._last = item
            if is_work:
                pending = self._pending
                pending[brevity] = pending[brevity] + 1 if brevity in pending else 1
            self._items.put(item)
        if self._thread is None:
            self._start()

    def _forget(self, brevity: Brevity | None) -> None:
        """Count a pending item less."""
        with self._lock:
            self._pending[brevity] -= 1
            if not self._pending[brevity]:
                del self._pending[brevity]

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
        runners[get_ident()] = self.runner
        try:
            self._run_items()
        finally:
            del runners[get_ident()]

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
            kind = type(item)
            if kind is Stop:
                return
            while self.owner is not None:
                wait_for_owner(self)
            # No call comes between the test of the owner and the claim.
            if kind is QueuedWork:
                if item.is_claimed:  # a thread that waits for it has run it
                    del item
                    continue
                item.is_claimed = True
            if kind is Synchronization:
                completion = item.completion
                completion.failure = self._failure
                if item.raises:
                    self._failure = None
                # The thread that it wakes finds the queue ready, and alone refers to the failure.
                del item
                self._completed += 1
                self._end_item()
                completion.complete()
                del completion
                continue
            if kind is Completion or kind is Callback:
                # A thread that this item wakes must find the queue idle.
                self._completed += 1
                self._run(item)
                if kind is Callback:
                    self._forget(None)
                del item
            else:
                self._run(item)
                self._forget(item.brevity if kind is QueuedWork else None)
                if item is self._last:
                    self._last = None
                # The arguments must die before the work counts as done: then their memory is free.
                del item
                self._completed += 1
            self._end_item()

    def _end_item(self) -> None:
        self._ended += 1
        if (
            self._ended == self._submitted
            and self._failure is None
            and not self._is_closed
            and not self.runner.is_stopping
        ):
            self.is_ready = True

    def _claim(self, work: QueuedWork, owner: list[int]) -> bool:
        """Reserve the queue for its first pending item, if no thread has begun it."""
        if (
            work.is_claimed
            or work.number != self._ended + 1
            or self.owner is not None
            or self._failure is not None
            or self._completed < self._cancelled
            or self.runner.is_stopping
        ):
            return False
        work.is_claimed = True
        self.owner = owner
        return True

    def _run_waiting(self, work: QueuedWork) -> None:
        """Run a launch, the first pending item, in a waiting thread without signals."""
        ident = get_ident()
        if work.brevity is None or not self._claim(work, [ident]):
            return
        before = runners.get(ident)
        runners[ident] = self.runner
        try:
            self._run_work(work)
        finally:
            if before is None:
                del runners[ident]
            else:
                runners[ident] = before
            self._forget(work.brevity)
            work.args = ()
            self._last = None
            self._completed += 1
            self._end_item()
            self.owner = None

    def _run_interruptibly(self, work: QueuedWork, brevity: Brevity) -> None:
        """Run a short launch, the first pending item, in the main thread, which waits for it.

        A signal handler that raises before leaves it to the thread of the queue. One that ends the
        launch makes it fail, unless the work is cancelled.
        """
        record, native, stops = brevity.bind(self.runner)
        calls, results = starmap(native, (work.args,)), list[object]()
        failure = StreamFailure(KeyboardInterrupt(), work.label, work.site)
        owner, before, is_begun = [get_ident()], main_runner.record, False
        try:
            if not self._claim(work, owner):
                return
            self.runner.record, main_runner.record = record, Watched(record)
            if not main_runner.is_watched:
                main_runner.watch()
            begin = time.thread_time_ns()
            # Neither here, in `finally`, nor before a failure is kept is a call, where a signal
            # handler could come. The call of the launch and its result are one step.
            if self.runner.stops != stops:
                return
            self._begun += 1
            is_begun = True
            results.extend(calls)
            elapsed = time.thread_time_ns() - begin
        except BaseException as error:
            if is_begun and not results:
                failure.error = error
                self._failure = failure
                if record.has_raised:
                    record.note(error)
                    error.__traceback__ = error.__context__ = None
                    return
                # Not the exception itself, whose traceback holds the frames of its caller.
                failure.error = RuntimeError(f"a signal handler raised {type(error).__name__}")
                self._interrupted = failure
            raise
        finally:
            main_runner.record = before
            if self.owner is owner:
                self.runner.record = None
                if is_begun:
                    work.args = ()
                    self._last = None
                    self._pending[brevity] -= 1
                    if not self._pending[brevity]:
                        del self._pending[brevity]
                    self._completed += 1
                    self._ended += 1
                    self.is_ready = (
                        self._ended == self._submitted
                        and self._failure is None
                        and not self._is_closed
                        and not self.runner.is_stopping
                    )
                else:
                    work.is_claimed = False
                self.owner = None
        brevity.measured(elapsed)

    def _run(self, item: Any) -> None:
        kind = type(item)
        if kind is QueuedWork:
            self._run_work(item)
        elif kind is Completion:
            item.complete(self._failure)
        elif kind is Wait:
            while not item.completion.wait_for(_POLL_SECONDS):
                if self._completed < self._cancelled:
                    break
        else:
            failure, self._failure = self._failure, None
            try:
                if item.callback(failure) is False:
                    self._failure = failure
            except Exception as error:  # noqa: BLE001  # a callback has no caller
                warnings.warn(f"a callback failed: {error!r}", NbrtCleanupWarning, stacklevel=1)

    def _run_work(self, work: QueuedWork) -> None:
        with self._lock:
            self._begun += 1
            if self._completed < self._cancelled:
                return
            self.runner.accept_launches()
        if self._failure is not None:
            self._failure.dropped.append(work.label)
            return
        self._work = work
        try:
            work.function(*work.args)
        except BaseException as error:  # noqa: BLE001  # raised at synchronisation
            self._failure = StreamFailure(error, work.label, work.site)
        finally:
            self._work = None
