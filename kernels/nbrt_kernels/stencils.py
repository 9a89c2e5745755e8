"""Steps of solvers on regular grids, with tiles in shared memory: heat in 3-D, Jacobi in 2-D."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nbrt_kernels._blocks import block_max
from nbrt_kernels._costs import costs, per_element
from nbrt_kernels._dialect import Array, Scalar, cuda, device_function

__all__ = [
    "HEAT_BLOCK",
    "JACOBI_BLOCK",
    "heat_step",
    "heat_step_reference",
    "jacobi_step",
    "jacobi_step_reference",
]

HEAT_BLOCK = (32, 8)
JACOBI_BLOCK = (16, 16)
_HEAT_X, _HEAT_Y = HEAT_BLOCK
_HEAT_PLANE = (_HEAT_Y + 2, _HEAT_X + 2)
_JACOBI_X, _JACOBI_Y = JACOBI_BLOCK
_JACOBI_TILE = (_JACOBI_Y + 2, _JACOBI_X + 2)


@device_function
def _limited(i: Scalar, n: Scalar) -> Scalar:
    """Limit an index to [0, n)."""
    low = i if i > 0 else 0
    return low if low < n else n - 1


@costs(per_element(9))
def heat_step(out: Array, u: Array, rate: Scalar) -> None:
    """Take one explicit step of the heat equation: a stencil of seven points, insulated boundary.

    ``out = u + rate * (sum of the six neighbours - 6 u)``; a neighbour outside is the point
    itself.  A block of `HEAT_BLOCK` threads iterates over z with one plane in shared memory.

    Parameters
    ----------
    out : floating, shape (depth, height, width)
        Result; must not overlap `u`.
    u : floating, shape (depth, height, width)
        Temperatures.
    rate : scalar of the dtype of `u`
        Diffusivity times the step over the square of the spacing; at most 1/6 is stable.
    """
    plane = cuda.shared.array(_HEAT_PLANE, u.dtype)
    x, y = cuda.grid(2)
    depth, height, width = u.shape
    tx, ty = cuda.threadIdx.x + 1, cuda.threadIdx.y + 1
    xx, yy = _limited(x, width), _limited(y, height)
    here = u[0, yy, xx]
    below = here
    for z in range(depth):
        above = u[_limited(z + 1, depth), yy, xx]
        plane[ty, tx] = here
        if ty == 1:
            plane[0, tx] = u[z, _limited(y - 1, height), xx]
        if ty == _HEAT_Y:
            plane[_HEAT_Y + 1, tx] = u[z, _limited(y + 1, height), xx]
        if tx == 1:
            plane[ty, 0] = u[z, yy, _limited(x - 1, width)]
        if tx == _HEAT_X:
            plane[ty, _HEAT_X + 1] = u[z, yy, _limited(x + 1, width)]
        cuda.syncthreads()
        if x < width and y < height:
            total = below + above
            total += plane[ty - 1, tx] + plane[ty + 1, tx]
            total += plane[ty, tx - 1] + plane[ty, tx + 1]
            out[z, y, x] = cuda.fma(rate, cuda.fma(u.dtype.type(-6), here, total), here)
        cuda.syncthreads()
        below = here
        here = above


def heat_step_reference(u: npt.NDArray[Any], rate: Any) -> npt.NDArray[np.float64]:
    """Return the step of `heat_step`, in float64."""
    wide = np.pad(u.astype(np.float64), 1, mode="edge")
    total = np.zeros(u.shape)
    for axis in range(3):
        for shift in (-1, 1):
            total += np.roll(wide, shift, axis)[1:-1, 1:-1, 1:-1]
    return np.asarray(u + float(rate) * (total - 6.0 * u))


@costs(per_element(6))
def jacobi_step(out: Array, change: Array, u: Array, source: Array) -> None:
    """Take one Jacobi sweep of Poisson's equation, and compute the largest change.

    ``out = (sum of the four neighbours - source) / 4`` inside, `u` on the border.

    Parameters
    ----------
    out : floating, shape (height, width)
        Result; must not overlap `u`.
    change : dtype of `out`, shape (1,)
        Raised to the largest ``abs(out - u)``; 0 on entry.
    u : floating, shape (height, width)
        Last sweep.
    source : floating, shape (height, width)
        Right-hand side times the square of the spacing.
    """
    tile = cuda.shared.array(_JACOBI_TILE, u.dtype)
    x, y = cuda.grid(2)
    height, width = u.shape
    tx, ty = cuda.threadIdx.x + 1, cuda.threadIdx.y + 1
    xx, yy = _limited(x, width), _limited(y, height)
    tile[ty, tx] = u[yy, xx]
    if ty == 1:
        tile[0, tx] = u[_limited(y - 1, height), xx]
    if ty == _JACOBI_Y:
        tile[_JACOBI_Y + 1, tx] = u[_limited(y + 1, height), xx]
    if tx == 1:
        tile[ty, 0] = u[yy, _limited(x - 1, width)]
    if tx == _JACOBI_X:
        tile[ty, _JACOBI_X + 1] = u[yy, _limited(x + 1, width)]
    cuda.syncthreads()
    value = tile[ty, tx]
    if 0 < x < width - 1 and 0 < y < height - 1:
        total = tile[ty - 1, tx] + tile[ty + 1, tx] + (tile[ty, tx - 1] + tile[ty, tx + 1])
        quarter = u.dtype.type(0.25)
        value = cuda.fma(quarter, total, -quarter * source[y, x])
    if x < width and y < height:
        out[y, x] = value
    largest = block_max(abs(value - tile[ty, tx]))
    if tx == 1 and ty == 1:
        cuda.atomic.max(change, 0, largest)


def jacobi_step_reference(u: npt.NDArray[Any], source: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the sweep of `jacobi_step`, in float64."""
    out = u.astype(np.float64)
    total = u[:-2, 1:-1] + u[2:, 1:-1].astype(np.float64) + u[1:-1, :-2] + u[1:-1, 2:]
    out[1:-1, 1:-1] = (total - source[1:-1, 1:-1]) / 4.0
    return out
