# mypy: disable-error-code="no-untyped-def"
"""Lanes: prefetches in loops whose step is the number of threads of the grid, or another value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, int32

from helpers.lowerings import launched

NOTE = "the next iteration or block is prefetched"


def _run(kernel: Any, grid: int, block: int, *arguments: Any) -> tuple[str, ...]:
    """Launch a kernel on a CPU device and return the notes on its lowering."""
    lowering = launched(kernel, grid, block, *arguments).lowering
    assert lowering.kind == "lanes"
    return tuple(lowering.reasons)


def _sums(out, x):
    first = cuda.shared.array(256, int32)
    t = cuda.threadIdx.x
    first[t] = cuda.grid(1)
    cuda.syncthreads()
    total = out.dtype.type(0)
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        total += x[i]
    out[first[t]] = total


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
@pytest.mark.parametrize("block", [33, 64, 256])
def test_sums_by_grid_stride_loops(dtype: Any, block: int) -> None:
    for size in (0, 1, 31, 999, 4096, 10_007):
        x = np.random.default_rng(size).integers(0, 100, size).astype(dtype)
        # Sums of whole numbers, which are exact in every type.
        out = np.full(3 * block, -1, dtype if np.issubdtype(dtype, np.floating) else np.int64)
        assert NOTE in _run(_sums, 3, block, out, x)
        expected = np.bincount(np.arange(size) % out.size, x, minlength=out.size)
        np.testing.assert_array_equal(out, expected)


def test_addresses_far_outside_an_array_are_only_hints() -> None:
    """The last iterations prefetch at distances that no memory has."""

    def kernel(out, x, step):
        first = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        first[t] = t
        cuda.syncthreads()
        total = 0
        for i in range(first[63 - t], x.shape[0], step):
            total += x[i]
        out[t] = total

    x, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    _run(kernel, 1, 64, out, x, np.int64(1 << 45))
    np.testing.assert_array_equal(out, x[::-1])


def test_a_step_that_is_a_number_is_left_to_the_processor() -> None:
    def kernel(out, x):
        parts = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        total = 0
        for i in range(t, x.shape[0], 64):
            total += x[i]
        parts[t] = total
        cuda.syncthreads()
        out[t] = parts[63 - t]

    x, out = np.arange(1000, dtype=np.int32), np.zeros(64, np.int32)
    assert NOTE not in _run(kernel, 1, 64, out, x)
    np.testing.assert_array_equal(out[::-1], np.bincount(np.arange(1000) % 64, x))
