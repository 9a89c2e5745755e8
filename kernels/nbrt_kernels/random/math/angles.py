"""Angles: ``tan(pi x)``, sine and cosine of ``pi x``, and the arc cosine.

Arguments in half turns are reduced exactly.  Sine and cosine are the polynomials of
`nbrt_kernels.random.transforms`; those of tangent and arc sine are minimax fits with relative
errors of 2**-29.4 and 2**-31.7 in float32, 2**-63.5 and 2**-59.9 in float64.

Measured errors in ulps of the exact result. float32, over all arguments (those of tangent, sine and
cosine from 2**-16 to 1/2 and 4, below it every 64th): tangent 0.99, sine 0.97, cosine 0.89, arc
cosine 1.06, at most one neighbour away from the correctly rounded result. float64, over 2**20
arguments: tangent 0.88, sine and cosine 0.86, arc cosine 1.10.
"""

from __future__ import annotations

import math

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function
from nbrt_kernels.random._floats import (
    FLOAT32,
    FLOAT64,
    DeviceFunction,
    FloatKind,
    from_hex,
    polynomial,
    select,
)
from nbrt_kernels.random.transforms import (
    COS_32,
    COS_64,
    PIO4_32,
    PIO4_64,
    SIN_32,
    SIN_64,
)

__all__ = ["acos_f32", "acos_f64", "sincospi_f32", "sincospi_f64", "tanpi_f32", "tanpi_f64"]

# tan(pi b) = b (pi + z T(z)), z = b**2 <= 1/16.
_TAN_32 = from_hex(
    np.float32,
    "0x1.4abbdap+3", "0x1.46675ap+5", "0x1.4692b2p+7", "0x1.3cfea2p+9", "0x1.8fa2c0p+11",
    "0x1.3d48fep+7", "0x1.eba4a0p+16",
)  # fmt: skip
_TAN_64 = from_hex(
    np.float64,
    "0x1.4abbce625be52p+3", "0x1.466bc6775ac2cp+5", "0x1.45fff9b481cc7p+7",
    "0x1.45f472e7bd845p+9", "0x1.45f32e5fedb11p+11", "0x1.45f323eafcbb9p+13",
    "0x1.45f0e9a727f99p+15", "0x1.4614658ae0ddcp+17", "0x1.4472331d6f644p+19",
    "0x1.52c4e9e43a7f7p+21", "0x1.e9e4d8753738cp+22", "0x1.5f05ba6eeea0cp+26",
    "-0x1.d0f7feaab34c8p+28", "0x1.91ef51e04e7b1p+32", "-0x1.e463c33c67c09p+34",
    "0x1.ae869fb6bc48dp+36",
)  # fmt: skip
# asin(s) = s + s z A(z), z = s**2 <= 1/4.
_ASIN_32 = from_hex(
    np.float32,
    "0x1.55554cp-3", "0x1.33389ep-4", "0x1.6caab8p-5", "0x1.04af12p-5", "0x1.d79532p-7",
    "0x1.33d2eap-5",
)  # fmt: skip
_ASIN_64 = from_hex(
    np.float64,
    "0x1.5555555555577p-3", "0x1.333333332e139p-4", "0x1.6db6db7211db8p-5",
    "0x1.f1c71a9530f4fp-6", "0x1.6e8bded8cbfa5p-6", "0x1.1c49f0e9c44d4p-6",
    "0x1.ca1f7fd428590p-7", "0x1.7585fb1a48c39p-7", "0x1.613a09865f21fp-7",
    "0x1.e61bb6aa88c61p-9", "0x1.6390cc5830b52p-6", "-0x1.57ecfca0d4ef3p-6",
    "0x1.0b4195bd53020p-5",
)  # fmt: skip


