"""`Deferral`: the commands of a stream behind a launch whose kernel is being compiled.

A thread of the deferral submits the commands in their order, each after the compilations and the
events that it waits for. See docs/design/async_compile.md.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any

from nbrt._internal.callsite import CallSite, submitted_at
from nbrt.backends.stream_failure import StreamFailure
from nbrt.errors import NbrtCleanupWarning, StreamError
from nbrt.runtime import commands

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.queue import EventHandle, Queue
    from nbrt.runtime.commands import Command

__all__ = ["Deferral", "DeferredRecord", "defer", "wait_for_all"]

_KEPT = frozenset(["record", "wait"])
"""Commands that are neither dropped after a failure nor cancelled, so that other streams go on."""

_lock = threading.RLock()
_open: set[Deferral] = set()


class _Gate:
    """A function that returns when the commands behind it may be submitted."""

    __slots__ = ("wait",)

    def __init__(self, wait: Callable[[], object]) -> None:
        self.wait = wait


class _Callback:
    """A callback of `Deferral.add_done_callback`."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[BaseException | None], object]) -> None:
        self.callback = callback


class _Deferred:
    """A command and the call that submitted it."""

    __slots__ = ("command", "site")

    def __init__(self, command: Command, site: CallSite) -> None:
        self.command = command
        self.site = site


class _Cancelled:
    """In the place of a command that was cancelled."""

    __slots__ = ()


class Deferral:
    """The deferred commands of one stream, from a first gate until all of them are submitted.

    After a command fails, later ones are dropped until a synchronisation point has raised the
    failure, as on a stream with a thread.

    Parameters
    ----------
    stream : Stream
        The stream; `defer` makes this object its `deferral`.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        # Reentrant: a finalizer or signal handler in the thread that holds it may submit commands.
        self._changed = threading.Condition(threading.RLock())
        self._items: deque[_Gate | _Callback | _Deferred | _Cancelled] = deque()
        self._pushed = self._done = 0
        self._failure: StreamFailure | None = None
        self._is_served = False  # a thread serves the items, or is being started
        self._server: int | None = None  # the id of the thread that serves them
        self._is_over = False

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread submits the commands, so that nothing is deferred for it."""
        return self._server == get_ident()

    @property
    def is_pending(self) -> bool:
        """Whether commands are not submitted yet, in the view of the calling thread."""
        return self._done < self._pushed and not self.is_mine

    @property
    def failure(self) -> StreamFailure | None:
        """The failure that no synchronisation point has raised."""
        return self._failure

    def submit(self, command: Command) -> Any:
        """Defer a command; run it now in the thread of the deferral, or after its end."""
        if command.kind == "collective":
            # It submits commands itself, and other ranks wait for this thread.
            self.finish()
        elif not self.is_mine and self._push(_Deferred(command, CallSite.here(depth=1))):
            return None
        return command.function(self._stream.queue, *command.args)

    def add_gate(self, wait: Callable[[], object]) -> bool:
        """Let later commands wait until ``wait()`` returns; return False after the end."""
        return self._push(_Gate(wait))

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """Call back after the commands so far, as `Queue.add_done_callback` does."""
        if self.is_mine or not self._push(_Callback(callback)):
            self._stream.queue.add_done_callback(callback)

    def wait(self) -> None:
        """Wait until every command so far is submitted or dropped."""
        if not self.is_mine:
            with self._changed:
                target = self._pushed
                self._changed.wait_for(lambda: self._done >= target)

    def finish(self) -> None:
        """Wait as `wait` does; raise what failed."""
        self.wait()
        failure = self._failure
        if failure is not None:
            self.raise_failure(failure)

    def raise_failure(self, failure: StreamFailure) -> None:
        """Raise a failure; commands submitted later run again."""
        self.forget_failure(failure)
        raise failure.as_error(self._stream.queue.name)

    def forget_failure(self, failure: StreamFailure) -> None:
        """Let commands submitted later run again, unless there is a newer failure."""
        with self._changed:
            if self._failure is failure:
                self._failure = None
            is_over = self._end_if_idle()
        if is_over:
            _close(self)

    def check_outside(self) -> None:
        """Raise StreamError in the thread of the deferral, which would wait for itself."""
        if self.is_mine:
            raise StreamError(
                f"expected {self._stream.queue.name} to be waited for from outside, got a call "
                f"from work that is submitted to it; wait on another stream or thread"
            )

    def cancel(self) -> int:
        """Drop the deferred commands that have not begun; return their number."""
        with self._changed:
            kept = [_Cancelled() if _is_work(item) else item for item in self._items]
            dropped = sum(map(_is_work, self._items))
            self._items = deque(kept)
        return dropped

    def _push(self, item: _Gate | _Callback | _Deferred) -> bool:
        """Append an item; return False after the end."""
        with self._changed:
            if self._is_over:
                return False
            self._items.append(item)
            self._pushed += 1
            if self._is_served:
                return True
            self._is_served = True
        try:
            self._start()
        except RuntimeError:  # the interpreter is ending
            self._serve()
        except BaseException:  # an interrupt: the thread may have started, or not
            self._start()
            raise
        return True

    def _start(self) -> None:
        name = f"compilations of {self._stream.queue.name}"
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        """Submit all items; return at once if another thread does."""
        with self._changed:
            if self._server is not None or not self._items:
                return
            self._server = get_ident()
        is_last = is_over = False
        while not is_last:
            with self._changed:  # `cancel` replaces the items
                item = self._items.popleft()
            self._run(item)
            # The arguments must die before the command counts as submitted.
            del item
            with self._changed:
                self._done += 1
                is_last = not self._items
                if is_last:
                    self._is_served, self._server = False, None
                    is_over = self._end_if_idle()
                self._changed.notify_all()
        if is_over:
            _close(self)

    def _run(self, item: _Gate | _Callback | _Deferred | _Cancelled) -> None:
        queue: Queue = self._stream.queue
        if isinstance(item, _Gate):
            item.wait()
        elif isinstance(item, _Callback):
            self._run_callback(queue, item.callback)
        elif isinstance(item, _Deferred):
            command, failure = item.command, self._failure
            name = command.label or command.kind
            if failure is not None and command.kind not in _KEPT:
                failure.dropped.append(name)
                return
            try:
                with submitted_at(item.site):
                    command.function(queue, *command.args)
            except BaseException as error:  # noqa: BLE001  # raised at synchronisation
                if failure is None:
                    self._failure = StreamFailure(error, name, item.site)

    def _run_callback(
        self, queue: Queue, callback: Callable[[BaseException | None], object]
    ) -> None:
        failure = self._failure
        if failure is None:
            queue.add_done_callback(callback)
            return
        try:
            if callback(failure.as_error(queue.name)) is not False:
                self.forget_failure(failure)
        except Exception as error:  # noqa: BLE001  # a callback has no caller
            warnings.warn(f"a callback failed: {error!r}", NbrtCleanupWarning, stacklevel=1)

    def _end_if_idle(self) -> bool:
        """End without a thread, commands and failure; return whether it has. Callers lock."""
        if self._is_over or self._items or self._is_served or self._failure is not None:
            return False
        self._is_over = True
        if self._stream.deferral is self:
            self._stream.deferral = None
        return True


