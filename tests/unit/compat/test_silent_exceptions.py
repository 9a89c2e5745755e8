"""Kernels without ``debug=True``: an exception ends its thread and nothing else, as on CUDA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.config import override

pytestmark = pytest.mark.usefixtures("installed")


@cuda.jit(device=True)
def doubled(i: Any) -> Any:
    if i == 3:
        raise ValueError("three")
    return 2 * i


def _fill(out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = doubled(i)


def _fill_in_turns(out: Any) -> None:
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = doubled(i)


def _raise_in_turns(out: Any) -> None:
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        if i == 3:
            raise ValueError
        out[i] = 2 * i


def _look_outside(out: Any) -> None:
    i = cuda.grid(1)
    value = out.shape[i // 3 if i == 3 else 0]
    out[i] = 2 * i * value // out.shape[0]


def _exchange(out: Any) -> None:
    values = cuda.shared.array(8, np.int64)
    i = cuda.threadIdx.x
    values[i] = -1
    cuda.syncthreads()
    values[i] = doubled(i)
    cuda.syncthreads()
    out[i] = values[i ^ 1] + values[i]


def _leave_loops(out: Any) -> None:
    i = cuda.grid(1)
    total = 0
    while total < i * i:
        total += doubled(i) + 1
    out[i] = total


CASES = [
    (_fill, [0, 2, 4, -7, 8, 10, 12, 14]),
    (_fill_in_turns, [0, 2, 4, -7, 8, 10, 12, -7]),
    (_raise_in_turns, [0, 2, 4, -7, 8, 10, 12, -7]),
    (_look_outside, [0, 2, 4, -7, 8, 10, 12, 14]),
    (_exchange, [2, 2, 3, -7, 18, 18, 26, 26]),
    (_leave_loops, [0, 3, 5, -7, 18, 33, 39, 60]),
]


@pytest.mark.parametrize(("function", "expected"), CASES)
def test_the_other_threads_complete(function: Any, expected: list[int]) -> None:
    out, kernel = np.full(8, -7), cuda.jit(function)
    block = 4 if "turns" in function.__name__ else 8
    for stream in (0, cuda.stream()):
        out[:] = -7
        kernel[1, block, stream](out)
        assert out.tolist() == expected


def test_debug_checked_mode_and_nbrt_kernel_of_a_function_raise() -> None:
    out = np.full(8, -7)
    with pytest.raises(ValueError, match=r"tid=\[0, 0, 3\].*three"):
        cuda.jit(_fill, debug=True, opt=False)[1, 8](out)
    with override(check=True), pytest.raises(ValueError, match="three"):
        cuda.jit(_fill)[1, 8](out)
    with pytest.raises(ValueError, match="three"):
        nbrt.kernel(_fill)[1, 8](out)
