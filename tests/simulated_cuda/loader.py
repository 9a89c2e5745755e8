"""Load the simulated CUDA driver into this process."""

from __future__ import annotations

import ctypes

from simulated_cuda.build import build

__all__ = ["load"]


def load() -> ctypes.CDLL:
    """Build and load the simulated driver.

    A later ``dlopen("libcuda.so.1")`` of any library finds it, because a loaded library answers
    to its SONAME.
    """
    return ctypes.CDLL(str(build()), ctypes.RTLD_GLOBAL)
