"""`Precision`: the word type and the functions that distributions use in one precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function
from nbrt_kernels.random import math as f
from nbrt_kernels.random import transforms as t

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction

__all__ = ["DOUBLE", "SINGLE", "Precision"]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_TWO_32 = np.float64(2.0**32)


@device_function
def _from_u32(word: Scalar) -> Scalar:
    return np.float32(np.uint32(word))


@device_function
def _from_u64(value: Scalar) -> Scalar:
    # Convert halves: vector units before AVX-512 have no 64-bit conversion. One rounding.
    high = np.float64(np.uint32(value >> _HALF))
    return cuda.fma(high, _TWO_32, np.float64(np.uint32(value & _LOW)))


@dataclass(frozen=True, eq=False)
class Precision:
    """A precision in which distributions compute.

    Parameters
    ----------
    real, word : type
        The dtypes of floats and of the random word of an element, of the same width.
    bits : int
        Width of both in bits.
    per_block : int
        Words in a Philox block.
    from_word : DeviceFunction
        Converts a word to a float, rounded to nearest.
    uniform, exponential, radius, normal_pair : DeviceFunction
        Of `nbrt_kernels.random.transforms`.
    log, log1p, exp, expm1, power, tanpi, ndtr, ndtri : DeviceFunction
        Of `nbrt_kernels.random.math`.
    whole : floating
        ``2**p``, p the bits of the mantissa: adding it to a smaller, positive float rounds that to
        an integer; larger ones are integers.
    """

    real: Any
    word: Any
    bits: int
    per_block: int
    from_word: DeviceFunction
    uniform: DeviceFunction
    exponential: DeviceFunction
    radius: DeviceFunction
    normal_pair: DeviceFunction
    log: DeviceFunction
    log1p: DeviceFunction
    exp: DeviceFunction
    expm1: DeviceFunction
    power: DeviceFunction
    tanpi: DeviceFunction
    ndtr: DeviceFunction
    ndtri: DeviceFunction
    whole: Any


SINGLE = Precision(
    real=np.float32,
    word=np.uint32,
    bits=32,
    per_block=4,
    from_word=_from_u32,
    uniform=t.uniform_f32,
    exponential=t.neg_log_32,
    radius=t.radius_f32,
    normal_pair=t.normal_pair_f32,
    log=f.log_f32,
    log1p=f.log1p_f32,
    exp=f.exp_f32,
    expm1=f.expm1_f32,
    power=f.power_f32,
    tanpi=f.tanpi_f32,
    ndtr=f.ndtr_f32,
    ndtri=f.ndtri_f32,
    whole=np.float32(2.0**23),
)
DOUBLE = Precision(
    real=np.float64,
    word=np.uint64,
    bits=64,
    per_block=2,
    from_word=_from_u64,
    uniform=t.uniform_f64,
    exponential=t.neg_log_64,
    radius=t.radius_f64,
    normal_pair=t.normal_pair_f64,
    log=f.log_f64,
    log1p=f.log1p_f64,
    exp=f.exp_f64,
    expm1=f.expm1_f64,
    power=f.power_f64,
    tanpi=f.tanpi_f64,
    ndtr=f.ndtr_f64,
    ndtri=f.ndtri_f64,
    whole=np.float64(2.0**52),
)
