# No `from __future__ import annotations`: Taichi reads the annotations of its kernels as objects.
"""Taichi's saxpy."""

from typing import Any

__all__ = ["taichi_saxpy"]


def taichi_saxpy(ti: Any, cores: int) -> Any:
    """Return the kernel, for the module `taichi`."""
    ti.init(arch=ti.cpu, cpu_max_num_threads=cores, offline_cache=True, log_level=ti.ERROR)

    @ti.kernel
    def saxpy(
        out: ti.types.ndarray(dtype=ti.f32, ndim=1),
        a: ti.f32,
        x: ti.types.ndarray(dtype=ti.f32, ndim=1),
        y: ti.types.ndarray(dtype=ti.f32, ndim=1),
    ):
        for i in range(out.shape[0]):
            out[i] = a * x[i] + y[i]

    return saxpy
