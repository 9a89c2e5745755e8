# mypy: disable-error-code="no-untyped-def"
"""Lanes: iterations of full groups, ranges with a step, negative indices, functions of scalars."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int32

import nbrt
from helpers.lowerings import agree, launched

STEP = 3
SIZES = (1, 31, 33, 96, 100, 128, 257, 999)


def _launch(kernel: Any, grid: int, block: Any, *arguments: Any) -> None:
    assert launched(kernel, grid, block, *arguments).lowering.kind == "lanes"


@pytest.mark.parametrize("threads", [33, 96])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_sums_of_rows_of_different_length(threads: int, dtype: Any) -> None:
    def kernel(out, values, lengths):
        kept = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        kept[t] = lengths[t]
        cuda.syncthreads()
        total = out.dtype.type(0)
        for i in range(kept[t]):
            total += values[t, i]
        out[t] = total

    generator = np.random.default_rng(threads)
    for low, high in ((0, 40), (7, 8), (5, 40), (0, 1)):
        lengths = generator.integers(low, high, threads).astype(np.int32)
        values = generator.integers(-50, 50, (threads, 40)).astype(dtype)
        out = np.zeros(threads, dtype)
        _launch(kernel, 1, threads, out, values, lengths)
        expected = [values[t, : lengths[t]].sum() for t in range(threads)]
        np.testing.assert_array_equal(out, np.array(expected, dtype))


def test_a_block_strides_over_a_row() -> None:
    def kernel(out, x):
        parts = cuda.shared.array(96, float32)
        t = cuda.threadIdx.x
        total = float32(0)
        for i in range(t, x.size, cuda.blockDim.x):
            total += x[i]
        parts[t] = total
        cuda.syncthreads()
        out[t] = parts[t]

    for size in SIZES:
        x = np.arange(size, dtype=np.float32)
        out = np.full(96, -1, np.float32)
        _launch(kernel, 1, 96, out, x)
        np.testing.assert_array_equal(out, [x[t::96].sum() for t in range(96)])


def test_lanes_leave_a_loop_to_several_places() -> None:
    def kernel(out, x):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        s[t] = 0
        cuda.syncthreads()
        at = t
        while True:
            if x[at] == 0:
                found = -at
                s[t] += 7
                break
            if x[at] > 90:
                found = at
                break
            s[t] += x[at]
            at += 1
            if at == x.size:
                found = 1000
                break
        cuda.syncthreads()
        out[t] = found * 1000 + s[t]

    x = np.random.default_rng(3).integers(1, 95, 300).astype(np.int32)
    x[250:] = 50
    x[::41] = 0
    for threads in (64, 40, 33):
        agree(kernel, 1, threads, np.zeros(threads, np.int64), x)


def test_a_range_with_a_constant_step() -> None:
    def kernel(out, start, stop):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        s[t] = 0
        cuda.syncthreads()
        for i in range(start + t, stop, STEP):
            s[t] = s[t] * 5 + i
        out[t] = s[t]

    for bounds in ((0, 0), (0, 100), (5, 6), (-7, 50), (-40, -33), (3, 2)):
        out = np.zeros(40, np.int32)
        _launch(kernel, 1, 40, out, *bounds)
        for t in range(40):
            total = 0
            for i in range(bounds[0] + t, bounds[1], STEP):
                total = (total * 5 + i + 2**31) % 2**32 - 2**31
            assert out[t] == total


def test_a_range_that_is_not_only_iterated() -> None:
    def kernel(out, n):
        t = cuda.threadIdx.x
        numbers = range(t, n, STEP)
        total = 0
        for i in numbers:
            total += i
        for i in numbers:
            total += 1000 * i
        out[t] = total + 10**6 * len(numbers)

    out = np.zeros(8, np.int64)
    with nbrt.device("cpu:0"):
        nbrt.kernel(kernel)[1, 8](out, 20)
    numbers = [range(t, 20, STEP) for t in range(8)]
    np.testing.assert_array_equal(out, [1001 * sum(r) + 10**6 * len(r) for r in numbers])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
@pytest.mark.parametrize("threads", [32, 45])
def test_indices_that_may_be_negative(dtype: Any, threads: int) -> None:
    def kernel(out, x, offsets):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncthreads()
        i = offsets[cuda.blockIdx.x] + s[0] + t
        out[i] = x[i] + x[i - 1]

    x = np.arange(101).astype(dtype)
    for first in (0, 5, -3, -40, -64, -100):
        out, expected = np.zeros(101, dtype), np.zeros(101, dtype)
        for t in range(threads):
            expected[first + t] = x[first + t] + x[first + t - 1]
        _launch(kernel, 1, threads, out, x, np.array([first], np.int64))
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_uniform_and_of_varying_values(dtype: Any) -> None:
    def kernel(out, x, scale):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncthreads()
        common = math.sqrt(scale) * math.erf(scale)
        out[t] = common + math.sqrt(x[s[63 - t]])

    x = np.linspace(0, 9, 64).astype(dtype)
    x[5] = -1
    out, scale = np.zeros(64, dtype), dtype(1.7)
    _launch(kernel, 1, 64, out, x, scale)
    common = dtype(math.sqrt(scale)) * dtype(math.erf(scale))
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(out, common + np.sqrt(x[::-1]), rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("index", [np.int8, np.uint16, np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int16])
def test_elements_of_an_array_by_index(dtype: Any, index: Any) -> None:
    def kernel(out, x, indices, offsets):
        s = cuda.shared.array(32, int32)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncthreads()
        row = cuda.blockIdx.x
        total = out.dtype.type(0)
        for i in range(offsets[row] + s[0] + t, offsets[row + 1], 32):
            total += x[indices[i]] * out.dtype.type(1 + i % 3)
        out[row, t] = total

    generator = np.random.default_rng(9)
    lengths = np.array([0, 1, 7, 8, 9, 16, 31, 32, 33, 70, 0, 3])
    offsets = np.append(0, lengths.cumsum()).astype(np.int32)
    lowest = -60 if np.dtype(index).kind == "i" else 0
    x = generator.integers(-9, 9, 60).astype(dtype)
    for low in {0, lowest}:
        indices = generator.integers(low, 60, offsets[-1]).astype(index)
        out = np.zeros((lengths.size, 32), dtype)
        _launch(kernel, lengths.size, 32, out, x, indices, offsets)
        expected = np.zeros_like(out)
        for row in range(lengths.size):
            for i in range(offsets[row], offsets[row + 1]):
                expected[row, (i - offsets[row]) % 32] += x[indices[i]] * dtype(1 + i % 3)
        np.testing.assert_array_equal(out, expected)


def test_an_index_of_an_array_beside_its_page() -> None:
    # Lanes without an element must not access the index of another array.
    def kernel(out, x, indices, count):
        s = cuda.shared.array(32, int32)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncthreads()
        for i in range(s[0] + t, count, 32):
            out[i] = x[indices[i]]

    indices = np.full(64, 2**31 - 1, np.int32)
    indices[:37] = np.arange(37)[::-1]
    x, out = np.arange(37, dtype=np.float32), np.full(64, -1, np.float32)
    _launch(kernel, 1, 32, out, x, indices, 37)
    np.testing.assert_array_equal(out[:37], x[::-1])
    np.testing.assert_array_equal(out[37:], -1)


def test_reports_say_how_memory_is_accessed() -> None:
    def kernel(out, x, indices, offsets):
        s = cuda.shared.array(32, int32)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncthreads()
        for i in range(offsets[0] + s[0] + t, offsets[1], 32):
            out[t] += x[indices[i]]

    x, i = np.zeros(9, np.float32), np.zeros(9, np.int32)
    reasons = nbrt.kernel(kernel).inspect(x, x, i, i, block=32).lowering.reasons
    assert "vectors are loaded or stored unless an index is negative" in reasons
    assert any(reason.startswith("gathers of float") for reason in reasons)


def test_lanes_from_a_number_on_meet_lanes_of_a_loop() -> None:
    # The lanes of the outer `if` are those from a number on; only some return inside.
    def kernel(o, x, n):
        s = cuda.shared.array(8, int32)
        t = cuda.threadIdx.x
        if t < 8:
            s[t] = 0
        cuda.syncthreads()
        total = 0
        if t > n and x[0] >= 0:
            for i in range(x[1] & 3):
                if n - i == 0:
                    cuda.atomic.add(s, 5, t)
                elif x[t & 31] < t - 9:
                    return
        else:
            total = x[t & 31]
        if t < 8:
            s[t] += 1
        cuda.syncthreads()
        o[t] = total + s[t & 7]

    x = np.random.default_rng(8).integers(0, 60, 64).astype(np.int32)
    x[1] = 3
    for n in (0, 2, 40):
        for threads in (60, 4):
            agree(kernel, 1, threads, np.full(60, -1, np.int64), x, np.int32(n))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_an_index_from_before_a_barrier(dtype: Any) -> None:
    """The loop is behind a barrier, and the extended index of `lengths` from before it."""

    def kernel(x, y, starts, d):
        t = cuda.threadIdx.x
        counts = cuda.shared.array(8, "int64")
        if t == 0:
            for i in range(8):
                counts[i] = 0
        cuda.syncthreads()
        cuda.atomic.add(counts, (t + d) & 7, x[t % 50])
        total = 0.5
        size = 256
        while size > 0:
            cuda.syncthreads()
            size //= 2
        for i in range(starts[t % 50], starts[t % 50 + 1]):
            total = total + x[i % 50]
        cuda.syncthreads()
        y[t] = total + counts[t & 7]

    threads, rows = np.arange(257), np.arange(51) * 7 // 3
    x = np.arange(50)
    out = np.zeros(257)
    _launch(kernel, 1, 257, x.astype(np.int8), out, rows.astype(dtype), np.int64(3))
    counts = np.bincount((threads + 3) & 7, weights=x[threads % 50], minlength=8)
    sums = [sum(x[i % 50] for i in range(rows[t % 50], rows[t % 50 + 1])) for t in threads]
    np.testing.assert_array_equal(out, 0.5 + np.array(sums) + counts[threads & 7])
