"""`Ledger`: the segments that a pool holds from the system, from the first byte to the last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.queues import canonical_handle
from nbrt.backends.pools import SegmentInfo
from nbrt.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cuda.driver import Driver

__all__ = ["Ledger", "Segment"]


class Segment:
    """Memory of the system, in the books for as long as it lives.

    A plain object because CuPy's memory takes neither a finalizer nor a weak reference.

    Attributes
    ----------
    ptr, size : int
        Where it begins, and its bytes; spelled as CuPy's pools read them.
    """

    __slots__ = ("_ledger", "_memory", "ptr", "size")

    def __init__(self, ledger: Ledger, memory: Any) -> None:
        self._ledger = ledger
        self._memory = memory
        self.ptr = int(memory.ptr)
        self.size = int(memory.size)

    def __del__(self) -> None:
        self._ledger.strike(self.ptr)


class Ledger:
    """The books of one pool's segments.

    Parameters
    ----------
    driver : Driver
        CUDA.
    obtain : callable
        Takes memory of a size from the system: one of CuPy's classes, whose instance gives the
        memory back when it dies.
    before_release : callable, optional
        Called before a segment goes back, where the system does not wait for the device itself.
    by_stream : bool
        Segments are kept for the stream they were taken for.

    Attributes
    ----------
    limit : int or None
        The most bytes that may be held.
    nbytes : int
        Bytes held.
    made : int
        How many segments were ever taken.
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
        self._held: dict[int, SegmentInfo] = {}
        self.limit: int | None = None
        self.nbytes = 0
        self.made = 0

    def take(self, nbytes: int, *, is_small: bool = False) -> Segment:
        """Take memory from the system while CuPy's current stream is the one it is for.

        Raises
        ------
        OutOfMemoryError
            If the limit forbids it; what CUDA says comes as CuPy's own errors.
        """
        if self.limit is not None and self.nbytes + nbytes > self.limit:
            raise OutOfMemoryError(
                f"expected room for {nbytes} bytes within a limit of {self.limit}, got "
                f"{self.nbytes} bytes held; free arrays or raise the limit"
            )
        memory = self._obtain(nbytes)
        stream = 0
        if self._by_stream:
            stream = canonical_handle(int(self._driver.current_stream().ptr))
        segment = Segment(self, memory)
        self._held[segment.ptr] = SegmentInfo(segment.ptr, nbytes, stream, is_small)
        self.nbytes += nbytes
        self.made += 1
        return segment

    def strike(self, address: int) -> None:
        """Take a segment off the books, which goes back to the system now."""
        # A segment that died half made is in no book.
        info = self._held.pop(address, None)
        if info is not None:
            self.nbytes -= info.nbytes
            if self._before_release is not None:
                self._before_release()

    def segments(self) -> list[SegmentInfo]:
        """Return what is held."""
        return list(self._held.values())

    def counts(self) -> tuple[int, int]:
        """Return how many segments were ever taken, and given back."""
        return self.made, self.made - len(self._held)
