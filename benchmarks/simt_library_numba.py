"""The library's works by hand in Numba: parallel loops over rows, points or bodies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMS"]

prange = numba.prange


def _softmax(out: Any, x: Any) -> None:
    for row in prange(x.shape[0]):
        largest = x[row, 0]
        for i in range(x.shape[1]):
            largest = max(largest, x[row, i])
        total = np.float32(0)
        for i in range(x.shape[1]):
            value = math.exp(x[row, i] - largest)
            out[row, i] = value
            total += value
        scale = np.float32(1) / total
        for i in range(x.shape[1]):
            out[row, i] *= scale


def _layer_norm(out: Any, x: Any, weight: Any, bias: Any, epsilon: Any) -> None:
    count = np.float32(x.shape[1])
    for row in prange(x.shape[0]):
        total = np.float32(0)
        for i in range(x.shape[1]):
            total += x[row, i]
        mean = total / count
        squares = np.float32(0)
        for i in range(x.shape[1]):
            squares += (x[row, i] - mean) ** 2
        scale = np.float32(1) / math.sqrt(squares / count + epsilon)
        for i in range(x.shape[1]):
            out[row, i] = (x[row, i] - mean) * scale * weight[i] + bias[i]


def _sort(out: Any, x: Any) -> None:
    for row in prange(x.shape[0]):
        out[row] = np.sort(x[row])


def _segmented_scan(out: Any, x: Any, heads: Any) -> None:
    for row in prange(x.shape[0]):
        total = np.float32(0)
        for i in range(x.shape[1]):
            total = x[row, i] if heads[row, i] != 0 else total + x[row, i]
            out[row, i] = total


def _heat_step(out: Any, u: Any, rate: Any) -> None:
    depth, height, width = u.shape
    for z in prange(depth):
        below, above = max(z - 1, 0), min(z + 1, depth - 1)
        for y in range(height):
            north, south = max(y - 1, 0), min(y + 1, height - 1)
            for x in range(width):
                here = u[z, y, x]
                total = u[below, y, x] + u[above, y, x]
                total += u[z, north, x] + u[z, south, x]
                total += u[z, y, max(x - 1, 0)] + u[z, y, min(x + 1, width - 1)]
                out[z, y, x] = here + rate * (total - np.float32(6) * here)


def _jacobi_step(out: Any, change: Any, u: Any, source: Any) -> None:
    height, width = u.shape
    out[0] = u[0]
    out[height - 1] = u[height - 1]
    changes = np.zeros(height, np.float32)
    for y in prange(1, height - 1):
        out[y, 0] = u[y, 0]
        out[y, width - 1] = u[y, width - 1]
        largest = np.float32(0)
        for x in range(1, width - 1):
            total = u[y - 1, x] + u[y + 1, x] + u[y, x - 1] + u[y, x + 1]
            out[y, x] = (total - source[y, x]) * np.float32(0.25)
            largest = max(largest, abs(out[y, x] - u[y, x]))
        changes[y] = largest
    change[0] = changes.max()


def _batched_matmul(out: Any, a: Any, b: Any) -> None:
    for pair in prange(out.shape[0]):
        for i in range(out.shape[1]):
            out[pair, i, :] = 0
            for k in range(a.shape[2]):
                for j in range(out.shape[2]):
                    out[pair, i, j] += a[pair, i, k] * b[pair, k, j]


def _spmv_csr(out: Any, values: Any, columns: Any, offsets: Any, x: Any) -> None:
    for row in prange(out.size):
        total = np.float32(0)
        for i in range(offsets[row], offsets[row + 1]):
            total += values[i] * x[columns[i]]
        out[row] = total


def _nbody(out: Any, bodies: Any, softening: Any) -> None:
    for i in prange(bodies.shape[0]):
        ax = ay = az = np.float32(0)
        for j in range(bodies.shape[0]):
            dx = bodies[j, 0] - bodies[i, 0]
            dy = bodies[j, 1] - bodies[i, 1]
            dz = bodies[j, 2] - bodies[i, 2]
            square = dx * dx + dy * dy + dz * dz + softening
            pull = bodies[j, 3] / (square * math.sqrt(square))
            ax += pull * dx
            ay += pull * dy
            az += pull * dz
        out[i, 0], out[i, 1], out[i, 2] = ax, ay, az


def _kmeans_step(sums: Any, labels: Any, points: Any, centres: Any) -> None:
    parts = numba.get_num_threads()
    n, dimensions = points.shape
    partial = np.zeros((parts, centres.shape[0], dimensions + 1), np.float32)
    for part in prange(parts):
        for i in range(n * part // parts, n * (part + 1) // parts):
            nearest, least = 0, np.float32(np.inf)
            for c in range(centres.shape[0]):
                square = np.float32(0)
                for d in range(dimensions):
                    square += (points[i, d] - centres[c, d]) ** 2
                if square < least:
                    least, nearest = square, c
            labels[i] = nearest
            for d in range(dimensions):
                partial[part, nearest, d] += points[i, d]
            partial[part, nearest, dimensions] += 1
    for part in range(parts):
        sums += partial[part]


#: By work; each takes the kernel's arguments.
FORMS: dict[str, Callable[..., None]] = {
    "softmax": _softmax,
    "norm": _layer_norm,
    "sort": _sort,
    "segments": _segmented_scan,
    "heat": _heat_step,
    "Jacobi": _jacobi_step,
    "batch": _batched_matmul,
    "SpMV": _spmv_csr,
    "CSR": _spmv_csr,
    "n-body": _nbody,
    "k-means": _kmeans_step,
}
