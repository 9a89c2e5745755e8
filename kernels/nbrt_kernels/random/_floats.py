"""Building blocks: selection, polynomials, and the bits of a float.

Function files have factories that take a `FloatKind`, whose values are constants to the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function

__all__ = ["FLOAT32", "FLOAT64", "DeviceFunction", "FloatKind", "from_hex", "polynomial", "select"]

#: A device function of scalars.
DeviceFunction: TypeAlias = Callable[..., Any]


@device_function
def select(condition: Scalar, value: Scalar, other: Scalar) -> Scalar:
    """Return `value` where the condition holds, else `other`: both are computed, none branches."""
    return value if condition else other


def from_hex(real: type[Any], *numbers: str) -> tuple[Any, ...]:
    """Return hexadecimal floating-point numbers as scalars of a dtype."""
    return tuple(real(float.fromhex(number)) for number in numbers)


def polynomial(coefficients: Sequence[Scalar]) -> DeviceFunction:
    """Make the device function of a polynomial, by Horner's rule with fused multiply-adds.

    Parameters
    ----------
    coefficients : sequence of float32 or float64
        Two or more, from the lowest.

    Returns
    -------
    DeviceFunction
        A function of one scalar of that dtype.
    """
    # One function for all terms: the compilers need some milliseconds for every function.
    names = [f"c{power}" for power in range(len(coefficients))]
    *rest, value = names
    for name in reversed(rest):
        value = f"cuda.fma({value}, x, {name})"
    namespace: dict[str, Any] = {"cuda": cuda, "__name__": __name__}
    exec(_POLYNOMIAL.format(names=", ".join(names), value=value), namespace)
    return device_function(cast("DeviceFunction", namespace["make"](*coefficients)))


_POLYNOMIAL = """
def make({names}):
    def polynomial(x):
        return {value}
    return polynomial
"""


@device_function
def _split_f32(x: Scalar) -> tuple[Scalar, Scalar]:
    tiny = x < np.float32(2.0**-126)
    bits = np.float32(select(tiny, x * np.float32(2.0**23), x)).view(np.int32)
    # The bits of sqrt(1/2).
    e = np.int32(np.int32(bits - np.int32(0x3F3504F3)) >> np.int32(23))
    f = np.int32(bits - np.int32(e << np.int32(23))).view(np.float32)
    return f, np.float32(np.int32(e - select(tiny, np.int32(23), np.int32(0))))


@device_function
def _split_f64(x: Scalar) -> tuple[Scalar, Scalar]:
    tiny = x < np.float64(2.0**-1022)
    bits = np.float64(select(tiny, x * np.float64(2.0**52), x)).view(np.int64)
    # Use 32 bits, because vector units before AVX-512 have neither a 64-bit arithmetic shift nor a
    # conversion: the high word holds the exponent, and enough of sqrt(1/2).
    high = np.int32(bits >> np.int64(32))
    e = np.int32(np.int32(high - np.int32(0x3FE6A09E)) >> np.int32(20))
    f = np.int64(bits - (np.int64(e) << np.int64(52))).view(np.float64)
    return f, np.float64(np.int32(e - select(tiny, np.int32(52), np.int32(0))))


@device_function
def _power_of_two_f32(n: Scalar) -> Scalar:
    return np.int32(np.int32(n + np.int32(127)) << np.int32(23)).view(np.float32)


@device_function
def _power_of_two_f64(n: Scalar) -> Scalar:
    return np.int64(np.int64(np.int32(n + np.int32(1023))) << np.int64(52)).view(np.float64)


# The last bits of x + 1.5 * 2**23 (float32) are those of the integer next to x.


@device_function
def _low_bits_f32(x: Scalar) -> Scalar:
    return np.int32(np.float32(x).view(np.int32) - np.int32(0x4B400000))


@device_function
def _low_bits_f64(x: Scalar) -> Scalar:
    return np.int32(np.float64(x).view(np.int64) & np.int64(0xFFFFFFFF))


@dataclass(frozen=True)
class FloatKind:
    """A precision: its dtype, and the device functions that depend on its bits.

    Parameters
    ----------
    real : type
        float32 or float64.
    split : DeviceFunction
        Of a positive `x`, ``f`` in [sqrt(1/2), sqrt(2)) and the integer ``e``, both of the dtype,
        with ``x = f * 2**e``.
    power_of_two : DeviceFunction
        ``2**n`` of an int32 ``n`` whose power is normal.
    rounder : floating
        ``1.5 * 2**p``, p the bits of the mantissa: adding it rounds to an integer.
    low_bits : DeviceFunction
        The int32 that an addition of `rounder` left in the last bits.
    """

    real: Any
    split: DeviceFunction
    power_of_two: DeviceFunction
    rounder: Any
    low_bits: DeviceFunction


FLOAT32 = FloatKind(
    np.float32, _split_f32, _power_of_two_f32, np.float32(1.5 * 2.0**23), _low_bits_f32
)
FLOAT64 = FloatKind(
    np.float64, _split_f64, _power_of_two_f64, np.float64(1.5 * 2.0**52), _low_bits_f64
)
