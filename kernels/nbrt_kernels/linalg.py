"""Linear algebra: batched and sparse matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nbrt_kernels._blocks import WARP, warp_sum
from nbrt_kernels._costs import costs
from nbrt_kernels._dialect import Array, cuda

__all__ = [
    "MATMUL_TILE",
    "batched_matmul",
    "batched_matmul_reference",
    "spmv_csr",
    "spmv_csr_reference",
]

MATMUL_TILE = 16
_TILE = (MATMUL_TILE, MATMUL_TILE)


def _matmul_flops(out: Array, a: Array, _: Array) -> float:
    return float(2 * out.size * a.shape[2])


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
