"""`CudaPool`: what all pools of CUDA memory have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.failures import translate
from nbrt.errors import DeviceError, NbrtError, OutOfMemoryError

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.queues import CudaQueue
    from nbrt.backends.pools import SegmentInfo

__all__ = ["UNIT", "CudaPool"]

UNIT = 512
"""Bytes that blocks are multiples of, as in CuPy's pools."""


class CudaPool(ABC):
    """Memory of one device, for one `nbrt.MemoryPool`.

    Freed memory may be handed out again at once, to work on the stream it was allocated for. So a
    free on another queue makes that stream wait first.

    Parameters
    ----------
    driver : Driver
        CUDA.
    index : int
        The device.
    kind : str
        One of the backend's `pool_kinds`.

    Attributes
    ----------
    granularity : int
        Bytes that blocks are multiples of.
    """

    stream_ordered = True
    caches = True
    granularity = UNIT

    def __init__(self, driver: Driver, index: int, kind: str) -> None:
        self.kind = kind
        self._driver = driver
        self._index = index
        self._is_closed = False
        self._was_used = False

    def allocate(self, queue: Any, nbytes: int) -> Any:
        """Return a block for work on `queue`; what is cached is dropped before it fails."""
        if self._is_closed:
            raise DeviceError(f"expected an open pool, got a closed one of kind {self.kind!r}")
        self._was_used = True
        with queue.entered():
            try:
                return self._attempt(queue, nbytes)
            except OutOfMemoryError:
                self._drop()
                return self._attempt(queue, nbytes)

    def deallocate(self, queue: Any, block: Any) -> None:
        """Take a block back, behind the work that `queue` has so far; idempotent."""
        if block.kept is None:
            return
        self._give(queue, block)
        if self._is_closed:
            self.empty_cache()

    def empty_cache(self) -> None:
        """Give back what no block uses, also of copies; a device that was never used stays so."""
        self._driver.staging.free_all_blocks()
        if self._was_used:
            with self._driver.on_device(self._index):
                self._drop()

    def close(self) -> None:
        """Give back what no block uses, now and from now on, and hand out nothing more."""
        self._is_closed = True
        self.empty_cache()

    @abstractmethod
    def reserved(self) -> int:
        """Return the bytes held from the system."""

    @abstractmethod
    def segments(self) -> list[SegmentInfo]:
        """Return what is held from the system."""

    @abstractmethod
    def segment_counts(self) -> tuple[int, int]:
        """Return how many segments were ever taken from the system, and given back."""

    @abstractmethod
    def set_limit(self, nbytes: int | None) -> None:
        """Bound `reserved` from now on."""

    @abstractmethod
    def _take(self, queue: CudaQueue, nbytes: int) -> Any:
        """Return a block; `queue` is entered."""

    @abstractmethod
    def _drop(self) -> None:
        """Give back what no block uses; the device is current."""

    def _give(self, queue: CudaQueue, block: Any) -> None:
        """Take a block back."""
        # Does nothing for the same queue.
        block.queue.join(queue)
        block.kept = None

    def _attempt(self, queue: CudaQueue, nbytes: int) -> Any:
        doing = f"allocating {nbytes} bytes on cuda:{self._index}"
        try:
            return self._take(queue, nbytes)
        except NbrtError:
            raise
        except MemoryError as error:
            raise OutOfMemoryError(
                f"{doing} failed: {error}; free arrays or ask for less"
            ) from error
        except self._driver.errors as error:
            raise translate(error, doing) from error
