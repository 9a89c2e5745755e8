"""One coroutine per thread: the lowering of a block that takes any kernel.

The thread function becomes an LLVM coroutine that suspends where it waits for other threads, and a
scheduler resumes the coroutines of a block in turn. Slower than vectors of lanes, but whatever the
control flow, every thread does what its source says: the fallback, and the oracle in the tests.
"""

from nbrt.backends.cpu.simt.coroutines.block import (
    Order,
    Resumed,
    coroutine_block,
    coroutine_grid,
    coroutine_resident,
    needs_grid,
)

__all__ = [
    "Order",
    "Resumed",
    "coroutine_block",
    "coroutine_grid",
    "coroutine_resident",
    "needs_grid",
]
