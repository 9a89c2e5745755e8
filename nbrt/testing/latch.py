"""`Latch`: blocks a stream until its release, so that a test controls the order of work."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    from typing import Self

    from nbrt.runtime.stream import Stream

__all__ = ["Latch"]


class Latch:
    """A host call that blocks a stream until its release.

    Later work of the stream runs only after the release, so a test of ordering needs no sleep. The
    end of the ``with`` block releases the latch, also if a test fails.

    Parameters
    ----------
    timeout : float
        Seconds after which a latch without a release fails its stream.

    Examples
    --------
    >>> import nbrt
    >>> stream, seen = nbrt.Stream("cpu:0"), []
    >>> with Latch() as latch:
    ...     latch.hold(stream)
    ...     stream.call(seen.append, "after")
    ...     seen.append("before")
    >>> stream.synchronize()
    >>> seen
    ['before', 'after']
    """

    def __init__(self, timeout: float = 300.0) -> None:
        self._timeout = timeout
        self._reached = threading.Event()
        self._released = threading.Event()

    @property
    def is_reached(self) -> bool:
        """Whether a stream has reached the latch."""
        return self._reached.is_set()

    @property
    def is_released(self) -> bool:
        """Whether the latch is open."""
        return self._released.is_set()

    def hold(self, stream: Stream) -> None:
        """Queue the latch on a stream; a latch can block several streams.

        Raises
        ------
        ArgumentError
            If the stream runs work in the caller's thread, which would wait for itself.
        """
        if isinstance(stream.queue, SynchronousQueue):
            raise ArgumentError(
                f"expected a stream that runs beside its caller, got {stream!r}, which runs work "
                f"in the caller's thread; create one with nbrt.Stream"
            )
        stream.call(self._wait)

    def wait_reached(self) -> None:
        """Wait until a stream has reached the latch; raise TimeoutError after the timeout."""
        if not self._reached.wait(self._timeout):
            raise TimeoutError(f"expected a stream at the latch within {self._timeout} s")

    def release(self) -> None:
        """Open the latch permanently; idempotent."""
        self._released.set()

    def _wait(self) -> None:
        self._reached.set()
        if not self._released.wait(self._timeout):
            raise TimeoutError(f"expected the latch to be released within {self._timeout} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.release()
