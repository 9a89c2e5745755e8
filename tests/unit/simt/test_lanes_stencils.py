# mypy: disable-error-code="no-untyped-def"
"""Lanes: limits of indices, halos that few threads load, and marches through planes."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, float32, int32

from helpers.lowerings import agree, dim3
from nbrt.backends.cpu.simt.runtime.inspection import CpuCode

SHAPES = [(16, 16), (32, 4), (8, 8), (64, 2), (10, 3), (33, 2), (4, 8), (1, 8), (128, 1), (8, 2, 2)]


@cuda.jit(device=True)
def limited(i, low, n):
    return min(max(i, low), n - 1)


def tile_kernel(o, x, wide):
    tile = cuda.shared.array(4096, x.dtype)
    t, d = cuda.threadIdx, cuda.blockDim
    i = cuda.blockIdx.x * d.x + t.x
    j = cuda.blockIdx.y * d.y + t.y
    height, width = x.shape
    pitch = d.x + 2
    at = (t.y + 1) * pitch + t.x + 1
    ii, jj = limited(i, 0, width), limited(j, 0, height)
    if t.z == 0:
        tile[at] = x[jj, ii]
        if t.y == 0:
            tile[at - pitch] = x[limited(j - 1, 0, height), ii]
        if t.y == d.y - 1:
            tile[at + pitch] = x[limited(j + 1, 0, height), ii]
        if t.x == 0:
            tile[at - 1] = x[jj, limited(i - 1, 0, width)]
        if t.x == d.x - 1:
            tile[at + 1] = x[jj, limited(i + wide, 0, width)]
    cuda.syncthreads()
    if i < width and j < height and t.z == 0:
        total = tile[at - 1] + tile[at + 1] + tile[at - pitch] + tile[at + pitch]
        if 0 < i < width - 1 and j > 0:
            total -= x[j, i - 1]
        o[j, i] = total - tile[at]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tiles_with_halos(shape) -> None:
    width, height, _ = dim3(shape)
    rng = np.random.default_rng(width)
    for rows, columns in ((2 * height, 3 * width), (2 * height + 1, 2 * width - 1), (1, 1), (3, 2)):
        x = rng.integers(-50, 50, (rows, columns)).astype(np.float32)
        grid = -(-columns // width), -(-rows // height)
        padded = np.pad(x, 1, mode="edge")
        expected = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:] - x
        expected[1:, 1:-1] -= x[1:, :-2]
        agree(tile_kernel, grid, shape, np.zeros_like(x), x, 1, expected=expected)


@pytest.mark.parametrize("dtype", [np.float64, np.int16, np.int64, np.uint8])
def test_tiles_of_other_types(dtype) -> None:
    x = np.random.default_rng(3).integers(0, 9, (33, 47)).astype(dtype)
    padded = np.pad(x, 1, mode="edge")
    expected = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:] - x
    expected[1:, 1:-1] -= x[1:, :-2]
    agree(tile_kernel, (3, 3), (16, 16), np.zeros_like(x), x, 1, expected=expected)


def shifted_kernel(o, x, shift, low, n):
    s = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[limited(i + shift, low, n)]
    cuda.syncthreads()
    o[i] = s[63 - t]


@pytest.mark.parametrize("low", [0, 5, -3])
@pytest.mark.parametrize(
    "shift", [0, 1, -1, 64, -64, 130, 500, -500, 2**63 - 1, 2**63 - 70, -(2**63), 63 - 2**63]
)
def test_limits_of_shifted_indices(shift, low) -> None:
    x = np.arange(200, dtype=np.int32)
    with np.errstate(over="ignore"):
        index = np.arange(256, dtype=np.int64) + np.int64(shift)  # wraps around, as on a GPU
    limited_index = np.minimum(np.maximum(index, low), 199)
    expected = x[limited_index].reshape(4, 64)[:, ::-1].ravel()
    out = np.zeros(256, np.int32)
    agree(shifted_kernel, 4, 64, out, x, shift, low, 200, expected=expected)


def backward_kernel(o, x, n):
    s = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[limited(n - 1 - i, 0, n)] + x[limited(2 * i - 7, 0, n)]
    cuda.syncthreads()
    if i < o.size:
        o[i] = s[31 - t]


@pytest.mark.parametrize("n", [1, 31, 32, 64, 100, 257])
def test_limits_of_indices_with_other_steps(n) -> None:
    x = np.random.default_rng(n).integers(0, 1000, n).astype(np.int32)
    i = np.arange(320)
    values = x[np.clip(n - 1 - i, 0, n - 1)] + x[np.clip(2 * i - 7, 0, n - 1)]
    expected = values.reshape(10, 32)[:, ::-1].ravel()
    agree(backward_kernel, 10, 32, np.zeros(320, np.int32), x, n, expected=expected)


def march_kernel(o, x):
    plane = cuda.shared.array((6, 34), float32)
    i, j = cuda.grid(2)
    depth, height, width = x.shape
    tx, ty = cuda.threadIdx.x + 1, cuda.threadIdx.y + 1
    ii, jj = limited(i, 0, width), limited(j, 0, height)
    here = x[0, jj, ii]
    for k in range(depth):
        following = x[min(k + 1, depth - 1), jj, ii]
        plane[ty, tx] = here
        if tx == 1:
            plane[ty, 0] = x[k, jj, limited(i - 1, 0, width)]
        if tx == 32:
            plane[ty, 33] = x[k, jj, limited(i + 1, 0, width)]
        cuda.syncthreads()
        if i < width and j < height:
            o[k, j, i] = plane[ty, tx - 1] + plane[ty, tx + 1] - here + following
        cuda.syncthreads()
        here = following


@pytest.mark.parametrize("size", [(5, 8, 64), (1, 1, 1), (4, 7, 65), (3, 4, 31)])
def test_marching_through_planes(size) -> None:
    x = np.random.default_rng(5).integers(0, 99, size).astype(np.float32)
    wide = np.pad(x, ((0, 1), (0, 0), (1, 1)), mode="edge")
    expected = wide[:-1, :, :-2] + wide[:-1, :, 2:] - x + wide[1:, :, 1:-1]
    grid = -(-size[2] // 32), -(-size[1] // 4)
    agree(march_kernel, grid, (32, 4), np.zeros_like(x), x, expected=expected)


def few_kernel(o, x, n):
    s = cuda.shared.array(130, int32)
    t = cuda.threadIdx.x
    last = cuda.blockDim.x - 1
    i = cuda.grid(1)
    s[t] = x[i] if i < n else 3
    own = s[t] * 2
    if t == last:
        # A branch and a loop that one thread enters.
        total = int32(0)
        for k in range(own % 5):
            total += s[t] + k
        if total > 40:
            total -= 40
        s[last + 1] = total
        own = total + t
    if t == 0:
        s[last + 2 if last < 128 else 0] = own + min(max(i - 3, 0), n - 1)
    cuda.syncthreads()
    if i < n:
        o[i] = own + s[t] + s[last + 1]
        if t == 3:
            o[i] -= s[last + 2]


@pytest.mark.parametrize("threads", [4, 16, 32, 64, 100, 128])
def test_code_that_one_thread_enters(threads) -> None:
    x = np.random.default_rng(threads).integers(0, 50, 300).astype(np.int32)
    agree(few_kernel, 2, threads, np.zeros(300, np.int32), x, 2 * threads - 1)


def gathering_kernel(o, x, at):
    s = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    s[t] = x[limited(at[cuda.grid(1)], 0, x.size)]
    cuda.syncthreads()
    o[cuda.grid(1)] = s[31 - t]


def test_inspection_tells_of_versions_and_of_limits_that_are_not_known() -> None:
    x = np.zeros((32, 32), np.float32)
    reasons = CpuCode(tile_kernel, (x, x, 1), (16, 16, 1)).lowering.reasons
    assert any("run without them" in reason for reason in reasons)
    assert not any("gathers" in reason for reason in reasons)
    values, at = np.zeros(32, np.int32), np.zeros(32, np.int64)
    reasons = CpuCode(gathering_kernel, (values, values, at), (32, 1, 1)).lowering.reasons
    assert any("with gathers: 2" in reason for reason in reasons)
