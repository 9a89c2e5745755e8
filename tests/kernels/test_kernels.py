"""Every kernel of the library against its NumPy reference, and the references against SciPy."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from scipy import ndimage

import nbrt_kernels.random
from helpers.kernels import launch
from nbrt_kernels import KERNELS, elementwise, filters, histograms, images
from nbrt_kernels._dialect import cuda

LINES = [(1,), (31,), (32,), (1000,), (4097,)]
PLANES = [(1, 1), (1, 70), (70, 1), (17, 33), (32, 64), (3, 5), (2, 1000)]
SPACES = [(1, 1, 1), (3, 9, 35), (2, 17, 5), (5, 32, 16), (1, 1, 40)]

CASES = [
    pytest.param(spec, shape, id=f"{spec.name}-{'x'.join(map(str, shape))}")
    for spec in KERNELS.values()
    for shape in (LINES, PLANES, SPACES)[spec.dimensions - 1]
]
ANY_BLOCK = [spec for spec in KERNELS.values() if not spec.block]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("spec", "shape"), CASES)
def test_kernel_equals_its_reference(spec, shape, seed):
    example = spec.example(shape, seed)
    block = spec.block or (16, 4)[: spec.dimensions]
    launch(spec.function, example.threads, *example.arguments, block=block)
    result, expected = example.arguments[0], example.expected
    if spec.tolerance == 0.0:
        assert np.array_equal(result, expected)
    else:
        assert np.abs(result - expected).max() <= spec.tolerance * np.abs(expected).max()


@pytest.mark.parametrize("spec", ANY_BLOCK, ids=lambda spec: spec.name)
def test_result_does_not_depend_on_the_thread_block(spec):
    shape = (1003,) if spec.dimensions == 1 else (37, 45)
    results = []
    for block in ((32, 1), (64, 1), (16, 16), (128, 8)):
        example = spec.example(shape, 2)
        if spec.dimensions == 1:
            block = (block[0] * block[1],)
        launch(spec.function, example.threads, *example.arguments, block=block)
        results.append(example.arguments[0])
    assert all(np.array_equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("spec", KERNELS.values(), ids=list(KERNELS))
def test_table_describes_the_kernel(spec):
    assert getattr(nbrt_kernels, spec.name) is spec.function
    assert spec.description.endswith(".")
    parameters = inspect.signature(spec.function).parameters
    assert all(len(signature) == len(parameters) for signature in spec.signatures)


def test_exports_are_complete():
    for library in (nbrt_kernels, nbrt_kernels.random):
        exported = library.__all__
        assert len(set(exported)) == len(exported)
        assert all(hasattr(library, name) for name in exported)
    assert set(KERNELS) <= set(nbrt_kernels.__all__)


# -- maps --------------------------------------------------------------------------------------


def test_map_of_a_plain_function():
    def cube_plus_one(x):
        return x * x * x + 1

    x = np.arange(100, dtype=np.int64)
    out = np.zeros_like(x)
    launch(elementwise.make_map(cube_plus_one), (100,), out, x)
    assert np.array_equal(out, x**3 + 1)


def test_map_of_device_code_with_two_inputs():
    @cuda.jit(device=True)
    def larger(a, b):
        return a if a > b else b

    x, y = np.random.default_rng(0).random((2, 77))
    out = np.zeros_like(x)
    launch(elementwise.make_map(larger, 2), (77,), out, x, y)
    assert np.array_equal(out, np.maximum(x, y))


def test_map_of_three_inputs_is_refused():
    with pytest.raises(ValueError, match="expected 1 or 2 inputs, got 3"):
        elementwise.make_map(abs, 3)


def test_clamp_sends_nan_to_the_lower_limit():
    x = np.array([np.nan, -np.inf, np.inf, 0.5], dtype=np.float32)
    out = np.zeros_like(x)
    launch(elementwise.clamp, (4,), out, x, np.float32(0.0), np.float32(1.0))
    assert out.tolist() == [0.0, 0.0, 1.0, 0.5]


# -- filters against SciPy -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    return np.random.default_rng(3).random((40, 53)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [(1, 1), (3, 3), (5, 1), (1, 7), (9, 11), (81, 3)])
@pytest.mark.parametrize(
    ("edge", "mode"), [(filters.EDGE_ZERO, "constant"), (filters.EDGE_CLAMP, "nearest")]
)
def test_conv2d_is_scipys_correlate(picture, dtype, size, edge, mode):
    image = picture.astype(dtype)
    weights = np.random.default_rng(4).standard_normal(size).astype(dtype)
    out = np.zeros_like(image)
    launch(filters.conv2d, image.shape[::-1], out, image, weights, edge, block=(32, 2))
    wide = image.astype(np.float64)
    expected = ndimage.correlate(wide, weights.astype(np.float64), mode=mode)
    # Terms of both signs: the error scales with their magnitudes, not with the sum.
    bound = np.abs(weights).sum() * np.finfo(dtype).eps * 4
    np.testing.assert_allclose(out, expected, rtol=0, atol=bound)
    np.testing.assert_allclose(filters.conv2d_reference(image, weights, edge), expected, atol=1e-12)


def test_box_blur_is_scipys_uniform_filter(picture):
    out = np.zeros_like(picture)
    launch(filters.box_blur, picture.shape[::-1], out, picture, 3, block=(32, 2))
    expected = ndimage.uniform_filter(picture.astype(np.float64), 7, mode="nearest")
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_gaussian_blur_is_scipys(picture):
    weights = filters.gaussian_weights(1.7, 6)
    half, out = np.zeros_like(picture), np.zeros_like(picture)
    threads = picture.shape[::-1]
    launch(filters.gaussian_rows, threads, half, picture, weights, block=(32, 2))
    launch(filters.gaussian_columns, threads, out, half, weights, block=(32, 2))
    wide = picture.astype(np.float64)
    expected = ndimage.gaussian_filter(wide, 1.7, radius=6, mode="nearest")
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_gaussian_weights_are_normal_and_symmetric():
    weights = filters.gaussian_weights(2.0, dtype=np.float64)
    assert weights.shape == (13,)
    assert weights.sum() == pytest.approx(1.0)
    assert np.array_equal(weights, weights[::-1])
    assert weights[7] / weights[6] == pytest.approx(np.exp(-0.125))


@pytest.mark.parametrize(("sigma", "radius"), [(0.0, None), (-1.0, 2), (1.0, -1)])
def test_impossible_gaussian_is_refused(sigma, radius):
    with pytest.raises(ValueError, match="expected sigma > 0 and radius >= 0"):
        filters.gaussian_weights(sigma, radius)


def test_impossible_range_is_refused():
    with pytest.raises(ValueError, match="expected sigma > 0"):
        filters.bilateral_range_factor(0.0)


def test_bilateral_denoises_and_keeps_edges():
    y, x = np.mgrid[:96, :96]
    clean = (0.25 + 0.5 * (x > 48) + 0.1 * np.sin(y / 15)).astype(np.float32)
    sigma = 0.05
    noise = np.random.default_rng(5).standard_normal(clean.shape).astype(np.float32)
    noisy, out = np.zeros_like(clean), np.zeros_like(clean)
    limits = np.float32(sigma), np.float32(0.0), np.float32(1.0)
    launch(images.add_noise, (96, 96), noisy, clean, noise, *limits, block=(32, 2))
    space, factor = filters.gaussian_weights(2.0, 5), filters.bilateral_range_factor(3 * sigma)
    launch(filters.bilateral, (96, 96), out, noisy, space, factor, block=(32, 2))

    def psnr(image):
        return -10 * np.log10(np.mean((image - clean) ** 2))

    assert psnr(out) > psnr(noisy) + 10
    step = out[:, 50:].mean() - out[:, :48].mean()
    assert step == pytest.approx(clean[:, 50:].mean() - clean[:, :48].mean(), abs=0.01)


# -- histogram ---------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [1, 2, 64, 100_000])
@pytest.mark.parametrize("n", [0, 1, 255, 50_000])
def test_histogram_is_numpys(n, parallel):
    values = np.random.default_rng(6).normal(0.5, 0.3, n).astype(np.float32)
    bins = 32
    rows, run = histograms.histogram_plan(n, bins, parallel)
    partial = np.zeros((rows, bins), np.int32)
    low, scale = np.float32(0.0), np.float32(bins)
    launch(histograms.histogram_partial, (rows,), partial, values, low, scale, run)
    coarse, counts = np.zeros((4, bins), np.int32), np.zeros((1, bins), np.int32)
    launch(histograms.column_sum, (bins, 4), coarse, partial, block=(32, 2))
    launch(histograms.column_sum, (bins, 1), counts, coarse, block=(32, 1))
    # Bins that are exact in binary; NumPy's last bin is closed, ours is open.
    expected, _ = np.histogram(values[values < 1.0], bins=bins, range=(0.0, 1.0))
    assert np.array_equal(counts[0], expected)
    assert np.array_equal(histograms.histogram_reference(values, bins, 0.0, 1.0), expected)


def test_histogram_ignores_what_no_bin_holds():
    values = np.array([np.nan, np.inf, -np.inf, -0.1, 1.0, 1e30, 0.5], dtype=np.float32)
    partial = np.zeros((2, 4), np.int32)
    low, scale = np.float32(0.0), np.float32(4.0)
    launch(histograms.histogram_partial, (2,), partial, values, low, scale, 1)
    assert partial.sum(axis=0).tolist() == [0, 0, 1, 0]


def test_histogram_of_bytes():
    values = np.random.default_rng(7).integers(0, 256, 10_000, dtype=np.uint8)
    partial = np.zeros((8, 256), np.int32)
    zero, one = np.float32(0.0), np.float32(1.0)
    launch(histograms.histogram_partial, (8,), partial, values, zero, one, 16)
    assert np.array_equal(partial.sum(axis=0), np.bincount(values, minlength=256))


# -- Mandelbrot --------------------------------------------------------------------------------


@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_mandelbrot_knows_the_set(real):
    out = np.zeros((3, 5), np.int32)
    # Columns -2, -1, 0, 1, 2 and rows -1, 0, 1.
    parameters = (real(-2), real(-1), real(1), real(1), 50)
    launch(images.mandelbrot, (5, 3), out, *parameters)
    assert out[1].tolist() == [50, 50, 50, 3, 2]
    assert out[0, 2] == 50  # -i stays bounded
    expected = images.mandelbrot_reference((3, 5), *parameters)
    assert np.array_equal(out, expected)
