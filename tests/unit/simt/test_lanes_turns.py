"""Interchanged grid-stride loops in kernels that wait, and ranges that count upwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int32

from helpers.lowerings import agree, force
from nbrt.backends.cpu.launch import CpuProgram

RNG = np.random.default_rng(7)
BYTES = RNG.integers(0, 16, 5000).astype(np.uint8)
REALS = RNG.integers(0, 100, 3001).astype(np.float32)
GRIDS = pytest.mark.parametrize(("grid", "block"), [(1, 64), (3, 96), (2, 100), (4, 33)])


def counts_by_range(out: Any, values: Any) -> None:
    """A histogram in shared memory, by a range."""
    counts = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        counts[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), values.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(counts, values[i], 1)
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(out, t, counts[t])


def counts_by_while(out: Any, values: Any) -> None:
    """The same by a while loop, with a stride spelt out."""
    counts = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        counts[t] = 0
    cuda.syncthreads()
    i = cuda.blockIdx.x * cuda.blockDim.x + t
    while i < values.size:
        cuda.atomic.add(counts, values[i], 1)
        i += cuda.blockDim.x * cuda.gridDim.x
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(out, t, counts[t])


@GRIDS
@pytest.mark.parametrize("kernel", [counts_by_range, counts_by_while])
@pytest.mark.parametrize("n", [5000, 1, 0, 97])
def test_histogram(kernel: Any, grid: int, block: int, n: int) -> None:
    values = BYTES[:n]
    agree(
        kernel, grid, block, np.zeros(16, np.int32), values,
        expected=np.bincount(values, minlength=16).astype(np.int32),
    )  # fmt: skip


@GRIDS
def test_private_sum_before_a_block_sum(grid: int, block: int) -> None:
    def kernel(out: Any, x: Any) -> None:
        parts = cuda.shared.array(128, float32)
        t = cuda.threadIdx.x
        total = float32(0)
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            total += x[i]
        parts[t] = total
        cuda.syncthreads()
        if t == 0:
            whole = float32(0)
            for k in range(cuda.blockDim.x):
                whole += parts[k]
            cuda.atomic.add(out, 0, whole)

    # Whole numbers far below 2**24: exact in any order.
    agree(
        kernel, grid, block, np.zeros(1, np.float32), REALS,
        expected=np.array([REALS.sum(dtype=np.float64)], np.float32),
    )  # fmt: skip


@GRIDS
def test_threads_leave_a_strided_loop_by_a_break(grid: int, block: int) -> None:
    def kernel(out: Any, x: Any) -> None:
        seen = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        found = -1
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            if x[i] > 90:
                found = i
                break
        seen[t] = found
        cuda.syncthreads()
        out[cuda.grid(1)] = seen[cuda.blockDim.x - 1 - t]

    threads = grid * block
    first = np.full(threads, -1, np.int32)
    for thread in range(threads):
        hits = np.flatnonzero(REALS[thread::threads] > 90)
        if hits.size:
            first[thread] = thread + hits[0] * threads
    expected = first.reshape(grid, block)[:, ::-1].ravel()
    agree(kernel, grid, block, np.zeros(threads, np.int32), REALS, expected=expected)


@GRIDS
def test_inner_loop_and_condition_in_a_turn(grid: int, block: int) -> None:
    def kernel(out: Any, x: Any) -> None:
        parts = cuda.shared.array(128, float32)
        t = cuda.threadIdx.x
        total = float32(0)
        i = cuda.grid(1)
        while i < x.size:
            if x[i] > 50:
                for k in range(int32(x[i]) % 4):
                    total += x[i] * k
            i += cuda.gridsize(1)
        parts[t] = total
        cuda.syncthreads()
        out[cuda.grid(1)] = parts[cuda.blockDim.x - 1 - t]

    threads = grid * block
    sums = np.zeros(threads, np.float32)
    for i, value in enumerate(REALS):
        if value > 50:
            for k in range(int(value) % 4):
                sums[i % threads] += value * np.float32(k)
    expected = sums.reshape(grid, block)[:, ::-1].ravel()
    agree(kernel, grid, block, np.zeros(threads, np.float32), REALS, expected=expected)


def test_votes_of_all_threads_after_a_strided_loop() -> None:
    def kernel(out: Any, x: Any) -> None:
        t = cuda.threadIdx.x
        large = 0
        for i in range(t, x.size, cuda.blockDim.x):
            if x[i] > 97:
                large += 1
        out[t] = cuda.syncthreads_count(large > 0) * 10 + cuda.syncthreads_or(t == 5)

    threads = 160
    has = [(REALS[t::threads] > 97).any() for t in range(threads)]
    agree(
        kernel, 1, threads, np.zeros(threads, np.int32), REALS,
        expected=np.full(threads, sum(has) * 10 + 1, np.int32),
    )  # fmt: skip


def test_two_strided_loops_with_a_barrier_between() -> None:
    def kernel(out: Any, x: Any) -> None:
        shared = cuda.shared.array(300, float32)
        t = cuda.threadIdx.x
        for i in range(t, 300, cuda.blockDim.x):
            shared[i] = x[i] + 1
        cuda.syncthreads()
        for i in range(t, 300, cuda.blockDim.x):
            out[i] = shared[299 - i]

    agree(
        kernel, 1, 64, np.zeros(300, np.float32), REALS, expected=REALS[:300][::-1] + np.float32(1)
    )


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (5, 3), (-4, 9), (3, 4)])
def test_range_by_the_block_has_the_turns_of_pythons(start: int, stop: int) -> None:
    def kernel(out: Any, start: Any, stop: Any) -> None:
        t = cuda.threadIdx.x
        shared = cuda.shared.array(1, int32)
        shared[0] = 0
        cuda.syncthreads()
        for i in range(start, stop, cuda.blockDim.x):
            cuda.atomic.add(shared, 0, i + 100)
        cuda.syncthreads()
        out[t] = shared[0]

    expected = np.full(3, 3 * sum(i + 100 for i in range(start, stop, 3)), np.int32)
    agree(kernel, 1, 3, np.zeros(3, np.int32), start, stop, expected=expected)


def test_large_turns_are_lanes_not_coroutines() -> None:
    with force("lanes"):
        plan = CpuProgram(counts_by_range, cache=False).plan(0, (2, 1, 1), (64, 1, 1))
        out = np.zeros(16, np.int32)
        plan(out, BYTES)
    assert out.sum() == BYTES.size
