"""The lowering of a block to one coroutine per thread, for any kernel.

The thread function becomes an LLVM coroutine that suspends where it waits for other threads, and a
scheduler resumes the coroutines of a block in turn. It is slower than lanes and correct for any
control flow: the fallback of the compiler, and the reference in tests.
"""

from nbrt.backends.cpu.simt.coroutines.block import (
    Order,
    Resumed,
    coroutine_block,
    coroutine_grid,
    coroutine_resident,
)

__all__ = [
    "Order",
    "Resumed",
    "coroutine_block",
    "coroutine_grid",
    "coroutine_resident",
]
