"""Kernels whose threads work together: their references against SciPy, and their second outputs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import ndimage, sparse, spatial, special

from helpers.kernels import launch
from nbrt_kernels import clustering, linalg, particles, row_ops, stencils

RNG = np.random.default_rng(11)


# -- references ----------------------------------------------------------------------------------


def test_softmax_reference_is_scipys():
    x = RNG.normal(0, 30, (5, 41)).astype(np.float32)
    expected = special.softmax(x.astype(np.float64), axis=1)
    np.testing.assert_allclose(row_ops.softmax_reference(x), expected, rtol=1e-12)


def test_layer_norm_reference_has_mean_0_and_variance_1():
    x = RNG.normal(4, 3, (6, 500))
    plain = row_ops.layer_norm_reference(x, np.ones(500), np.zeros(500), 0.0)
    np.testing.assert_allclose(plain.mean(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(plain.var(axis=1), 1, rtol=1e-12)
    scaled = row_ops.layer_norm_reference(x, np.full(500, 2.0), np.full(500, -1.0), 0.0)
    np.testing.assert_allclose(scaled, 2 * plain - 1, atol=1e-12)


def test_segmented_scan_reference_is_itertools_accumulate():
    x, heads = RNG.random((3, 60)), RNG.random((3, 60)) < 0.1
    found = row_ops.segmented_scan_reference(x, heads)
    for values, begins, sums in zip(x, heads, found, strict=True):
        pairs = itertools.accumulate(
            zip(values, begins, strict=True),
            lambda left, right: right if right[1] else (left[0] + right[0], left[1]),
        )
        np.testing.assert_allclose(sums, [total for total, _ in pairs], rtol=1e-12)


def test_heat_reference_is_scipys_laplacian():
    u = RNG.random((6, 9, 14))
    expected = u + 0.1 * ndimage.laplace(u, mode="nearest")
    np.testing.assert_allclose(stencils.heat_step_reference(u, 0.1), expected, rtol=1e-12)


def test_jacobi_reference_stands_still_at_the_solution():
    y, x = np.mgrid[:12, :17]
    u = (x**2 + y**2).astype(np.float64)
    np.testing.assert_allclose(
        stencils.jacobi_step_reference(u, np.full_like(u, 4.0)), u, rtol=1e-13
    )


def test_spmv_reference_is_scipys_product():
    matrix = sparse.random_array((50, 80), density=0.1, format="csr", rng=RNG)
    x = RNG.random(80)
    found = linalg.spmv_csr_reference(matrix.data, matrix.indices, matrix.indptr, x)
    np.testing.assert_allclose(found, matrix @ x, rtol=1e-12)


def test_nbody_reference_conserves_momentum_and_knows_two_bodies():
    bodies = RNG.random((40, 4))
    forces = particles.nbody_reference(bodies, 1e-3) * bodies[:, 3:]
    np.testing.assert_allclose(forces.sum(axis=0), 0, atol=1e-9)
    pair = np.array([[0.0, 0, 0, 1], [2.0, 0, 0, 8]])
    found = particles.nbody_reference(pair, 1e-12)
    np.testing.assert_allclose(found, [[2, 0, 0], [-0.25, 0, 0]], rtol=1e-11)


def test_kmeans_reference_is_scipys_nearest_centre():
    points, centres = RNG.random((200, 3)), RNG.random((9, 3))
    sums, labels = clustering.kmeans_step_reference(points, centres)
    expected = spatial.distance.cdist(points, centres).argmin(axis=1)
    assert np.array_equal(labels, expected)
    assert sums[:, 3].sum() == 200
    np.testing.assert_allclose(sums[:, :3].sum(axis=0), points.sum(axis=0), rtol=1e-12)


# -- kernels -------------------------------------------------------------------------------------


def test_exponential_is_within_an_ulp_and_ends_at_zero():
    x = -np.geomspace(1e-8, 86.9, 20_001, dtype=np.float32)
    out = np.zeros_like(x)

    def map_exp(out, x):
        i = row_ops.cuda.grid(1)
        if i < x.shape[0]:
            out[i] = row_ops.exp_f32(x[i])

    launch(map_exp, x.shape, out, x)
    expected = np.exp(x.astype(np.float64))
    assert (np.abs(out - expected) / np.spacing(expected.astype(np.float32))).max() < 1.0

    special_values = np.array([0.0, -0.0, -87.5, -1e30, -np.inf, np.nan], np.float32)
    out = np.zeros_like(special_values)
    launch(map_exp, out.shape, out, special_values)
    np.testing.assert_array_equal(out, [1, 1, 0, 0, 0, np.nan])


def test_softmax_of_nan_is_nan():
    x = np.zeros((2, 40), np.float32)
    x[1, 17] = np.nan
    out = np.zeros_like(x)
    launch(row_ops.softmax, (2 * 64,), out, x, block=(64,))
    np.testing.assert_allclose(out[0], 1 / 40, rtol=1e-6)
    assert np.isnan(out[1, 17])


@pytest.mark.parametrize("block", [32, 64, 256, 1024])
@pytest.mark.parametrize("columns", [1, 31, 257, 3000])
def test_segmented_scan_in_blocks_of_any_size(block, columns):
    x = RNG.integers(-5, 6, (3, columns)).astype(np.float64)
    heads = (RNG.random(x.shape) < 0.05).astype(np.int32)
    out = np.zeros_like(x)
    launch(row_ops.segmented_scan, (3 * block,), out, x, heads, block=(block,))
    assert np.array_equal(out, row_ops.segmented_scan_reference(x, heads))


@pytest.mark.parametrize("columns", [1, 2, 511, 512, 513, 1023, 1024])
def test_bitonic_sort_sorts_repeated_and_infinite_keys(columns):
    x = RNG.integers(-20, 20, (2, columns)).astype(np.float64)
    x[0, ::7] = np.inf
    x[1, ::5] = -np.inf
    out = np.zeros_like(x)
    launch(row_ops.bitonic_sort, (2 * row_ops.SORT_THREADS,), out, x, block=(row_ops.SORT_THREADS,))
    assert np.array_equal(out, np.sort(x, axis=1))


def test_jacobi_finds_the_largest_change_and_converges():
    u, out = np.zeros((2, 30, 41))
    u[0], out[0] = 1.0, 1.0
    source = np.zeros_like(u)
    changes = []
    for _ in range(50):
        change = np.zeros(1)
        launch(stencils.jacobi_step, (41, 30), out, change, u, source, block=stencils.JACOBI_BLOCK)
        assert change[0] == np.abs(out - u).max()
        changes.append(change[0])
        u, out = out, u
    assert changes[0] == 0.25
    assert changes[-1] < 0.01


@pytest.mark.parametrize("grid", [1, 3, 40])
def test_kmeans_labels_and_counts_on_any_grid(grid):
    points, centres = RNG.random((1000, 5)), RNG.random((11, 5))
    sums, labels = np.zeros((11, 6)), np.zeros(1000, np.int32)
    launch(clustering.kmeans_step, (grid * 64,), sums, labels, points, centres)
    expected_sums, expected_labels = clustering.kmeans_step_reference(points, centres)
    assert np.array_equal(labels, expected_labels)
    assert np.array_equal(sums[:, 5], expected_sums[:, 5])
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-12)


def test_spmv_of_an_empty_matrix_is_zero():
    out = np.ones(33, np.float32)
    empty = np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(34, np.int32)
    launch(linalg.spmv_csr, (33 * 32,), out, *empty, np.ones(4, np.float32), block=(128,))
    assert not out.any()
