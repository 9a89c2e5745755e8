"""`CudaEvent`: a CUDA event."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING

from nbrt.backends.cuda.queues import CudaQueue, Epoch
from nbrt.errors import EventError, NbrtError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.queue import EventOptions, Queue

__all__ = ["CudaEvent"]


class CudaEvent:
    """A CUDA event on one device, destroyed with this object.

    Parameters
    ----------
    driver : Driver
        CUDA.
    index : int
        The device.
    handle : int
        The raw event, which this object owns.
    options : EventOptions
        Its options.
    """

    __slots__ = (
        "__weakref__",
        "_driver",
        "_finalizer",
        "_options",
        "_recorded",
        "_stand_in",
        "handle",
        "index",
    )

    def __init__(self, driver: Driver, index: int, handle: int, options: EventOptions) -> None:
        self._driver = driver
        self._options = options
        self.index = index
        self.handle = handle
        self._recorded: tuple[CudaQueue, int, Epoch] | None = None
        self._stand_in: CudaEvent | None = None
        self._finalizer = weakref.finalize(self, driver.destroy_event, handle)
        # At exit the driver may be gone already; the process end frees the event.
        self._finalizer.atexit = False

    @classmethod
    def create(cls, driver: Driver, index: int, options: EventOptions) -> CudaEvent:
        """Create an event.

        Raises
        ------
        EventError
            If it is both timed and shared with other processes, which CUDA excludes.
        """
        if options.enable_timing and options.interprocess:
            raise EventError("expected at most one of interprocess and enable_timing; drop one")
        handle = driver.new_event(
            index,
            timing=options.enable_timing,
            blocking=options.blocking,
            interprocess=options.interprocess,
        )
        return cls(driver, index, handle, options)

    def record(self, queue: Queue) -> None:
        """Record the event behind the work queued so far.

        In a capture the runtime records events; this one is recorded behind the work before it, for
        frees of memory that the capture does not use.
        """
        if queue.index != self.index:
            raise EventError(
                f"expected a stream of cuda:{self.index}, the event's device, got one of "
                f"cuda:{queue.index}; make another event for that device"
            )
        if isinstance(queue, CudaQueue):
            queue.check_open()
            if queue.capture is not None:
                self._stand_in = queue.capture.began(queue)
                return
        with self._driver.on_device(self.index):
            self._driver.record_event(self.handle, queue.handle)
        self._stand_in = None
        if isinstance(queue, CudaQueue):
            self._recorded = (queue, *queue.position())

    def wait(self, queue: Queue) -> None:
        """Make later work of `queue`, of any device, wait for the last record."""
        if self._stand_in is not None:
            self._stand_in.wait(queue)
            return
        with self._driver.on_device(queue.index):
            self._driver.wait_event(queue.handle, self.handle)

    def query(self) -> bool:
        """Return whether the last record is done."""
        if self._stand_in is not None:
            return self._stand_in.query()
        return self._driver.query_event(self.handle)

    def synchronize(self) -> None:
        """Wait on the host for the last record; raise the failure of a host call before it."""
        if self._stand_in is not None:
            self._stand_in.synchronize()
            return
        if self._recorded is None:
            self._driver.synchronize_event(self.handle)
            return
        queue, number, epoch = self._recorded
        queue.check_outside()
        self._driver.synchronize_event(self.handle)
        queue.raise_failure(number, epoch)

    def host_wait(self) -> Callable[[], None]:
        """Return a function that waits for the last record, after failed work too.

        CUDA's host waits are for the latest record: the function waits for a later record if there
        is one when it is called.
        """
        return self._wait_on_host

    def _wait_on_host(self) -> None:
        with contextlib.suppress(NbrtError):
            self._driver.synchronize_event(self.handle)

    def elapsed_time(self, end: CudaEvent) -> float:
        """Return the milliseconds between the two records."""
        if not (self._options.enable_timing and end._options.enable_timing):
            raise EventError("expected two events with enable_timing=True; pass it to nbrt.Event")
        return self._driver.elapsed(self.handle, end.handle)

    def ipc_handle(self) -> bytes:
        """Return the handle for `open_event` in another process."""
        if not self._options.interprocess:
            raise EventError("expected an event with interprocess=True; pass it to nbrt.Event")
        return self._driver.event_ipc_handle(self.handle)

    def close(self) -> None:
        """Destroy the event."""
        self._finalizer()
