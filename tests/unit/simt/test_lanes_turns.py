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


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        (np.int32(2**31 - 50), np.int32(2**31 - 1)),
        (np.int32(-50), np.int32(20)),
        (np.int8(100), np.int8(127)),
        (np.uint8(100), np.uint8(255)),
        (np.uint32(2**31 - 20), np.uint32(2**31 + 50)),
        (np.uint32(2**32 - 50), np.uint32(2**32 - 1)),
        (np.uint64(2**63 - 20), np.uint64(2**63 + 50)),
        (np.int64(-50), np.uint32(20)),
    ],
)
def test_ranges_at_the_ends_of_their_types_end(start: Any, stop: Any) -> None:
    def kernel(out: Any, start: Any, stop: Any) -> None:
        t = cuda.threadIdx.x
        count = 0
        for _ in range(start, stop, cuda.blockDim.x):
            count += 1
            if count > 1000:
                break
        out[t] = count
        cuda.syncthreads()
        for _ in range(start, stop, 3):
            count += 1
            if count > 1000:
                break
        out[t] += 1000 * count

    by_block = len(range(int(start), int(stop), 32))
    both = by_block + len(range(int(start), int(stop), 3))
    expected = np.full(32, by_block + 1000 * both)
    agree(kernel, 1, 32, np.zeros(32, np.int64), start, stop, expected=expected)


def test_large_turns_are_lanes_not_coroutines() -> None:
    with force("lanes"):
        plan = CpuProgram(counts_by_range, cache=False).plan(0, (2, 1, 1), (64, 1, 1))
        out = np.zeros(16, np.int32)
        plan(out, BYTES)
    assert out.sum() == BYTES.size


def subtracts_sums_of_rows(out: Any, x: Any) -> None:
    parts = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
    threads = cuda.blockDim.x * cuda.blockDim.y
    row = cuda.blockIdx.x
    total = float32(0)
    for i in range(t, x.shape[1], threads):
        total += x[row, i]
    parts[t] = total
    cuda.syncthreads()
    whole = float32(0)
    for k in range(threads):
        whole += parts[k]
    for i in range(t, x.shape[1], threads):
        out[row, i] = x[row, i] - whole


@pytest.mark.parametrize("columns", [0, 1, 63, 64, 255, 256, 257, 1000, 1024])
@pytest.mark.parametrize("block", [32, 64, 256, (16, 8)])
def test_rows_of_blocks_with_full_and_partial_iterations(block: Any, columns: int) -> None:
    """Iterations of all threads have no masks; the last one may be of some threads."""
    x = RNG.integers(0, 100, (3, columns)).astype(np.float32)
    expected = x - x.sum(axis=1, keepdims=True)
    agree(subtracts_sums_of_rows, 3, block, np.zeros_like(x), x, expected=expected)


@GRIDS
def test_strided_loops_with_barriers_inside_a_loop(grid: int, block: int) -> None:
    def kernel(out: Any, x: Any, rows: Any) -> None:
        counts = cuda.shared.array(8, int32)
        t = cuda.threadIdx.x
        for row in range(cuda.blockIdx.x, rows, cuda.gridDim.x):
            if t < 8:
                counts[t] = row
            cuda.syncthreads()
            for i in range(t, x.size, cuda.blockDim.x):
                cuda.atomic.add(counts, x[i] % 8, row + 1)
            cuda.syncthreads()
            if t < 8:
                out[row, t] = counts[t]
            cuda.syncthreads()

    rows = np.arange(5, dtype=np.int32)[:, None]
    expected = rows + (rows + 1) * np.bincount(BYTES % 8, minlength=8).astype(np.int32)
    agree(kernel, grid, block, np.zeros((5, 8), np.int32), BYTES, 5, expected=expected)


@GRIDS
def test_threads_that_return_before_a_strided_loop(grid: int, block: int) -> None:
    def kernel(out: Any, x: Any, least: Any) -> None:
        sums = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        if t == 0:
            sums[0] = 0
        cuda.syncthreads()
        if t >= least:
            return
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            cuda.atomic.add(sums, 0, int32(x[i]))
        cuda.syncthreads()
        out[cuda.grid(1)] = sums[0]

    threads = grid * block
    own = np.array([REALS[k::threads].sum() for k in range(threads)], np.int32)
    for least in (0, 1, 40, 1000):
        kept = np.where(np.arange(threads) % block < least, own, 0).reshape(grid, block)
        expected = np.where(np.arange(block) < least, kept.sum(axis=1, keepdims=True), 0)
        agree(
            kernel, grid, block, np.zeros(threads, np.int32), REALS, least,
            expected=expected.ravel().astype(np.int32),
        )  # fmt: skip


