# mypy: disable-error-code="no-untyped-def"
"""Lanes: block shapes, grids, what is kept from one barrier to the next, warps in odd blocks."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, float32, int32, int64

from helpers.lowerings import agree

SHAPES = [
    1, 7, 31, 32, 33, 100, 256, 1024, (16, 16), (5, 7), (32, 4), (64, 3), (1, 40), (3, 1, 5),
    (4, 4, 4), (6, 5, 2), (40, 2, 3),
]  # fmt: skip


def size(shape):
    return int(np.prod(shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_block_shape_reverses_its_block(shape) -> None:
    def kernel(o, x, n):
        s = cuda.shared.array(1024, int32)
        t = cuda.threadIdx
        d = cuda.blockDim
        rank = t.x + d.x * (t.y + d.y * t.z)
        threads = d.x * d.y * d.z
        i = (cuda.blockIdx.x + cuda.gridDim.x * cuda.blockIdx.y) * threads + rank
        s[rank] = x[i] if i < n else -7
        cuda.syncthreads()
        v = s[threads - 1 - rank]
        if rank > 0 and v % 2:
            v += s[rank - 1]
        elif rank < threads - 1:
            v -= s[rank + 1]
        if i < n:
            o[i] = v * 10 + t.x + t.y + t.z

    threads = size(shape)
    n = threads * 6 - 5 if threads > 5 else threads * 6
    x = np.random.default_rng(1).integers(0, 1000, n).astype(np.int32)
    blocks = np.full((6, threads), -7, np.int64)
    blocks.ravel()[:n] = x
    rank = np.arange(threads)
    v = blocks[:, ::-1].copy()
    left = (v % 2 == 1) & (rank > 0)
    right = ~left & (rank < threads - 1)
    v += np.where(left, np.roll(blocks, 1, 1), 0) - np.where(right, np.roll(blocks, -1, 1), 0)
    extents = (shape,) if isinstance(shape, int) else shape
    places = np.indices(extents[::-1]).sum(axis=0).ravel()
    expected = (v * 10 + places).ravel()[:n]
    agree(kernel, (3, 2), shape, np.zeros(n, np.int64), x, n, expected=expected)


@pytest.mark.parametrize("shape", [7, 33, 100, (5, 7), (16, 16), (6, 5, 2)], ids=str)
def test_loops_around_barriers_keep_what_lives_across_them(shape) -> None:
    def kernel(o, x, turns):
        s = cuda.shared.array(256, float32)
        t = cuda.threadIdx
        rank = t.x + cuda.blockDim.x * (t.y + cuda.blockDim.y * t.z)
        n = x.size
        mine = x[rank]
        positive = mine > 0
        count = int64(0)
        best = rank
        row = x[rank % 3 :]
        for k in range(turns):
            s[rank] = mine
            cuda.syncthreads()
            other = s[(rank + k + 1) % n]
            if other > mine or (positive and k % 2):
                mine = other * float32(0.5)
                best = (rank + k + 1) % n
                count += 1
            positive = positive != (other > 0)
            cuda.syncthreads()
        o[rank] = mine + count * 100 + (1000 if positive else 0) + best + row[0]

    x = np.round(np.random.default_rng(2).normal(0, 64, size(shape))).astype(np.float32)
    agree(kernel, 1, shape, np.zeros(size(shape)), x, 5)


def test_nested_loops_around_barriers() -> None:
    def kernel(o, n):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        s[t] = t
        total = 0
        for i in range(n):
            cuda.syncthreads()
            for j in range(i):
                v = s[(t + j + 1) % 50]
                cuda.syncthreads()
                if v % 3 != i % 3:
                    total += v
                s[t] = v + 1
                cuda.syncthreads()
                if j == 3:
                    break
            if i == 4:
                continue
            total += s[49 - t] * i
            cuda.syncthreads()
        o[t] = total

    agree(kernel, 1, 50, np.zeros(50, np.int64), 7)


def test_a_tree_that_halves() -> None:
    def kernel(o, x):
        s = cuda.shared.array(256, int64)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        s[t] = x[i] if i < x.size else 0
        cuda.syncthreads()
        half = cuda.blockDim.x // 2
        while half > 0:
            if t < half:
                s[t] += s[t + half]
            cuda.syncthreads()
            half //= 2
        if t == 0:
            o[cuda.blockIdx.x] = s[0]

    x = np.random.default_rng(3).integers(-99, 99, 1000)
    wide = np.zeros(1024, np.int64)
    wide[:1000] = x
    agree(kernel, 4, 256, np.zeros(4, int), x, expected=wide.reshape(4, 256).sum(axis=1))


def test_a_scan_whose_steps_are_guarded() -> None:
    def kernel(o, x):
        s = cuda.shared.array((2, 128), int64)
        t = cuda.threadIdx.x
        s[0, t] = x[t]
        cuda.syncthreads()
        source, step = 0, 1
        while step < 100:
            v = s[source, t]
            if t >= step:
                v += s[source, t - step]
            s[1 - source, t] = v
            source = 1 - source
            step *= 2
            cuda.syncthreads()
        o[t] = s[source, t]

    x = np.random.default_rng(4).integers(-99, 99, 100)
    agree(kernel, 1, 100, np.zeros(100, int), x, expected=np.cumsum(x))


def test_barriers_that_count_in_a_loop_that_depends_on_them() -> None:
    def kernel(o, x):
        t = cuda.threadIdx.x
        v = x[t]
        turns = 0
        while cuda.syncthreads_or(v > 1):
            if v > 1:
                v = v // 2 if v % 2 == 0 else v - 1
            busy = cuda.syncthreads_count(v > 3)
            if cuda.syncthreads_and(v < 10):
                v += 0
                turns += 100
            turns += busy
        o[t] = turns * 10 + v

    for block in (20, 33, 100):
        x = np.random.default_rng(6).integers(0, 300, block)
        agree(kernel, 2, block, np.zeros(block, int), x)


def test_a_barrier_counts_only_threads_that_are_there() -> None:
    def kernel(o, n):
        t = cuda.threadIdx.x
        if t >= n:
            return
        found = cuda.syncthreads_count(t % 2 == 0) * 100
        found += cuda.syncthreads_and(t < n) * 10
        o[t] = found + cuda.syncthreads_or(t >= n)

    for n in (1, 16, 31, 50):
        expected = np.where(np.arange(50) < n, (n + 1) // 2 * 100 + 10, 0)
        agree(kernel, 1, 50, np.zeros(50, int), n, expected=expected)


@pytest.mark.parametrize("shape", [(16, 4), (5, 7), (8, 3, 3), 45], ids=str)
def test_warps_are_cut_from_the_order_of_threads(shape) -> None:
    def kernel(o, x):
        t = cuda.threadIdx
        rank = t.x + cuda.blockDim.x * (t.y + cuda.blockDim.y * t.z)
        v = x[rank]
        up = cuda.shfl_up_sync(0xFFFFFFFF, v, 1)
        if cuda.laneid > 0:
            v += up
        v += cuda.shfl_xor_sync(0xFFFFFFFF, v, 1) if x.size % 32 == 0 else 0
        first = cuda.shfl_sync(0xFFFFFFFF, v, 0)
        cuda.syncthreads()
        o[rank] = v * 1000 + first

    n = size(shape)
    agree(kernel, 1, shape, np.zeros(n, np.int64), np.arange(n, dtype=np.int32) * 3)


def test_a_warp_reduction_in_a_loop_with_shared_partial_sums() -> None:
    def kernel(o, x):
        s = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        total = float32(0)
        i = t
        while i < x.size:
            total += x[i]
            i += cuda.blockDim.x
        step = 16
        while step:
            total += cuda.shfl_down_sync(0xFFFFFFFF, total, step)
            step >>= 1
        if t % 32 == 0:
            s[t // 32] = total
        cuda.syncthreads()
        if t < 32:
            total = s[t] if t < cuda.blockDim.x // 32 else float32(0)
            for step in (16, 8, 4, 2, 1):
                total += cuda.shfl_xor_sync(0xFFFFFFFF, total, step)
            if t == 0:
                o[0] = total

    x = np.random.default_rng(8).integers(0, 9, 3001).astype(np.float32)
    for block in (64, 256):
        agree(kernel, 1, block, np.zeros(1, np.float32), x, expected=x.sum(keepdims=True))


@pytest.mark.parametrize("block", [64, 96])
def test_halves_and_quarters_of_warps(block: int) -> None:
    def kernel(o, x):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        s[t] = x[t & 15] + x[t >> 4] * 10 + x[t % 8] * 100 + x[t // 8 * 2] * 1000
        v = cuda.shfl_xor_sync(0xFFFFFFFF, s[t], 16)
        if t >> 4 == 1:
            v += 1
        if t & 16:
            v -= s[t ^ 16 & 15]
        o[t] = v

    agree(kernel, 1, block, np.zeros(block, np.int64), np.arange(100) * 3)


def test_dynamic_shared_memory_as_two_arrays() -> None:
    def kernel(o, n):
        whole = cuda.shared.array(0, int32)
        other = cuda.shared.array(0, float32)
        t = cuda.threadIdx.x
        whole[t] = t
        other[n + t] = t * float32(0.5)
        cuda.syncthreads()
        if t % 3:
            o[t] = whole[n - 1 - t] + other[2 * n - 1 - t] * 1000 + whole.size

    n = 37
    back = np.arange(n)[::-1]
    expected = np.where(np.arange(n) % 3, back + back * 500.0 + 2 * n, 0)
    agree(kernel, 3, n, np.zeros(n), n, shared=n * 8, expected=expected)


def test_blocks_do_not_see_each_others_shared_memory() -> None:
    def kernel(o):
        s = cuda.shared.array(64, int32)
        t, b = cuda.threadIdx.x, cuda.blockIdx.x
        s[t] = b * 1000 + t
        cuda.syncthreads()
        o[b, t] = s[(t + b) % 64]

    b, t = np.mgrid[:50, :64]
    agree(kernel, 50, 64, np.zeros((50, 64), int), expected=b * 1000 + (t + b) % 64)
