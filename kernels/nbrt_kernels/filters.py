"""Image filters: convolution, box blur, Gaussian blur and a bilateral denoiser.

Images are 2-D, indexed ``[y, x]``, float32 or float64.  One thread per pixel with x as the fastest
thread index: neighbouring threads access neighbouring memory, on a GPU and in the thread loop of a
CPU compiler. There are two edge modes: `EDGE_ZERO` (pixels outside are 0) and `EDGE_CLAMP` (pixels
outside repeat the border).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from nbrt_kernels._costs import costs
from nbrt_kernels._dialect import Array, Scalar, cuda, device_function

__all__ = [
    "EDGE_CLAMP",
    "EDGE_ZERO",
    "bilateral",
    "bilateral_range_factor",
    "bilateral_reference",
    "box_blur",
    "box_blur_reference",
    "conv2d",
    "conv2d_reference",
    "gaussian_columns",
    "gaussian_columns_reference",
    "gaussian_rows",
    "gaussian_rows_reference",
    "gaussian_weights",
]

EDGE_ZERO = 0
EDGE_CLAMP = 1

_NUMPY_MODES = {EDGE_ZERO: "constant", EDGE_CLAMP: "edge"}


@device_function
def _clamp_index(i: Scalar, n: Scalar) -> Scalar:
    """Limit an index to [0, n)."""
    low = 0 if i < 0 else i
    return low if low < n else n - 1


def _filter_flops(out: Array, _: Array, weights: Array, *__: Scalar) -> float:
    return float(2 * out.size * weights.size)


def _box_flops(out: Array, _: Array, radius: Scalar) -> float:
    return float(out.size * ((2 * radius + 1) ** 2 + 1))


@costs(_filter_flops)
def conv2d(out: Array, image: Array, weights: Array, edge: Scalar) -> None:
    """Correlate an image with a filter of odd size ("convolution" in image libraries).

    ``out[y, x] = sum over (j, i) of weights[j, i] * image[y + j - ry, x + i - rx]``, summed in row
    order by fused multiply-adds.  For the mathematical convolution flip the weights.

    Parameters
    ----------
    out : floating, shape (height, width)
        Result; must not overlap `image`.
    image : floating, shape (height, width)
        Input.
    weights : floating, shape (2 ry + 1, 2 rx + 1), dtype of `image`
        Filter.
    edge : int
        `EDGE_ZERO` or `EDGE_CLAMP`.
    """
    x, y = cuda.grid(2)
    height, width = image.shape
    if y < height and x < width:
        rows, columns = weights.shape
        top = y - rows // 2
        left = x - columns // 2
        total = image.dtype.type(0)
        for j in range(rows):
            yy = _clamp_index(top + j, height)
            for i in range(columns):
                xx = _clamp_index(left + i, width)
                inside = edge == EDGE_CLAMP or (yy == top + j and xx == left + i)
                # The load is always in bounds; a zero edge only drops its value.
                value = image[yy, xx] if inside else image.dtype.type(0)
                total = cuda.fma(weights[j, i], value, total)
        out[y, x] = total


def conv2d_reference(
    image: npt.NDArray[Any], weights: npt.NDArray[Any], edge: int
) -> npt.NDArray[np.float64]:
    """Return the correlation of `conv2d`, summed in float64."""
    ry, rx = weights.shape[0] // 2, weights.shape[1] // 2
    mode: Any = _NUMPY_MODES[edge]
    padded = np.pad(image.astype(np.float64), ((ry, ry), (rx, rx)), mode=mode)
    total = np.zeros(image.shape, dtype=np.float64)
    height, width = image.shape
    for (j, i), weight in np.ndenumerate(weights):
        total += float(weight) * padded[j : j + height, i : i + width]
    return total


@costs(_box_flops)
def box_blur(out: Array, image: Array, radius: Scalar) -> None:
    """Average over the ``(2 radius + 1)**2`` neighbours of each pixel, edges clamped.

    Parameters
    ----------
    out : floating, shape (height, width)
        Result; must not overlap `image`.
    image : floating, shape (height, width)
        Input.
    radius : int
        Pixels to each side.
    """
    x, y = cuda.grid(2)
    height, width = image.shape
    if y < height and x < width:
        total = image.dtype.type(0)
        for j in range(-radius, radius + 1):
            yy = _clamp_index(y + j, height)
            for i in range(-radius, radius + 1):
                total += image[yy, _clamp_index(x + i, width)]
        # Divide by a value of the image's dtype: an integer divisor would promote to float64.
        out[y, x] = total / image.dtype.type((2 * radius + 1) * (2 * radius + 1))


def box_blur_reference(image: npt.NDArray[Any], radius: int) -> npt.NDArray[np.float64]:
    """Return the box average of `box_blur`, in float64."""
    side = 2 * radius + 1
    weights = np.full((side, side), 1.0 / side**2)
    return conv2d_reference(image, weights, EDGE_CLAMP)


def gaussian_weights(
    sigma: float, radius: int | None = None, dtype: npt.DTypeLike = np.float32
) -> npt.NDArray[Any]:
    """Return the weights of a 1-D Gaussian, normalised to sum 1.

    Parameters
    ----------
    sigma : float
        Standard deviation in pixels, above 0.
    radius : int, optional
        Pixels to each side; by default 3 sigma, rounded up.
    dtype : dtype_like, optional
        Floating dtype of the image.

    Returns
    -------
    ndarray, shape (2 radius + 1,)
        Weights, symmetric.

    Raises
    ------
    ValueError
        If `sigma` is not positive or `radius` is negative.
    """
    reach = math.ceil(3.0 * sigma) if radius is None else radius
    if not sigma > 0 or reach < 0:
        message = f"gaussian_weights: expected sigma > 0 and radius >= 0, got {sigma} and {radius}"
        raise ValueError(message)
    offsets = np.arange(-reach, reach + 1, dtype=np.float64)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    return np.asarray(weights / weights.sum(), dtype=dtype)


@costs(_filter_flops)
def gaussian_rows(out: Array, image: Array, weights: Array) -> None:
    """Filter along x, the first half of a separable blur; edges clamped.

    Parameters
    ----------
    out : floating, shape (height, width)
        Result; must not overlap `image`.
    image : floating, shape (height, width)
        Input.
    weights : floating, shape (2 radius + 1,), dtype of `image`
        From `gaussian_weights`, or any symmetric filter of odd length.
    """
    x, y = cuda.grid(2)
    height, width = image.shape
    if y < height and x < width:
        left = x - weights.shape[0] // 2
        total = image.dtype.type(0)
        for i in range(weights.shape[0]):
            total = cuda.fma(weights[i], image[y, _clamp_index(left + i, width)], total)
        out[y, x] = total


def gaussian_rows_reference(
    image: npt.NDArray[Any], weights: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return the row filter of `gaussian_rows`, summed in float64."""
    return conv2d_reference(image, weights[None, :], EDGE_CLAMP)


