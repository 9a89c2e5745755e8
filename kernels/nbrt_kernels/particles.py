"""Particle systems: gravitational n-body accelerations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from nbrt_kernels._costs import costs
from nbrt_kernels._dialect import Array, Scalar, cuda

__all__ = ["BODIES_BLOCK", "nbody", "nbody_reference"]

BODIES_BLOCK = 128
_BODIES = (BODIES_BLOCK, 4)


def _nbody_flops(_: Array, bodies: Array, __: Scalar) -> float:
    return float(18 * bodies.shape[0] ** 2)


@costs(_nbody_flops)
def nbody(out: Array, bodies: Array, softening: Scalar) -> None:
    """Compute the gravitational accelerations of all bodies, G = 1.

    ``out[i] = sum over j of mass[j] * d / (d . d + softening)**1.5`` with ``d = x[j] - x[i]``.
    A block of `BODIES_BLOCK` threads shares tiles of as many bodies.

    Parameters
    ----------
    out : floating, shape (n, 3)
        Result.
    bodies : dtype of `out`, shape (n, 4)
        Positions and masses.
    softening : scalar of the dtype of `out`
        The square of the softening length, above 0.
    """
    tile = cuda.shared.array(_BODIES, bodies.dtype)
    i, t = cuda.grid(1), cuda.threadIdx.x
    n = bodies.shape[0]
    own = i if i < n else n - 1
    x, y, z = bodies[own, 0], bodies[own, 1], bodies[own, 2]
    zero = bodies.dtype.type(0)
    ax = ay = az = zero
    for start in range(0, n, BODIES_BLOCK):
        other = start + t
        for c in range(4):
            # Bodies past the end have no mass.
            tile[t, c] = bodies[other, c] if other < n else zero
        cuda.syncthreads()
        for j in range(BODIES_BLOCK):
            dx, dy, dz = tile[j, 0] - x, tile[j, 1] - y, tile[j, 2] - z
            square = cuda.fma(dx, dx, cuda.fma(dy, dy, cuda.fma(dz, dz, softening)))
            pull = tile[j, 3] / (square * math.sqrt(square))
            ax = cuda.fma(pull, dx, ax)
            ay = cuda.fma(pull, dy, ay)
            az = cuda.fma(pull, dz, az)
        cuda.syncthreads()
    if i < n:
        out[i, 0] = ax
        out[i, 1] = ay
        out[i, 2] = az


def nbody_reference(bodies: npt.NDArray[Any], softening: Any) -> npt.NDArray[np.float64]:
    """Return the accelerations of `nbody`, in float64."""
    positions, mass = bodies[:, :3].astype(np.float64), bodies[:, 3].astype(np.float64)
    out = np.empty_like(positions)
    for i, position in enumerate(positions):
        d = positions - position
        pull = mass / (np.square(d).sum(axis=1) + float(softening)) ** 1.5
        out[i] = pull @ d
    return out
