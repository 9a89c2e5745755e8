# mypy: disable-error-code="no-untyped-def"
"""Lanes: loops in which each lane steps through a row, of which vectors are transposed."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int32

from helpers.lowerings import agree, launched

LENGTHS = (0, 1, 3, 4, 7, 8, 9, 15, 16, 31, 40)


def _launch(kernel: Any, grid: int, block: Any, *arguments: Any) -> str:
    """Launch a kernel, and return its LLVM IR."""
    found = launched(kernel, grid, block, *arguments)
    assert found.lowering.kind == "lanes"
    return found.llvm


def _sums(out, x):
    s = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.syncthreads()
    total = out.dtype.type(0)
    for d in range(x.shape[1]):
        total += x[s[t], d] * x.dtype.type(3)
    out[t] = total


@pytest.mark.parametrize("threads", [17, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
def test_each_lane_adds_a_row(threads: int, dtype: Any) -> None:
    for length in LENGTHS:
        x = (np.arange(64 * length) % 37 - 18).reshape(64, length).astype(dtype)
        out = np.full(threads, 5, dtype)
        _launch(_sums, 1, threads, out, x)
        expected = (x.astype(np.int64) * 3).sum(axis=1)[:threads]
        np.testing.assert_array_equal(out, expected.astype(dtype))


@pytest.mark.parametrize("layout", ["C", "F", "offset"])
def test_rows_of_any_layout(layout: str) -> None:
    x = np.random.default_rng(1).integers(-9, 9, (64, 19)).astype(np.float32)
    if layout == "F":
        x = np.asfortranarray(x)
    elif layout == "offset":
        x = np.random.default_rng(1).integers(-9, 9, (70, 30)).astype(np.float32)[3:67, 5:24]
    out = np.zeros(64, np.float32)
    _launch(_sums, 1, 64, out, x)
    np.testing.assert_array_equal(out, (x * 3).sum(axis=1))


def test_rows_that_end_with_their_memory() -> None:
    length, rows = 13, 64
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    whole = np.frombuffer(memory, np.float32)
    x = whole[-length * rows :].reshape(rows, length)
    x[:] = np.arange(length * rows).reshape(rows, length) % 100
    out = np.zeros(rows, np.float32)
    _launch(_sums, 1, rows, out, x)
    np.testing.assert_array_equal(out, (x * 3).sum(axis=1))


def test_nearest_rows_with_two_rows_and_a_start() -> None:
    def kernel(labels, points, centres, first):
        s = cuda.shared.array(96, float32)
        t = cuda.threadIdx.x
        s[t] = 0
        cuda.syncthreads()
        row = cuda.blockIdx.x * cuda.blockDim.x + t
        if row < points.shape[0]:
            best, label = float32(1e9), -1
            for c in range(centres.shape[0]):
                square = float32(0)
                for d in range(first, points.shape[1]):
                    distance = points[row, d] - centres[c, d] + s[t]
                    square += distance * distance
                if square < best:
                    best, label = square, c
            labels[row] = label

    generator = np.random.default_rng(5)
    for rows, width, first in ((200, 17, 0), (31, 8, 0), (97, 9, 1), (1, 30, 3), (64, 4, 4)):
        points = generator.integers(-20, 20, (rows, width)).astype(np.float32)
        centres = generator.integers(-20, 20, (7, width)).astype(np.float32)
        labels = np.full(rows, -5, np.int32)
        _launch(kernel, -(-rows // 96), 96, labels, points, centres, first)
        squares = ((points[:, None, first:] - centres[None, :, first:]) ** 2).sum(axis=2)
        np.testing.assert_array_equal(labels, squares.argmin(axis=1))


def test_a_loop_that_writes_keeps_its_order() -> None:
    def kernel(out, x):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        s[t] = (t * 7) % 64
        cuda.syncthreads()
        for d in range(1, x.shape[1]):
            x[s[t], d] += x[s[t], d - 1]
        out[t] = x[s[t], x.shape[1] - 1]

    x = np.random.default_rng(2).integers(-9, 9, (64, 21)).astype(np.float32)
    agree(kernel, 1, 64, np.zeros(64, np.float32), x)


def test_rows_are_loaded_as_vectors() -> None:
    def loads(dtype: Any) -> bool:
        return "load <8 x float>" in _launch(
            _sums, 1, 64, np.zeros(64, dtype), np.ones((64, 16), dtype)
        )

    assert loads(np.float32)
    assert not loads(np.int8)


def test_a_loop_with_a_break_is_no_strip() -> None:
    def kernel(out, x):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        s[t] = 63 - t
        cuda.syncthreads()
        total = 0
        for d in range(x.shape[1]):
            if x[s[t], d] < 0:
                break
            total += x[s[t], d]
        out[t] = total

    x = np.random.default_rng(2).integers(-1, 9, (64, 21)).astype(np.int32)
    agree(kernel, 1, 64, np.zeros(64, np.int64), x)
    agree(kernel, 1, 50, np.zeros(64, np.int64), x)