def _is_work(item: object) -> bool:
    return isinstance(item, _Deferred) and item.command.kind not in _KEPT


class DeferredRecord:
    """The record of an event on a stream that defers, as an `EventHandle`.

    Each record has an event of the backend, since an earlier record may be waited for later.

    Parameters
    ----------
    deferral : Deferral
        The deferral of the stream.
    inner : EventHandle
        A new event of the backend.
    """

    def __init__(self, deferral: Deferral, inner: EventHandle) -> None:
        self._deferral = deferral
        self._failure: StreamFailure | None = None
        self._submitted = threading.Event()
        self.inner = inner

    def record(self, queue: Queue) -> None:
        """Record the event of the backend."""
        try:
            self.inner.record(queue)
        finally:
            self._failure = self._deferral.failure
            self._submitted.set()

    @property
    def is_submitted(self) -> bool:
        """Whether the backend has recorded the event."""
        return self._submitted.is_set()

    def wait_submitted(self) -> None:
        """Wait until the backend has recorded the event."""
        if not self._submitted.is_set():
            self._deferral.check_outside()
            self._submitted.wait()

    def wait(self, queue: Queue) -> None:
        """Make later work of `queue` wait for the record."""
        self.wait_submitted()
        self.inner.wait(queue)

    def query(self) -> bool:
        """Return whether the record is done."""
        return self._submitted.is_set() and self.inner.query()

    def synchronize(self) -> None:
        """Wait on the host for the record; raise the failure of work before it."""
        self.wait_submitted()
        self.inner.synchronize()
        if self._failure is not None:
            self._deferral.raise_failure(self._failure)

    def host_wait(self) -> Callable[[], None]:
        """Return a function that waits on the host for the record, failed or not."""
        return self._wait_on_host

    def _wait_on_host(self) -> None:
        self.wait_submitted()
        self.inner.host_wait()()

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds from this record to that of `end`."""
        return self.inner.elapsed_time(end)

    def ipc_handle(self) -> bytes:
        """Return a handle that another process can open."""
        return self.inner.ipc_handle()

    def close(self) -> None:
        """Release the event of the backend."""
        self.inner.close()


def defer(stream: Any, wait: Callable[[], object]) -> None:
    """Defer the commands that are submitted to a stream from now until ``wait()`` has returned.

    Parameters
    ----------
    stream : Stream
        A stream that is not captured.
    wait : callable
        Blocks until the next command may be submitted; it raises nothing.
    """
    with _lock:
        deferral = stream.deferral
        if deferral is not None and deferral.add_gate(wait):
            return
        deferral = Deferral(stream)
        _open.add(deferral)
        commands.set_deferring(True)
        # Again each time: it must run before the queues of backends are closed, and functions that
        # were registered last run first.
        atexit.unregister(_finish_all)
        atexit.register(_finish_all)
        stream.deferral = deferral
        deferral.add_gate(wait)


def _close(deferral: Deferral) -> None:
    with _lock:
        _open.discard(deferral)
        if not _open:
            commands.set_deferring(False)


def wait_for_all() -> bool:
    """Wait until the deferred commands of all streams are submitted; return whether any were.

    The threads of deferrals wait for nothing, since they could wait for each other.
    """
    with _lock:
        known = list(_open)
    if any(deferral.is_mine for deferral in known):
        return False
    pending = [deferral for deferral in known if deferral.is_pending]
    for deferral in pending:
        deferral.wait()
    return bool(pending)


def _finish_all() -> None:
    """Submit all commands at interpreter exit; warn of failures that no call has raised."""
    try:
        wait_for_all()
    except KeyboardInterrupt:
        return
    for deferral in list(_open):
        failure = deferral.failure
        if failure is not None:
            text = str(failure.as_error(deferral._stream.queue.name))
            try:
                warnings.warn(text, NbrtCleanupWarning, stacklevel=2)
            except NbrtCleanupWarning as warning:
                # A warning that is an error must not prevent the others.
                sys.stderr.write(f"{type(warning).__name__}: {warning}\n")


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    _open.clear()  # their threads do not exist here, and their backends are unusable
    commands.set_deferring(False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
