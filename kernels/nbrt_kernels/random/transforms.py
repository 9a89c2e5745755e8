"""Bits to numbers: uniforms, Box-Muller normals and unbiased integers, written once.

Every floating-point step is an explicit `cuda.fma`, a product whose result no addition consumes,
an exact scaling by a power of two, or an IEEE square root.  A compiler has nothing to
contract, so CPU and GPU return equal bits, and `nbrt_kernels.random.reference` replays them.

The logarithm, sine and cosine are not general functions: they take the random word itself.  Range
reduction is then exact integer arithmetic, and no word can reach infinity or NaN:

- ``radius_*``: ``u = (word + 1) / 2**bits`` lies in (0, 1]; the result is ``sqrt(-2 log u)``.  The
  upper tail is that of the exact distribution at every one of the 2**bits steps, up to
  6.66 (32 bits) and 9.42 (64 bits).  With ``u = f * 2**-s``, f in [sqrt(1/2), sqrt(2)), the step
  ``t = f - 1`` is formed as an integer, so small radii keep full relative precision.
- ``sincos_*``: the angle is ``2 pi word / 2**bits``.  The quadrant is two bits of the word, the
  rest is a signed integer ``y`` in [-1, 1) eighth turns.

The polynomials are weighted minimax fits (Lawson iteration, 200-bit arithmetic, coefficients
rounded one by one from the lowest and the rest fitted again); their relative errors are 2**-30.2
(log), 2**-33.4 (sine), 2**-31.1 (cosine) in float32 and 2**-59.2, 2**-63.5, 2**-61.5 in float64.

Measured errors. float32, over all 2**32 words: every result is the correctly rounded one (85 % of
the words) or its neighbour; at most 1.37 ulp from the exact value for the logarithm, 1.33 for the
radius, 1.30 for sine and cosine.  float64, over 3 * 2**20 words of all magnitudes against 64-bit
significands: likewise at most one neighbour away, 1.41 ulp for the logarithm, 1.29 for the rest.
"""

from __future__ import annotations

import math

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function
from nbrt_kernels.random._floats import from_hex, polynomial

__all__ = [
    "bits_24",
    "integer_32",
    "integer_64",
    "is_below",
    "join_words",
    "multiply_high",
    "neg_log_32",
    "neg_log_64",
    "normal_pair_f32",
    "normal_pair_f64",
    "radius_f32",
    "radius_f64",
    "remainder_32",
    "remainder_64",
    "scale_integer_32",
    "scale_integer_64",
    "scale_uniform",
    "sincos_f32",
    "sincos_f64",
    "uniform_f32",
    "uniform_f64",
]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

_TWO_M24 = np.float32(2.0**-24)
_TWO_M31 = np.float32(2.0**-31)
_TWO_M32 = np.float32(2.0**-32)
_TWO_52 = np.float64(2.0**52)
_TWO_84_52 = np.float64(2.0**84 + 2.0**52)
_TWO_84_63_52 = np.float64(2.0**84 + 2.0**63 + 2.0**52)
# The bits of 2**52, of 2**84, and of 2**84 + 2**63.
_BITS_2_52 = np.uint64(0x4330000000000000)
_BITS_2_84 = np.uint64(0x4530000000000000)
_BITS_2_84_63 = np.uint64(0x4530000080000000)
_TWO_M53 = np.float64(2.0**-53)
_TWO_M63 = np.float64(2.0**-63)
_TWO_M64 = np.float64(2.0**-64)

# f < sqrt(1/2) as a signed word: int32(round(2**32 * sqrt(1/2)) - 2**32), and likewise 64 bits.
SQRT_HALF_32 = np.int32(-1257966796)
SQRT_HALF_64 = np.int64(-5402926248376769404)

LN2_32 = from_hex(np.float32, "0x1.62e430p-1", "-0x1.05c610p-29")
LN2_64 = from_hex(np.float64, "0x1.62e42fefa39efp-1", "0x1.abc9e3b39803fp-56")
# pi / 4, high and low part.
PIO4_32 = from_hex(np.float32, "0x1.921fb6p-1", "-0x1.777a5cp-26")
PIO4_64 = from_hex(np.float64, "0x1.921fb54442d18p-1", "0x1.1a62633145c07p-55")

