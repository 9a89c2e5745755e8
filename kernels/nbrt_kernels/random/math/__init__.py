"""Mathematical device functions, bit-identical on every device, in float32 and float64.

They have no branches and no tables. They use explicit fused multiply-adds, IEEE division and square
root only, so every compiler computes the same bits. `array_reference` of a function, or of any
function that calls them, is the reference on arrays.
"""

from __future__ import annotations

from nbrt_kernels.random._floats import select
from nbrt_kernels.random.math._replay import array_reference
from nbrt_kernels.random.math.angles import (
    acos_f32,
    acos_f64,
    sincospi_f32,
    sincospi_f64,
    tanpi_f32,
    tanpi_f64,
)
from nbrt_kernels.random.math.exponentials import exp_f32, exp_f64, expm1_f32, expm1_f64
from nbrt_kernels.random.math.gammas import lgamma_f64, stirling_tail_f64
from nbrt_kernels.random.math.logarithms import log1p_f32, log1p_f64, log_f32, log_f64
from nbrt_kernels.random.math.normals import ndtr_f32, ndtr_f64, ndtri_f32, ndtri_f64
from nbrt_kernels.random.math.powers import power_f32, power_f64

__all__ = [
    "acos_f32",
    "acos_f64",
    "array_reference",
    "exp_f32",
    "exp_f64",
    "expm1_f32",
    "expm1_f64",
    "lgamma_f64",
    "log1p_f32",
    "log1p_f64",
    "log_f32",
    "log_f64",
    "ndtr_f32",
    "ndtr_f64",
    "ndtri_f32",
    "ndtri_f64",
    "power_f32",
    "power_f64",
    "select",
    "sincospi_f32",
    "sincospi_f64",
    "stirling_tail_f64",
    "tanpi_f32",
    "tanpi_f64",
]
