"""`CudaQueue`: a CUDA stream, as nbrt's queue and as CuPy's current stream."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

from nbrt._internal.callsite import CallSite
from nbrt.backends.cuda.failures import translate, translate_status
from nbrt.backends.stream_failure import StreamFailure
from nbrt.errors import (
    CaptureError,
    NbrtCleanupWarning,
    NbrtError,
    NotSupportedError,
    StreamError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.graphs.region import Region

__all__ = [
    "DEFAULT_HANDLE",
    "BorrowedStream",
    "CudaQueue",
    "Epoch",
    "HostTask",
    "OnQueue",
    "canonical_handle",
]

DEFAULT_HANDLE = 0
"""The legacy default stream. Its second handle, 1, is mapped to 0: CuPy keys its pools by handle
and would keep two arenas for the stream."""

_PER_THREAD_HANDLE = 2

# A CUDA stream does not stop for a host call; only later host calls can be dropped.
_NOT_STOPPED = "Kernels and copies queued behind it ran nevertheless"


def canonical_handle(handle: int) -> int:
    """Return the handle by which nbrt identifies a stream.

    Raises
    ------
    NotSupportedError
        For the per-thread default stream, which differs between threads.
    """
    if handle == _PER_THREAD_HANDLE:
        raise NotSupportedError(
            "expected a stream that is the same in every thread, got CUDA's per-thread default "
            "stream; make a stream with nbrt.Stream() instead"
        )
    return DEFAULT_HANDLE if handle == 1 else handle


class BorrowedStream:
    """A raw stream and its owner, for CuPy."""

    __slots__ = ("handle", "owner")

    def __init__(self, handle: int, owner: object) -> None:
        self.handle = handle
        self.owner = owner

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return (protocol version, address of the stream)."""
        return 0, self.handle


class HostTask:
    """A queued host function.

    Parameters
    ----------
    function, args
        The call.
    number : int
        Its number in its queue.
    site : CallSite
        The call that queued it.
    """

    __slots__ = ("call", "name", "number", "site")

    def __init__(
        self, function: Callable[..., object], args: tuple[Any, ...], number: int, site: CallSite
    ) -> None:
        self.number = number
        self.call: tuple[Callable[..., object], tuple[Any, ...]] | None = (function, args)
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self.site = site

    def release(self) -> object:
        """Detach function and arguments; the caller drops the last reference."""
        call, self.call = self.call, None
        return call


class Epoch:
    """The period of a queue between two raised failures, and the failure that ends it.

    An event keeps the epoch of its record. A wait for it raises the failure of the work before it,
    even if another synchronisation point raised that earlier, and no later failure.

    Attributes
    ----------
    failure : StreamFailure or None
        The failed host call.
    number : int
        Its number in the queue.
    """

    __slots__ = ("failure", "number")

    def __init__(self) -> None:
        self.failure: StreamFailure | None = None
        self.number = 0