# log(1 + t) = t - t**2 * Q(t), coefficients of Q from the lowest.
LOG_32 = from_hex(
    np.float32,
    "0x1.000000p-1", "-0x1.555546p-2", "0x1.000000p-2", "-0x1.99a554p-3", "0x1.555f12p-3",
    "-0x1.232deep-3", "0x1.fbbf58p-4", "-0x1.e71928p-4", "0x1.e07406p-4", "-0x1.16955ap-4",
)  # fmt: skip
LOG_64 = from_hex(
    np.float64,
    "0x1.0000000000000p-1", "-0x1.555555555556cp-2", "0x1.ffffffffffe6cp-3",
    "-0x1.99999999949acp-3", "0x1.555555556bbd3p-3", "-0x1.24924927800adp-3",
    "0x1.fffffff37f725p-4", "-0x1.c71c701cdf50cp-4", "0x1.99999a9533b72p-4",
    "-0x1.745d5b209a03fp-4", "0x1.55557a6c8fb82p-4", "-0x1.3b0d4c53e8e19p-4",
    "0x1.2488df1f2f769p-4", "-0x1.116bc6d8c0fd2p-4", "0x1.00d5dc5d2d207p-4",
    "-0x1.dc89a54d275e0p-5", "0x1.b405002d3a82bp-5", "-0x1.bb87615917a98p-5",
    "0x1.017e23aa97cf3p-4", "-0x1.d411d702ada64p-5", "0x1.8ecd8eb355318p-6",
)  # fmt: skip
# sin(pi/4 y) = y * (pi/4 + z * S(z)) and cos(pi/4 y) = 1 + z * C(z), with z = y**2.
SIN_32 = from_hex(
    np.float32, "-0x1.4abbcep-4", "0x1.466b78p-9", "-0x1.32adaap-15", "0x1.443a3cp-22"
)
COS_32 = from_hex(
    np.float32, "-0x1.3bd3ccp-2", "0x1.03c1b0p-6", "-0x1.55b29ap-12", "0x1.d4e420p-19"
)
SIN_64 = from_hex(
    np.float64,
    "-0x1.4abbce625be53p-4", "0x1.466bc6775ab7cp-9", "-0x1.32d2cce63af98p-15",
    "0x1.5078349da4026p-22", "-0x1.e3076ed9586d6p-30", "0x1.e908e9efb61a8p-38",
    "-0x1.73dc31eed971dp-46",
)  # fmt: skip
COS_64 = from_hex(
    np.float64,
    "-0x1.3bd3cc9be45dep-2", "0x1.03c1f081b5a53p-6", "-0x1.55d3c7e3c012bp-12",
    "0x1.e1f506760ab48p-19", "-0x1.a6d1e287a6cc3p-26", "0x1.f9c4eee7db3fbp-34",
    "-0x1.b048ced8fd7afp-42",
)  # fmt: skip

# The same numbers under scalar names: device code takes constants from globals, and a constant
# subscript of a global tuple is not folded by every compiler of the dialect.
_LN2H, _LN2L = LN2_32
_DLN2H, _DLN2L = LN2_64
_PH, _PL = PIO4_32
_DPH, _DPL = PIO4_64
_log_tail_32, _log_tail_64 = polynomial(LOG_32), polynomial(LOG_64)
_sine_tail_32, _sine_tail_64 = polynomial(SIN_32), polynomial(SIN_64)
_cosine_tail_32, _cosine_tail_64 = polynomial(COS_32), polynomial(COS_64)
_ONE_32 = np.float32(1.0)
_ONE_64 = np.float64(1.0)


@device_function
def join_words(low: Scalar, high: Scalar) -> Scalar:
    """Return the uint64 made of two uint32 words, low word first."""
    return np.uint64(low) | (np.uint64(high) << _HALF)


@device_function
def _below_2_32(value: Scalar) -> Scalar:
    """Return 2**52 more than the float64 of a uint64 below 2**32."""
    return np.uint64(value | _BITS_2_52).view(np.float64)


@device_function
def _signed_to_f64(value: Scalar) -> Scalar:
    """Convert an int64 to float64, correctly rounded.

    Vector units before AVX-512 have no 64-bit conversion, and widen 32-bit ones in several steps.
    So both halves become the last bits of floats: of 2**52 plus the low half, and of 2**84 plus
    2**32 times the high half, which is made non-negative by adding 2**31. The difference is exact,
    because it is a multiple of 2**32 below 2**64, and the sum rounds once.
    """
    bits = np.uint64(value)
    high = np.uint64((bits >> _HALF) ^ _BITS_2_84_63).view(np.float64)
    return (high - _TWO_84_63_52) + _below_2_32(bits & _LOW)


@device_function
def bits_24(word: Scalar) -> Scalar:
    """Return the int32 ``word >> 8``: `uniform_f32` in steps of 2**-24."""
    return np.int32(np.uint32(word) >> np.uint32(8))


@device_function
def is_below(x: Scalar, bound: Scalar, _b: Scalar, _c: Scalar) -> Scalar:
    """Return 1 if the variate is below the bound, else 0."""
    return np.uint8(1) if x < bound else np.uint8(0)


