"""The works by hand in Numba: parallel loops over blocks, rows or pixels, sequential within."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from benchmarks.simt_kernels import SCAN_BLOCK, SUM_BLOCK, WARP

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMS"]

prange = numba.prange


def _saxpy(out: Any, a: Any, x: Any, y: Any) -> None:
    for i in prange(out.size):
        out[i] = a * x[i] + y[i]


def _block_sum(out: Any, x: Any) -> None:
    for block in prange(out.size):
        total = np.float32(0)
        for i in range(SUM_BLOCK):
            total += x[block * SUM_BLOCK + i]
        out[block] = total


def _matmul(out: Any, a: Any, b: Any) -> None:
    for i in prange(out.shape[0]):
        out[i, :] = 0
        for k in range(a.shape[1]):
            for j in range(out.shape[1]):
                out[i, j] += a[i, k] * b[k, j]


def _block_scan(out: Any, x: Any) -> None:
    for block in prange(x.size // SCAN_BLOCK):
        total = np.float32(0)
        for i in range(SCAN_BLOCK):
            total += x[block * SCAN_BLOCK + i]
            out[block * SCAN_BLOCK + i] = total


def _histogram(out: Any, values: Any) -> None:
    parts = numba.get_num_threads()
    counts = np.zeros((parts, 256), np.int32)
    for part in prange(parts):
        mine = counts[part]
        for i in range(values.size * part // parts, values.size * (part + 1) // parts):
            mine[values[i]] += 1
    for part in range(parts):
        for i in range(256):
            out[i] += counts[part, i]


def _warp_sum(out: Any, x: Any) -> None:
    for warp in prange(out.size):
        total = np.float32(0)
        for i in range(WARP):
            total += x[warp * WARP + i]
        out[warp] = total


def _mandelbrot(out: Any, left: Any, top: Any, step_x: Any, step_y: Any, iterations: Any) -> None:
    for row in prange(out.shape[0]):
        cy = top + np.float32(row) * step_y
        for column in range(out.shape[1]):
            cx = left + np.float32(column) * step_x
            zx = zy = np.float32(0)
            count = 0
            while count < iterations and zx * zx + zy * zy <= np.float32(4):
                zx, zy = zx * zx - zy * zy + cx, np.float32(2) * zx * zy + cy
                count += 1
            out[row, column] = count


#: By work; each takes the kernel's arguments.
FORMS: dict[str, Callable[..., None]] = {
    "saxpy": _saxpy,
    "reduce": _block_sum,
    "matmul": _matmul,
    "scan": _block_scan,
    "histogram": _histogram,
    "shuffle": _warp_sum,
    "mandelbrot": _mandelbrot,
}
