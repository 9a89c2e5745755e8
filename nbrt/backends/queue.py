"""`Queue` and `EventHandle`: what a backend hands out as a stream and as an event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CancellableQueue", "EventHandle", "EventOptions", "Queue"]


@dataclass(frozen=True, slots=True)
class EventOptions:
    """How an event is made: torch's three flags, with torch's meaning."""

    enable_timing: bool = False
    blocking: bool = False
    interprocess: bool = False


class Queue(Protocol):
    """An ordered queue of work on one device.

    Attributes
    ----------
    index : int
        The device's index.
    priority : int
        Lower is more urgent.
    handle : int
        The raw stream (CUDA: ``cudaStream_t``); 0 where there is none.
    name : str
        What messages call it; the runtime sets it to the stream that people hold.
    """

    name: str

    @property
    def index(self) -> int: ...  # noqa: D102  # described in the class
    @property
    def priority(self) -> int: ...  # noqa: D102
    @property
    def handle(self) -> int: ...  # noqa: D102

    def put(self, function: Callable[..., object], *args: Any) -> None:
        """Call ``function(*args)`` after everything queued before; errors show at synchronize."""
        ...

    def query(self) -> bool:
        """Return whether everything queued so far is done."""
        ...

    def synchronize(self) -> None:
        """Wait for everything queued so far; raise the StreamError of work that failed."""
        ...

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """Call back, from any thread, when all queued so far is done; with its error if any.

        A callback that returns False leaves the error to the next synchronisation point.
        """
        ...

    def close(self) -> None:
        """Release the queue after its work is done; idempotent."""
        ...


@runtime_checkable
class CancellableQueue(Protocol):
    """A queue whose work can be dropped; one without `cancel` always runs it to the end."""

    def cancel(self) -> int:
        """Drop the queued work, end the launch that runs; return how many commands were dropped.

        Returns at once. Events recorded before complete, in order, once the launch has ended.
        """
        ...


class EventHandle(Protocol):
    """A point in a queue that can be waited for."""

    def record(self, queue: Queue) -> None:
        """Mark the end of everything queued so far."""
        ...

    def wait(self, queue: Queue) -> None:
        """Make later work of `queue` wait for the last record; nothing if there is none."""
        ...

    def query(self) -> bool:
        """Return whether the last record is done; True if there is none."""
        ...

    def synchronize(self) -> None:
        """Wait on the host for the last record; raise the StreamError of work before it."""
        ...

    def host_wait(self) -> Callable[[], None]:
        """Return what waits on the host for the record that is the last now, failed or not."""
        ...

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds from this record to that of `end`, an event of the same kind."""
        ...

    def ipc_handle(self) -> bytes:
        """Return a handle that another process can open."""
        ...

    def close(self) -> None:
        """Release the event; idempotent."""
        ...
