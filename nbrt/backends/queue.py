"""`Queue` and `EventHandle`: a stream and an event of a backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CancellableQueue", "EventHandle", "EventOptions", "Queue"]


@dataclass(frozen=True, slots=True)
class EventOptions:
    """Options of an event: torch's three flags."""

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
        The name in messages; the runtime sets it to that of the public stream.
    """

    name: str

    @property
    def index(self) -> int: ...  # noqa: D102  # described in the class
    @property
    def priority(self) -> int: ...  # noqa: D102
    @property
    def handle(self) -> int: ...  # noqa: D102

    def put(self, function: Callable[..., object], *args: Any) -> None:
        """Call ``function(*args)`` after the work queued before; synchronize raises its errors."""
        ...

    def query(self) -> bool:
        """Return whether the work queued so far is done."""
        ...

    def synchronize(self) -> None:
        """Wait for the work queued so far; raise the StreamError of failed work."""
        ...

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """Call back from any thread after the work queued so far, with its error if any.

        If the callback returns False, the next synchronisation point raises the error.
        """
        ...

    def close(self) -> None:
        """Release the queue after its work is done; idempotent."""
        ...


@runtime_checkable
class CancellableQueue(Protocol):
    """A queue whose work can be dropped."""

    def cancel(self) -> int:
        """Drop the queued work and end the running launch; return the number of dropped commands.

        The call does not wait. Events recorded before complete in order after the launch.
        """
        ...


class EventHandle(Protocol):
    """A point in a queue that can be waited for."""

    def record(self, queue: Queue) -> None:
        """Record the event behind the work queued so far."""
        ...

    def wait(self, queue: Queue) -> None:
        """Make later work of `queue` wait for the last record, if there is one."""
        ...

    def query(self) -> bool:
        """Return whether the last record is done; True if there is none."""
        ...

    def synchronize(self) -> None:
        """Wait on the host for the last record; raise the StreamError of work before it."""
        ...

    def host_wait(self) -> Callable[[], None]:
        """Return a function that waits on the host for the present last record, failed or not."""
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