@costs(_filter_flops)
def gaussian_columns(out: Array, image: Array, weights: Array) -> None:
    """Filter along y, the second half of a separable blur; edges clamped.

    Parameters
    ----------
    out : floating, shape (height, width)
        Result; must not overlap `image`.
    image : floating, shape (height, width)
        Input.
    weights : floating, shape (2 radius + 1,), dtype of `image`
        From `gaussian_weights`, or any symmetric filter of odd length.
    """
    x, y = cuda.grid(2)
    height, width = image.shape
    if y < height and x < width:
        top = y - weights.shape[0] // 2
        total = image.dtype.type(0)
        for j in range(weights.shape[0]):
            total = cuda.fma(weights[j], image[_clamp_index(top + j, height), x], total)
        out[y, x] = total


def gaussian_columns_reference(
    image: npt.NDArray[Any], weights: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return the column filter of `gaussian_columns`, summed in float64."""
    return conv2d_reference(image, weights[:, None], EDGE_CLAMP)


def bilateral_range_factor(sigma: float, dtype: npt.DTypeLike = np.float32) -> Any:
    """Return the `range_factor` of `bilateral` for a range weight of deviation `sigma`.

    Parameters
    ----------
    sigma : float
        Standard deviation in units of the pixel values, above 0; two to three times that of the
        noise is a good choice.
    dtype : dtype_like, optional
        Dtype of the image.

    Returns
    -------
    scalar of `dtype`
        ``-1 / (16 sigma**2)``.

    Raises
    ------
    ValueError
        If `sigma` is not positive.
    """
    if not sigma > 0:
        message = f"bilateral_range_factor: expected sigma > 0, got {sigma!r}"
        raise ValueError(message)
    real: np.dtype[Any] = np.dtype(dtype)
    return real.type(-1.0 / (16.0 * sigma**2))


def bilateral(out: Array, image: Array, space: Array, range_factor: Scalar) -> None:
    """Denoise by a bilateral filter: a blur that does not cross edges.

    C. Tomasi and R. Manduchi, "Bilateral filtering for gray and color images", ICCV 1998.  A
    neighbour of value v weighs ``space[j] * space[i] * max(0, 1 + range_factor * (v - c)**2)**8``,
    c the value of the pixel itself; edges are clamped.  The eighth power is within 0.036 of
    the Gaussian and needs no exponential: all devices return equal bits, the loop vectorises, and a
    pixel of another region has weight 0.

    Parameters
    ----------
    out : floating, shape (height, width)
        Result; must not overlap `image`.
    image : floating, shape (height, width)
        Input.
    space : floating, shape (2 radius + 1,), dtype of `image`
        From `gaussian_weights`.
    range_factor : scalar of the dtype of `image`
        From `bilateral_range_factor`.
    """
    x, y = cuda.grid(2)
    height, width = image.shape
    if y < height and x < width:
        size = space.shape[0]
        top = y - size // 2
        left = x - size // 2
        zero = image.dtype.type(0)
        one = image.dtype.type(1)
        centre = image[y, x]
        total = zero
        norm = zero
        for j in range(size):
            yy = _clamp_index(top + j, height)
            for i in range(size):
                value = image[yy, _clamp_index(left + i, width)]
                step = value - centre
                bell = cuda.fma(range_factor, step * step, one)
                bell = bell if bell > zero else zero
                bell *= bell
                bell *= bell
                bell *= bell
                weight = space[j] * space[i] * bell
                total = cuda.fma(weight, step, total)
                norm = cuda.fma(space[j] * space[i], bell, norm)
        # Averaging differences from the centre rounds less than averaging the values.
        out[y, x] = centre + total / norm


def bilateral_reference(
    image: npt.NDArray[Any], space: npt.NDArray[Any], range_factor: float
) -> npt.NDArray[np.float64]:
    """Return the bilateral filter of `bilateral`, in float64."""
    radius = space.shape[0] // 2
    centre = image.astype(np.float64)
    height, width = image.shape
    padded = np.pad(centre, radius, mode="edge")
    total, norm = np.zeros_like(centre), np.zeros_like(centre)
    for j, weight_y in enumerate(space):
        for i, weight_x in enumerate(space):
            step = padded[j : j + height, i : i + width] - centre
            bell = np.maximum(0.0, 1.0 + float(range_factor) * step * step)
            weight = np.square(np.square(np.square(bell))) * (float(weight_y) * float(weight_x))
            total += weight * step
            norm += weight
    return np.asarray(centre + total / norm)
