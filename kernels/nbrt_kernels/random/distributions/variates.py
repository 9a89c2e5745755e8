"""Standard variates: functions of a word of a Philox block, without parameters.

With ``bits`` bits, a word w stands for the interval ``[w, w + 1) * 2**-bits``.  Both of its ends,
or its middle ``(w + 1/2) * 2**-bits``, are known as integers, and so is the distance to 1: no
formula subtracts a rounded uniform from 1, and both tails reach as far as the words do.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from nbrt_kernels._dialect import Scalar, cuda, device_function
from nbrt_kernels.random.math import select

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction
    from nbrt_kernels.random.distributions._precision import Precision

__all__ = [
    "cauchy",
    "gumbel",
    "laplace",
    "logistic",
    "middle",
    "top_bits",
]


def top_bits(precision: Precision, bits: int) -> DeviceFunction:
    """Make the uniform in [0, 1) of the top `bits` bits of a word."""
    word_type, real = precision.word, precision.real
    shift, step = word_type(precision.bits - bits), real(2.0**-bits)
    from_word = precision.from_word

    @device_function
    def uniform(word: Scalar) -> Scalar:
        return from_word(word_type(word >> shift)) * step

    return uniform


@cache
def middle(precision: Precision) -> DeviceFunction:
    """Make the middle of a word's interval, in (0, 1]: the last ones round to 1."""
    from_word = precision.from_word
    step, half_step = (precision.real(2.0**-bits) for bits in (precision.bits, precision.bits + 1))

    @device_function
    def midpoint(word: Scalar) -> Scalar:
        return cuda.fma(from_word(word), step, half_step)

    return midpoint


def gumbel(precision: Precision) -> DeviceFunction:
    """Make ``-log(E)``, E exponential."""
    exponential, log = precision.exponential, precision.log
    zero, least = precision.real(0), precision.real(2.0 ** -(precision.bits + 1))

    @device_function
    def standard_gumbel(word: Scalar) -> Scalar:
        e = exponential(word)
        # The interval of the last word ends at 1, where E is 0: use the middle there.
        return -log(select(e > zero, e, least))

    return standard_gumbel


def laplace(precision: Precision) -> DeviceFunction:
    """Make an exponential of all bits but the first, which is the sign."""
    exponential, word_type = precision.exponential, precision.word
    one, first_bit = word_type(1), word_type(2 ** (precision.bits - 1))

    @device_function
    def standard_laplace(word: Scalar) -> Scalar:
        e = exponential(word_type(word_type(word << one) | one))
        return select(word < first_bit, -e, e)

    return standard_laplace


def logistic(precision: Precision) -> DeviceFunction:
    """Make ``log(u / (1 - u))``, odd around the middle.

    With m words between w and the nearer end, the magnitude is ``log((2**bits - m) / (m + 1))``, as
    ``log1p`` of that quotient less 1, whose numerator is an integer.
    """
    log1p, from_word, word_type = precision.log1p, precision.from_word, precision.word
    one, half = word_type(1), word_type(2 ** (precision.bits - 1))

    @device_function
    def standard_logistic(word: Scalar) -> Scalar:
        m = select(word < half, word, word_type(~word))
        above = from_word(word_type(~word_type(m << one)))
        value = log1p(above / from_word(word_type(m + one)))
        return select(word < half, -value, value)

    return standard_logistic


def cauchy(precision: Precision) -> DeviceFunction:
    """Make ``tan(pi (u - 1/2))``, odd around the middle, u the middle of a word's interval.

    Nearer to an end than to the middle, as the cotangent of the distance from the end.
    """
    tanpi, word_type, u = precision.tanpi, precision.word, middle(precision)
    half, quarter = (word_type(2 ** (precision.bits - k)) for k in (1, 2))
    below_half, one = word_type(2 ** (precision.bits - 1) - 1), precision.real(1)

    @device_function
    def standard_cauchy(word: Scalar) -> Scalar:
        m = select(word < half, word, word_type(~word))
        tangent = tanpi(u(select(m < quarter, m, word_type(below_half - m))))
        value = select(m < quarter, one / tangent, tangent)
        return select(word < half, -value, value)

    return standard_cauchy
