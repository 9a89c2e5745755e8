"""Kernels in the style of CUDA, one of each kind, for `benchmarks.simt`.

saxpy and the Mandelbrot set are in `nbrt_kernels`. Sizes are whole multiples of the blocks, as in
the peers' forms, so that no guard is measured.
"""

from __future__ import annotations

from typing import Any

import numba
from numba import cuda

__all__ = [
    "SCAN_BLOCK",
    "SUM_BLOCK",
    "TILE",
    "WARP",
    "block_scan",
    "block_sum",
    "histogram",
    "matmul",
    "warp_sum",
]

SUM_BLOCK = 256
SCAN_BLOCK = 512
TILE = 16
WARP = 32


def block_sum(out: Any, x: Any) -> None:
    """Add the elements of each block, by halving in shared memory."""
    parts = cuda.shared.array(SUM_BLOCK, numba.float32)
    t = cuda.threadIdx.x
    parts[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    half = SUM_BLOCK // 2
    while half > 0:
        if t < half:
            parts[t] += parts[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = parts[0]


def matmul(out: Any, a: Any, b: Any) -> None:
    """Multiply square matrices by tiles in shared memory."""
    a_tile = cuda.shared.array((TILE, TILE), numba.float32)
    b_tile = cuda.shared.array((TILE, TILE), numba.float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = numba.float32(0.0)
    for start in range(0, a.shape[1], TILE):
        a_tile[ty, tx] = a[y, start + tx]
        b_tile[ty, tx] = b[start + ty, x]
        cuda.syncthreads()
        for k in range(TILE):
            total = cuda.fma(a_tile[ty, k], b_tile[k, tx], total)
        cuda.syncthreads()
    out[y, x] = total


def block_scan(out: Any, x: Any) -> None:
    """Add up the elements of each block, by Hillis and Steele's doubling distances."""
    sums = cuda.shared.array(SCAN_BLOCK, numba.float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    sums[t] = x[i]
    cuda.syncthreads()
    distance = 1
    while distance < SCAN_BLOCK:
        value = sums[t]
        if t >= distance:
            value += sums[t - distance]
        cuda.syncthreads()
        sums[t] = value
        cuda.syncthreads()
        distance *= 2
    out[i] = sums[t]


def histogram(out: Any, values: Any) -> None:
    """Count bytes: a grid-stride loop into shared counts, which are added to the result."""
    counts = cuda.shared.array(256, numba.int32)
    t = cuda.threadIdx.x
    counts[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), values.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(counts, values[i], 1)
    cuda.syncthreads()
    cuda.atomic.add(out, t, counts[t])


def warp_sum(out: Any, x: Any) -> None:
    """Add the elements of each warp by shuffles."""
    i = cuda.grid(1)
    total = x[i]
    distance = WARP // 2
    while distance > 0:
        total += cuda.shfl_down_sync(0xFFFFFFFF, total, distance)
        distance //= 2
    if cuda.laneid == 0:
        out[i // WARP] = total


def spmv_rows(out: Any, values: Any, columns: Any, offsets: Any, x: Any) -> None:
    """Multiply a sparse matrix, in compressed rows, with a vector: a thread per row."""
    row = cuda.grid(1)
    if row < out.shape[0]:
        total = out.dtype.type(0)
        for i in range(offsets[row], offsets[row + 1]):
            total = cuda.fma(values[i], x[columns[i]], total)
        out[row] = total
