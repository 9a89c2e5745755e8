"""`CupyAllocatorHook`: CuPy's own allocations in a thread, sent to a pool of ours for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.interface import Block

__all__ = ["CupyAllocatorHook"]


class CupyAllocatorHook:
    """What CuPy calls for memory between `enter` and `leave`.

    CuPy keeps one allocator per thread, and its context manager puts back the one before. Tasks
    that interleave leave in another order than they entered: then the last one to leave takes away
    those that have ended, and an ended one that is still called passes on to the one before it.

    Parameters
    ----------
    driver : Driver
        CUDA.
    index : int
        The device whose memory it is; for others the allocator before stays in charge.
    allocate : callable
        Returns (block, lease) for a number of bytes.
    """

    def __init__(
        self, driver: Driver, index: int, allocate: Callable[[int], tuple[Block, object]]
    ) -> None:
        self._driver = driver
        self._index = index
        self._allocate = allocate
        self._before: Any = None
        self._context: Any = None
        self._has_ended = False

    def __call__(self, nbytes: int) -> Any:
        """Return CuPy's pointer to new memory."""
        if self._has_ended or self._driver.get_device() != self._index:
            return self._before(nbytes)
        cuda = self._driver.cupy.cuda
        if nbytes == 0:
            return cuda.MemoryPointer(cuda.UnownedMemory(0, 0, None, self._index), 0)
        block, lease = self._allocate(nbytes)
        memory = cuda.UnownedMemory(block.address, block.nbytes, lease, self._index)
        return cuda.MemoryPointer(memory, 0)

    def enter(self) -> None:
        """Become this thread's allocator."""
        cuda = self._driver.cupy.cuda
        self._before = cuda.get_allocator()
        self._context = cuda.using_allocator(self)
        self._context.__enter__()

    def leave(self) -> None:
        """Stop serving; called in the thread that entered."""
        self._has_ended = True
        get_allocator = self._driver.cupy.cuda.get_allocator
        current = get_allocator()
        while isinstance(current, CupyAllocatorHook) and current._has_ended:
            current._context.__exit__(None, None, None)
            current = get_allocator()