def _make_tanpi(
    kind: FloatKind, coefficients: tuple[Scalar, ...], pio4: tuple[Scalar, Scalar]
) -> DeviceFunction:
    tail = polynomial(coefficients)
    four = kind.real(4)
    pi, pi_low = four * pio4[0], four * pio4[1]
    zero, quarter, half, one = (kind.real(c) for c in (0, 0.25, 0.5, 1))

    @device_function
    def tanpi(x: Scalar) -> Scalar:
        """Return tan(pi x) for |x| <= 1/2: infinity at the ends."""
        a = select(x < zero, -x, x)
        upper = a > quarter
        # tan(pi a) = 1 / tan(pi (1/2 - a)), and that difference is exact.
        b = select(upper, half - a, a)
        z = b * b
        rest = cuda.fma(z, tail(z), pi_low)
        tangent = cuda.fma(b, pi, b * rest)
        # A reciprocal would double the error of the tangent, so it gets a low word.
        low = cuda.fma(b, rest, cuda.fma(b, pi, -tangent))
        inverse = one / tangent
        residue = cuda.fma(-low, inverse, cuda.fma(-tangent, inverse, one))
        cotangent = select(b > zero, cuda.fma(inverse, residue, inverse), inverse)
        value = select(upper, cotangent, tangent)
        return select(x > zero, value, select(x < zero, -value, x))

    return tanpi


def _make_sincospi(
    kind: FloatKind,
    sine_terms: tuple[Scalar, ...],
    cosine_terms: tuple[Scalar, ...],
    pio4: tuple[Scalar, Scalar],
) -> DeviceFunction:
    sine_tail, cosine_tail = polynomial(sine_terms), polynomial(cosine_terms)
    rounder, low_bits = kind.rounder, kind.low_bits
    one, two, four, half = (kind.real(c) for c in (1, 2, 4, 0.5))
    pi_high, pi_low = pio4

    @device_function
    def sincospi(x: Scalar) -> tuple[Scalar, Scalar]:
        """Return sine and cosine of pi x for |x| <= 2**21."""
        shifted = cuda.fma(x, two, rounder)
        # The nearest quadrant, and the rest in eighth turns, which is exact.
        quadrant = low_bits(shifted)
        y = four * cuda.fma(shifted - rounder, -half, x)
        z = y * y
        sine = cuda.fma(y, pi_high, y * cuda.fma(z, sine_tail(z), pi_low))
        cosine = cuda.fma(z, cosine_tail(z), one)
        odd = np.int32(quadrant & np.int32(1)) != np.int32(0)
        s, c = select(odd, cosine, sine), select(odd, sine, cosine)
        # The sine is negative in quadrants 2 and 3, the cosine in 1 and 2.
        s = select(np.int32(quadrant & np.int32(2)) != np.int32(0), -s, s)
        c = select(np.int32((quadrant + np.int32(1)) & np.int32(2)) != np.int32(0), -c, c)
        return s, c

    return sincospi


def _make_acos(
    kind: FloatKind, coefficients: tuple[Scalar, ...], pio4: tuple[Scalar, Scalar]
) -> DeviceFunction:
    tail = polynomial(coefficients)
    zero, half, two, four = (kind.real(c) for c in (0, 0.5, 2, 4))
    half_pi, half_pi_low = two * pio4[0], two * pio4[1]
    pi, pi_low = four * pio4[0], four * pio4[1]

    @device_function
    def acos(x: Scalar) -> Scalar:
        """Return the arc cosine of x in [-1, 1]."""
        a = select(x < zero, -x, x)
        outer = a > half
        # acos(a) = 2 asin(sqrt((1 - a) / 2)) for the outer half.
        z = select(outer, cuda.fma(-half, a, half), a * a)
        s = select(outer, math.sqrt(z), a)
        asin = cuda.fma(s * z, tail(z), s)
        twice = asin + asin
        at_end = select(x < zero, pi - (twice - pi_low), twice)
        signed = select(x < zero, -asin, asin)
        return select(outer, at_end, half_pi - (signed - half_pi_low))

    return acos


tanpi_f32 = _make_tanpi(FLOAT32, _TAN_32, PIO4_32)
tanpi_f64 = _make_tanpi(FLOAT64, _TAN_64, PIO4_64)
sincospi_f32 = _make_sincospi(FLOAT32, SIN_32, COS_32, PIO4_32)
sincospi_f64 = _make_sincospi(FLOAT64, SIN_64, COS_64, PIO4_64)
acos_f32 = _make_acos(FLOAT32, _ASIN_32, PIO4_32)
acos_f64 = _make_acos(FLOAT64, _ASIN_64, PIO4_64)
