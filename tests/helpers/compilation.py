"""Compilations of kernels for the CPU, submitted to a pool without the public functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.registry import get_interface_for_device

if TYPE_CHECKING:
    import nbrt
    from nbrt.backends.compile_jobs import CompileJob
    from nbrt.compilation.future import CompileFuture
    from nbrt.compilation.pool import AsyncCompile

__all__ = ["compiled", "jobs_of"]


def jobs_of(kernel: nbrt.Kernel, *args: Any, block: int = 32) -> list[CompileJob]:
    """Return the jobs of one launch on the CPU."""
    interface = get_interface_for_device("cpu")
    shape = (block, 1, 1)
    return interface.compile_jobs(kernel.program(interface), 0, (1, 1, 1), shape, 0, args)


def compiled(
    pool: AsyncCompile, kernel: nbrt.Kernel, *args: Any, block: int = 32
) -> CompileFuture[Any]:
    """Submit the compilation of one launch on the CPU; the result is the plan, with its code."""
    interface = get_interface_for_device("cpu")
    plan: Any = kernel.program(interface).plan(0, (1, 1, 1), (block, 1, 1), 0)

    def load() -> Any:
        plan.prepare(args)
        return plan

    return pool.submit(jobs_of(kernel, *args, block=block), load, kernel.__name__)