class OnQueue:
    """Make a queue's device and stream current for CuPy for a block.

    CuPy's ``with stream`` keeps a stack per thread, which interleaved asyncio tasks would pop in
    the wrong order (cupy #5943). This guard saves the current stream and restores it with ``use``.
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
        CuPy's object, which owns the stream unless it is borrowed.
    priority : int
        The requested priority; CUDA clamps it to the device's range.

    Attributes
    ----------
    capture : Region or None
        The capture by nbrt that the queue is part of.
    wrappers : dict
        Stream objects of other libraries, by library. numba-cuda keys launch configurations by the
        stream object, so a queue keeps one.
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
        "capture",
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
        self.capture: Region | None = None
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
        if self.capture is not None:
            self.capture.add_call(self, function, args, CallSite.here(depth=1))
            return
        self._drop_finished()
        task = HostTask(function, args, self.next_position(), CallSite.here(depth=1))
        with self.driver.on_device(self.index):
            try:
                self.check_open().launch_host_func(self._run, task)
            except self.driver.errors as error:
                raise translate(error, "queueing a host call") from error

    def query(self) -> bool:
        """Return whether everything queued so far is done."""
        self._check_not_captured("query")
        self._drop_finished()
        # Every device has a default stream of the same handle.
        with self.driver.on_device(self.index):
            return self.driver.query_stream(self.handle)

    def synchronize(self) -> None:
        """Wait for everything queued so far; raise the first failure since the last time."""
        self.check_outside()
        self._check_not_captured("synchronisation")
        with self.driver.on_device(self.index):
            self.driver.synchronize_stream(self.handle)
        self._drop_finished()
        self.raise_failure(*self.position())

    def check_outside(self) -> None:
        """Raise StreamError in a host call of this queue: it would wait for itself."""
        if self._runner == threading.get_ident():
            raise StreamError(
                f"expected {self!r} to be synchronised from outside, got a call from work that "
                f"runs on it, which would wait for itself; host calls must not use CUDA at all"
            )

    def next_position(self) -> int:
        """Return the number of a host call that is being queued."""
        with self._lock:
            self._submitted += 1
            return self._submitted

    def position(self) -> tuple[int, Epoch]:
        """Return the number of host calls queued so far, and the epoch."""
        return self._submitted, self._epoch

    def raise_failure(self, number: int, epoch: Epoch) -> None:
        """Raise the failure of a host call before a position; calls queued later run again."""
        failure = epoch.failure
        if failure is not None and epoch.number <= number:
            if self._epoch is epoch:
                self._epoch = Epoch()
            raise failure.as_error(self.name, _NOT_STOPPED)

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """Call back from a thread of the driver, with the failure of a host call if any."""
        self._check_not_captured("wait")

        # Not a host function: CUDA calls none after a failed kernel, so an await would never end.
        def done(stream: object, status: int, argument: object) -> None:
            epoch = self._epoch
            failure = epoch.failure
            if failure is not None:
                self._epoch = Epoch()
            error: BaseException | None = None
            if status != 0:
                error = translate_status(status, f"CUDA error {status}", f"work on {self!r}")
            elif failure is not None:
                error = failure.as_error(self.name, _NOT_STOPPED)
            try:
                # False: the next synchronisation point raises the failure.
                if callback(error) is False and failure is not None:
                    self._epoch = epoch
            except Exception as raised:  # noqa: BLE001  # a callback has no caller
                warnings.warn(f"a callback failed: {raised!r}", NbrtCleanupWarning, stacklevel=1)

        with self.driver.on_device(self.index):
            try:
                self.check_open().add_callback(done, None)
            except self.driver.errors as error:
                raise translate(error, "adding a callback") from error

    def close(self) -> None:
        """Finish the host calls and release the stream; warn of a failure that no call raised."""
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
            # CUDA destroys an owned stream after the rest of its work.
            self.stream = None

    def is_capturing(self) -> bool:
        """Return whether the queue is being captured; the default stream cannot be."""
        return self.handle != DEFAULT_HANDLE and self.driver.is_capturing(self.handle)

    def hold(self, resource: object) -> None:
        """Keep an object alive until everything queued so far is done."""
        if self.capture is not None:
            self.capture.keep(resource)
            return
        self._drop_finished()
        # An event recorded in another library's capture cannot be queried.
        if self.is_capturing():
            return
        event = self.driver.new_event(self.index, timing=False, blocking=False, interprocess=False)
        with self.driver.on_device(self.index):
            self.driver.record_event(event, self.handle)
        with self._lock:
            self._held.append((event, resource))

    def join(self, other: CudaQueue) -> None:
        """Make later work of this queue wait for the work of `other`, of any device, so far."""
        if other.handle == self.handle and other.index == self.index:
            return
        region = other.capture or self.capture
        if region is not None:
            region.join(self, other)
            return
        event = self.driver.new_event(other.index, timing=False, blocking=False, interprocess=False)
        try:
            with self.driver.on_device(other.index):
                self.driver.record_event(event, other.handle)
            with self.driver.on_device(self.index):
                self.driver.wait_event(self.handle, event)
        finally:
            # CUDA keeps the state of a pending wait without the handle.
            self.driver.destroy_event(event)

    def check_open(self) -> Any:
        """Return CuPy's stream; raise StreamError if the queue is closed."""
        if self.stream is None:
            raise StreamError(f"expected an open stream, got {self!r}, which was closed")
        return self.stream

    def execute(self, task: HostTask) -> None:
        """Run a host function, in a thread of the driver; an error is the queue's failure."""
        epoch = self._epoch
        try:
            if epoch.failure is not None:
                epoch.failure.dropped.append(task.name)
            elif task.call is not None:
                self._runner = threading.get_ident()
                task.call[0](*task.call[1])
        except BaseException as error:  # noqa: BLE001  # raised at synchronisation
            epoch.number = task.number
            epoch.failure = StreamFailure(error, task.name, task.site)
        finally:
            self._runner = None
            # The error's traceback holds this frame: a cycle would keep the arguments.
            del epoch

    def _run(self, task: HostTask) -> None:
        """Run a host function once; the driver calls this, so no exception may escape."""
        # The arguments may hold the last references to arrays, whose finalizers use CUDA. This
        # thread must not, so another thread drops the arguments, and no local name keeps them.
        self.execute(task)
        self._finished.append(task.release())

    def _check_not_captured(self, what: str) -> None:
        if self.capture is not None:
            raise CaptureError(
                f"expected only work that can be captured, got a {what} of {self.name}, which "
                f"runs nothing during the capture; do it after the replay"
            )

    def _drop_finished(self) -> None:
        """Drop the arguments and held objects of finished work."""
        self._finished.clear()
        if self.driver.retired:
            self.driver.retired.poll()
        if self._held and self._lock.acquire(blocking=False):
            done = []
            try:
                while self._held and self.driver.query_event(self._held[0][0]):
                    done.append(self._held.popleft())
            finally:
                self._lock.release()
            for event, _ in done:
                self.driver.destroy_event(event)
