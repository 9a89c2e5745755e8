"""The stack of a thread: local arrays, and recursive device functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float64, int32

from helpers.lowerings import agree
from nbrt.backends.cpu.launch import CpuProgram


@cuda.jit(device=True)
def depth(n: Any) -> Any:
    """Count the calls."""
    if n <= 0:
        return 0
    return 1 + depth(n - 1)


def test_recursion_from_a_typed_constant_and_from_an_argument() -> None:
    def kernel(out: Any, n: Any) -> None:
        out[cuda.threadIdx.x] = depth(np.int64(100)) * 1000 + depth(n)

    out = np.zeros(3, np.int64)
    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (3, 1, 1))(out, 7)
    assert out.tolist() == [100007] * 3


@pytest.mark.parametrize("count", [1, 300, 16000])
def test_local_arrays_of_any_length(count: int) -> None:
    def kernel(out: Any) -> None:
        own = cuda.local.array(count, float64)
        t = cuda.threadIdx.x
        for k in range(count):
            own[k] = k + t
        out[t] = own[count - 1] - own[0]

    out = np.zeros(4)
    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (4, 1, 1))(out)
    assert out.tolist() == [count - 1] * 4


@pytest.mark.parametrize("block", [33, 64])
def test_returns_out_of_a_loop_around_a_barrier(block: int) -> None:
    # Ways to the end cross each other in the piece between two barriers, not in the whole loop.
    def kernel(out: Any, turns: Any) -> None:
        seen = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        seen[0] = 0
        for i in range(40):
            if t == i:
                return
            turns[t] += cuda.syncthreads_count(True)
        out[t] = 1

    turns = np.array([sum(block - i - 1 for i in range(min(t, 40))) for t in range(block)])
    out = (np.arange(block) >= 40).astype(np.int32)
    agree(kernel, 1, block, np.zeros(block, np.int32), np.zeros(block, np.int64), expected=out)
    got = np.zeros(block, np.int64)
    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (block, 1, 1))(
        np.zeros(block, np.int32), got
    )
    np.testing.assert_array_equal(got, turns)
