"""Atomic operations of lanes on shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float64

from helpers.lowerings import agree


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["max", "min", "nanmax", "nanmin"])
def test_float_extremes_by_atomics_on_shared_memory(name: str, dtype: Any) -> None:
    # These stay calls, which must not promise LLVM that they leave the stack alone.
    operation = getattr(cuda.atomic, name)

    def kernel(out: Any, x: Any) -> None:
        best = cuda.shared.array(1, float64)
        t = cuda.threadIdx.x
        if t == 0:
            best[0] = x[0]
        cuda.syncthreads()
        operation(best, 0, float64(x[t]))
        cuda.syncthreads()
        out[t] = best[0]

    x = (np.arange(40, dtype=dtype) * 7) % 31 - 12
    right = x.max() if "max" in name else x.min()
    agree(kernel, 1, 40, np.zeros(40), x, expected=np.full(40, float(right)))
