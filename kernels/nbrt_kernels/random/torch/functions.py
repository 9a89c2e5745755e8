"""The elementary functions that torch's kernels call: the GPU's own, and portable ones.

torch compiles single precision to the hardware's approximations (``__logf``, ``__expf``,
``__sincosf``, ``__tanf``), which no CPU has, and the rest to libdevice. `HARDWARE` names the same
functions, for bits equal to torch's; `PORTABLE` are nbrt's own, within 2 units in the last place,
which vectorise and give the same bits on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function
from nbrt_kernels.random.math import (
    exp_f32,
    exp_f64,
    log_f32,
    log_f64,
    sincospi_f64,
    tanpi_f64,
)
from nbrt_kernels.random.transforms import COS_32, PIO4_32, SIN_32

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction

__all__ = ["HARDWARE", "PORTABLE", "Functions", "sincos_f32"]

_libdevice = cuda.libdevice

_S0, _S1, _S2, _S3 = SIN_32
_C0, _C1, _C2, _C3 = COS_32
_PH, _PL = PIO4_32
_PIO2H, _PIO2L = np.float32(2.0) * _PH, np.float32(2.0) * _PL
_TWO_OVER_PI = np.float32(2.0 / np.pi)
_FOUR_OVER_PI = np.float32(4.0 / np.pi)
_HALF_32 = np.float32(0.5)
_ONE_32 = np.float32(1.0)
_ONE_OVER_PI = np.float64(1.0 / np.pi)


class Functions(NamedTuple):
    """Device functions of one argument; sine comes before cosine.

    Attributes
    ----------
    log, exp, sincos, tan : callable
        Of float32 radians, where torch has the hardware's approximations.
    radius_log : callable
        Of float32: the logarithm under the Box-Muller radius, which torch takes from libdevice.
    log_64, exp_64, tan_64 : callable
        Of float64; the tangent takes radians.
    sincospi_64 : callable
        Of float64 half turns in (0, 2].
    """

    log: DeviceFunction
    exp: DeviceFunction
    sincos: DeviceFunction
    tan: DeviceFunction
    radius_log: DeviceFunction
    log_64: DeviceFunction
    exp_64: DeviceFunction
    tan_64: DeviceFunction
    sincospi_64: DeviceFunction


@device_function
def sincos_f32(x: Scalar) -> tuple[Scalar, Scalar]:
    """Return float32 sine and cosine of float32 radians in [0, 8)."""
    quarter = np.int32(cuda.fma(x, _TWO_OVER_PI, _HALF_32))
    turns = -np.float32(quarter)
    # pi / 2 in two parts; the first step is exact.
    y = cuda.fma(turns, _PIO2L, cuda.fma(turns, _PIO2H, x)) * _FOUR_OVER_PI
    z = y * y
    p = cuda.fma(cuda.fma(cuda.fma(_S3, z, _S2), z, _S1), z, _S0)
    sine = cuda.fma(y, _PH, y * cuda.fma(p, z, _PL))
    p = cuda.fma(cuda.fma(cuda.fma(_C3, z, _C2), z, _C1), z, _C0)
    cosine = cuda.fma(p, z, _ONE_32)
    odd = (quarter & np.int32(1)) != np.int32(0)
    s = cosine if odd else sine
    c = sine if odd else cosine
    s = -s if (quarter & np.int32(2)) != np.int32(0) else s
    c = -c if ((quarter + np.int32(1)) & np.int32(2)) != np.int32(0) else c
    return s, c


@device_function
def _tan_f32(x: Scalar) -> Scalar:
    negative = x < np.float32(0.0)
    s, c = sincos_f32(-x if negative else x)
    t = s / c
    return -t if negative else t


@device_function
def _tan_f64(x: Scalar) -> Scalar:
    return tanpi_f64(x * _ONE_OVER_PI)


PORTABLE = Functions(
    log_f32, exp_f32, sincos_f32, _tan_f32, log_f32, log_f64, exp_f64, _tan_f64, sincospi_f64
)

HARDWARE = Functions(
    _libdevice.fast_logf,
    _libdevice.fast_expf,
    _libdevice.fast_sincosf,
    _libdevice.fast_tanf,
    _libdevice.logf,
    _libdevice.log,
    _libdevice.exp,
    _libdevice.tan,
    _libdevice.sincospi,
)
