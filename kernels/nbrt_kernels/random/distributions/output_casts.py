"""Casts from the result of an output transform to the element in memory."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Scalar, device_function
from nbrt_kernels.random.math import select

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction

__all__ = ["cast", "cast_flag", "cast_integer"]


@device_function
def _half(x: Scalar) -> Scalar:
    return np.float16(x)


@device_function
def _bfloat_bits(x: Scalar) -> Scalar:
    # Round to nearest, ties to even: the discarded bits carry into the kept ones.
    bits = np.float32(x).view(np.uint32)
    odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
    carried = np.uint32(bits + np.uint32(odd + np.uint32(0x7FFF)))
    return np.uint16(np.uint32(carried >> np.uint32(16)))


@cache
def cast(finish: DeviceFunction, dtype: str) -> DeviceFunction:
    """Return the output transform followed by rounding to `dtype`: float16 or bfloat16 bits.

    Output transforms compute in float32 and float64, which need no cast.
    """
    if dtype in ("float32", "float64"):
        return finish
    rounded = _half if dtype == "float16" else _bfloat_bits

    @device_function
    def store(x: Scalar, a: Scalar, b: Scalar, c: Scalar) -> Scalar:
        return rounded(finish(x, a, b, c))

    return store


@cache
def cast_integer(finish: DeviceFunction, dtype: str) -> DeviceFunction:
    """Return the output transform of whole positive floats, cast to integers with saturation."""
    integer = np.dtype(dtype).type
    # Narrow integers are converted through 32 bits, which every vector unit supports.
    wide = integer if np.dtype(dtype).itemsize >= 4 else np.int32
    real = np.float64 if np.dtype(dtype).itemsize == 8 else np.float32
    most = real(np.iinfo(dtype).max)
    # The bound itself may have been rounded to a power of two, which does not fit.
    if int(most) > np.iinfo(dtype).max:
        most = np.nextafter(most, real(0))

    @device_function
    def store(x: Scalar, a: Scalar, b: Scalar, c: Scalar) -> Scalar:
        value = finish(x, a, b, c)
        return integer(wide(select(value > most, most, value)))

    return store


@cache
def cast_flag(finish: DeviceFunction, dtype: str) -> DeviceFunction:
    """Return the output transform of booleans, cast to 1 and 0 of `dtype`."""
    kind: Any = np.dtype({"bfloat16": "uint16", "bool": "uint8"}.get(dtype, dtype)).type
    # 0x3F80 are the bits of a bfloat16 of 1.
    one, zero = kind(0x3F80 if dtype == "bfloat16" else 1), kind(0)

    @device_function
    def store(x: Scalar, a: Scalar, b: Scalar, c: Scalar) -> Scalar:
        return select(finish(x, a, b, c), one, zero)

    return store
