"""Kernels of the library whose threads work together, as works of `benchmarks.simt`."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.simt_kernels import spmv_rows
from benchmarks.simt_works import Problem, Work, aligned, empty_out, random_floats
from nbrt_kernels import clustering, linalg, particles, row_ops, stencils

__all__ = ["LIBRARY"]

_COLUMNS = 1024
_ROW_BLOCK = 256
_DIMENSIONS, _CLUSTERS = 8, 16
_PER_ROW = 16
_BATCHED = 128


def _softmax(n: int) -> Problem:
    x = random_floats(n, _COLUMNS)

    def numpy(out: Any, x: Any) -> None:
        np.subtract(x, x.max(axis=1, keepdims=True), out=out)
        np.exp(out, out=out)
        out /= out.sum(axis=1, keepdims=True)

    expected = row_ops.softmax_reference(x)
    return Problem((empty_out(x.shape), x), expected, (n,), (_ROW_BLOCK,), numpy)


def _layer_norm(n: int) -> Problem:
    x, weight, bias = random_floats(n, _COLUMNS), random_floats(_COLUMNS), random_floats(_COLUMNS)
    arguments = (empty_out(x.shape), x, weight, bias, np.float32(1e-5))

    def numpy(out: Any, x: Any, weight: Any, bias: Any, epsilon: Any) -> None:
        np.subtract(x, x.mean(axis=1, keepdims=True), out=out)
        variance = np.square(out).mean(axis=1, keepdims=True)
        out *= 1 / np.sqrt(variance + epsilon)
        out *= weight
        out += bias

    expected = row_ops.layer_norm_reference(*arguments[1:])
    return Problem(arguments, expected, (n,), (_ROW_BLOCK,), numpy)


def _bitonic_sort(n: int) -> Problem:
    x = random_floats(n, _COLUMNS)

    def numpy(out: Any, x: Any) -> None:
        out[...] = x
        out.sort(axis=1)

    expected = row_ops.bitonic_sort_reference(x)
    return Problem((empty_out(x.shape), x), expected, (n,), (row_ops.SORT_THREADS,), numpy, 0.0)


def _segmented_scan(n: int) -> Problem:
    x = random_floats(n, _COLUMNS)
    heads = aligned((random_floats(n, _COLUMNS) < 0.01).astype(np.int32))
    heads[:, 0] = 1

    def numpy(out: Any, x: Any, heads: Any) -> None:
        # One running sum, minus the sum before each segment.
        sums = np.cumsum(x.ravel(), dtype=np.float64)
        begins = np.flatnonzero(heads)
        before = np.concatenate([[0.0], sums])[begins]
        lengths = np.diff(begins, append=sums.size)
        out.reshape(-1)[:] = sums - np.repeat(before, lengths)

    expected = row_ops.segmented_scan_reference(x, heads)
    return Problem((empty_out(x.shape), x, heads), expected, (n,), (_ROW_BLOCK,), numpy)


def _heat_step(n: int) -> Problem:
    u = random_floats(n, n, n)

    def numpy(out: Any, u: Any, rate: Any) -> None:
        wide = np.pad(u, 1, mode="edge")
        np.multiply(u, -6, out=out)
        for part in (slice(None, -2), slice(2, None)):
            out += wide[part, 1:-1, 1:-1]
            out += wide[1:-1, part, 1:-1]
            out += wide[1:-1, 1:-1, part]
        out *= rate
        out += u

    width, height = stencils.HEAT_BLOCK
    arguments = (empty_out(u.shape), u, np.float32(0.1))
    expected = stencils.heat_step_reference(u, 0.1)
    return Problem(arguments, expected, (-(-n // width), -(-n // height)), (width, height), numpy)


def _jacobi_step(n: int) -> Problem:
    u, source = random_floats(n, n), aligned(random_floats(n, n)[::-1])

    def numpy(out: Any, change: Any, u: Any, source: Any) -> None:
        out[...] = u
        inner = out[1:-1, 1:-1]
        np.add(u[:-2, 1:-1], u[2:, 1:-1], out=inner)
        inner += u[1:-1, :-2]
        inner += u[1:-1, 2:]
        inner -= source[1:-1, 1:-1]
        inner *= np.float32(0.25)
        change[0] = np.abs(out - u).max()

    width, height = stencils.JACOBI_BLOCK
    arguments = (empty_out(u.shape), empty_out(1), u, source)
    expected = stencils.jacobi_step_reference(u, source)
    return Problem(arguments, expected, (-(-n // width), -(-n // height)), (width, height), numpy)


def _batched_matmul(n: int) -> Problem:
    a = random_floats(n, _BATCHED, _BATCHED)
    b = aligned(a[::-1])

    def numpy(out: Any, a: Any, b: Any) -> None:
        np.matmul(a, b, out=out)

    tile = linalg.MATMUL_TILE
    expected = linalg.batched_matmul_reference(a, b)
    grid = (_BATCHED // tile, _BATCHED // tile, n)
    return Problem((empty_out(a.shape), a, b), expected, grid, (tile, tile, 1), numpy)


def _spmv_csr(n: int) -> Problem:
    generator = np.random.default_rng(1)
    offsets = aligned(np.append(0, generator.integers(0, 2 * _PER_ROW, n).cumsum()))
    offsets = offsets.astype(np.int32)
    columns = generator.integers(0, n, offsets[-1], dtype=np.int32)
    values, x = random_floats(int(offsets[-1])), random_floats(n)

    def numpy(out: Any, values: Any, columns: Any, offsets: Any, x: Any) -> None:
        row = np.repeat(np.arange(n), np.diff(offsets))
        out[:] = np.bincount(row, values * x[columns], minlength=n)

    expected = linalg.spmv_csr_reference(values, columns, offsets, x)
    arguments = (empty_out(n), values, columns, offsets, x)
    return Problem(arguments, expected, (n * 32 // 128,), (128,), numpy)


def _spmv_rows(n: int) -> Problem:
    problem = _spmv_csr(n)
    problem.grid, problem.block = (n // 128,), (128,)
    return problem


def _nbody(n: int) -> Problem:
    bodies = random_floats(n, 4)

    def numpy(out: Any, bodies: Any, softening: Any) -> None:
        place, mass = bodies[:, :3], bodies[:, 3]
        for start in range(0, n, 64):
            d = place[None, :, :] - place[start : start + 64, None, :]
            square = np.einsum("ijk,ijk->ij", d, d) + softening
            pull = mass / (square * np.sqrt(square))
            out[start : start + 64] = np.einsum("ij,ijk->ik", pull, d)

    expected = particles.nbody_reference(bodies, 0.01)
    arguments = (empty_out((n, 3)), bodies, np.float32(0.01))
    block = particles.BODIES_BLOCK
    return Problem(arguments, expected, (-(-n // block),), (block,), numpy)


def _kmeans_step(n: int) -> Problem:
    points, centres = random_floats(n, _DIMENSIONS), random_floats(_CLUSTERS, _DIMENSIONS)
    sums = empty_out((_CLUSTERS, _DIMENSIONS + 1))

    def numpy(sums: Any, labels: Any, points: Any, centres: Any) -> None:
        # The square of the point is the same for all centres.
        score = np.square(centres).sum(axis=1) - 2 * points @ centres.T
        labels[:] = score.argmin(axis=1)
        for d in range(_DIMENSIONS):
            sums[:, d] = np.bincount(labels, points[:, d], minlength=_CLUSTERS)
        sums[:, -1] = np.bincount(labels, minlength=_CLUSTERS)

    expected, _ = clustering.kmeans_step_reference(points, centres)
    arguments = (sums, empty_out(n, np.int32), points, centres)
    return Problem(arguments, expected, (64,), (128,), numpy, tolerance=1e-3)


def _rowwise(n: int) -> int:
    return n * _COLUMNS


def _works() -> tuple[Work, ...]:
    r, s, a = row_ops, stencils, linalg
    row = "rows of 1024"
    scan, products = _segmented_scan, lambda n: n * _BATCHED**3
    return (
        Work("softmax", f"softmax, 1024 {row}", r.softmax, _softmax, 1024, 2, _rowwise),
        Work("norm", f"layer norm, 1024 {row}", r.layer_norm, _layer_norm, 1024, 2, _rowwise),
        Work("sort", f"bitonic sort, 256 {row}", r.bitonic_sort, _bitonic_sort, 256, 2, _rowwise),
        Work("segments", f"segmented scan, 1024 {row}", r.segmented_scan, scan, 1024, 2, _rowwise),
        Work("heat", "heat step, 160^3", s.heat_step, _heat_step, 160, 16, lambda n: n**3),
        Work(
            "Jacobi", "Jacobi step, 2048^2", s.jacobi_step, _jacobi_step, 2048, 32, lambda n: n**2
        ),
        Work("batch", "32 products of 128^3", a.batched_matmul, _batched_matmul, 32, 1, products),
        Work("SpMV", "sparse product, 2^17 rows of 16", a.spmv_csr, _spmv_csr, 1 << 17, 256),
        Work("CSR", "sparse product, a thread per row", spmv_rows, _spmv_rows, 1 << 17, 256),
        Work("n-body", "2048 bodies", particles.nbody, _nbody, 2048, 128, lambda n: n**2),
        Work(
            "k-means", "k-means, 2^17 points", clustering.kmeans_step, _kmeans_step, 1 << 17, 1024
        ),
    )


#: Like `WORKS`, with other names; for nbrt, Numba and NumPy only.
LIBRARY = _works()