@device_function
def uniform_f32(word: Scalar) -> Scalar:
    """Return the float32 ``(word >> 8) * 2**-24`` in [0, 1)."""
    # Through int32, which every vector unit converts; the value is below 2**24.
    return np.float32(bits_24(word)) * _TWO_M24


@device_function
def uniform_f64(value: Scalar) -> Scalar:
    """Return the float64 ``(value >> 11) * 2**-53`` in [0, 1) of a uint64."""
    # As in `_signed_to_f64`, without a sign; the sum of both parts has 53 bits and is exact.
    high = np.uint64((value >> np.uint64(43)) | _BITS_2_84).view(np.float64)
    low = _below_2_32((value >> np.uint64(11)) & _LOW)
    return ((high - _TWO_84_52) + low) * _TWO_M53


@device_function
def scale_uniform(u: Scalar, low: Scalar, span: Scalar, top: Scalar) -> Scalar:
    """Map a uniform in [0, 1) to ``[low, high)``.

    `span` is ``high - low`` and `top` the largest value below ``high``: rounding may reach ``high``
    itself, which does not belong to the interval.  All of one floating dtype.
    """
    value = cuda.fma(u, span, low)
    return top if value > top else value


@device_function
def neg_log_32(word: Scalar) -> Scalar:
    """Return the float32 ``-log((word + 1) / 2**32)`` of a uint32 word."""
    # word + 1 wraps to 0 for the last word, where u = 1: clz(0) & 31 is 0, t is 0, and so is the
    # result, without a branch.
    n = np.uint32((np.uint64(word) + np.uint64(1)) & _LOW)
    shift = np.uint32(np.uint32(cuda.clz(n)) & np.uint32(31))
    m = np.uint32((np.uint64(n) << np.uint64(shift)) & _LOW)
    # As a signed word, m is (f - 1) * 2**32 for f in [1/2, 1); doubled, it is that of 2 f.
    upper = np.int32(m) >= SQRT_HALF_32
    doubled = np.uint32((np.uint64(m) << np.uint64(1)) & _LOW)
    t_word = np.int32(m) if upper else np.int32(doubled)
    halvings = np.int32(shift) if upper else np.int32(np.int32(shift) + np.int32(1))
    t = np.float32(t_word) * _TWO_M32
    s = np.float32(halvings)
    q = _log_tail_32(t)
    return cuda.fma(s, _LN2H, cuda.fma(s, _LN2L, cuda.fma(t * t, q, -t)))


@device_function
def neg_log_64(value: Scalar) -> Scalar:
    """Return the float64 ``-log((value + 1) / 2**64)`` of a uint64 value."""
    n = np.uint64(value) + np.uint64(1)
    shift = np.uint64(cuda.clz(n)) & np.uint64(63)
    m = n << shift
    upper = np.int64(m) >= SQRT_HALF_64
    t_word = np.int64(m) if upper else np.int64(m << np.uint64(1))
    halvings = shift if upper else shift + np.uint64(1)
    t = _signed_to_f64(t_word) * _TWO_M64
    s = _below_2_32(halvings) - _TWO_52
    q = _log_tail_64(t)
    return cuda.fma(s, _DLN2H, cuda.fma(s, _DLN2L, cuda.fma(t * t, q, -t)))


@device_function
def radius_f32(word: Scalar) -> Scalar:
    """Return the float32 Box-Muller radius ``sqrt(-2 log u)`` of a uint32 word."""
    half = neg_log_32(word)
    return math.sqrt(half + half)


@device_function
def radius_f64(value: Scalar) -> Scalar:
    """Return the float64 Box-Muller radius ``sqrt(-2 log u)`` of a uint64 value."""
    half = neg_log_64(value)
    return math.sqrt(half + half)


@device_function
def sincos_f32(word: Scalar) -> tuple[Scalar, Scalar]:
    """Return float32 sine and cosine of ``2 pi word / 2**32`` of a uint32 word."""
    # Rounded to the nearest quadrant; the rest are the low 30 bits, signed. Shifting them
    # to the top extends the sign.
    turned = np.uint32((np.uint64(word) + np.uint64(0x20000000)) & _LOW)
    quadrant = np.uint32(turned >> np.uint32(30))
    y = np.float32(np.int32(np.uint32((np.uint64(word) << np.uint64(2)) & _LOW))) * _TWO_M31
    z = y * y
    sine = cuda.fma(y, _PH, y * cuda.fma(_sine_tail_32(z), z, _PL))
    cosine = cuda.fma(_cosine_tail_32(z), z, _ONE_32)
    odd = np.uint32(quadrant & np.uint32(1)) != np.uint32(0)
    s = cosine if odd else sine
    c = sine if odd else cosine
    # The sine is negative in quadrants 2 and 3, the cosine in 1 and 2.
    s = -s if quadrant >= np.uint32(2) else s
    c = -c if np.uint32(quadrant ^ np.uint32(quadrant >> np.uint32(1))) & np.uint32(1) else c
    return s, c


