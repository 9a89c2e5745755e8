# No `from __future__ import annotations`: Warp reads the annotations of its kernels as objects.
"""Warp's saxpy."""

from typing import Any

__all__ = ["warp_saxpy"]


def warp_saxpy(wp: Any) -> Any:
    """Return the kernel, for the module `warp`."""
    wp.config.quiet = True
    wp.init()

    @wp.kernel(enable_backward=False)
    def saxpy(
        out: wp.array(dtype=wp.float32),
        a: wp.float32,
        x: wp.array(dtype=wp.float32),
        y: wp.array(dtype=wp.float32),
    ):
        i = wp.tid()
        out[i] = a * x[i] + y[i]

    return saxpy
