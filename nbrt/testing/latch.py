"""`Latch`: holds a stream until it is released, so that a test decides what is done before what."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from nbrt.backends.inline import SynchronousQueue
from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from nbrt.runtime.stream import Stream

__all__ = ["Latch"]


class Latch:
    """A host call that holds a stream until it is released.

    Work behind a latch has not run while the latch is closed, and may run once it is open: a test
    of ordering needs no sleep. Leaving the ``with`` block releases the latch, also when a test
    fails, so that no stream stays blocked.

    Parameters
    ----------
    timeout : float
        Seconds after which a latch that nobody released fails its stream, instead of hanging.

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
        """Whether a stream has arrived at the latch."""
        return self._reached.is_set()

    @property
    def is_released(self) -> bool:
        """Whether the latch is open."""
        return self._released.is_set()

    def hold(self, stream: Stream) -> None:
        """Queue the latch on a stream; one latch may hold several.

        Raises
        ------
        ArgumentError
            If the stream runs work in the caller's thread, which would then wait for itself.
        """
        if isinstance(stream.queue, SynchronousQueue):
            raise ArgumentError(
                f"expected a stream that runs alongside its caller, got {stream!r}, which runs "
                f"work in the caller's thread; make one with nbrt.Stream"
            )
        stream.call(self._wait)

    def wait_reached(self) -> None:
        """Wait until a stream has arrived at the latch.

        Raises
        ------
        TimeoutError
            If none arrives within the latch's timeout.
        """
        if not self._reached.wait(self._timeout):
            raise TimeoutError(f"expected a stream at the latch within {self._timeout} s")

    def release(self) -> None:
        """Open the latch, for good; idempotent."""
        self._released.set()

    def _wait(self) -> None:
        self._reached.set()
        if not self._released.wait(self._timeout):
            raise TimeoutError(f"expected the latch to be released within {self._timeout} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
