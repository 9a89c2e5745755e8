"""Clustering: a step of k-means."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from nbrt_kernels._costs import costs
from nbrt_kernels._dialect import Array, cuda

__all__ = ["CLUSTER_CELLS", "kmeans_step", "kmeans_step_reference"]

CLUSTER_CELLS = 1024
_INFINITY = math.inf


def _kmeans_flops(sums: Array, _: Array, points: Array, __: Array) -> float:
    clusters, width = sums.shape
    return float(points.shape[0] * (3 * clusters * (width - 1) + width))


@costs(_kmeans_flops)
def kmeans_step(sums: Array, labels: Array, points: Array, centres: Array) -> None:
    """Assign each point to its nearest centre, and add up the points of each.

    Any grid; each block accumulates in shared memory first.  The new centres are
    ``sums[:, :-1] / sums[:, -1:]``. The last bits of the
    sums depend on the order of the atomic additions.

    Parameters
    ----------
    sums : floating, shape (clusters, dimensions + 1)
        Incremented by the sums of the points and, last, their number; 0 on entry.  At most
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
