"""Random draws on CUDA devices: the kernel library's fill kernels, launched on a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt_kernels.random.requests import draw_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.interface import Program
    from nbrt.backends.queue import Queue

__all__ = ["THREADS_PER_BLOCK", "Drawer"]

THREADS_PER_BLOCK = 256
"""Any number gives the same bits; the kernels index by Philox block, not by thread block."""


class Drawer:
    """Launches draws.

    Floating-point contraction cannot change their bits: the kernels write every multiply-add as
    ``cuda.fma`` and leave no product that an addition consumes. numba-cuda has no switch for it
    (NVVM contracts by default), so a test counts the multiply-adds in the PTX instead.

    Parameters
    ----------
    make_program : callable
        Makes a program of a kernel.
    """

    def __init__(self, make_program: Callable[[Callable[..., object]], Program]) -> None:
        self._make_program = make_program
        self._programs: dict[tuple[str, str], Program] = {}

    def draw(
        self,
        queue: Queue,
        out: Any,
        distribution: str,
        seed: int,
        offset: int,
        parameters: tuple[Any, ...],
    ) -> None:
        """Enqueue a fill of `out` from Philox stream (seed, offset).

        Raises
        ------
        ArgumentError
            If a parameter is out of range, or `out` has gaps.
        ArgumentTypeError
            If there is no such draw for the dtype of `out`.
        """
        try:
            spec, arguments = draw_request(distribution, out.dtype.name, parameters)
        except ValueError as error:
            raise ArgumentError(str(error)) from error
        except TypeError as error:
            raise ArgumentTypeError(str(error)) from error
        if not out.flags.c_contiguous:
            raise ArgumentError("expected a C-contiguous array to fill, got one with gaps; copy it")
        count = out.size
        if count == 0:
            return
        kind = (spec.distribution, spec.dtype)
        program = self._programs.get(kind)
        if program is None:
            program = self._programs.setdefault(kind, self._make_program(spec.kernel))
        blocks = -(-spec.threads(count) // THREADS_PER_BLOCK)
        plan = program.plan(queue.index, (blocks, 1, 1), (THREADS_PER_BLOCK, 1, 1), 0)
        plan.launch(queue, out.reshape(-1), *spec.arguments(seed, offset), *arguments)
