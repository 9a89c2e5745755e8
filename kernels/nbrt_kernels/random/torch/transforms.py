"""cuRAND's standard variates of a Philox block, and torch's output transforms.

A ``standard`` takes the four words of a block, or its two 64-bit values (low word first), and
returns a variate for each lane. A ``finish(x, a, b, c)`` returns the value of an element.

Sources: the cuRAND device headers ``curand_uniform.h`` and ``curand_normal.h`` for the standards;
torch's ``aten/src/ATen/core/TransformationHelper.h`` and ``native/cuda/DistributionTemplates.h``
for the rest. A product plus a sum is one fused multiply-add, as NVIDIA's compiler emits it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction
    from nbrt_kernels.random.torch.functions import Functions

__all__ = [
    "INTEGER_NARROW",
    "MANTISSA",
    "NARROW",
    "ROUNDED",
    "WIDEN",
    "ceil_f32",
    "ceil_f64",
    "finish_bernoulli",
    "finish_bits",
    "finish_integers_32",
    "finish_integers_64",
    "finish_normal",
    "finish_uniform_bits_32",
    "finish_uniform_bits_64",
    "first_two_uniforms",
    "make_cauchy",
    "make_exponential",
    "make_geometric",
    "make_log_normal",
    "make_masked",
    "make_normals_32",
    "make_normals_64",
    "make_uniform",
    "same",
    "same_four",
    "swapped_two",
    "uniform_f32",
    "uniform_f64",
    "uniforms_32",
    "uniforms_64",
]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_HIGH_21 = np.uint64(2**21 - 1)
_TWO_M32 = np.float32(2.0**-32)
_TWO_M33 = np.float32(2.0**-33)
_TWO_32 = np.float64(2.0**32)
_TWO_M52 = np.float64(2.0**-52)
_TWO_M53 = np.float64(2.0**-53)
_TWO_M54 = np.float64(2.0**-54)
# float32(2**-32) * float32(2 pi), and half of it.
_ANGLE = np.float32(float.fromhex("0x1.921fb6p-30"))
_HALF_ANGLE = np.float32(float.fromhex("0x1.921fb6p-31"))
_PI_32 = np.float32(math.pi)
_PI_64 = np.float64(math.pi)


@device_function
def uniform_f32(word: Scalar) -> Scalar:
    """Return cuRAND's float32 uniform in (0, 1] of a uint32 word."""
    return cuda.fma(np.float32(np.uint32(word)), _TWO_M32, _TWO_M33)


@device_function
def _mixed(value: Scalar) -> Scalar:
    """Return the 53 bits ``low ^ (high << 21)`` of a uint64 as a float64, exactly."""
    bits = (value & _LOW) ^ ((value >> _HALF) << np.uint64(21))
    high = np.float64(np.int32(bits >> _HALF))
    return cuda.fma(high, _TWO_32, np.float64(np.uint32(bits & _LOW)))


@device_function
def uniform_f64(value: Scalar) -> Scalar:
    """Return cuRAND's float64 uniform in (0, 1] of a uint64, low word first."""
    return cuda.fma(_mixed(value), _TWO_M53, _TWO_M54)


