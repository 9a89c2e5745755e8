"""`CudaPool`: the base of all pools of CUDA memory."""

from __future__ import annotations

import functools
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.failures import translate
from nbrt.backends.pools import PoolBase
from nbrt.errors import NbrtError, OutOfMemoryError

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.queues import CudaQueue

__all__ = ["UNIT", "CudaPool", "round_up"]

UNIT = 512
"""Bytes that blocks are multiples of, as in CuPy's pools."""


def round_up(nbytes: int, unit: int = UNIT) -> int:
    """Return the smallest multiple of `unit` that is at least `nbytes`."""
    return -(-nbytes // unit) * unit


class CudaPool(PoolBase):
    """Memory of one device, for one `nbrt.MemoryPool`.

    Freed memory may be reused at once by work on the stream it was allocated for. So a free on
    another queue makes that stream wait first.

    Attributes
    ----------
    granularity : int
        Bytes that blocks are multiples of.
    """

    caches = True
    granularity = UNIT

    def __init__(self, driver: Driver, index: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self._driver = driver
        self._index = index
        self._was_used = False

    def allocate(self, queue: Any, nbytes: int) -> Any:
        """Return a block for work on `queue`; the cache is emptied before it fails."""
        self._check_open()
        self._was_used = True
        with queue.entered():
            try:
                return self._attempt(queue, nbytes)
            except OutOfMemoryError:
                if self._driver.captures:
                    raise  # a capture excludes frees
                self._drop()
                return self._attempt(queue, nbytes)

    def deallocate(self, queue: Any, block: Any) -> None:
        """Free a block, behind the work that `queue` has so far; idempotent."""
        if block.kept is None:
            return
        region = queue.capture or block.queue.capture
        if region is not None and block.queue is not queue:
            # The capture keeps the memory that it uses. A wait for other work, such as that of
            # this free, cannot be part of it.
            self._driver.captures.put_off(functools.partial(self.deallocate, queue, block))
            return
        self._give(queue, block)
        if self._is_closed:
            self.empty_cache()

    def empty_cache(self) -> None:
        """Return unused memory, also of copies; a device that was never used stays unused.

        During a capture, which excludes frees, the memory is returned at its end.
        """
        if self._driver.captures:
            self._driver.captures.put_off(self.empty_cache)
            return
        self._driver.staging.free_all_blocks()
        if self._was_used:
            with self._driver.on_device(self._index):
                self._drop()

    @abstractmethod
    def _take(self, queue: CudaQueue, nbytes: int) -> Any:
        """Return a block; `queue` is entered."""

    @abstractmethod
    def _drop(self) -> None:
        """Return unused memory; the device is current."""

    def _give(self, queue: CudaQueue, block: Any) -> None:
        """Free a block."""
        # Does nothing for the same queue.
        block.queue.join(queue)
        block.kept = None

    def _attempt(self, queue: CudaQueue, nbytes: int) -> Any:
        doing = f"allocating {nbytes} bytes on cuda:{self._index}"
        try:
            return self._take(queue, nbytes)
        except NbrtError:
            raise
        # CuPy raises OverflowError for sizes of more than 63 bits.
        except (MemoryError, OverflowError) as error:
            raise OutOfMemoryError(
                f"{doing} failed: {error}; free arrays or request less"
            ) from error
        except self._driver.errors as error:
            raise translate(error, doing) from error
