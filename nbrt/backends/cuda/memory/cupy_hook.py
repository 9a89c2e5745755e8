"""`CupyAllocatorHook`: CuPy's own allocations in a thread, redirected to an nbrt pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.interface import Block

__all__ = ["CupyAllocatorHook"]


class CupyAllocatorHook:
    """The allocator that CuPy calls between `enter` and `leave`.

    CuPy keeps one allocator per thread, and its context manager restores the previous one.
    Interleaved tasks may leave in another order than they entered. Then a hook that has ended
    forwards calls to the previous allocator, and the last task to leave removes the ended hooks.
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
        block, handle = self._allocate(nbytes)
        memory = cuda.UnownedMemory(block.address, block.nbytes, handle, self._index)
        return cuda.MemoryPointer(memory, 0)

    def enter(self) -> None:
        """Become this thread's allocator."""
        cuda = self._driver.cupy.cuda
        self._before = cuda.get_allocator()
        self._context = cuda.using_allocator(self)
        self._context.__enter__()

    def leave(self) -> None:
        """Restore the previous allocator; called in the thread that entered."""
        self._has_ended = True
        get_allocator = self._driver.cupy.cuda.get_allocator
        current = get_allocator()
        while isinstance(current, CupyAllocatorHook) and current._has_ended:
            current._context.__exit__(None, None, None)
            current = get_allocator()
