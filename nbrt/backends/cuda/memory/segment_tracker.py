"""`SegmentTracker`: the segments that a pool holds from the system, as long as they live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.queues import canonical_handle
from nbrt.backends.pools import SegmentInfo
from nbrt.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cuda.driver import Driver

__all__ = ["DeviceSegment", "SegmentTracker"]


class DeviceSegment:
    """Memory of the system, which its tracker counts as long as it lives.

    CuPy's memory takes neither a finalizer nor a weak reference.

    Attributes
    ----------
    ptr, size : int
        First byte, and bytes; CuPy's pools read these names.
    """

    __slots__ = ("_memory", "_tracker", "ptr", "size")

    def __init__(self, tracker: SegmentTracker, memory: Any) -> None:
        self._tracker = tracker
        self._memory = memory
        self.ptr = int(memory.ptr)
        self.size = int(memory.size)

    def __del__(self) -> None:
        self._tracker.remove(self.ptr, self._memory)


class SegmentTracker:
    """The segments of one pool, counted and limited.

    Parameters
    ----------
    obtain : callable
        Takes memory of a size from the system: one of CuPy's classes, whose instances return the
        memory when they die.
    before_release : callable, optional
        Called before a segment is returned, where the system does not wait for the device itself.
    by_stream : bool
        Segments are kept for the stream they were taken for.

    Attributes
    ----------
    limit : int or None
        Limit of the bytes held.
    nbytes : int
        Bytes held.
    made : int
        Segments ever taken.
    """

    def __init__(
        self,
        driver: Driver,
        obtain: Callable[[int], Any],
        before_release: Callable[[], None] | None = None,
        *,
        by_stream: bool = True,
    ) -> None:
        self._driver = driver
        self._obtain = obtain
        self._before_release = before_release
        self._by_stream = by_stream
        self._segments: dict[int, SegmentInfo] = {}
        self.limit: int | None = None
        self.nbytes = 0
        self.made = 0

    def take(self, nbytes: int, *, is_small: bool = False) -> DeviceSegment:
        """Take memory from the system for CuPy's current stream.

        Raises
        ------
        OutOfMemoryError
            If the limit refuses it. Failures of CUDA are CuPy's own errors.
        """
        if self.limit is not None and self.nbytes + nbytes > self.limit:
            raise OutOfMemoryError(
                f"expected room for {nbytes} bytes within a limit of {self.limit}, got "
                f"{self.nbytes} bytes held; free arrays or raise the limit"
            )
        with self._driver.relaxed():
            memory = self._obtain(nbytes)
        stream = 0
        if self._by_stream:
            stream = canonical_handle(int(self._driver.current_stream().ptr))
        segment = DeviceSegment(self, memory)
        self._segments[segment.ptr] = SegmentInfo(segment.ptr, nbytes, stream, is_small)
        self.nbytes += nbytes
        self.made += 1
        return segment

    def remove(self, address: int, memory: object) -> None:
        """Remove a segment that is being returned to the system."""
        self._driver.captures.keep_until_end(memory)
        # A segment that died during its construction is not counted.
        info = self._segments.pop(address, None)
        if info is not None:
            self.nbytes -= info.nbytes
            if self._before_release is not None:
                self._before_release()

    def segments(self) -> list[SegmentInfo]:
        """Return the segments."""
        return list(self._segments.values())

    def counts(self) -> tuple[int, int]:
        """Return how many segments were ever taken, and returned."""
        return self.made, self.made - len(self._segments)
