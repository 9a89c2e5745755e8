"""Values that regions keep: one slot for all groups of a block, or one for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int8, int16, int32, uint8

from helpers.lowerings import agree

RNG = np.random.default_rng(11)
BLOCKS = pytest.mark.parametrize("block", [32, 33, 64, 96, 100, 256, (16, 8), (32, 4), (8, 8, 3)])


def _threads(block: Any) -> int:
    return int(np.prod(block))


@BLOCKS
def test_values_of_the_block_in_loops_after_barriers(block: Any) -> None:
    """A loaded scale, counters, and addresses are kept for loops that threads leave apart."""
    threads = _threads(block)

    def kernel(out: Any, x: Any, scales: Any) -> None:
        parts = cuda.shared.array(8, float32)
        t = (cuda.threadIdx.z * cuda.blockDim.y + cuda.threadIdx.y) * cuda.blockDim.x
        t += cuda.threadIdx.x
        row = x[cuda.blockIdx.x]
        if t < 8:
            parts[t] = scales[cuda.blockIdx.x] + t
        cuda.syncthreads()
        scale = parts[3]
        count = 0
        for i in range(t, row.size, threads):
            out[cuda.blockIdx.x, i] = row[i] * scale + count
            count += 1
        cuda.syncthreads()
        for i in range(t + 1, row.size, threads):
            out[cuda.blockIdx.x, i] += parts[5] + count

    scales = np.array([2, 5, 1], np.float32)
    for n in (0, 1, 50, 1000, 1024, 3001):  # compiled once for all
        x = RNG.integers(0, 9, (3, n)).astype(np.float32)
        index = np.arange(n)
        expected = x * (scales[:, None] + 3) + index // threads
        for i in range(1, n):  # thread (i - 1) % threads adds the count of its loop
            thread = (i - 1) % threads
            expected[:, i] += scales + 5 + len(range(thread, n, threads))
        agree(kernel, 3, block, np.zeros_like(x), x, scales, expected=expected.astype(np.float32))


@BLOCKS
def test_counters_of_few_bits_wrap_around(block: Any) -> None:
    threads = _threads(block)

    def kernel(out: Any, x: Any) -> None:
        t = (cuda.threadIdx.z * cuda.blockDim.y + cuda.threadIdx.y) * cuda.blockDim.x
        t += cuda.threadIdx.x
        small, unsigned, medium = int8(t), uint8(t + 200), int16(t * 300)
        for i in range(t, x.size, threads):
            out[i] = small + 1000 * unsigned + 1000000 * medium
            small = int8(small + 100)
            unsigned = uint8(unsigned + 77)
            medium = int16(medium + 30000)
        cuda.syncthreads()
        if t < x.size:
            out[t] += small

    n = 5 * threads + 7
    index = np.arange(n)
    t, turn = index % threads, index // threads
    small = (t + 100 * turn).astype(np.int8).astype(np.int64)
    unsigned = (t + 200 + 77 * turn).astype(np.uint8).astype(np.int64)
    medium = (t * 300 + 30000 * turn).astype(np.int16).astype(np.int64)
    expected = small + 1000 * unsigned + 1000000 * medium
    turns = np.array([len(range(k, n, threads)) for k in range(threads)])
    expected[:threads] += (np.arange(threads) + 100 * turns).astype(np.int8)
    agree(kernel, 1, block, np.zeros(n, np.int64), np.zeros(n, np.int8), expected=expected)


@pytest.mark.parametrize("block", [64, 96, 256])
def test_results_of_a_warp_are_kept_for_each_warp(block: int) -> None:
    """Votes, and broadcasts of a lane, are uniform in a warp but not in the block."""

    def kernel(out: Any, x: Any) -> None:
        t = cuda.threadIdx.x
        votes = cuda.ballot_sync(0xFFFFFFFF, x[t] > 4)
        first = cuda.shfl_sync(0xFFFFFFFF, x[t], 0)
        some = cuda.any_sync(0xFFFFFFFF, x[t] > 7)
        cuda.syncthreads()
        for _ in range(2):
            out[t] += first + cuda.popc(votes)
            cuda.syncthreads()
        if some:
            out[t] += 1000

    x = RNG.integers(0, 9, block).astype(np.int32)
    warps = x.reshape(-1, 32)
    expected = 2 * (warps[:, :1] + (warps > 4).sum(1, keepdims=True))
    expected = expected + 1000 * (warps > 7).any(1, keepdims=True)
    expected = np.broadcast_to(expected, warps.shape).reshape(-1).astype(np.int32)
    agree(kernel, 1, block, np.zeros(block, np.int32), x, expected=expected)


@pytest.mark.parametrize("block", [64, 96, 100, 256])
def test_one_warp_loads_a_value_in_each_turn(block: int) -> None:
    """The value is the same for all threads that load it, at different times."""

    def kernel(out: Any, x: Any) -> None:
        parts = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        warp = t // 32
        for turn in range(x.size):
            if t == 0:
                parts[0] = x[turn]
            cuda.syncthreads()
            value = int32(0)
            if warp == turn % 3:
                value = parts[0]
            cuda.syncthreads()
            out[t] += value * (turn + 1)

    x = RNG.integers(1, 99, 11).astype(np.int32)
    weighted = x * np.arange(1, 12)
    expected = [weighted[t // 32 :: 3].sum() if t // 32 < 3 else 0 for t in range(block)]
    agree(kernel, 1, block, np.zeros(block, np.int32), x, expected=np.array(expected, np.int32))


@pytest.mark.parametrize("block", [64, 96, 100])
def test_loops_that_some_groups_skip(block: int) -> None:
    """Groups that are in no iteration do not store what the others keep."""

    def kernel(out: Any, x: Any, steps: Any, begin: int, end: int) -> None:
        parts = cuda.shared.array(2, int32)
        t = cuda.threadIdx.x
        if t < 2:
            parts[t] = x[t]
        cuda.syncthreads()
        base = parts[0]
        step = 1
        if t >= begin:
            for i in range(t, end, cuda.blockDim.x):
                out[i] = x[i] + base * step
                step = steps[step]
        cuda.syncthreads()
        step = 2
        if t < begin:
            for i in range(t, end, cuda.blockDim.x):
                out[i] = x[i] - parts[1] * step
                step = steps[step]

    x = RNG.integers(1, 99, 1000).astype(np.int32)
    steps = RNG.permutation(100).astype(np.int32)

    def chain(first: int) -> np.ndarray:
        found = [first]
        while len(found) < 20:
            found.append(steps[found[-1]])
        return np.array(found)

    index = np.arange(1000)
    t, turn = index % block, index // block
    upwards, downwards = x + x[0] * chain(1)[turn], x - x[1] * chain(2)[turn]
    for begin, end in ((0, 1000), (40, 700), (70, 130), (99, 64), (3, 1000), (31, 999)):
        expected = np.where(t >= begin, upwards, downwards)
        expected = np.where(index < end, expected, 0).astype(np.int32)
        zeros = np.zeros(1000, np.int32)
        agree(kernel, 1, block, zeros, x, steps, begin, end, expected=expected)


@pytest.mark.parametrize("block", [64, 100])
def test_returns_before_others_wait(block: int) -> None:
    def kernel(out: Any, x: Any, n: int) -> None:
        parts = cuda.shared.array(128, float32)
        t = cuda.threadIdx.x
        if t >= n:
            return
        parts[t] = x[t]
        cuda.syncthreads()
        first = parts[0]
        cuda.syncthreads()
        for i in range(t, x.size, n):
            out[i] = first * x[i]

    x = RNG.integers(1, 99, 300).astype(np.float32)
    for n in (1, 31, 32, 40, block):
        agree(kernel, 1, block, np.zeros(300, np.float32), x, n, expected=x * x[0])
