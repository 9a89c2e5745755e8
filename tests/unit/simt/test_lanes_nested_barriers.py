# mypy: disable-error-code="no-untyped-def"
"""Lanes: barriers in inner loops, with values that outer loops compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int32

from helpers.lowerings import agree

RNG = np.random.default_rng(20)


@pytest.mark.parametrize("threads", [64, 100, (16, 3)])
def test_values_of_an_outer_loop_are_used_behind_barriers_of_an_inner_one(threads: Any) -> None:
    """Uniform and varying values of several types, and one that changes on one path only."""

    def kernel(o, x, rounds):
        s = cuda.shared.array(128, float32)
        t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
        n = cuda.blockDim.x * cuda.blockDim.y
        s[t] = x[t]
        cuda.syncthreads()
        scale = float32(1)
        outer = 1
        while outer <= rounds:
            own = s[t] * scale  # varies, and is from before the inner loop
            low = own > float32(0)
            inner = outer
            while inner > 0:
                other = s[(t + inner * outer) % n]
                cuda.syncthreads()
                if low:
                    s[t] = other + own
                else:
                    s[t] = other * float32(0.5) - scale
                cuda.syncthreads()
                inner -= 1
            if rounds > 3:
                scale += float32(0.25)
            outer += 1
        o[t] = s[t] + scale

    size = int(np.prod(threads))
    x = RNG.normal(size=size).astype(np.float32)
    for rounds in (2, 5):
        agree(kernel, 1, threads, np.zeros(size, np.float32), x, rounds)


def test_three_nested_loops_with_barriers_at_two_depths() -> None:
    def kernel(o, n):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        s[t] = t
        total = 0
        for a in range(n):
            first = total * 3 + a
            for b in range(a + 1):
                second = first + s[(t + b) % 64]
                cuda.syncthreads()
                for c in range(b + 1):
                    value = s[63 - t] + c
                    cuda.syncthreads()
                    s[t] = (value * 5 + second + first) % 1000
                    cuda.syncthreads()
                total += second % 7 + b
        o[t] = s[t] + total

    agree(kernel, 1, 64, np.zeros(64, np.int64), 4)
