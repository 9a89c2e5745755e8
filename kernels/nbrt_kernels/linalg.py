"""Linear algebra: batched and sparse matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nbrt_kernels._blocks import WARP, warp_sum
from nbrt_kernels._costs import costs
from nbrt_kernels._dialect import Array, Scalar, cuda, device_function

__all__ = [
    "MATMUL_TILE",
    "MATRIX_THREADS",
    "MATRIX_TILE",
    "batched_matmul",
    "batched_matmul_reference",
    "matmul",
    "matmul_reference",
    "spmv_csr",
    "spmv_csr_reference",
]

MATMUL_TILE = 16
_TILE = (MATMUL_TILE, MATMUL_TILE)

MATRIX_TILE = 128
"""Rows and columns of the result that a block of `matmul` computes."""
MATRIX_THREADS = 256
"""Threads of a block of `matmul`."""
_OWN = 8
_DEPTH = 32
_HALF = MATRIX_THREADS // 2
_RUN = MATRIX_TILE * _DEPTH // _HALF
_RUNS_A, _RUNS_B = _DEPTH // _RUN, MATRIX_TILE // _RUN
_ACROSS = MATRIX_TILE // _OWN
# Rows of the left tile begin in other banks of shared memory.
_LEFT_TILE = (MATRIX_TILE, _DEPTH + 4)
_RIGHT_TILE = (_DEPTH, MATRIX_TILE)


def _matmul_flops(out: Array, a: Array, _: Array) -> float:
    return float(2 * out.size * a.shape[-1])


@costs(_matmul_flops)
def batched_matmul(out: Array, a: Array, b: Array) -> None:
    """Multiply matrices pair by pair, by tiles in shared memory.

    One thread per element in blocks of `MATMUL_TILE` squared; z counts the pairs.

    Parameters
    ----------
    out : floating, shape (batch, rows, columns)
        Result.
    a : dtype of `out`, shape (batch, rows, inner)
        Left factors.
    b : dtype of `out`, shape (batch, inner, columns)
        Right factors.
    """
    a_tile = cuda.shared.array(_TILE, a.dtype)
    b_tile = cuda.shared.array(_TILE, b.dtype)
    x, y = cuda.grid(2)
    z = cuda.blockIdx.z
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    rows, columns = out.shape[1], out.shape[2]
    inner = a.shape[2]
    total = out.dtype.type(0)
    for start in range(0, inner, MATMUL_TILE):
        a_tile[ty, tx] = a.dtype.type(0)
        b_tile[ty, tx] = b.dtype.type(0)
        if y < rows and start + tx < inner:
            a_tile[ty, tx] = a[z, y, start + tx]
        if x < columns and start + ty < inner:
            b_tile[ty, tx] = b[z, start + ty, x]
        cuda.syncthreads()
        for k in range(MATMUL_TILE):
            total = cuda.fma(a_tile[ty, k], b_tile[k, tx], total)
        cuda.syncthreads()
    if y < rows and x < columns:
        out[z, y, x] = total


def batched_matmul_reference(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the products, in float64."""
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64))


@device_function
def _copy_run(
    tile: Array, i: Scalar, j: Scalar, matrix: Array, y: Scalar, x: Scalar, is_whole: Scalar
) -> None:
    """Copy a run of a row to a tile, with zeros for what is outside; `is_whole` if nothing is."""
    if is_whole:
        for e in range(_RUN):
            tile[i, j + e] = matrix[y, x + e]
    else:
        for e in range(_RUN):
            tile[i, j + e] = 0
        for e in range(min(_RUN, matrix.shape[1] - x) if y < matrix.shape[0] else 0):
            tile[i, j + e] = matrix[y, x + e]


@costs(_matmul_flops)
def matmul(out: Array, a: Array, b: Array) -> None:
    """Multiply two matrices, with 8 x 8 elements of the result in the registers of each thread.

    One block of `MATRIX_THREADS` threads for `MATRIX_TILE` rows and columns of the result. One half
    of them copies a tile of the left factor to shared memory, the other half one of the right
    factor, each thread a run of neighbouring elements. A thread then reads 16 elements for 64
    multiply-adds. The tiles take 34 KiB for float32.

    Parameters
    ----------
    out : floating, shape (rows, columns)
        Result.
    a : dtype of `out`, shape (rows, inner)
        Left factor.
    b : dtype of `out`, shape (inner, columns)
        Right factor.
    """
    left = cuda.shared.array(_LEFT_TILE, a.dtype)
    right = cuda.shared.array(_RIGHT_TILE, b.dtype)
    total = cuda.local.array((_OWN, _OWN), out.dtype)
    rows, columns = out.shape
    inner = a.shape[1]
    t = cuda.threadIdx.x
    first_row, first_column = cuda.blockIdx.y * MATRIX_TILE, cuda.blockIdx.x * MATRIX_TILE
    row, column = t // _ACROSS * _OWN, t % _ACROSS * _OWN
    part = t % _HALF
    for i in range(_OWN):
        for j in range(_OWN):
            total[i, j] = 0
    for start in range(0, inner, _DEPTH):
        is_inside = start + _DEPTH <= inner
        if t < _HALF:
            i, j = part // _RUNS_A, part % _RUNS_A * _RUN
            is_whole = is_inside and first_row + MATRIX_TILE <= rows
            _copy_run(left, i, j, a, first_row + i, start + j, is_whole)
        else:
            i, j = part // _RUNS_B, part % _RUNS_B * _RUN
            is_whole = is_inside and first_column + MATRIX_TILE <= columns
            _copy_run(right, i, j, b, start + i, first_column + j, is_whole)
        cuda.syncthreads()
        for k in range(_DEPTH):
            for i in range(_OWN):
                for j in range(_OWN):
                    total[i, j] = cuda.fma(left[row + i, k], right[k, column + j], total[i, j])
        cuda.syncthreads()
    for i in range(_OWN):
        for j in range(_OWN):
            y, x = first_row + row + i, first_column + column + j
            if y < rows and x < columns:
                out[y, x] = total[i, j]


def matmul_reference(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the product, in float64."""
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64))


def _spmv_flops(_: Array, values: Array, *__: Array) -> float:
    return float(2 * values.size)


@costs(_spmv_flops)
def spmv_csr(out: Array, values: Array, columns: Array, offsets: Array, x: Array) -> None:
    """Multiply a sparse matrix, in compressed rows, with a vector: a warp per row.

    Parameters
    ----------
    out : floating, shape (rows,)
        Result.
    values : dtype of `out`, shape (stored,)
        Stored elements, row by row.
    columns : integer, shape (stored,)
        Their columns.
    offsets : integer, shape (rows + 1,)
        Start of each row in `values`.
    x : dtype of `out`, shape (columns,)
        Vector.
    """
    row = cuda.grid(1) // WARP
    lane = cuda.laneid
    total = out.dtype.type(0)
    if row < out.shape[0]:
        for i in range(offsets[row] + lane, offsets[row + 1], WARP):
            total = cuda.fma(values[i], x[columns[i]], total)
    total = warp_sum(total)
    if row < out.shape[0] and lane == 0:
        out[row] = total


def spmv_csr_reference(
    values: npt.NDArray[Any],
    columns: npt.NDArray[Any],
    offsets: npt.NDArray[Any],
    x: npt.NDArray[Any],
) -> npt.NDArray[np.float64]:
    """Return the product of `spmv_csr`, in float64."""
    products = values.astype(np.float64) * x[columns]
    row = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    return np.asarray(np.bincount(row, products, offsets.size - 1), dtype=np.float64)
