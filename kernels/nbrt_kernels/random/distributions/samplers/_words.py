"""Variates for rejection samplers from the words of a Philox block.

A trial reads one block, as two values of 64 bits. A normal takes the first value for its radius and
the high half of the second for its angle (in float32 both halves of the first). The low half of
the second decides on acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function
from nbrt_kernels.random.distributions._precision import DOUBLE, SINGLE, Precision
from nbrt_kernels.random.transforms import (
    neg_log_32,
    neg_log_64,
    radius_f32,
    radius_f64,
    sincos_f32,
    sincos_f64,
)

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction

__all__ = ["Words", "half_of", "low_word", "open_uniform_f64", "words_of"]

_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(0xFFFFFFFF00000000)
_HALF = np.uint64(32)
_MANTISSA_SHIFT_32, _ONE_BITS_32 = np.uint32(9), np.uint32(0x3F800000)
_MANTISSA_SHIFT_64, _ONE_BITS_64 = np.uint64(12), np.uint64(0x3FF0000000000000)
_BELOW_ONE_32, _BELOW_ONE_64 = np.float32(1 - 2.0**-24), np.float64(1 - 2.0**-53)


@device_function
def low_word(value: Scalar) -> Scalar:
    """Return the low 32 bits of a uint64."""
    return np.uint32(value & _LOW)


@device_function
def _high_word(value: Scalar) -> Scalar:
    return np.uint32(value >> _HALF)


@device_function
def open_uniform_f64(value: Scalar) -> Scalar:
    """Return the float64 ``((value >> 12) + 1/2) * 2**-52`` in (0, 1) of a uint64."""
    # The bits are the mantissa of a float in [1, 2); the subtraction is exact.
    return np.uint64((value >> _MANTISSA_SHIFT_64) | _ONE_BITS_64).view(np.float64) - _BELOW_ONE_64


@device_function
def _open_uniform_f32(value: Scalar) -> Scalar:
    mantissa = np.uint32(low_word(value) >> _MANTISSA_SHIFT_32)
    return np.uint32(mantissa | _ONE_BITS_32).view(np.float32) - _BELOW_ONE_32


@device_function
def _radius_f32(first: Scalar) -> Scalar:
    return radius_f32(low_word(first))


@device_function
def _cosine_f32(first: Scalar, _second: Scalar) -> Scalar:
    _, cosine = sincos_f32(_high_word(first))
    return cosine


@device_function
def _cosine_f64(_first: Scalar, second: Scalar) -> Scalar:
    _, cosine = sincos_f64(second & _HIGH)
    return cosine


@device_function
def _normal_f32(first: Scalar, second: Scalar) -> Scalar:
    return _radius_f32(first) * _cosine_f32(first, second)


@device_function
def _normal_f64(first: Scalar, second: Scalar) -> Scalar:
    return radius_f64(first) * _cosine_f64(first, second)


@device_function
def _exponential_f32(value: Scalar) -> Scalar:
    return neg_log_32(low_word(value))


@device_function
def _exponential_f64(value: Scalar) -> Scalar:
    return neg_log_64(value)


@device_function
def _turn_f32(value: Scalar) -> tuple[Scalar, Scalar]:
    return sincos_f32(low_word(value))


@device_function
def _turn_f64(value: Scalar) -> tuple[Scalar, Scalar]:
    return sincos_f64(value)


@dataclass(frozen=True, eq=False)
class Words:
    """Variates of one precision from uint64 values of a block.

    Parameters
    ----------
    normal : DeviceFunction
        A normal of both values; the low half of the second stays unused.
    radius, cosine : DeviceFunction
        Its factors, of the first value and of both.
    exponential, uniform : DeviceFunction
        An exponential, and a uniform in the open unit interval, of one value.
    turn : DeviceFunction
        Sine and cosine of a uniform angle of one value.
    """

    normal: DeviceFunction
    radius: DeviceFunction
    cosine: DeviceFunction
    exponential: DeviceFunction
    uniform: DeviceFunction
    turn: DeviceFunction


_WORDS = {
    SINGLE: Words(
        _normal_f32, _radius_f32, _cosine_f32, _exponential_f32, _open_uniform_f32, _turn_f32
    ),
    DOUBLE: Words(
        _normal_f64, radius_f64, _cosine_f64, _exponential_f64, open_uniform_f64, _turn_f64
    ),
}


@cache
def words_of(precision: Precision) -> Words:
    """Return the variates of a precision."""
    return _WORDS[precision]


@cache
def half_of(precision: Precision) -> DeviceFunction:
    """Return ``x / 2`` without a product, which a compiler could contract with a sum."""
    half, zero = precision.real(0.5), precision.real(0)

    @device_function
    def halved(x: Scalar) -> Scalar:
        return cuda.fma(x, half, zero)

    return halved