@GRIDS
def test_threads_that_return_from_a_strided_loop(grid: int, block: int) -> None:
    def kernel(out: Any, x: Any) -> None:
        sums = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        if t == 0:
            sums[0] = 0
        cuda.syncthreads()
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            if x[i] > 95:
                return
            cuda.atomic.add(sums, 0, int32(x[i]))
        cuda.syncthreads()
        out[cuda.grid(1)] = sums[0]

    threads = grid * block
    own, stays = np.zeros(threads, np.int32), np.ones(threads, bool)
    for i, value in enumerate(REALS):
        stays[i % threads] &= value <= 95
        own[i % threads] += int(value) * stays[i % threads]
    whole = np.repeat(own.reshape(grid, block).sum(axis=1), block)
    expected = np.where(stays, whole, 0).astype(np.int32)
    agree(kernel, grid, block, np.zeros(threads, np.int32), REALS, expected=expected)


@GRIDS
def test_a_strided_loop_of_some_threads_and_two_in_a_row(grid: int, block: int) -> None:
    def kernel(out: Any, x: Any, some: Any) -> None:
        sums = cuda.shared.array(2, int32)
        t = cuda.threadIdx.x
        if t < 2:
            sums[t] = 0
        cuda.syncthreads()
        last = -1
        if t % 3 < some:
            for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
                cuda.atomic.add(sums, 0, int32(x[i]))
                last = i
        for i in range(cuda.grid(1) + 7, x.size, cuda.gridsize(1)):
            cuda.atomic.add(sums, 1, int32(x[i]))
        cuda.syncthreads()
        out[cuda.grid(1)] = sums[0] + 3 * sums[1] + 5 * last

    threads = np.arange(grid * block)
    first = np.array([REALS[k :: threads.size].sum() for k in threads], np.int64)
    second = np.array([REALS[k + 7 :: threads.size].sum() for k in threads], np.int64)
    for some in (0, 1, 3):
        enters = threads % block % 3 < some
        last = np.array([k + (REALS.size - 1 - k) // threads.size * threads.size for k in threads])
        last = np.where(enters & (threads < REALS.size), last, -1)
        sums = [np.where(enters, first, 0), second]
        blocks = [np.repeat(part.reshape(grid, block).sum(axis=1), block) for part in sums]
        agree(
            kernel, grid, block, np.zeros(threads.size, np.int32), REALS, some,
            expected=(blocks[0] + 3 * blocks[1] + 5 * last).astype(np.int32),
        )  # fmt: skip


def _count_after_a_loop(out: Any, values: Any, n: int, step: int) -> None:
    t = cuda.threadIdx.x
    total = float32(0)
    for i in range(t, n, step):
        total += values[i]
    count = cuda.syncthreads_count(total > 0)
    cuda.syncthreads()
    out[t, 0] = total
    out[t, 1] = count


def _return_before_two_loops(out: Any, values: Any, n: int, step: int) -> None:
    t = cuda.threadIdx.x
    total = float32(0)
    if t >= 3:
        return
    for i in range(t, n, cuda.blockDim.x):
        total += values[i]
    cuda.syncthreads()
    for i in range(0, n, step):
        total += values[i]
    out[t, 0] = total


@pytest.mark.parametrize("kernel", [_count_after_a_loop, _return_before_two_loops])
@pytest.mark.parametrize("block", [33, 64, 100])
@pytest.mark.parametrize(("n", "step"), [(49, 2), (1, 1), (200, 7)])
def test_strided_loops_of_kernels_with_several_returns(
    kernel: Any, block: int, n: int, step: int
) -> None:
    # A step of zero raises, so the kernel returns with and without a status in one place.
    agree(kernel, 1, block, np.zeros((block, 2)), REALS + 1, n, step)
