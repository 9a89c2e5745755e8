"""A launch in plain Python: every thread runs, the watched one under the debugger's eyes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.interpret.arrays import Array, SharedArray
from nbrt.backends.cpu.interpret.functions import Interpretation, as_compiled
from nbrt.backends.cpu.interpret.scheduler import Block, Scheduler, Thread
from nbrt.backends.cpu.simt.frontend.source import kernel_function
from nbrt.backends.cpu.simt.runtime.arguments import check_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt.typing import Dim3

__all__ = ["interpret"]


def interpret(
    function: Callable[..., object],
    grid: Dim3,
    block: Dim3,
    shared: int,
    args: tuple[Any, ...],
    watched: tuple[Dim3, Dim3] = ((0, 0, 0), (0, 0, 0)),
) -> None:
    """Run a kernel in plain Python, all blocks and threads of it, and return when it is done.

    Parameters
    ----------
    function : callable
        The kernel, or a ``cuda.jit`` dispatcher of it.
    grid, block : tuple of int
        Blocks in the grid, threads in a block.
    shared : int
        Bytes of dynamic shared memory.
    args : tuple
        The kernel's arguments, arrays as NumPy arrays.
    watched : tuple
        The block and the thread in which ``breakpoint()`` stops; it runs in the caller's OS thread.

    Raises
    ------
    ArgumentTypeError
        If the number of arguments is wrong.
    KernelError
        If threads wait at a barrier or a warp operation for others that never come.
    Exception
        What the kernel raises, with a note that names the block and the thread.
    """
    plain = kernel_function(function)
    check_count(plain, args)
    interpretation = Interpretation(grid, block)
    body = interpretation.function(plain)
    values = tuple(map(_shared, args))

    def is_watched(thread: Thread) -> bool:
        return (thread.block.index, thread.index) == watched

    scheduler = Scheduler(
        lambda: body(*values),
        _blocks(grid, block, shared),
        is_watched,
        lambda thread: interpretation.switch(thread, stops=is_watched(thread)),
    )
    interpretation.cuda.scheduler = scheduler
    scheduler.run()


def _shared(value: Any) -> Any:
    """Return an argument as a kernel has it; other threads see its arrays."""
    if isinstance(value, tuple):
        value = (
            type(value)(*map(_shared, value))
            if hasattr(value, "_fields")
            else (tuple(map(_shared, value)))
        )
        return value
    found = as_compiled(value)
    return found.view(SharedArray) if isinstance(found, Array) else found


def _blocks(grid: Dim3, block: Dim3, shared: int) -> Iterator[Block]:
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                yield Block((x, y, z), block, shared)
