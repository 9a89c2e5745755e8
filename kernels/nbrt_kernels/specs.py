"""The table of all kernels, with example inputs and expected outputs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels import (
    clustering,
    elementwise,
    filters,
    histograms,
    images,
    linalg,
    particles,
    row_ops,
    stencils,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KERNELS", "Example", "KernelSpec"]

Shape = tuple[int, ...]

_F1, _F2, _F3, _F = "float32[::1]", "float32[:,::1]", "float32[:,:,::1]", "float32"
_I1, _I2, _I = "int32[::1]", "int32[:,::1]", "int64"
_ROW_BLOCK = (256,)


@dataclass(frozen=True)
class Example:
    """One launch of a kernel and its expected result.

    Attributes
    ----------
    arguments : tuple
        All arguments of the kernel: NumPy arrays, the output first, and scalars.
    expected : ndarray
        The output after the launch, within the tolerance of the `KernelSpec`.
    threads : tuple of int
        Threads needed along x, then y and z.
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
        1 to 3: of the shape that `example` takes.
    tolerance : float
        Allowed error relative to the largest expected value; 0 means equal bits.
    example : callable
        ``example(shape, seed)`` makes an `Example` of that size.
    block : tuple of int
        The thread block that `example` requires. Empty: any block, with one index of the grid for
        each of the `dimensions`.
    """

    name: str
    function: Callable[..., None]
    reference: Callable[..., Any]
    description: str
    signatures: tuple[tuple[str, ...], ...]
    dimensions: int
    tolerance: float
    example: Callable[[Shape, int], Example]
    block: tuple[int, ...] = ()

    @property
    def cost(self) -> Callable[..., tuple[float | None, float]] | None:
        """Takes the kernel's arguments; returns its floating-point operations and bytes."""
        cost: Callable[..., Any] | None = getattr(self.function, "kernel_cost", None)
        return cost


def _spec(
    function: Callable[..., None],
    example: Callable[[Shape, int], Example],
    *signatures: tuple[str, ...],
    dimensions: int = 1,
    tolerance: float = 0.0,
    block: tuple[int, ...] = (),
) -> KernelSpec:
    """Describe a kernel; name, reference and description come from the function."""
    name = function.__name__
    reference = getattr(sys.modules[function.__module__], f"{name}_reference")
    description = (function.__doc__ or "").partition("\n")[0]
    return KernelSpec(
        name, function, reference, description, signatures, dimensions, tolerance, example, block
    )


