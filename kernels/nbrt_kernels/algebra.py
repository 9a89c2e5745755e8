"""Products and particles: batched and sparse matrix products, n bodies, a step of k-means."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from nbrt_kernels._blocks import WARP, warp_sum
from nbrt_kernels._dialect import Array, Scalar, cuda

__all__ = [
    "BODIES_BLOCK",
    "CLUSTER_CELLS",
    "MATMUL_TILE",
    "batched_matmul",
    "batched_matmul_reference",
    "kmeans_step",
    "kmeans_step_reference",
    "nbody",
    "nbody_reference",
    "spmv_csr",
    "spmv_csr_reference",
]

MATMUL_TILE = 16
BODIES_BLOCK = 128
CLUSTER_CELLS = 1024
_TILE = (MATMUL_TILE, MATMUL_TILE)
_BODIES = (BODIES_BLOCK, 4)
_INFINITY = math.inf


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
        Where each row begins in `values`.
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


def nbody(out: Array, bodies: Array, softening: Scalar) -> None:
    """Compute the gravitational accelerations of all bodies, G = 1.

    ``out[i] = sum over j of mass[j] * d / (d . d + softening)**1.5`` with ``d = x[j] - x[i]``.
    A block of `BODIES_BLOCK` threads shares tiles of as many bodies.

    Parameters
    ----------
    out : floating, shape (n, 3)
        Result.
    bodies : dtype of `out`, shape (n, 4)
        Positions and masses.
    softening : scalar of the dtype of `out`
        The square of the softening length, above 0.
    """
    tile = cuda.shared.array(_BODIES, bodies.dtype)
    i, t = cuda.grid(1), cuda.threadIdx.x
    n = bodies.shape[0]
    own = i if i < n else n - 1
    x, y, z = bodies[own, 0], bodies[own, 1], bodies[own, 2]
    zero = bodies.dtype.type(0)
    ax = ay = az = zero
    for start in range(0, n, BODIES_BLOCK):
        other = start + t
        for c in range(4):
            # Beyond the last body: no mass.
            tile[t, c] = bodies[other, c] if other < n else zero
        cuda.syncthreads()
        for j in range(BODIES_BLOCK):
            dx, dy, dz = tile[j, 0] - x, tile[j, 1] - y, tile[j, 2] - z
            square = cuda.fma(dx, dx, cuda.fma(dy, dy, cuda.fma(dz, dz, softening)))
            pull = tile[j, 3] / (square * math.sqrt(square))
            ax = cuda.fma(pull, dx, ax)
            ay = cuda.fma(pull, dy, ay)
            az = cuda.fma(pull, dz, az)
        cuda.syncthreads()
    if i < n:
        out[i, 0] = ax
        out[i, 1] = ay
        out[i, 2] = az


def nbody_reference(bodies: npt.NDArray[Any], softening: Any) -> npt.NDArray[np.float64]:
    """Return the accelerations of `nbody`, in float64."""
    place, mass = bodies[:, :3].astype(np.float64), bodies[:, 3].astype(np.float64)
    out = np.empty_like(place)
    for i, here in enumerate(place):
        d = place - here
        pull = mass / (np.square(d).sum(axis=1) + float(softening)) ** 1.5
        out[i] = pull @ d
    return out


def kmeans_step(sums: Array, labels: Array, points: Array, centres: Array) -> None:
    """Assign each point to its nearest centre, and add up the points of each.

    Any grid; blocks count in shared memory first.  The new centres are ``sums[:, :-1] / sums[:,
    -1:]``.  Sums depend on the order of the atomic additions in their last bits.

    Parameters
    ----------
    sums : floating, shape (clusters, dimensions + 1)
        Raised by the sums of the points and, last, their number; 0 on entry.  At most
        `CLUSTER_CELLS` elements.
    labels : integer, shape (n,)
        Index of the nearest centre; the lowest if several are.
    points : dtype of `sums`, shape (n, dimensions)
        Points.
    centres : dtype of `sums`, shape (clusters, dimensions)
        Centres.
    """
    partial = cuda.shared.array(CLUSTER_CELLS, sums.dtype)
    t, step = cuda.threadIdx.x, cuda.blockDim.x
    clusters, dimensions = centres.shape
    width = dimensions + 1
    for cell in range(t, clusters * width, step):
        partial[cell] = sums.dtype.type(0)
    cuda.syncthreads()
    for i in range(cuda.grid(1), points.shape[0], cuda.gridsize(1)):
        nearest = 0
        least = points.dtype.type(_INFINITY)
        for c in range(clusters):
            square = points.dtype.type(0)
            for d in range(dimensions):
                distance = points[i, d] - centres[c, d]
                square = cuda.fma(distance, distance, square)
            if square < least:
                least = square
                nearest = c
        labels[i] = nearest
        for d in range(dimensions):
            cuda.atomic.add(partial, nearest * width + d, points[i, d])
        cuda.atomic.add(partial, nearest * width + dimensions, sums.dtype.type(1))
    cuda.syncthreads()
    for cell in range(t, clusters * width, step):
        cuda.atomic.add(sums, (cell // width, cell % width), partial[cell])


def kmeans_step_reference(
    points: npt.NDArray[Any], centres: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the sums and the labels of `kmeans_step`, in float64."""
    wide = points.astype(np.float64)
    squares = [np.square(wide - centre).sum(axis=1) for centre in centres]
    labels = np.argmin(squares, axis=0)
    sums = np.zeros((centres.shape[0], centres.shape[1] + 1))
    np.add.at(sums, labels, np.column_stack([wide, np.ones(len(wide))]))
    return sums, labels
