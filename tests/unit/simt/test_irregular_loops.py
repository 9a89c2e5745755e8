# mypy: disable-error-code="no-untyped-def"
"""Loops whose length is data run thread by thread, others in lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float32

import nbrt


def _kind(kernel: Any, grid: Any, block: Any, *arguments: Any) -> tuple[str, tuple[str, ...]]:
    """Launch a kernel, and return its lowering and the reasons."""
    with nbrt.device("cpu:0"):
        compiled = nbrt.kernel(kernel)
        compiled[grid, block](*arguments)
    found = compiled.inspect(*arguments, block=block).lowering
    return found.kind, found.reasons


def _product(out, values, columns, offsets, x):
    row = cuda.grid(1)
    if row < out.shape[0]:
        total = out.dtype.type(0)
        for i in range(offsets[row], offsets[row + 1]):
            total += values[i] * x[columns[i]]
        out[row] = total


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_a_product_of_sparse_rows(dtype: Any, index: Any) -> None:
    generator = np.random.default_rng(4)
    kernel = nbrt.kernel(_product)
    for rows in (1, 37, 300):
        lengths = generator.integers(0, 20, rows)
        offsets = np.append(0, lengths.cumsum()).astype(index)
        columns = generator.integers(-rows, rows, offsets[-1]).astype(index)
        values = generator.integers(-5, 5, offsets[-1]).astype(dtype)
        x = generator.integers(-5, 5, rows).astype(dtype)
        out = np.full(rows, 99, dtype)
        kind, reasons = _kind(kernel, -(-rows // 64), 64, out, values, columns, offsets, x)
        assert kind == "threads"
        assert "its length is data" in reasons[0]
        of_row = np.repeat(np.arange(rows), lengths)
        expected = np.zeros(rows, dtype)
        np.add.at(expected, of_row, values * x[columns])
        np.testing.assert_array_equal(out, expected)


def test_rows_of_a_matrix_in_a_block_of_two_dimensions() -> None:
    def kernel(out, x, lengths):
        i, j = cuda.grid(2)
        if i < out.shape[0] and j < out.shape[1]:
            total = float32(0)
            for k in range(lengths[i, j]):
                total += x[i, j, k]
            out[i, j] = total

    x = np.random.default_rng(2).integers(-9, 9, (21, 13, 30)).astype(np.float32)
    lengths = np.random.default_rng(3).integers(0, 30, (21, 13))
    out = np.zeros((21, 13), np.float32)
    assert _kind(kernel, (3, 2), (8, 8), out, x, lengths)[0] == "threads"
    inside = np.arange(30) < lengths[..., None]
    np.testing.assert_array_equal(out, (x * inside).sum(axis=2))


def test_loops_that_follow_from_the_index_run_in_lanes() -> None:
    def kernel(out, x, y):
        i = cuda.grid(1)
        if i < out.size:
            total = float32(0)
            for k in range(i):
                total += x[i, k] * y[k]
            out[i] = total

    x = np.random.default_rng(2).integers(-9, 9, (70, 70)).astype(np.float32)
    y, out = np.arange(70, dtype=np.float32), np.zeros(70, np.float32)
    assert _kind(kernel, 2, 64, out, x, y)[0] == "lanes"
    np.testing.assert_array_equal(out, np.tril(x, -1) @ y)


def test_a_search_runs_in_lanes() -> None:
    def kernel(out, x, wanted):
        i = cuda.grid(1)
        if i < wanted.size:
            low, high = 0, x.size
            while low < high:
                middle = (low + high) // 2
                if x[middle] < wanted[i]:
                    low = middle + 1
                else:
                    high = middle
            out[i] = low

    x = np.sort(np.random.default_rng(2).random(99))
    wanted, out = np.random.default_rng(3).random(77), np.zeros(77, np.int64)
    assert _kind(kernel, 2, 64, out, x, wanted)[0] == "lanes"
    np.testing.assert_array_equal(out, np.searchsorted(x, wanted))


def test_a_long_computation_for_each_element_runs_in_lanes() -> None:
    def kernel(out, x, lengths):
        i = cuda.grid(1)
        total = float32(0)
        for k in range(lengths[i]):
            value = x[i, k]
            for _ in range(12):  # unrolled
                value = value * value + float32(0.25)
            total += value
        out[i] = total

    x = np.random.default_rng(2).random((64, 9), np.float32) / 2
    lengths, out = np.arange(64) % 9, np.zeros(64, np.float32)
    assert _kind(kernel, 1, 64, out, x, lengths)[0] == "lanes"
    value = x.copy()
    for _ in range(12):
        value = value * value + np.float32(0.25)
    inside = np.arange(9) < lengths[:, None]
    np.testing.assert_allclose(out, (value * inside).sum(axis=1), rtol=1e-5)
