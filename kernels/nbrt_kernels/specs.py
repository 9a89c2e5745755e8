"""The table of all kernels: what tests compile, run and compare, and what a catalogue shows."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from nbrt_kernels import elementwise, filters, histograms, images
from nbrt_kernels._spec import Example, KernelSpec, Shape, both, spec, uniform
from nbrt_kernels.block_specs import block_specs

__all__ = ["KERNELS", "Example", "KernelSpec"]


_F1, _F2, _F3, _F = "float32[::1]", "float32[:,::1]", "float32[:,:,::1]", "float32"
_I2, _I = "int32[:,::1]", "int64"


def _saxpy(shape: Shape, seed: int) -> Example:
    a, x, y = np.float32(1.7), uniform(shape, seed), uniform(shape, seed + 1)
    out = np.zeros_like(x)
    return Example((out, a, x, y), elementwise.saxpy_reference(a, x, y), shape)


def _axpby(shape: Shape, seed: int) -> Example:
    a, b, x, y = np.float32(1.7), np.float32(-0.3), uniform(shape, seed), uniform(shape, seed + 1)
    out = np.zeros_like(x)
    return Example((out, a, x, b, y), elementwise.axpby_reference(a, x, b, y), shape)


def _square(shape: Shape, seed: int) -> Example:
    x = uniform(shape, seed)
    return Example((np.zeros_like(x), x), elementwise.square_reference(x), shape)


def _clamp(shape: Shape, seed: int) -> Example:
    x, low, high = uniform(shape, seed), np.float32(0.25), np.float32(0.75)
    expected = elementwise.clamp_reference(x, low, high)
    return Example((np.zeros_like(x), x, low, high), expected, shape)


def _conv2d(shape: Shape, seed: int) -> Example:
    image, weights = uniform(shape, seed), uniform((3, 5), seed + 1)
    edge = (filters.EDGE_ZERO, filters.EDGE_CLAMP)[seed % 2]
    expected = filters.conv2d_reference(image, weights, edge)
    return Example((np.zeros_like(image), image, weights, edge), expected, shape[::-1])


def _box_blur(shape: Shape, seed: int) -> Example:
    image = uniform(shape, seed)
    expected = filters.box_blur_reference(image, 2)
    return Example((np.zeros_like(image), image, 2), expected, shape[::-1])


def _gaussian_rows(shape: Shape, seed: int) -> Example:
    image, weights = uniform(shape, seed), filters.gaussian_weights(1.3)
    expected = filters.gaussian_rows_reference(image, weights)
    return Example((np.zeros_like(image), image, weights), expected, shape[::-1])


def _gaussian_columns(shape: Shape, seed: int) -> Example:
    image, weights = uniform(shape, seed), filters.gaussian_weights(1.3)
    expected = filters.gaussian_columns_reference(image, weights)
    return Example((np.zeros_like(image), image, weights), expected, shape[::-1])


def _bilateral(shape: Shape, seed: int) -> Example:
    image, space = uniform(shape, seed), filters.gaussian_weights(1.5, 3)
    factor = filters.bilateral_range_factor(0.3)
    expected = filters.bilateral_reference(image, space, factor)
    return Example((np.zeros_like(image), image, space, factor), expected, shape[::-1])


def _mandelbrot(shape: Shape, seed: int) -> Example:
    steps = np.float32(3.0 / max(shape[1], 1)), np.float32(2.4 / max(shape[0], 1))
    parameters = (np.float32(-2.1 + 0.01 * seed), np.float32(-1.2), *steps, 60)
    expected = images.mandelbrot_reference((shape[0], shape[1]), *parameters)
    return Example((np.zeros(shape, np.int32), *parameters), expected, shape[::-1])


def _transpose(shape: Shape, seed: int) -> Example:
    image = uniform(shape[::-1], seed)
    expected = images.transpose_reference(image)
    return Example((np.zeros(shape, np.float32), image), expected, shape[::-1])


def _add_noise(shape: Shape, seed: int) -> Example:
    image, noise = uniform(shape, seed), uniform(shape, seed + 1) - np.float32(0.5)
    parameters = (np.float32(0.5), np.float32(0.0), np.float32(1.0))
    expected = images.add_noise_reference(image, noise, *parameters)
    return Example((np.zeros_like(image), image, noise, *parameters), expected, shape[::-1])


def _rgb_to_gray(shape: Shape, seed: int) -> Example:
    image = uniform((*shape, 3), seed)
    weights = (np.float32(0.299), np.float32(0.587), np.float32(0.114))
    expected = images.rgb_to_gray_reference(image, *weights)
    return Example((np.zeros(shape, np.float32), image, *weights), expected, shape[::-1])


def _histogram_partial(shape: Shape, seed: int) -> Example:
    values = uniform(shape, seed) * np.float32(1.2) - np.float32(0.1)
    rows, bins, run = 7, 13, 4
    low, scale = np.float32(0.0), np.float32(bins)
    partial = np.zeros((rows, bins), np.int32)
    expected = histograms.histogram_partial_reference(rows, bins, values, low, scale, run)
    return Example((partial, values, low, scale, run), expected, (rows,))


def _column_sum(shape: Shape, seed: int) -> Example:
    partial = np.random.default_rng(seed).integers(0, 100, shape, dtype=np.int32)
    groups = min(3, shape[0])
    expected = histograms.column_sum_reference(partial, groups)
    return Example((np.zeros_like(expected), partial), expected, expected.shape[::-1])


def _line_specs() -> list[KernelSpec]:
    e, h = elementwise, histograms
    counts = (_I2, _F1, _F, _F, _I), (_I2, "uint8[::1]", _F, _F, _I)
    return [
        spec(e.saxpy, e.saxpy_reference, _saxpy, *both(_F1, _F, _F1, _F1)),
        spec(e.axpby, e.axpby_reference, _axpby, *both(_F1, _F, _F1, _F, _F1)),
        spec(e.square, e.square_reference, _square, *both(_F1, _F1), ("int32[::1]",) * 2),
        spec(e.clamp, e.clamp_reference, _clamp, *both(_F1, _F1, _F, _F)),
        spec(h.histogram_partial, h.histogram_partial_reference, _histogram_partial, *counts),
    ]


def _filter_specs() -> list[KernelSpec]:
    f = filters
    blur = both(_F2, _F2, _F1)
    # float32 sums of up to 49 terms of one sign against float64.
    options: dict[str, Any] = {"dimensions": 2, "tolerance": 4e-7}
    columns = f.gaussian_columns
    return [
        spec(f.conv2d, f.conv2d_reference, _conv2d, *both(_F2, _F2, _F2, _I), **options),
        spec(f.box_blur, f.box_blur_reference, _box_blur, *both(_F2, _F2, _I), **options),
        spec(f.gaussian_rows, f.gaussian_rows_reference, _gaussian_rows, *blur, **options),
        spec(columns, f.gaussian_columns_reference, _gaussian_columns, *blur, **options),
        spec(f.bilateral, f.bilateral_reference, _bilateral, *both(_F2, _F2, _F1, _F), **options),
    ]


def _image_specs() -> list[KernelSpec]:
    g, h = images, histograms
    fractal = both(_I2, _F, _F, _F, _F, _I)
    noise = both(_F2, _F2, _F2, _F, _F, _F)
    gray = both(_F2, _F3, _F, _F, _F)
    return [
        spec(g.mandelbrot, g.mandelbrot_reference, _mandelbrot, *fractal, dimensions=2),
        spec(g.transpose, g.transpose_reference, _transpose, *both(_F2, _F2), dimensions=2),
        spec(g.add_noise, g.add_noise_reference, _add_noise, *noise, dimensions=2),
        spec(g.rgb_to_gray, g.rgb_to_gray_reference, _rgb_to_gray, *gray, dimensions=2),
        spec(h.column_sum, h.column_sum_reference, _column_sum, (_I2, _I2), dimensions=2),
    ]


def _table() -> dict[str, KernelSpec]:
    specs = [*_line_specs(), *_filter_specs(), *_image_specs(), *block_specs()]
    return {each.name: each for each in specs}


#: Every kernel by name. Those of the random draws are found by `nbrt_kernels.random.fills_of`.
KERNELS: MappingProxyType[str, KernelSpec] = MappingProxyType(_table())