@device_function
def uniforms_32(
    w0: Scalar, w1: Scalar, w2: Scalar, w3: Scalar
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Return four float32 uniforms of a block: ``curand_uniform4``."""
    return uniform_f32(w0), uniform_f32(w1), uniform_f32(w2), uniform_f32(w3)


@device_function
def uniforms_64(v0: Scalar, v1: Scalar) -> tuple[Scalar, Scalar]:
    """Return two float64 uniforms of a block: ``curand_uniform2_double``."""
    return uniform_f64(v0), uniform_f64(v1)


@device_function
def first_two_uniforms(v0: Scalar, _v1: Scalar) -> tuple[Scalar, Scalar]:
    """Return float32 uniforms of the first two words of a block."""
    return uniform_f32(v0 & _LOW), uniform_f32(v0 >> _HALF)


@lru_cache
def make_masked(bits: int) -> DeviceFunction:
    """Make the standard of ``torch.func._random``: low bits of each word, as float32 in [0, 1)."""
    mask = np.uint32(2**bits - 1)
    step = np.float32(2.0**-bits)

    @device_function
    def masked(word: Scalar) -> Scalar:
        return np.float32(np.int32(np.uint32(word) & mask)) * step

    @device_function
    def masked_four(
        w0: Scalar, w1: Scalar, w2: Scalar, w3: Scalar
    ) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        return masked(w0), masked(w1), masked(w2), masked(w3)

    return masked_four


@device_function
def same_four(
    w0: Scalar, w1: Scalar, w2: Scalar, w3: Scalar
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Return the words themselves."""
    return w0, w1, w2, w3


@device_function
def swapped_two(v0: Scalar, v1: Scalar) -> tuple[Scalar, Scalar]:
    """Return the 64-bit values that torch makes of word pairs: the first word is the high one."""
    return (v0 << _HALF) | (v0 >> _HALF), (v1 << _HALF) | (v1 >> _HALF)


@lru_cache
def make_normals_32(functions: Functions) -> DeviceFunction:
    """Make ``curand_normal4``: four float32 normals, sine before cosine."""
    log, sincos = functions.radius_log, functions.sincos

    @device_function
    def pair(radius_word: Scalar, angle_word: Scalar) -> tuple[Scalar, Scalar]:
        angle = cuda.fma(np.float32(np.uint32(angle_word)), _ANGLE, _HALF_ANGLE)
        r = math.sqrt(np.float32(-2.0) * log(uniform_f32(radius_word)))
        s, c = sincos(angle)
        return r * s, r * c

    @device_function
    def normals_32(
        w0: Scalar, w1: Scalar, w2: Scalar, w3: Scalar
    ) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        z0, z1 = pair(w0, w1)
        z2, z3 = pair(w2, w3)
        return z0, z1, z2, z3

    return normals_32


@lru_cache
def make_normals_64(functions: Functions) -> DeviceFunction:
    """Make ``curand_normal2_double``: two float64 normals, sine before cosine."""
    log, sincospi = functions.log_64, functions.sincospi_64

    @device_function
    def normals_64(v0: Scalar, v1: Scalar) -> tuple[Scalar, Scalar]:
        half_turns = cuda.fma(_mixed(v1), _TWO_M52, _TWO_M53)
        r = math.sqrt(np.float64(-2.0) * log(uniform_f64(v0)))
        s, c = sincospi(half_turns)
        return r * s, r * c

    return normals_64


@lru_cache
def make_uniform(rounded: DeviceFunction) -> DeviceFunction:
    """Make the finish of ``uniform_``: (from, to - from, to), (0, 1] turned to [from, to)."""

    @device_function
    def finish_uniform(u: Scalar, low: Scalar, span: Scalar, high: Scalar) -> Scalar:
        value = rounded(cuda.fma(u, span, low))
        return low if value == high else value

    return finish_uniform


@device_function
def finish_normal(z: Scalar, mean: Scalar, std: Scalar, _c: Scalar) -> Scalar:
    """Return a normal of the mean and standard deviation given."""
    return cuda.fma(z, std, mean)


@device_function
def finish_uniform_bits_32(u: Scalar, low: Scalar, span: Scalar, _c: Scalar) -> Scalar:
    """Return ``u * span + low``, each operation rounded to float32."""
    return cuda.libdevice.fadd_rn(cuda.libdevice.fmul_rn(u, span), low)


@device_function
def finish_uniform_bits_64(value: Scalar, low: Scalar, span: Scalar, _c: Scalar) -> Scalar:
    """Return the low 53 bits of a uint64, in [0, 1), scaled; each operation rounded to float64."""
    high = np.float64(np.int32((value >> _HALF) & _HIGH_21))
    u = cuda.fma(high, _TWO_32, np.float64(np.uint32(value & _LOW))) * _TWO_M53
    return cuda.libdevice.dadd_rn(cuda.libdevice.dmul_rn(u, span), low)


@lru_cache
def make_log_normal(exp: DeviceFunction) -> DeviceFunction:
    """Make the finish of ``log_normal_``: (mean, std, unused)."""

    @device_function
    def finish_log_normal(z: Scalar, mean: Scalar, std: Scalar, _c: Scalar) -> Scalar:
        return exp(cuda.fma(z, std, mean))

    return finish_log_normal


@lru_cache
def make_exponential(log: DeviceFunction) -> DeviceFunction:
    """Make the finish of ``exponential_``: (-1 / lambda, 1 - eps / 2, -eps / 2)."""

    @device_function
    def finish_exponential(u: Scalar, factor: Scalar, near_one: Scalar, tiny: Scalar) -> Scalar:
        return factor * (tiny if u >= near_one else log(u))

    return finish_exponential


@lru_cache
def make_geometric(
    log: DeviceFunction, denominator: DeviceFunction, ceil: DeviceFunction
) -> DeviceFunction:
    """Make the finish of ``geometric_``: `denominator` makes log(1 - p) of the first parameter."""

    @device_function
    def finish_geometric(u: Scalar, other: Scalar, _b: Scalar, _c: Scalar) -> Scalar:
        return ceil(log(u) / denominator(other))

    return finish_geometric


@lru_cache
def make_cauchy(tan: DeviceFunction, kind: type[np.floating]) -> DeviceFunction:
    """Make the finish of ``cauchy_``: (median, sigma, least distance of u from 0 and 1)."""
    pi, half, one = kind(math.pi), kind(0.5), kind(1.0)

    @device_function
    def finish_cauchy(u: Scalar, median: Scalar, sigma: Scalar, margin: Scalar) -> Scalar:
        top = one - margin
        below = top if u > top else u
        inside = margin if below < margin else below
        return cuda.fma(sigma, tan(pi * (inside - half)), median)

    return finish_cauchy


@device_function
def finish_bernoulli(u: Scalar, p: Scalar, one: Scalar, zero: Scalar) -> Scalar:
    """Return `one` if the uniform is below `p`, else `zero`."""
    return one if u < p else zero


@device_function
def finish_integers_32(word: Scalar, span: Scalar, low: Scalar, inverse: Scalar) -> Scalar:
    """Return ``word mod span + low`` modulo 2**64; `inverse` is ``2**64 // span + 1``.

    The remainder is exact for every word and 1 < span < 2**32 (D. Lemire, O. Kaser, N. Kurz,
    "Faster remainder by direct computation", Software: Practice and Experience 49(6), 2019), and
    unlike a division it vectorises.
    """
    fraction = inverse * np.uint64(word)
    carried = ((fraction & _LOW) * span) >> _HALF
    return low + (((fraction >> _HALF) * span + carried) >> _HALF)


@device_function
def finish_integers_64(value: Scalar, span: Scalar, low: Scalar, _c: Scalar) -> Scalar:
    """Return ``value mod span + low`` modulo 2**64."""
    return low + value % span


@device_function
def finish_bits(value: Scalar, _a: Scalar, _b: Scalar, _c: Scalar) -> Scalar:
    """Return the value itself."""
    return value


@device_function
def ceil_f32(x: Scalar) -> Scalar:
    """Return the least whole number that is not below a float32."""
    return cuda.libdevice.ceilf(x)


@device_function
def ceil_f64(x: Scalar) -> Scalar:
    """Return the least whole number that is not below a float64."""
    return cuda.libdevice.ceil(x)


@device_function
def same(x: Scalar) -> Scalar:
    """Return a value as it is."""
    return x


@device_function
def _bfloat16_bits(x: Scalar) -> Scalar:
    bits = np.uint32(cuda.libdevice.float_as_int(x))
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@device_function
def _bfloat16_value(bits: Scalar) -> Scalar:
    return cuda.libdevice.int_as_float(np.int32(np.uint32(bits) << np.uint32(16)))


@device_function
def _float16(x: Scalar) -> Scalar:
    return np.float16(x)


@device_function
def _rounded_to_float16(x: Scalar) -> Scalar:
    return np.float32(np.float16(x))


@device_function
def _rounded_to_bfloat16(x: Scalar) -> Scalar:
    return _bfloat16_value(_bfloat16_bits(x))


@device_function
def _wide_float16(x: Scalar) -> Scalar:
    return np.float32(x)


@device_function
def _integer_to_float32(value: Scalar) -> Scalar:
    return np.float32(np.int64(value))


@device_function
def _integer_to_float16(value: Scalar) -> Scalar:
    return np.float16(np.float32(np.int64(value)))


@device_function
def _integer_to_bfloat16(value: Scalar) -> Scalar:
    return _bfloat16_bits(np.float32(np.int64(value)))


@device_function
def _integer_to_float64(value: Scalar) -> Scalar:
    return np.float64(np.int64(value))


#: From float32 to the elements of a dtype; other dtypes convert by a cast.
NARROW = {"float16": _float16, "bfloat16": _bfloat16_bits}
#: From float32 to float32 values of a dtype.
ROUNDED = {"float16": _rounded_to_float16, "bfloat16": _rounded_to_bfloat16}
#: Bits of a word that ``torch.func._random`` uses for a uniform.
MANTISSA = {"float16": 11, "bfloat16": 8, "float32": 24}
#: From elements to float32.
WIDEN = {"float16": _wide_float16, "bfloat16": _bfloat16_value}
#: From integers, as uint64 modulo 2**64, to elements.
INTEGER_NARROW = {
    "float16": _integer_to_float16,
    "bfloat16": _integer_to_bfloat16,
    "float32": _integer_to_float32,
    "float64": _integer_to_float64,
}