@device_function
def sincos_f64(value: Scalar) -> tuple[Scalar, Scalar]:
    """Return float64 sine and cosine of ``2 pi value / 2**64`` of a uint64 value."""
    quadrant = (np.uint64(value) + np.uint64(1 << 61)) >> np.uint64(62)
    y = _signed_to_f64(np.int64(np.uint64(value) << np.uint64(2))) * _TWO_M63
    z = y * y
    sine = cuda.fma(y, _DPH, y * cuda.fma(_sine_tail_64(z), z, _DPL))
    cosine = cuda.fma(_cosine_tail_64(z), z, _ONE_64)
    odd = (quadrant & np.uint64(1)) != np.uint64(0)
    s = cosine if odd else sine
    c = sine if odd else cosine
    s = -s if (quadrant & np.uint64(2)) != np.uint64(0) else s
    c = -c if ((quadrant + np.uint64(1)) & np.uint64(2)) != np.uint64(0) else c
    return s, c


@device_function
def normal_pair_f32(radius_word: Scalar, angle_word: Scalar) -> tuple[Scalar, Scalar]:
    """Return two standard normals, cosine first, from two uint32 words."""
    r = radius_f32(radius_word)
    s, c = sincos_f32(angle_word)
    return r * c, r * s


@device_function
def normal_pair_f64(radius_value: Scalar, angle_value: Scalar) -> tuple[Scalar, Scalar]:
    """Return two standard normals, cosine first, from two uint64 values."""
    r = radius_f64(radius_value)
    s, c = sincos_f64(angle_value)
    return r * c, r * s


@device_function
def multiply_high(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """Return the high and the low half of the 128-bit product of two uint64 values."""
    a0, a1 = a & _LOW, a >> _HALF
    b0, b1 = b & _LOW, b >> _HALF
    # Neither sum overflows: (2**32 - 1)**2 + 2 * (2**32 - 1) is 2**64 - 1.
    low = a0 * b0
    first = a0 * b1 + (low >> _HALF)
    second = a1 * b0 + (first & _LOW)
    high = a1 * b1 + (first >> _HALF) + (second >> _HALF)
    return high, (second << _HALF) | (low & _LOW)


@device_function
def integer_32(word: Scalar, span: Scalar) -> tuple[Scalar, Scalar]:
    """Scale a uint32 word to [0, span), ``span`` a uint64 in [1, 2**32].

    Returns the value and the remainder, both uint64: a draw is unbiased if those with a remainder
    below ``2**32 mod span`` are rejected (D. Lemire, "Fast random integer generation in an
    interval", ACM TOMACS 29(1), 2019).
    """
    product = np.uint64(word) * span
    return product >> _HALF, product & _LOW


@device_function
def scale_integer_32(word: Scalar, low: Scalar, span: Scalar, _threshold: Scalar) -> Scalar:
    """Return ``low`` plus the value of `integer_32`; all but the word are uint64."""
    # All in 32 bits, which fill twice the lanes of 64; a span of 2**32 leaves the word.
    scaled = np.uint32(np.uint64(word) * np.uint64(np.uint32(span)) >> _HALF)
    return low + np.uint64(np.uint32(word) if span > _LOW else scaled)


@device_function
def scale_integer_64(value: Scalar, low: Scalar, span: Scalar, _threshold: Scalar) -> Scalar:
    """Return ``low`` plus the value of `integer_64`."""
    return low + integer_64(value, span)[0]


@device_function
def remainder_32(word: Scalar, span: Scalar) -> Scalar:
    """Return the remainder of `integer_32` as uint32."""
    return np.uint32(np.uint32(word) * np.uint32(span))


@device_function
def remainder_64(value: Scalar, span: Scalar) -> Scalar:
    """Return the remainder of `integer_64`."""
    return np.uint64(value) * span


@device_function
def integer_64(value: Scalar, span: Scalar) -> tuple[Scalar, Scalar]:
    """Scale a uint64 value to [0, span); a span of 0 stands for 2**64.

    Returns the value and the remainder, both uint64; see `integer_32`.
    """
    high, low = multiply_high(np.uint64(value), span)
    whole = span == np.uint64(0)
    return (np.uint64(value) if whole else high), low
