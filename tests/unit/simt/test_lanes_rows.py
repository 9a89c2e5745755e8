# mypy: disable-error-code="no-untyped-def"
"""Lanes: warps of several rows of a block, whose threads differ along y."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numba import cuda, float32, int32, int64

from helpers.lowerings import agree

SHAPES = [(16, 16), (16, 3), (8, 8), (8, 5), (4, 8), (4, 4, 3), (16, 1, 5), (8, 2, 3), (2, 16)]

FULL = 0xFFFFFFFF


@cuda.jit(device=True)
def total_of_warp(v):
    for distance in (16, 8, 4, 2, 1):
        v += cuda.shfl_xor_sync(FULL, v, distance)
    return v


def rows_kernel(o, x, low):
    tile = cuda.shared.array(1024, float32)
    t, d = cuda.threadIdx, cuda.blockDim
    rank = t.x + d.x * (t.y + d.y * t.z)
    row = t.y + d.y * (t.z + d.z * cuda.blockIdx.x)
    height, width = x.shape
    column = t.x + d.x * cuda.blockIdx.y
    tile[rank + 32] = 0
    inside = row < height and column < width
    if inside:
        tile[rank + 32] = x[row, column]
    if t.y == 0:
        tile[t.x] = x[max(row - 1, 0) if row < height else 0, min(column, width - 1)]
    if t.x == 0 and inside:
        o[row, column] = low
    cuda.syncthreads()
    v = tile[rank + 32] + (tile[t.x] if t.y == 0 else x[min(row, height - 1), 0])
    if t.y > 1:
        v += row
        if column > 0 and inside:
            v += x[row, column - 1]
    elif column >= low:
        v -= x[min(row, height - 1), min(column, width - 1)]
    if inside:
        o[row, column] += v * 2
    if inside and t.x == d.x - 1:
        o[row, column] += 1000


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_indices_that_differ_between_the_rows_of_a_warp(shape) -> None:
    def kernel(o, x, low):
        rows_kernel_in_place(o, x, low)
        cuda.syncwarp()
        cuda.ballot_sync(FULL, low)

    # A warp operation makes groups of lanes warps, and so of several rows.
    rows_kernel_in_place = cuda.jit(device=True)(rows_kernel)
    rng = np.random.default_rng(len(shape))
    for size, low in itertools.product(((23, 37), (16, 16), (5, 3)), (0, 3)):
        x = rng.integers(-20, 20, size).astype(np.float32)
        depth = int(np.prod(shape[1:]))
        grid = -(-size[0] // depth), -(-size[1] // shape[0])
        agree(kernel, grid, shape, np.zeros(size, np.float32), x, low)


@pytest.mark.parametrize("shape", [(16, 16), (16, 4, 2), (8, 8), (4, 16)], ids=str)
def test_sums_over_warps_of_several_rows(shape) -> None:
    def kernel(o, sums, x, n):
        t, d = cuda.threadIdx, cuda.blockDim
        rank = t.x + d.x * (t.y + d.y * t.z)
        y = t.y + d.y * cuda.blockIdx.x
        pointer = min(y, n - 1)
        v = x[pointer, t.x] * (t.z + 1)
        for k in range(3):
            v = total_of_warp(v + int64(y * k))
            cuda.syncthreads()
            if y < n:
                o[pointer, t.x] += v
            cuda.syncthreads()
        if rank % 32 == 0:
            cuda.atomic.add(sums, t.y % 2, v)
        if rank == 0:
            cuda.atomic.add(sums, 2, int64(1))

    n = shape[1] * 2 - 3
    x = np.random.default_rng(7).integers(0, 50, (n, shape[0]))
    if len(shape) == 3:
        # Threads that differ along z would write the same elements.
        shape = (*shape[:2], 1)
    agree(kernel, 2, shape, np.zeros_like(x), np.zeros(3, np.int64), x, n)


def test_votes_and_branches_of_single_rows() -> None:
    def kernel(o, x):
        t = cuda.threadIdx
        v = x[t.y, t.x]
        votes = cuda.ballot_sync(FULL, v > t.y)
        place = cuda.local.array(3, int32)
        for k in range(3):
            place[k] = t.y * k
        if t.y % 3 == 1:
            o[t.y, t.x] = votes & 0xFFFF
        elif t.y >= 8:
            o[t.y, t.x] = place[t.x % 3]
        else:
            for k in range(t.y):
                v += x[k, t.x]
            o[t.y, t.x] = v

    x = np.random.default_rng(8).integers(0, 16, (16, 16))
    agree(kernel, 1, (16, 16), np.zeros_like(x), x)


def test_bits_and_unsigned_numbers_of_rows() -> None:
    def kernel(o, x, n):
        t = cuda.threadIdx
        y = t.y
        odd, flipped = y | 1, (y ^ 3) & 15
        wrapped = np.uint32(np.int64(y) - np.int64(n) & 0xFFFFFFFF)
        wide = np.uint64(wrapped)
        v = x[odd, t.x] * 2 + x[flipped, 15 - t.x] + int64(wide >> np.uint64(28))
        if wide < np.uint64(20):
            v += x[int64(wide), t.x] * 1000
        if (t.x | y) == 0:
            v += 7
        o[y, t.x] = v + (cuda.ballot_sync(FULL, (y | n) == odd) & 1)

    x = np.random.default_rng(9).integers(0, 99, (16, 16))
    agree(kernel, 1, (16, 16), np.zeros_like(x), x, 7)


def test_unsigned_and_narrow_indices_of_rows() -> None:
    def kernel(o, x, n):
        t = cuda.threadIdx
        y = int32(t.y) - int32(5)
        if y >= 0:
            o[t.y, t.x] = x[y, t.x]
        u = np.uint32(t.y) * np.uint32(n)
        if u < np.uint32(40):
            o[t.y, t.x] += int64(u >> np.uint32(1)) + t.x
        if t.x < t.y:
            o[t.y, t.x] -= 100
        if cuda.all_sync(FULL, t.y < n):
            o[t.y, t.x] += 10000

    x = np.random.default_rng(9).integers(0, 99, (16, 16))
    agree(kernel, 1, (16, 16), np.zeros_like(x), x, 7)
