"""A launch in plain Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.interpret.arrays import Array, SharedArray
from nbrt.backends.cpu.interpret.functions import Interpretation, as_compiled
from nbrt.backends.cpu.interpret.scheduler import BlockOfThreads, Scheduler, Thread, indices
from nbrt.backends.cpu.simt.frontend.source import kernel_function
from nbrt.backends.cpu.simt.runtime.arguments import check_count

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Run all threads of a kernel in plain Python.

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
        Block and thread in which ``breakpoint()`` stops; the thread runs in the caller's OS thread.

    Raises
    ------
    ArgumentTypeError
        If the number of arguments is wrong.
    KernelError
        If threads wait at a barrier or a warp operation for others that never come.
    Exception
        The exception of the kernel, with a note of the block and the thread.
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
        (BlockOfThreads(index, block, shared) for index in indices(grid)),
        is_watched,
        lambda thread: interpretation.switch(thread, stops=is_watched(thread)),
    )
    interpretation.cuda.scheduler = scheduler
    scheduler.run()


def _shared(value: Any) -> Any:
    """Return an argument as a kernel has it; several threads share its arrays."""
    if isinstance(value, tuple):
        members = map(_shared, value)
        return type(value)(*members) if hasattr(value, "_fields") else tuple(members)
    compiled = as_compiled(value)
    return compiled.view(SharedArray) if isinstance(compiled, Array) else compiled
