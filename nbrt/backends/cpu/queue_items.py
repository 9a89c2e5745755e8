"""The items of a CPU queue: work, completions, waits and synchronisations."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from nbrt.backends.cpu.interrupts import Stoppable

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt._internal.callsite import CallSite
    from nbrt.backends.cpu.interrupts import Runner
    from nbrt.backends.stream_failure import StreamFailure

__all__ = [
    "BRIEF",
    "BoundLaunch",
    "Brevity",
    "Callback",
    "Completion",
    "QueuedWork",
    "Record",
    "Stop",
    "Synchronization",
    "Wait",
    "label_of",
]


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
        if failure is not None:
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


class Record(Stoppable, Protocol):
    """A launch's record, which notes the thread of a kernel that raised."""

    @property
    def has_raised(self) -> bool:
        """Whether a thread of the kernel has raised."""
        ...

    def note(self, error: BaseException) -> None:
        """Add the index of the thread to its exception."""
        ...


class BoundLaunch(NamedTuple):
    """The entry function with the record of one stream, which runs one launch at a time.

    Attributes
    ----------
    record : Record
        The record, not stopped as long as the runner of the stream has as many `stops`.
    native : callable
        Takes the arguments of the kernel.
    stops : int
        The `stops` of the runner.
    """

    record: Record
    native: Callable[..., object]
    stops: int


class Brevity:
    """Whether work of one kind is brief.

    Attributes
    ----------
    are_expected : bool
        Whether the next works are expected to take a few microseconds, without any wait.
    are_short : bool
        Whether they are expected to take less than a millisecond in one thread, without any wait.
    """

    __slots__ = ("are_expected", "are_short")

    def __init__(self, *, are_expected: bool = False) -> None:
        self.are_expected = are_expected
        self.are_short = False

    def bind(self, runner: Runner) -> BoundLaunch:
        """Return how to run the next launch, if launches are short."""
        raise NotImplementedError

    def measured(self, elapsed: int) -> None:
        """Learn from the nanoseconds of processor time that a launch has taken."""
        raise NotImplementedError


BRIEF = Brevity(are_expected=True)
"""Of work that is always brief."""


class QueuedWork:
    """A call, with where it was submitted.

    Attributes
    ----------
    number : int
        Its place among the items of its queue, from 1 on.
    is_claimed : bool
        Whether a thread runs it, or has run it.
    """

    __slots__ = ("args", "brevity", "function", "is_claimed", "number", "site")

    def __init__(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        brevity: Brevity | None,
        site: CallSite,
    ) -> None:
        self.function = function
        self.args = args
        self.brevity = brevity
        self.site = site
        self.number = 0
        self.is_claimed = False

    @property
    def label(self) -> str:
        """The name of the function in messages."""
        return label_of(self.function)


class Callback:
    """A function to call with the queue's failure, which it takes over unless it returns False."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[StreamFailure | None], object]) -> None:
        self.callback = callback


class Synchronization:
    """A thread that waits, which takes over the failure of the queue if it raises it."""

    __slots__ = ("completion", "raises")

    def __init__(self, completion: Completion, *, raises: bool) -> None:
        self.completion = completion
        self.raises = raises


class Wait:
    """A wait for a completion of another queue."""

    __slots__ = ("completion",)

    def __init__(self, completion: Completion) -> None:
        self.completion = completion


class Stop:
    """The end of the queue."""

    __slots__ = ()


def label_of(function: object) -> str:
    """Return the name of a function in messages."""
    name = getattr(function, "label", None) or getattr(function, "__qualname__", None)
    return str(name or type(function).__name__)
