"""Table entries of the kernels whose threads work together: shared memory, barriers, shuffles."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbrt_kernels import algebra, grids, rows
from nbrt_kernels._spec import Example, KernelSpec, Shape, both, spec, uniform

__all__ = ["block_specs"]

_F1, _F2, _F3, _F = "float32[::1]", "float32[:,::1]", "float32[:,:,::1]", "float32"
_I1, _I2 = "int32[::1]", "int32[:,::1]"
_ROW_BLOCK = (256,)


def _row_threads(shape: Shape) -> Shape:
    return (shape[0] * _ROW_BLOCK[0],)


def _softmax(shape: Shape, seed: int) -> Example:
    x = (uniform(shape, seed) - np.float32(0.5)) * np.float32(200)
    return Example((np.zeros_like(x), x), rows.softmax_reference(x), _row_threads(shape))


def _layer_norm(shape: Shape, seed: int) -> Example:
    x, epsilon = uniform(shape, seed) + np.float32(3.0), np.float32(1e-3)
    weight, bias = uniform(shape[1:], seed + 1), uniform(shape[1:], seed + 2)
    expected = rows.layer_norm_reference(x, weight, bias, epsilon)
    return Example((np.zeros_like(x), x, weight, bias, epsilon), expected, _row_threads(shape))


def _bitonic_sort(shape: Shape, seed: int) -> Example:
    x = uniform(shape, seed)
    threads = (shape[0] * rows.SORT_THREADS,)
    return Example((np.zeros_like(x), x), rows.bitonic_sort_reference(x), threads)


def _segmented_scan(shape: Shape, seed: int) -> Example:
    x = uniform(shape, seed)
    heads = (uniform(shape, seed + 1) < 0.02).astype(np.int32)
    expected = rows.segmented_scan_reference(x, heads)
    return Example((np.zeros_like(x), x, heads), expected, _row_threads(shape))


def _heat_step(shape: Shape, seed: int) -> Example:
    u, rate = uniform(shape, seed), np.float32(0.1)
    expected = grids.heat_step_reference(u, rate)
    return Example((np.zeros_like(u), u, rate), expected, (shape[2], shape[1]))


def _jacobi_step(shape: Shape, seed: int) -> Example:
    u, source = uniform(shape, seed), uniform(shape, seed + 1)
    out, change = np.zeros_like(u), np.zeros(1, np.float32)
    expected = grids.jacobi_step_reference(u, source)
    return Example((out, change, u, source), expected, shape[::-1])


def _batched_matmul(shape: Shape, seed: int) -> Example:
    batch, height, width = shape
    inner = height + width // 2
    a, b = uniform((batch, height, inner), seed), uniform((batch, inner, width), seed + 1)
    expected = algebra.batched_matmul_reference(a, b)
    return Example((np.zeros(shape, np.float32), a, b), expected, (width, height, batch))


def _spmv_csr(shape: Shape, seed: int) -> Example:
    (n,) = shape
    generator = np.random.default_rng(seed)
    # Rows without elements, short rows, and rows longer than a warp.
    lengths = generator.integers(0, 5, n) ** 3
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    columns = generator.integers(0, n, offsets[-1], dtype=np.int32)
    values, x = uniform((int(offsets[-1]),), seed + 1), uniform((n,), seed + 2)
    expected = algebra.spmv_csr_reference(values, columns, offsets, x)
    return Example((np.zeros(n, np.float32), values, columns, offsets, x), expected, (32 * n,))


def _nbody(shape: Shape, seed: int) -> Example:
    bodies, softening = uniform((*shape, 4), seed), np.float32(1e-2)
    expected = algebra.nbody_reference(bodies, softening)
    return Example((np.zeros((*shape, 3), np.float32), bodies, softening), expected, shape)


def _kmeans_step(shape: Shape, seed: int) -> Example:
    (n,) = shape
    clusters, dimensions = 7, 3
    centres = uniform((clusters, dimensions), seed) + np.arange(clusters, dtype=np.float32)[:, None]
    generator = np.random.default_rng(seed)
    noise = generator.normal(0, 0.1, (n, dimensions)).astype(np.float32)
    points = centres[generator.integers(0, clusters, n)] + noise
    sums = np.zeros((clusters, dimensions + 1), np.float32)
    expected, _ = algebra.kmeans_step_reference(points, centres)
    # Fewer threads than points: the grid-stride loop has turns to make.
    return Example((sums, np.zeros(n, np.int32), points, centres), expected, (min(n, 512),))


def _row_specs() -> list[KernelSpec]:
    r = rows
    norm, scan = both(_F2, _F2, _F1, _F1, _F), both(_F2, _F2, _I2)
    # Sums in float32, by 256 threads and then a tree, against float64.
    options: dict[str, Any] = {"dimensions": 2, "tolerance": 2e-6, "block": _ROW_BLOCK}
    sort: dict[str, Any] = {"dimensions": 2, "block": (r.SORT_THREADS,)}
    return [
        spec(r.softmax, r.softmax_reference, _softmax, (_F2, _F2), **options),
        spec(r.layer_norm, r.layer_norm_reference, _layer_norm, *norm, **options),
        spec(r.bitonic_sort, r.bitonic_sort_reference, _bitonic_sort, *both(_F2, _F2), **sort),
        spec(r.segmented_scan, r.segmented_scan_reference, _segmented_scan, *scan, **options),
    ]


def block_specs() -> list[KernelSpec]:
    """Return the entries, in the order of the files."""
    g, a = grids, algebra
    product, sparse = both(_F3, _F3, _F3), both(_F1, _F1, _I1, _I1, _F1)
    heat: dict[str, Any] = {"dimensions": 3, "tolerance": 4e-7, "block": g.HEAT_BLOCK}
    jacobi: dict[str, Any] = {"dimensions": 2, "tolerance": 4e-7, "block": g.JACOBI_BLOCK}
    batch: dict[str, Any] = {"dimensions": 3, "tolerance": 2e-6, "block": (a.MATMUL_TILE,) * 2}
    line: dict[str, Any] = {"tolerance": 2e-6, "block": (128,)}
    # Thousands of float32 numbers of both signs are added one after the other.
    bodies: dict[str, Any] = {"tolerance": 1e-5, "block": (a.BODIES_BLOCK,)}
    sweep, step = both(_F2, _F1, _F2, _F2), both(_F2, _I1, _F2, _F2)
    return [
        *_row_specs(),
        spec(g.heat_step, g.heat_step_reference, _heat_step, *both(_F3, _F3, _F), **heat),
        spec(g.jacobi_step, g.jacobi_step_reference, _jacobi_step, *sweep, **jacobi),
        spec(a.batched_matmul, a.batched_matmul_reference, _batched_matmul, *product, **batch),
        spec(a.spmv_csr, a.spmv_csr_reference, _spmv_csr, *sparse, **line),
        spec(a.nbody, a.nbody_reference, _nbody, *both(_F2, _F2, _F), **bodies),
        spec(a.kmeans_step, a.kmeans_step_reference, _kmeans_step, *step, **line),
    ]
