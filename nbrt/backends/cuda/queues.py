"""`CudaQueue`: a CUDA stream, as nbrt's queue and as CuPy's current stream."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

from nbrt._internal.callsite import CallSite
from nbrt.backends.cuda.failures import translate, translate_status
from nbrt.errors import NbrtCleanupWarning, NbrtError, NotSupportedError, StreamError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from nbrt.backends.cuda.driver import Driver

__all__ = [
    "DEFAULT_HANDLE",
    "BorrowedStream",
    "CudaQueue",
    "Epoch",
    "OnQueue",
    "canonical_handle",
]

DEFAULT_HANDLE = 0
"""The legacy default stream. CUDA also calls it 1; nbrt maps both to 0, because CuPy keys its pools
by the number and would keep two arenas for one stream."""

_PER_THREAD_HANDLE = 2


def canonical_handle(handle: int) -> int:
    """Return the one number nbrt uses for a stream.

    Raises
    ------
    NotSupportedError
        For the per-thread default stream, which is another stream in every thread.
    """
    if handle == _PER_THREAD_HANDLE:
        raise NotSupportedError(
            "expected a stream that is the same in every thread, got CUDA's per-thread default "
            "stream; make a stream with nbrt.Stream() instead"
        )
    return DEFAULT_HANDLE if handle == 1 else handle


class BorrowedStream:
    """A raw stream and what keeps it alive, in the form that CuPy takes."""

    __slots__ = ("handle", "owner")

    def __init__(self, handle: int, owner: object) -> None:
        self.handle = handle
        self.owner = owner

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return (protocol version, address of the stream)."""
        return 0, self.handle


class _Task:
    """A host function on its way through a stream; `number` counts those of its queue."""

    __slots__ = ("call", "name", "number", "site")

    def __init__(
        self, function: Callable[..., object], args: tuple[Any, ...], number: int, site: CallSite
    ) -> None:
        self.number = number
        self.call: tuple[Callable[..., object], tuple[Any, ...]] | None = (function, args)
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self.site = site

    def release(self) -> object:
        """Let go of function and arguments; return them to whoever shall drop them."""
        released, self.call = self.call, None
        return released


class _Failure:
    """A host call that raised, and those that were dropped behind it."""

    __slots__ = ("dropped", "error", "task")

    def __init__(self, error: BaseException, task: _Task) -> None:
        self.error = error
        self.task = task
        self.dropped: list[str] = []

    def as_error(self, where: str) -> StreamError:
        """Return the exception that a synchronisation point raises."""
        lines = [
            f"{self.task.name} failed on {where} with {type(self.error).__name__}: {self.error}",
            f"It was submitted here:\n{self.task.site.format()}",
        ]
        if self.dropped:
            shown = ", ".join(self.dropped[:5]) + (", ..." if len(self.dropped) > 5 else "")
            lines.append(
                f"{len(self.dropped)} later command(s) of the stream were dropped: {shown}. Submit "
                f"them again once the cause is mended"
            )
        # A CUDA stream does not stop for a host call; only the calls themselves can be dropped.
        lines.append("Kernels and copies queued behind it ran all the same")
        error = StreamError("\n".join(lines))
        error.__cause__ = self.error
        return error


class Epoch:
    """The time of a queue from one raised failure to the next; holds the failure that ends it.

    Events keep the epoch they were recorded in, so whoever waits for one learns that the work
    before it failed, also if somebody else was told already, and nothing of later failures.
    """

    __slots__ = ("failure",)

    def __init__(self) -> None:
        self.failure: _Failure | None = None


