# mypy: disable-error-code="no-untyped-def"
"""Lanes: additions to shared arrays, in private copies or not, have the same sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, int32, int64

from helpers.lowerings import run
from nbrt.backends.cpu.simt.runtime.inspection import CpuCode

RNG = np.random.default_rng(11)
NOTE = "additions to a shared array: neighbouring lanes add to copies"


def same(kernel: Any, grid: Any, block: Any, *args: Any, expected: Any) -> None:
    """Run a kernel in each lowering; compare its first arguments."""
    for lowered in ("lanes", "coroutines"):
        got = run(lowered, kernel, grid, block, *args)
        for mine, right in zip(got, expected, strict=False):
            np.testing.assert_array_equal(mine, right, err_msg=lowered)


def has_copies(kernel: Any, block: int, *args: Any) -> bool:
    return NOTE in CpuCode(kernel, args, (block, 1, 1)).lowering.reasons


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
def test_histograms_of_few_and_many_values(dtype: str) -> None:
    kind = np.dtype(dtype).type

    def kernel(o, x):
        counts = cuda.shared.array(100, kind)
        t = cuda.threadIdx.x
        counts[t] = kind(3)
        cuda.syncthreads()
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            cuda.atomic.add(counts, x[i], kind(2))
        cuda.syncthreads()
        cuda.atomic.add(o, t, counts[t])

    for count in (0, 5, 300, 1000, 5000):
        for x in (RNG.integers(0, 100, count, np.uint8), np.full(count, 7, np.uint8)):
            expected = 2 * np.bincount(x, minlength=100) + 6
            same(kernel, 2, 100, np.zeros(100, dtype), x, expected=[expected.astype(dtype)])
    assert has_copies(kernel, 100, np.zeros(100, dtype), x)


@pytest.mark.parametrize("count", [192, 320, 1024])
@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
def test_sums_of_threads_in_one_element(count: int, dtype: str) -> None:
    """LLVM knows both the array and its copies, and removes stores that nothing could read."""

    def kernel(o, x):
        total = cuda.shared.array(1, int64)
        t = cuda.threadIdx.x
        if t == 0:
            total[0] = 0
        cuda.syncthreads()
        mine = int64(0)
        for i in range(t, x.size, 64):
            mine += int64(x[i])
        cuda.atomic.add(total, 0, mine)
        cuda.syncthreads()
        if t == 0:
            o[0] = total[0]

    x = np.arange(1, count + 1, dtype=dtype)
    same(kernel, 1, 64, np.zeros(1, np.int64), x, expected=[[count * (count + 1) // 2]])
    assert has_copies(kernel, 64, np.zeros(1, np.int64), x)


def test_sums_that_are_read_between_two_loops() -> None:
    """The second loop adds and subtracts after the first sums have been read and changed."""

    def kernel(o, p, x):
        counts = cuda.shared.array(64, int32)
        other = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        counts[t] = 0
        other[t] = t
        cuda.syncthreads()
        for i in range(t, x.size, cuda.blockDim.x):
            cuda.atomic.add(counts, x[i], 1)
            cuda.atomic.sub(other, x[i] ^ 1, x[i])
        cuda.syncthreads()
        o[t] = counts[t] + other[63 - t]
        cuda.syncthreads()
        counts[t] *= 2
        cuda.syncthreads()
        for i in range(t, x.size, cuda.blockDim.x):
            cuda.atomic.sub(counts, 63 - x[i], i)
        cuda.syncthreads()
        p[t] = counts[t]

    x = RNG.integers(0, 64, 3000).astype(np.int64)
    counts = np.bincount(x, minlength=64)
    other = np.arange(64)
    np.subtract.at(other, x ^ 1, x)
    later = 2 * counts
    np.subtract.at(later, 63 - x, np.arange(x.size))
    zeros = np.zeros(64, np.int64)
    same(kernel, 1, 64, zeros, zeros, x, expected=[counts + other[::-1], later])
    assert has_copies(kernel, 64, zeros, zeros, x)


def test_loops_in_which_threads_read_the_sums_or_need_results_have_no_copies() -> None:
    def read(o, x):
        counts = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        counts[t] = 0
        cuda.syncthreads()
        for i in range(t, x.size, 64):
            cuda.atomic.add(counts, t, x[i])
            o[t] += counts[t]

    def ranked(o, x):
        counts = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        counts[t] = 0
        cuda.syncthreads()
        for i in range(t, x.size, 64):
            o[cuda.atomic.add(counts, 0, 1)] = x[i]

    def largest(o, x):
        counts = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        counts[t] = 0
        cuda.syncthreads()
        for i in range(t, x.size, 64):
            cuda.atomic.add(counts, t, 1)
            cuda.atomic.max(counts, t, x[i])
        cuda.syncthreads()
        o[t] = counts[t]

    x = RNG.integers(0, 9, 640)
    rows = np.cumsum(x.reshape(-1, 64), axis=0)
    same(read, 1, 64, np.zeros(64, np.int64), x, expected=[rows.sum(axis=0)])
    for lowered in ("lanes", "coroutines"):
        places = run(lowered, ranked, 1, 64, np.zeros(640, np.int64), x)[0]
        np.testing.assert_array_equal(np.sort(places), np.sort(x))
    running = np.zeros(64, np.int64)
    for row in x.reshape(-1, 64):
        running = np.maximum(running + 1, row)
    same(largest, 1, 64, np.zeros(64, np.int64), x, expected=[running])
    for kernel in (read, ranked, largest):
        assert not has_copies(kernel, 64, np.zeros(640, np.int64), x)


def test_threads_that_return_before_the_barrier_and_conditions_in_the_loop() -> None:
    def kernel(o, x, threads):
        counts = cuda.shared.array(32, int32)
        t = cuda.threadIdx.x
        if t >= threads:
            return
        if t < 32:
            counts[t] = 0
        cuda.syncthreads()
        for i in range(t, x.size, cuda.blockDim.x):
            if x[i] >= 0:
                cuda.atomic.add(counts, x[i], 1)
            else:
                cuda.atomic.sub(counts, -x[i], 2)
        cuda.syncthreads()
        if t < 32:
            o[t] = counts[t]

    x = RNG.integers(-31, 32, 4000)
    for block, threads in ((128, 128), (96, 50), (48, 33)):
        mine = x[np.arange(x.size) % block < threads]
        expected = np.bincount(mine[mine >= 0], minlength=32)
        expected -= 2 * np.bincount(-mine[mine < 0], minlength=32)
        same(kernel, 1, block, np.zeros(32, np.int64), x, threads, expected=[expected])


def obstacles(kernel: Any, *args: Any) -> list[str]:
    """Return why arrays have no copies, by their bytes."""
    reasons = CpuCode(kernel, args, (64, 1, 1)).lowering.reasons
    start = "no private copies of a shared array of "
    return [reason.removeprefix(start) for reason in reasons if reason.startswith(start)]


@pytest.mark.parametrize(
    ("size", "kind", "how", "reason"),
    [
        (64, "int32", "add", ""),
        (1025, "int32", "add", "4100 bytes: more than 4096"),
        (64, "float32", "add", "256 bytes: threads use the results of the additions, or the sums "
         "are no integers"),
        (64, "int64", "rank", "512 bytes: threads use the results of the additions, or the sums "
         "are no integers"),
        (64, "int32", "read", "256 bytes: no grid-stride loop accesses it by additions only"),
        (64, "int32", "count", "256 bytes: no grid-stride loop accesses it by additions only"),
        (64, "int32", "once", ""),
    ],
)  # fmt: skip
def test_inspect_says_why_an_array_has_no_copies(
    size: int, kind: str, how: str, reason: str
) -> None:
    dtype = np.dtype(kind).type

    def kernel(o, x):
        counts = cuda.shared.array(size, dtype)
        t = cuda.threadIdx.x
        counts[t] = 0
        cuda.syncthreads()
        if how == "add":
            for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
                cuda.atomic.add(counts, x[i], dtype(1))
        elif how == "rank":
            for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
                o[i % 64] = cuda.atomic.add(counts, x[i], dtype(1))
        elif how == "read":
            for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
                cuda.atomic.add(counts, x[i], dtype(1))
                o[t] += counts[t]
        elif how == "count":
            for i in range(x.size):
                cuda.atomic.add(counts, x[i] ^ t, dtype(1))
        else:
            cuda.atomic.add(counts, x[t], dtype(1))
        cuda.syncthreads()
        o[t] = counts[t]

    found = obstacles(kernel, np.zeros(64, dtype), np.zeros(640, np.int64))
    assert found == ([reason] if reason else [])


def test_inspect_says_that_an_address_is_chosen_at_run_time() -> None:
    def kernel(o, x):
        counts = cuda.shared.array(64, int32)
        other = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        counts[t] = 0
        other[t] = 0
        cuda.syncthreads()
        for i in range(t, x.size, 64):
            chosen = counts if x[i] < 3 else other
            cuda.atomic.add(chosen, x[i], 1)
            cuda.atomic.add(counts, x[i], 1)
        cuda.syncthreads()
        o[t] = counts[t] + other[t]

    x = RNG.integers(0, 64, 640)
    assert obstacles(kernel, np.zeros(64, np.int64), x) == [
        "256 bytes: its address is chosen at run time, stored or passed on"
    ]
    expected = np.bincount(x, minlength=64) * 2
    same(kernel, 1, 64, np.zeros(64, np.int64), x, expected=[expected])
