"""`make_pool`: the kinds of pool of CUDA devices."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.memory.expandable import ExpandablePool
from nbrt.backends.cuda.memory.pinned import PinnedPool
from nbrt.backends.cuda.memory.pooled import CupyPool, PlainPool
from nbrt.backends.cuda.memory.segment_tracker import SegmentTracker
from nbrt.backends.cuda.memory.stream_ordered import StreamOrderedPool
from nbrt.errors import NbrtError, NotSupportedError

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.memory.base import CudaPool

__all__ = ["make_pool"]


def make_pool(driver: Driver, index: int, kind: str) -> CudaPool | None:
    """Return a new pool of a device; None for an unknown kind.

    Raises
    ------
    NotSupportedError
        If the device, or this CuPy, has no pool of this kind.
    """
    cuda = driver.cupy.cuda
    if kind == "caching":
        return CupyPool(driver, index, kind, SegmentTracker(driver, cuda.Memory))
    if kind == "plain":
        return PlainPool(driver, index, kind, SegmentTracker(driver, cuda.Memory))
    if kind == "pinned":
        return PinnedPool(driver, index, SegmentTracker(driver, _page_lock(cuda), by_stream=False))
    if kind == "managed":
        _require(driver, index, kind, "ManagedMemory", "managed memory")
        return CupyPool(driver, index, kind, SegmentTracker(driver, cuda.ManagedMemory))
    if kind == "system":
        return _system_pool(driver, index)
    if kind == "async":
        _require(driver, index, kind, "MemoryPoolsSupported", "memory pools")
        return StreamOrderedPool(driver, index)
    if kind == "expandable":
        if not driver.can_map(index):
            raise _missing(index, kind, "the device has no virtual memory management")
        return ExpandablePool(driver, index, int(driver.properties(index)["totalGlobalMem"]))
    return None


def _system_pool(driver: Driver, index: int) -> CudaPool:
    memory = getattr(driver.cupy.cuda.memory, "SystemMemory", None)
    if memory is None:
        raise _missing(index, "system", "CuPy has it since version 14")
    _require(driver, index, "system", "PageableMemoryAccess", "access to the host's own memory")

    def settle() -> None:
        # The host's free() waits for no device; a lost device runs nothing.
        with contextlib.suppress(NbrtError):
            driver.synchronize_device(index)

    return CupyPool(driver, index, "system", SegmentTracker(driver, memory, settle))


def _page_lock(cuda: Any) -> Any:
    return lambda nbytes: cuda.PinnedMemory(nbytes, cuda.runtime.hostAllocPortable)


def _require(driver: Driver, index: int, kind: str, attribute: str, what: str) -> None:
    if not driver.attribute(attribute, index):
        raise _missing(index, kind, f"the device or its driver has no {what}")


def _missing(index: int, kind: str, why: str) -> NotSupportedError:
    return NotSupportedError(
        f"expected a kind of pool that cuda:{index} has, got {kind!r}: {why}; use 'caching'"
    )