def _both(*signature: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a signature in float32 and the same in float64."""
    return signature, tuple(part.replace("float32", "float64") for part in signature)


def _uniform(shape: Shape, seed: int) -> Any:
    """Draw float32 values from [0, 1)."""
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def _reversed(shape: Shape) -> Shape:
    return shape[::-1]


def _row_threads(shape: Shape) -> Shape:
    return (shape[0] * _ROW_BLOCK[0],)


def _sort_threads(shape: Shape) -> Shape:
    return (shape[0] * row_ops.SORT_THREADS,)


def _example_of(
    reference: Callable[..., Any], threads: Callable[[Shape], Shape] = _reversed
) -> Callable[[Callable[[Shape, int], tuple[Any, ...]]], Callable[[Shape, int], Example]]:
    """Return a decorator that makes examples from inputs, all arguments after the output."""

    def decorate(inputs: Callable[[Shape, int], tuple[Any, ...]]) -> Callable[..., Example]:
        def example(shape: Shape, seed: int) -> Example:
            arguments = inputs(shape, seed)
            expected = reference(*arguments)
            out = np.zeros(expected.shape, arguments[0].dtype)
            return Example((out, *arguments), expected, threads(shape))

        return example

    return decorate


@_example_of(elementwise.saxpy_reference)
def _saxpy(shape: Shape, seed: int) -> tuple[Any, ...]:
    return np.float32(1.7), _uniform(shape, seed), _uniform(shape, seed + 1)


@_example_of(elementwise.axpby_reference)
def _axpby(shape: Shape, seed: int) -> tuple[Any, ...]:
    return np.float32(1.7), _uniform(shape, seed), np.float32(-0.3), _uniform(shape, seed + 1)


@_example_of(elementwise.square_reference)
def _square(shape: Shape, seed: int) -> tuple[Any, ...]:
    return (_uniform(shape, seed),)


@_example_of(elementwise.clamp_reference)
def _clamp(shape: Shape, seed: int) -> tuple[Any, ...]:
    return _uniform(shape, seed), np.float32(0.25), np.float32(0.75)


@_example_of(filters.conv2d_reference)
def _conv2d(shape: Shape, seed: int) -> tuple[Any, ...]:
    edge = (filters.EDGE_ZERO, filters.EDGE_CLAMP)[seed % 2]
    return _uniform(shape, seed), _uniform((3, 5), seed + 1), edge


@_example_of(filters.box_blur_reference)
def _box_blur(shape: Shape, seed: int) -> tuple[Any, ...]:
    return _uniform(shape, seed), 2


@_example_of(filters.gaussian_rows_reference)
def _gaussian_rows(shape: Shape, seed: int) -> tuple[Any, ...]:
    return _uniform(shape, seed), filters.gaussian_weights(1.3)


@_example_of(filters.gaussian_columns_reference)
def _gaussian_columns(shape: Shape, seed: int) -> tuple[Any, ...]:
    return _uniform(shape, seed), filters.gaussian_weights(1.3)


@_example_of(filters.bilateral_reference)
def _bilateral(shape: Shape, seed: int) -> tuple[Any, ...]:
    space, factor = filters.gaussian_weights(1.5, 3), filters.bilateral_range_factor(0.3)
    return _uniform(shape, seed), space, factor


def _mandelbrot(shape: Shape, seed: int) -> Example:
    steps = np.float32(3.0 / max(shape[1], 1)), np.float32(2.4 / max(shape[0], 1))
    parameters = (np.float32(-2.1 + 0.01 * seed), np.float32(-1.2), *steps, 60)
    expected = images.mandelbrot_reference((shape[0], shape[1]), *parameters)
    return Example((np.zeros(shape, np.int32), *parameters), expected, shape[::-1])


@_example_of(images.transpose_reference)
def _transpose(shape: Shape, seed: int) -> tuple[Any, ...]:
    return (_uniform(shape[::-1], seed),)


@_example_of(images.add_noise_reference)
def _add_noise(shape: Shape, seed: int) -> tuple[Any, ...]:
    parameters = (np.float32(0.5), np.float32(0.0), np.float32(1.0))
    return _uniform(shape, seed), _uniform(shape, seed + 1) - np.float32(0.5), *parameters


@_example_of(images.rgb_to_gray_reference)
def _rgb_to_gray(shape: Shape, seed: int) -> tuple[Any, ...]:
    weights = (np.float32(0.299), np.float32(0.587), np.float32(0.114))
    return _uniform((*shape, 3), seed), *weights


def _histogram_partial(shape: Shape, seed: int) -> Example:
    values = _uniform(shape, seed) * np.float32(1.2) - np.float32(0.1)
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


@_example_of(row_ops.softmax_reference, _row_threads)
def _softmax(shape: Shape, seed: int) -> tuple[Any, ...]:
    return ((_uniform(shape, seed) - np.float32(0.5)) * np.float32(200),)


@_example_of(row_ops.layer_norm_reference, _row_threads)
def _layer_norm(shape: Shape, seed: int) -> tuple[Any, ...]:
    weight, bias = _uniform(shape[1:], seed + 1), _uniform(shape[1:], seed + 2)
    return _uniform(shape, seed) + np.float32(3.0), weight, bias, np.float32(1e-3)


@_example_of(row_ops.bitonic_sort_reference, _sort_threads)
def _bitonic_sort(shape: Shape, seed: int) -> tuple[Any, ...]:
    return (_uniform(shape, seed),)


@_example_of(row_ops.segmented_scan_reference, _row_threads)
def _segmented_scan(shape: Shape, seed: int) -> tuple[Any, ...]:
    return _uniform(shape, seed), (_uniform(shape, seed + 1) < 0.02).astype(np.int32)


@_example_of(stencils.heat_step_reference, lambda shape: (shape[2], shape[1]))
def _heat_step(shape: Shape, seed: int) -> tuple[Any, ...]:
    return _uniform(shape, seed), np.float32(0.1)


def _jacobi_step(shape: Shape, seed: int) -> Example:
    u, source = _uniform(shape, seed), _uniform(shape, seed + 1)
    out, change = np.zeros_like(u), np.zeros(1, np.float32)
    expected = stencils.jacobi_step_reference(u, source)
    return Example((out, change, u, source), expected, shape[::-1])


@_example_of(linalg.batched_matmul_reference)
def _batched_matmul(shape: Shape, seed: int) -> tuple[Any, ...]:
    batch, height, width = shape
    inner = height + width // 2
    return _uniform((batch, height, inner), seed), _uniform((batch, inner, width), seed + 1)


def _matrix_threads(shape: Shape) -> Shape:
    blocks = [-(-size // linalg.MATRIX_TILE) for size in shape]
    return blocks[1] * linalg.MATRIX_THREADS, blocks[0]


@_example_of(linalg.matmul_reference, _matrix_threads)
def _matmul(shape: Shape, seed: int) -> tuple[Any, ...]:
    height, width = shape
    inner = height + width // 2
    return _uniform((height, inner), seed), _uniform((inner, width), seed + 1)


@_example_of(linalg.spmv_csr_reference, lambda shape: (32 * shape[0],))
def _spmv_csr(shape: Shape, seed: int) -> tuple[Any, ...]:
    (n,) = shape
    generator = np.random.default_rng(seed)
    # Rows without elements, short rows, and rows longer than a warp.
    lengths = generator.integers(0, 5, n) ** 3
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    columns = generator.integers(0, n, offsets[-1], dtype=np.int32)
    return _uniform((int(offsets[-1]),), seed + 1), columns, offsets, _uniform((n,), seed + 2)


@_example_of(particles.nbody_reference)
def _nbody(shape: Shape, seed: int) -> tuple[Any, ...]:
    return _uniform((*shape, 4), seed), np.float32(1e-2)


def _kmeans_step(shape: Shape, seed: int) -> Example:
    (n,) = shape
    clusters, dimensions = 7, 3
    offsets = np.arange(clusters, dtype=np.float32)[:, None]
    centres = _uniform((clusters, dimensions), seed) + offsets
    generator = np.random.default_rng(seed)
    noise = generator.normal(0, 0.1, (n, dimensions)).astype(np.float32)
    points = centres[generator.integers(0, clusters, n)] + noise
    sums = np.zeros((clusters, dimensions + 1), np.float32)
    expected, _ = clustering.kmeans_step_reference(points, centres)
    # With fewer threads than points, the grid-stride loop iterates.
    return Example((sums, np.zeros(n, np.int32), points, centres), expected, (min(n, 512),))


def _line_specs() -> list[KernelSpec]:
    e = elementwise
    counts = (_I2, _F1, _F, _F, _I), (_I2, "uint8[::1]", _F, _F, _I)
    return [
        _spec(e.saxpy, _saxpy, *_both(_F1, _F, _F1, _F1)),
        _spec(e.axpby, _axpby, *_both(_F1, _F, _F1, _F, _F1)),
        _spec(e.square, _square, *_both(_F1, _F1), ("int32[::1]",) * 2),
        _spec(e.clamp, _clamp, *_both(_F1, _F1, _F, _F)),
        _spec(histograms.histogram_partial, _histogram_partial, *counts),
    ]


def _image_specs() -> list[KernelSpec]:
    f, g = filters, images
    blur, noise = _both(_F2, _F2, _F1), _both(_F2, _F2, _F2, _F, _F, _F)
    # float32 sums of up to 49 terms of one sign against float64.
    sums: dict[str, Any] = {"dimensions": 2, "tolerance": 4e-7}
    return [
        _spec(f.conv2d, _conv2d, *_both(_F2, _F2, _F2, _I), **sums),
        _spec(f.box_blur, _box_blur, *_both(_F2, _F2, _I), **sums),
        _spec(f.gaussian_rows, _gaussian_rows, *blur, **sums),
        _spec(f.gaussian_columns, _gaussian_columns, *blur, **sums),
        _spec(f.bilateral, _bilateral, *_both(_F2, _F2, _F1, _F), **sums),
        _spec(g.mandelbrot, _mandelbrot, *_both(_I2, _F, _F, _F, _F, _I), dimensions=2),
        _spec(g.transpose, _transpose, *_both(_F2, _F2), dimensions=2),
        _spec(g.add_noise, _add_noise, *noise, dimensions=2),
        _spec(g.rgb_to_gray, _rgb_to_gray, *_both(_F2, _F3, _F, _F, _F), dimensions=2),
        _spec(histograms.column_sum, _column_sum, (_I2, _I2), dimensions=2),
    ]


def _row_specs() -> list[KernelSpec]:
    r = row_ops
    # Sums in float32, by 256 threads and then a tree, against float64.
    sums: dict[str, Any] = {"dimensions": 2, "tolerance": 2e-6, "block": _ROW_BLOCK}
    sort: dict[str, Any] = {"dimensions": 2, "block": (r.SORT_THREADS,)}
    return [
        _spec(r.softmax, _softmax, (_F2, _F2), **sums),
        _spec(r.layer_norm, _layer_norm, *_both(_F2, _F2, _F1, _F1, _F), **sums),
        _spec(r.bitonic_sort, _bitonic_sort, *_both(_F2, _F2), **sort),
        _spec(r.segmented_scan, _segmented_scan, *_both(_F2, _F2, _I2), **sums),
    ]


def _block_specs() -> list[KernelSpec]:
    s, a = stencils, linalg
    heat: dict[str, Any] = {"dimensions": 3, "tolerance": 4e-7, "block": s.HEAT_BLOCK}
    jacobi: dict[str, Any] = {"dimensions": 2, "tolerance": 4e-7, "block": s.JACOBI_BLOCK}
    batch: dict[str, Any] = {"dimensions": 3, "tolerance": 2e-6, "block": (a.MATMUL_TILE,) * 2}
    matrix: dict[str, Any] = {"dimensions": 2, "tolerance": 2e-6, "block": (a.MATRIX_THREADS,)}
    line: dict[str, Any] = {"tolerance": 2e-6, "block": (128,)}
    # Sequential float32 sums of thousands of numbers of both signs.
    bodies: dict[str, Any] = {"tolerance": 1e-5, "block": (particles.BODIES_BLOCK,)}
    step = _both(_F2, _I1, _F2, _F2)
    return [
        _spec(s.heat_step, _heat_step, *_both(_F3, _F3, _F), **heat),
        _spec(s.jacobi_step, _jacobi_step, *_both(_F2, _F1, _F2, _F2), **jacobi),
        _spec(a.batched_matmul, _batched_matmul, *_both(_F3, _F3, _F3), **batch),
        _spec(a.matmul, _matmul, (_F2, _F2, _F2), **matrix),
        _spec(a.spmv_csr, _spmv_csr, *_both(_F1, _F1, _I1, _I1, _F1), **line),
        _spec(particles.nbody, _nbody, *_both(_F2, _F2, _F), **bodies),
        _spec(clustering.kmeans_step, _kmeans_step, *step, **line),
    ]


def _table() -> dict[str, KernelSpec]:
    specs = [*_line_specs(), *_image_specs(), *_row_specs(), *_block_specs()]
    return {spec.name: spec for spec in specs}


#: Every kernel by name. `nbrt_kernels.random.fills_of` returns the kernels of random draws.
KERNELS: MappingProxyType[str, KernelSpec] = MappingProxyType(_table())
