# mypy: disable-error-code="no-untyped-def"
"""Loops whose length is data run thread by thread, others in lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float32

import nbrt
from helpers.lowerings import launched


def _kind(kernel: Any, grid: Any, block: Any, *arguments: Any) -> tuple[str, tuple[str, ...]]:
    """Launch a kernel, and return its lowering and the reasons."""
    found = launched(kernel, grid, block, *arguments).lowering
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
    for rows in (1, 37, 300):
        lengths = generator.integers(0, 20, rows)
        offsets = np.append(0, lengths.cumsum()).astype(index)
        columns = generator.integers(-rows, rows, offsets[-1]).astype(index)
        values = generator.integers(-5, 5, offsets[-1]).astype(dtype)
        x = generator.integers(-5, 5, rows).astype(dtype)
        out = np.full(rows, 99, dtype)
        kind, reasons = _kind(_product, -(-rows // 64), 64, out, values, columns, offsets, x)
        assert kind == "threads"
        assert "its length is data" in reasons[0]
        of_row = np.repeat(np.arange(rows), lengths)
        expected = np.zeros(rows, dtype)
        np.add.at(expected, of_row, values * x[columns])
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("index", [np.int16, np.int32, np.int64, np.uint32, np.uint64])
@pytest.mark.parametrize("block", [1, 32, 48])
def test_ranges_with_loaded_limits_wrap_around_below_zero(index: Any, block: int) -> None:
    """Negative counters count from the end of the array; ranges may cross zero, or be empty."""

    def kernel(out, kept, x, limits):
        row = cuda.grid(1)
        if row < out.shape[0]:
            total = out.dtype.type(0)
            last = limits[row, 0]
            for i in range(limits[row, 0], limits[row, 1]):
                total += x[i] + i
                last = i
            for i in range(limits[row, 1] - 3, limits[row, 1], 2):
                total += 2 * x[i]
            out[row] = total
            kept[row] = last

    generator = np.random.default_rng(8)
    least = -90 if np.issubdtype(index, np.signedinteger) else 3
    limits = generator.integers(least, 100, (90, 2)).astype(index)
    limits[0], limits[1] = (least, 100), (99, 99)
    limits[:, 1] = np.maximum(limits[:, 1], index(3))
    x = generator.integers(-50, 50, 100)
    out, kept = np.zeros((2, 90), np.int64)
    kind = _kind(kernel, -(-90 // block), block, out, kept, x, limits)[0]
    assert kind in ("threads", "lanes")
    for row, (start, stop) in enumerate(limits.tolist()):
        places = list(range(start, stop))
        total = sum(x[i] + i for i in places) + 2 * (x[stop - 3] + x[stop - 1])
        assert out[row] == total
        assert kept[row] == (places or [start])[-1]


def test_a_loop_with_a_loaded_start_has_a_form_without_tests_for_negative_indices() -> None:
    """LLVM makes two loops of it: one has a conditional move for each array, the other none."""
    arrays = np.zeros(8, np.float32), np.zeros(8, np.int32)
    code = nbrt.kernel(_product).inspect(
        arrays[0], arrays[0], arrays[1], np.zeros(9, np.int32), arrays[0], block=64
    )
    assert code.lowering.kind == "threads"
    loops = [loop for loop in code.loops if loop.depth == max(each.depth for each in code.loops)]
    assert len(loops) >= 2
    assert "asm sideeffect" in code.llvm  # in the form for negative starts
    assert code.llvm.count("= fmul") >= 2


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
