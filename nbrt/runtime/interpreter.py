"""`interpret`: kernels on CPU devices in plain Python, so that a debugger can step through them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from nbrt.config import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.typing import Dim3

__all__ = ["interpret"]


@contextmanager
def interpret(block: Dim3 = (0, 0, 0), thread: Dim3 = (0, 0, 0)) -> Iterator[None]:
    """Run kernels on CPU devices in plain Python inside a block of code.

    All blocks and threads run, one thread at a time, so the results are those of a launch.
    ``breakpoint()`` stops only in the chosen thread, in the kernel's source; this thread runs in
    the OS thread of the launch. Launches wait for their stream and are done when they return.
    ``NBRT_INTERPRET=1`` does the same for a whole program.

    Parameters
    ----------
    block, thread : tuple of (int, int, int)
        The thread in which to stop, as (x, y, z): its block, and its index in the block.

    Raises
    ------
    ArgumentError
        If one of them is not three ints from 0 on.

    Examples
    --------
    >>> import nbrt
    >>> from numba import cuda
    >>> @nbrt.kernel
    ... def fill(x):
    ...     x[cuda.grid(1)] = cuda.threadIdx.x  # breakpoint() may stand here
    >>> with nbrt.device("cpu:0"), nbrt.interpret(thread=(3, 0, 0)):
    ...     x = nbrt.zeros(4, "int32")
    ...     fill[2, 2](x)
    >>> x
    array([0, 1, 0, 1], dtype=int32)
    """
    with override(interpret=True, interpret_block=block, interpret_thread=thread):
        yield
