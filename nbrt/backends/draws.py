"""`Drawer`: random fills by the fill kernels of a library, launched like any other kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from nbrt.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.interface import Program
    from nbrt.backends.queue import Queue

__all__ = ["THREADS_PER_BLOCK", "DrawRequest", "Drawer", "FillKernel"]

THREADS_PER_BLOCK = 256
"""Any number gives the same bits; the kernels index by Philox block, not by thread block."""


class FillKernel(Protocol):
    """A fill kernel and how to launch it, such as `nbrt_kernels.random.DrawSpec`."""

    @property
    def kernel(self) -> Callable[..., None]:
        """Take (out, key words, first Philox block, parameters)."""
        ...

    def threads(self, n: int) -> int:
        """Return the threads that `n` elements need."""
        ...

    def arguments(self, seed: int, offset: int) -> tuple[Any, ...]:
        """Return key words and first block of a place in a Philox stream."""
        ...


class DrawRequest(Protocol):
    """Finds the fill kernel of a draw, such as `nbrt_kernels.random.requests.draw_request`."""

    def __call__(
        self, distribution: str, dtype: str, parameters: tuple[Any, ...], /
    ) -> tuple[FillKernel, tuple[Any, ...]]:
        """Return it and the parameters as it takes them; raises ValueError or TypeError."""
        ...


class Drawer:
    """Fills arrays of one kind of device; keeps one program per fill kernel.

    A backend whose programs take the kernel library's dialect needs no more for its draws. The
    library comes in as `request`, because only concrete backends may know it.

    Parameters
    ----------
    make_program : callable
        Makes a program of a kernel.
    request : DrawRequest
        Finds the fill kernel of a draw.
    """

    def __init__(
        self, make_program: Callable[[Callable[..., object]], Program], request: DrawRequest
    ) -> None:
        self._make_program = make_program
        self._request = request
        self._programs: dict[Callable[..., object], Program] = {}

    def draw(
        self,
        queue: Queue,
        out: Any,
        distribution: str,
        seed: int,
        offset: int,
        parameters: tuple[Any, ...],
    ) -> None:
        """Enqueue a fill of `out` from Philox stream (seed, offset); see `DeviceInterface.draw`.

        Raises
        ------
        ArgumentError
            If a parameter is out of range, or `out` has gaps.
        ArgumentTypeError
            If there is no such draw for the dtype of `out`.
        """
        try:
            fill, arguments = self._request(distribution, out.dtype.name, parameters)
        except ValueError as error:
            raise ArgumentError(str(error)) from error
        except TypeError as error:
            raise ArgumentTypeError(str(error)) from error
        if not out.flags.c_contiguous:
            raise ArgumentError("expected a C-contiguous array to fill, got one with gaps; copy it")
        if out.size == 0:
            return
        program = self._programs.get(fill.kernel)
        if program is None:
            program = self._programs.setdefault(fill.kernel, self._make_program(fill.kernel))
        blocks = -(-fill.threads(out.size) // THREADS_PER_BLOCK)
        plan = program.plan(queue.index, (blocks, 1, 1), (THREADS_PER_BLOCK, 1, 1), 0)
        plan.launch(queue, out.reshape(-1), *fill.arguments(seed, offset), *arguments)
