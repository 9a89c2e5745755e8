"""Small image kernels: Mandelbrot set, transpose, noise, grey levels.

One thread per pixel, ``x, y = cuda.grid(2)`` with x fastest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nbrt_kernels._costs import costs, per_element
from nbrt_kernels._dialect import Array, Scalar, cuda
from nbrt_kernels._fma import fma_reference

__all__ = [
    "add_noise",
    "add_noise_reference",
    "mandelbrot",
    "mandelbrot_reference",
    "rgb_to_gray",
    "rgb_to_gray_reference",
    "transpose",
    "transpose_reference",
]


def mandelbrot(
    out: Array, left: Scalar, top: Scalar, step_x: Scalar, step_y: Scalar, iterations: Scalar
) -> None:
    """Count the steps of ``z = z**2 + c`` that stay within ``abs(z) <= 2``.

    Every product-sum is a fused multiply-add, so all devices compute equal counts.

    Parameters
    ----------
    out : integer, shape (height, width)
        Result, 0 to `iterations`.
    left, top : float32 or float64
        ``c`` of pixel (0, 0).
    step_x, step_y : dtype of `left`
        Change of the real part per column and of the imaginary part per row.
    iterations : int
        Largest count.
    """
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        # The coordinates have the dtype of the steps: float32 parameters stay float32.
        cx = cuda.fma(type(step_x)(x), step_x, left)
        cy = cuda.fma(type(step_y)(y), step_y, top)
        zx = cx - cx
        zy = cy - cy
        count = 0
        while count < iterations and cuda.fma(zx, zx, zy * zy) <= 4:
            next_x = cuda.fma(zx, zx, cuda.fma(-zy, zy, cx))
            zy = cuda.fma(zx + zx, zy, cy)
            zx = next_x
            count += 1
        out[y, x] = count


def mandelbrot_reference(
    shape: tuple[int, int], left: Any, top: Any, step_x: Any, step_y: Any, iterations: int
) -> npt.NDArray[np.int64]:
    """Return the counts of `mandelbrot`, equal pixel for pixel."""
    real = np.asarray(left).dtype.type
    columns = np.arange(shape[1]).astype(real)
    rows = np.arange(shape[0]).astype(real)
    cx = np.broadcast_to(fma_reference(columns, real(step_x), real(left))[None, :], shape)
    cy = np.broadcast_to(fma_reference(rows, real(step_y), real(top))[:, None], shape)
    zx, zy = np.zeros(shape, dtype=real), np.zeros(shape, dtype=real)
    count = np.zeros(shape, dtype=np.int64)
    alive = np.ones(shape, dtype=bool)
    for _ in range(iterations):
        alive &= fma_reference(zx, zx, zy * zy) <= 4
        if not alive.any():
            break
        next_x = fma_reference(zx, zx, fma_reference(-zy, zy, cx))
        next_y = fma_reference(zx + zx, zy, cy)
        # Escaped pixels keep their values, so that they do not overflow.
        zx, zy = np.where(alive, next_x, zx), np.where(alive, next_y, zy)
        count += alive
    return count


@costs(per_element(0))
def transpose(out: Array, image: Array) -> None:
    """Swap the axes of a matrix, without shared memory.

    Stores are contiguous along x; the strided loads of a thread block share cache lines, so a
    block should be about as high as it is wide.

    Parameters
    ----------
    out : any dtype, shape (columns, rows)
        Result; must not overlap `image`.
    image : any dtype, shape (rows, columns)
        Input.
    """
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        out[y, x] = image[x, y]


def transpose_reference(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the contiguous transpose."""
    return np.ascontiguousarray(image.T)


@costs(per_element(2))
def add_noise(
    out: Array, image: Array, noise: Array, sigma: Scalar, low: Scalar, high: Scalar
) -> None:
    """Compute ``clip(image + sigma * noise, low, high)``.

    Parameters
    ----------
    out : floating, shape (height, width)
        Result; may be `image` or `noise`.
    image, noise : floating, shape (height, width)
        Picture and standard normal noise.
    sigma, low, high : scalars of the dtype of `image`
        Standard deviation of the noise and limits of the result.
    """
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        value = cuda.fma(sigma, noise[y, x], image[y, x])
        value = value if value > low else low
        out[y, x] = value if value < high else high


def add_noise_reference(
    image: npt.NDArray[Any], noise: npt.NDArray[Any], sigma: Any, low: Any, high: Any
) -> npt.NDArray[Any]:
    """Return the noisy picture of `add_noise`, bit for bit."""
    value = fma_reference(image.dtype.type(sigma), noise, image)
    return np.asarray(np.clip(value, image.dtype.type(low), image.dtype.type(high)))


@costs(per_element(5))
def rgb_to_gray(out: Array, image: Array, red: Scalar, green: Scalar, blue: Scalar) -> None:
    """Mix three channels into grey: ``fma(red, r, fma(green, g, blue * b))``.

    Parameters
    ----------
    out : floating, shape (height, width)
        Result.
    image : floating, shape (height, width, 3)
        Red, green and blue.
    red, green, blue : scalars of the dtype of `image`
        Weights; 0.299, 0.587, 0.114 is the luma of ITU-R BT.601, 0.2126, 0.7152, 0.0722 that of
        BT.709.
    """
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        mixed = cuda.fma(green, image[y, x, 1], blue * image[y, x, 2])
        out[y, x] = cuda.fma(red, image[y, x, 0], mixed)


def rgb_to_gray_reference(
    image: npt.NDArray[Any], red: Any, green: Any, blue: Any
) -> npt.NDArray[Any]:
    """Return the grey picture of `rgb_to_gray`, bit for bit."""
    real = image.dtype.type
    mixed = fma_reference(real(green), image[..., 1], real(blue) * image[..., 2])
    return fma_reference(real(red), image[..., 0], mixed)
