"""The table of all kernels: what tests compile, run and compare, and what a catalogue shows."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels import elementwise, filters, histograms, images

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KERNELS", "Example", "KernelSpec"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Example:
    """One launch of a kernel and what it must give.

    Attributes
    ----------
    arguments : tuple
        All arguments of the kernel: NumPy arrays, the output first, and scalars.
    expected : ndarray
        What the output holds afterwards, to the tolerance of the `KernelSpec`.
    threads : tuple of int
        Threads needed along x, then y.
    """

    arguments: tuple[Any, ...]
    expected: Any
    threads: tuple[int, ...]


@dataclass(frozen=True)
class KernelSpec:
    """One kernel of the library.

    Attributes
    ----------
    name : str
        Key in `KERNELS`.
    function : callable
        The kernel, undecorated.
    reference : callable
        Its NumPy reference.
    description : str
        One line.
    signatures : tuple of tuples of str
        Example argument types, by Numba's names: ``"float32[:,::1]"``, ``"int64"``.
    dimensions : int
        1 or 2: of the thread grid, and of the shape that `example` takes.
    tolerance : float
        Allowed error relative to the largest expected value; 0 means equal bits.
    example : callable
        ``example(shape, seed)`` makes an `Example` of that size.
    """

    name: str
    function: Callable[..., None]
    reference: Callable[..., Any]
    description: str
    signatures: tuple[tuple[str, ...], ...]
    dimensions: int
    tolerance: float
    example: Callable[[Shape, int], Example]


_F1, _F2, _F3, _F = "float32[::1]", "float32[:,::1]", "float32[:,:,::1]", "float32"
_I2, _I = "int32[:,::1]", "int64"


def _real(shape: Shape, seed: int) -> Any:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def _saxpy(shape: Shape, seed: int) -> Example:
    a, x, y = np.float32(1.7), _real(shape, seed), _real(shape, seed + 1)
    out = np.zeros_like(x)
    return Example((out, a, x, y), elementwise.saxpy_reference(a, x, y), shape)


def _axpby(shape: Shape, seed: int) -> Example:
    a, b, x, y = np.float32(1.7), np.float32(-0.3), _real(shape, seed), _real(shape, seed + 1)
    out = np.zeros_like(x)
    return Example((out, a, x, b, y), elementwise.axpby_reference(a, x, b, y), shape)


def _square(shape: Shape, seed: int) -> Example:
    x = _real(shape, seed)
    return Example((np.zeros_like(x), x), elementwise.square_reference(x), shape)


def _clamp(shape: Shape, seed: int) -> Example:
    x, low, high = _real(shape, seed), np.float32(0.25), np.float32(0.75)
    expected = elementwise.clamp_reference(x, low, high)
    return Example((np.zeros_like(x), x, low, high), expected, shape)


def _conv2d(shape: Shape, seed: int) -> Example:
    image, weights = _real(shape, seed), _real((3, 5), seed + 1)
    edge = (filters.EDGE_ZERO, filters.EDGE_CLAMP)[seed % 2]
    expected = filters.conv2d_reference(image, weights, edge)
    return Example((np.zeros_like(image), image, weights, edge), expected, shape[::-1])


def _box_blur(shape: Shape, seed: int) -> Example:
    image = _real(shape, seed)
    expected = filters.box_blur_reference(image, 2)
    return Example((np.zeros_like(image), image, 2), expected, shape[::-1])


def _gaussian_rows(shape: Shape, seed: int) -> Example:
    image, weights = _real(shape, seed), filters.gaussian_weights(1.3)
    expected = filters.gaussian_rows_reference(image, weights)
    return Example((np.zeros_like(image), image, weights), expected, shape[::-1])


def _gaussian_columns(shape: Shape, seed: int) -> Example:
    image, weights = _real(shape, seed), filters.gaussian_weights(1.3)
    expected = filters.gaussian_columns_reference(image, weights)
    return Example((np.zeros_like(image), image, weights), expected, shape[::-1])


def _bilateral(shape: Shape, seed: int) -> Example:
    image, space = _real(shape, seed), filters.gaussian_weights(1.5, 3)
    factor = filters.bilateral_range_factor(0.3)
    expected = filters.bilateral_reference(image, space, factor)
    return Example((np.zeros_like(image), image, space, factor), expected, shape[::-1])


def _mandelbrot(shape: Shape, seed: int) -> Example:
    steps = np.float32(3.0 / max(shape[1], 1)), np.float32(2.4 / max(shape[0], 1))
    parameters = (np.float32(-2.1 + 0.01 * seed), np.float32(-1.2), *steps, 60)
    expected = images.mandelbrot_reference((shape[0], shape[1]), *parameters)
    return Example((np.zeros(shape, np.int32), *parameters), expected, shape[::-1])


def _transpose(shape: Shape, seed: int) -> Example:
    image = _real(shape[::-1], seed)
    expected = images.transpose_reference(image)
    return Example((np.zeros(shape, np.float32), image), expected, shape[::-1])


def _add_noise(shape: Shape, seed: int) -> Example:
    image, noise = _real(shape, seed), _real(shape, seed + 1) - np.float32(0.5)
    parameters = (np.float32(0.5), np.float32(0.0), np.float32(1.0))
    expected = images.add_noise_reference(image, noise, *parameters)
    return Example((np.zeros_like(image), image, noise, *parameters), expected, shape[::-1])


def _rgb_to_gray(shape: Shape, seed: int) -> Example:
    image = _real((*shape, 3), seed)
    weights = (np.float32(0.299), np.float32(0.587), np.float32(0.114))
    expected = images.rgb_to_gray_reference(image, *weights)
    return Example((np.zeros(shape, np.float32), image, *weights), expected, shape[::-1])


def _histogram_partial(shape: Shape, seed: int) -> Example:
    values = _real(shape, seed) * np.float32(1.2) - np.float32(0.1)
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


def _spec(
    function: Callable[..., None],
    reference: Callable[..., Any],
    example: Callable[[Shape, int], Example],
    *signatures: tuple[str, ...],
    dimensions: int = 1,
    tolerance: float = 0.0,
) -> KernelSpec:
    description = (function.__doc__ or "").partition("\n")[0]
    return KernelSpec(
        function.__name__,
        function,
        reference,
        description,
        signatures,
        dimensions,
        tolerance,
        example,
    )


def _doubled(signature: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.replace("float32", "float64") for part in signature)


def _both(*signature: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return signature, _doubled(signature)


def _line_specs() -> list[KernelSpec]:
    e, h = elementwise, histograms
    counts = (_I2, _F1, _F, _F, _I), (_I2, "uint8[::1]", _F, _F, _I)
    return [
        _spec(e.saxpy, e.saxpy_reference, _saxpy, *_both(_F1, _F, _F1, _F1)),
        _spec(e.axpby, e.axpby_reference, _axpby, *_both(_F1, _F, _F1, _F, _F1)),
        _spec(e.square, e.square_reference, _square, *_both(_F1, _F1), ("int32[::1]",) * 2),
        _spec(e.clamp, e.clamp_reference, _clamp, *_both(_F1, _F1, _F, _F)),
        _spec(h.histogram_partial, h.histogram_partial_reference, _histogram_partial, *counts),
    ]


def _filter_specs() -> list[KernelSpec]:
    f = filters
    blur = _both(_F2, _F2, _F1)
    # float32 sums of up to 49 terms of one sign against float64.
    options: dict[str, Any] = {"dimensions": 2, "tolerance": 4e-7}
    columns = f.gaussian_columns
    return [
        _spec(f.conv2d, f.conv2d_reference, _conv2d, *_both(_F2, _F2, _F2, _I), **options),
        _spec(f.box_blur, f.box_blur_reference, _box_blur, *_both(_F2, _F2, _I), **options),
        _spec(f.gaussian_rows, f.gaussian_rows_reference, _gaussian_rows, *blur, **options),
        _spec(columns, f.gaussian_columns_reference, _gaussian_columns, *blur, **options),
        _spec(f.bilateral, f.bilateral_reference, _bilateral, *_both(_F2, _F2, _F1, _F), **options),
    ]


def _image_specs() -> list[KernelSpec]:
    g, h = images, histograms
    fractal = _both(_I2, _F, _F, _F, _F, _I)
    noise = _both(_F2, _F2, _F2, _F, _F, _F)
    gray = _both(_F2, _F3, _F, _F, _F)
    return [
        _spec(g.mandelbrot, g.mandelbrot_reference, _mandelbrot, *fractal, dimensions=2),
        _spec(g.transpose, g.transpose_reference, _transpose, *_both(_F2, _F2), dimensions=2),
        _spec(g.add_noise, g.add_noise_reference, _add_noise, *noise, dimensions=2),
        _spec(g.rgb_to_gray, g.rgb_to_gray_reference, _rgb_to_gray, *gray, dimensions=2),
        _spec(h.column_sum, h.column_sum_reference, _column_sum, (_I2, _I2), dimensions=2),
    ]


def _table() -> dict[str, KernelSpec]:
    specs = [*_line_specs(), *_filter_specs(), *_image_specs()]
    return {spec.name: spec for spec in specs}


#: Every kernel by name. The fill kernels of the random draws are in `nbrt_kernels.random.DRAWS`.
KERNELS: MappingProxyType[str, KernelSpec] = MappingProxyType(_table())
