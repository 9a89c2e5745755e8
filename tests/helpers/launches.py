"""Kernels that several test modules launch."""

from __future__ import annotations

from numba import cuda

import nbrt


@nbrt.kernel
def increment(x):
    """Add one to every element."""
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1