class OnQueue:
    """Make a queue's device and stream current for CuPy, for a block; undone also on failure.

    CuPy's own ``with stream`` keeps a stack per thread, which tasks that interleave would pop in
    the wrong order (and CuPy's code advises against it, cupy #5943). So the stream before is read,
    and put back with ``use``.
    """

    __slots__ = ("_before", "_device", "_queue")

    def __init__(self, queue: CudaQueue) -> None:
        self._queue = queue
        self._device = queue.driver.on_device(queue.index)
        self._before: Any = None

    def __enter__(self) -> None:
        queue = self._queue
        self._device.__enter__()
        try:
            before = queue.driver.current_stream()
            if before.ptr != queue.handle and (before.ptr != 1 or queue.handle != DEFAULT_HANDLE):
                queue.stream.use()
                self._before = before
        except BaseException:
            self._device.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is not None:
            self._before.use()
            self._before = None
        self._device.__exit__(kind, error, traceback)


class CudaQueue:
    """A CUDA stream.

    Parameters
    ----------
    driver : Driver
        CUDA.
    index : int
        The device.
    stream : cupy.cuda.Stream
        CuPy's object for the stream; destroying it destroys a stream of our own.
    priority : int
        As asked for; CUDA clamps it to what the device has.

    Attributes
    ----------
    wrappers : dict
        Objects that other libraries made for this stream, by library: numba-cuda keeps launch
        configurations by stream *object*, so there must be one per queue.
    """

    __slots__ = (
        "__weakref__",
        "_epoch",
        "_finished",
        "_held",
        "_is_closed",
        "_lock",
        "_runner",
        "_submitted",
        "driver",
        "handle",
        "index",
        "name",
        "priority",
        "stream",
        "wrappers",
    )

    def __init__(self, driver: Driver, index: int, stream: Any, priority: int = 0) -> None:
        self.driver = driver
        self.index = index
        self.stream = stream
        self.priority = priority
        self.handle = canonical_handle(int(stream.ptr))
        self.name = f"a stream of cuda:{index}"
        self.wrappers: dict[str, Any] = {}
        self._epoch = Epoch()
        self._submitted = 0
        self._runner: int | None = None
        self._finished: deque[object] = deque()
        self._held: deque[tuple[int, object]] = deque()
        self._lock = threading.Lock()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<CudaQueue {self.handle:#x} of cuda:{self.index}>"

    def entered(self) -> OnQueue:
        """Return a guard that makes the queue current for CuPy."""
        return OnQueue(self)

    def put(self, function: Callable[..., object], *args: Any) -> None:
        """Call ``function(*args)`` in a thread of the driver; it must not use CUDA itself."""
        self._forget()
        with self._lock:
            self._submitted += 1
            task = _Task(function, args, self._submitted, CallSite.here(depth=1))
        with self.driver.on_device(self.index):
            try:
                self.check_open().launch_host_func(self._run, task)
            except self.driver.errors as error:
                raise translate(error, "queueing a host call") from error

    def query(self) -> bool:
        """Return whether everything queued so far is done."""
        self._forget()
        return self.driver.query_stream(self.handle)

    def synchronize(self) -> None:
        """Wait for everything queued so far; raise the first failure since the last time."""
        self.check_outside()
        with self.driver.on_device(self.index):
            self.driver.synchronize_stream(self.handle)
        self._forget()
        self.surface(*self.mark())

    def check_outside(self) -> None:
        """Refuse to wait for work in a host call that the work is behind."""
        if self._runner == threading.get_ident():
            raise StreamError(
                f"expected {self!r} to be synchronised from outside, got a call from work that "
                f"runs on it, which would wait for itself; host calls must not use CUDA at all"
            )

    def mark(self) -> tuple[int, Epoch]:
        """Return the end of the host calls queued so far: their number, and the epoch."""
        return self._submitted, self._epoch

    def surface(self, number: int, epoch: Epoch) -> None:
        """Raise the failure of a host call up to a mark; calls queued from now on run again."""
        failure = epoch.failure
        if failure is not None and failure.task.number <= number:
            if self._epoch is epoch:
                self._epoch = Epoch()
            raise failure.as_error(self.name)

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """Call back from a thread of the driver; takes over the failure of a host call."""

        # Not a host function: CUDA does not call those once a kernel has failed, and whoever awaits
        # the stream would wait for ever.
        def done(stream: object, status: int, argument: object) -> None:
            epoch = self._epoch
            failure = epoch.failure
            if failure is not None:
                self._epoch = Epoch()
            error: BaseException | None = None
            if status != 0:
                error = translate_status(status, f"CUDA error {status}", f"work on {self!r}")
            elif failure is not None:
                error = failure.as_error(self.name)
            try:
                # Nobody took the failure over: the next synchronisation point raises it.
                if callback(error) is False and failure is not None:
                    self._epoch = epoch
            except Exception as raised:  # noqa: BLE001  # a callback has no caller to raise to
                warnings.warn(f"a callback failed: {raised!r}", NbrtCleanupWarning, stacklevel=1)

        with self.driver.on_device(self.index):
            try:
                self.check_open().add_callback(done, None)
            except self.driver.errors as error:
                raise translate(error, "asking to be notified") from error

    def close(self) -> None:
        """Finish the host calls and give the stream up; warn of a failure nobody asked for."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._submitted:
                self.synchronize()
        except NbrtError as error:
            warnings.warn(str(error), NbrtCleanupWarning, stacklevel=2)
        finally:
            self.wrappers.clear()
            # CUDA destroys a stream of ours when the rest of its work is done.
            self.stream = None

    def is_capturing(self) -> bool:
        """Return whether the queue is being captured; the default stream cannot be."""
        return self.handle != DEFAULT_HANDLE and self.driver.is_capturing(self.handle)

    def hold(self, kept: object) -> None:
        """Keep an object alive until everything queued so far is done."""
        self._forget()
        # A graph keeps its operands itself, and an event recorded in capture cannot be asked.
        if self.is_capturing():
            return
        event = self.driver.new_event(self.index, timing=False, blocking=False, interprocess=False)
        with self.driver.on_device(self.index):
            self.driver.record_event(event, self.handle)
        with self._lock:
            self._held.append((event, kept))

    def join(self, other: CudaQueue) -> None:
        """Make later work of this queue wait for what `other`, of any device, has so far."""
        if other.handle == self.handle and other.index == self.index:
            return
        event = self.driver.new_event(other.index, timing=False, blocking=False, interprocess=False)
        try:
            with self.driver.on_device(other.index):
                self.driver.record_event(event, other.handle)
            with self.driver.on_device(self.index):
                self.driver.wait_event(self.handle, event)
        finally:
            # CUDA keeps what a pending wait needs; the handle can go at once.
            self.driver.destroy_event(event)

    def check_open(self) -> Any:
        """Return CuPy's stream; raises StreamError once the queue was closed."""
        if self.stream is None:
            raise StreamError(f"expected an open stream, got {self!r}, which was closed")
        return self.stream

    def _run(self, task: _Task) -> None:
        """Run a host function; called by the driver, which nothing may be raised to."""
        # The arguments may be the last references to arrays, whose finalizers use CUDA, which this
        # thread must not. So they are dropped by the next call from outside, and no local name
        # here may keep them in the meantime.
        epoch = self._epoch
        try:
            if epoch.failure is not None:
                epoch.failure.dropped.append(task.name)
            elif task.call is not None:
                self._runner = threading.get_ident()
                task.call[0](*task.call[1])
        except BaseException as error:  # noqa: BLE001  # kept, and raised at synchronisation
            epoch.failure = _Failure(error, task)
        finally:
            self._runner = None
            # The error's traceback holds this frame: without this, a cycle holds the arguments.
            del epoch
        self._finished.append(task.release())

    def _forget(self) -> None:
        """Drop what is no longer needed."""
        self._finished.clear()
        if self._held and self._lock.acquire(blocking=False):
            done = []
            try:
                while self._held and self.driver.query_event(self._held[0][0]):
                    done.append(self._held.popleft())
            finally:
                self._lock.release()
            for event, _ in done:
                self.driver.destroy_event(event)
