"""Exact results of floating-point operations by rational numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass(frozen=True)
class Format:
    """A binary floating-point format."""

    exponent_bits: int
    mantissa_bits: int

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def infinity(self) -> int:
        """The bits of infinity."""
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def sign(self) -> int:
        return 1 << (self.exponent_bits + self.mantissa_bits)


FORMATS = {
    "f16": Format(5, 10),
    "bf16": Format(8, 7),
    "tf32": Format(8, 10),
    "f32": Format(8, 23),
    "f64": Format(11, 52),
}


def value_of(bits: int, form: Format) -> Fraction | float:
    """Return the number of some bits: a fraction, or an infinity or NaN as float."""
    sign = -1 if bits & form.sign else 1
    magnitude = bits & (form.sign - 1)
    if magnitude > form.infinity:
        return math.nan
    if magnitude == form.infinity:
        return sign * math.inf
    exponent = magnitude >> form.mantissa_bits
    mantissa = magnitude & ((1 << form.mantissa_bits) - 1)
    if exponent:
        mantissa |= 1 << form.mantissa_bits
    power = max(exponent, 1) - form.bias - form.mantissa_bits
    return sign * mantissa * Fraction(2) ** power


def round_to(value: Fraction, form: Format, mode: str, *, negative_zero: bool = False) -> int:
    """Return the bits of a rational number in a format.

    Modes: rn (nearest even), rz, rm, rp, and rna (nearest, ties away from zero).
    """
    negative = value < 0 or (value == 0 and negative_zero)
    magnitude = abs(value)
    sign = form.sign if negative else 0
    if magnitude == 0:
        return sign
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    scale = max(exponent, 1 - form.bias)
    quantum = Fraction(2) ** (scale - form.mantissa_bits)
    whole, rest = divmod(magnitude, quantum)
    twice = 2 * rest
    up = {
        "rn": twice > quantum or (twice == quantum and whole % 2 == 1),
        "rna": twice >= quantum,
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    bits = ((scale + form.bias - 1) << form.mantissa_bits) + whole + int(up)
    if bits >= form.infinity:
        toward_zero = mode == "rz" or (mode == "rm" and not negative)
        toward_zero = toward_zero or (mode == "rp" and negative)
        bits = form.infinity - 1 if toward_zero else form.infinity
    return sign | bits


def square_root(value: Fraction, form: Format, mode: str) -> int:
    """Return the bits of a square root: exact to 300 bits, with a sticky bit below."""
    shift = 600
    scaled = value * (1 << 2 * shift)
    root = math.isqrt(scaled.numerator // scaled.denominator)
    exact = Fraction(root * root) == scaled
    result = Fraction(2 * root + (0 if exact else 1), 2 << shift)
    return round_to(result, form, mode)


def samples(kind: str, count: int, seed: int) -> np.ndarray:
    """Return edge values and random bit patterns of f32 or f64, as unsigned integers."""
    form = FORMATS[kind]
    width = 1 + form.exponent_bits + form.mantissa_bits
    dtype = np.dtype(f"uint{width}")
    one = form.bias << form.mantissa_bits
    edges = [0, 1, 2, (1 << form.mantissa_bits) - 1, 1 << form.mantissa_bits, one - 1, one]
    edges += [one + 1, one + (1 << form.mantissa_bits), form.infinity - 1, form.infinity]
    edges += [form.infinity + 1, form.infinity + (1 << (form.mantissa_bits - 1))]
    edges += [edge | form.sign for edge in edges]
    generator = np.random.default_rng(seed)
    wild = generator.integers(0, 1 << width, count, dtype=dtype, endpoint=False)
    near = generator.integers(
        one - (3 << form.mantissa_bits), one + (3 << form.mantissa_bits), count
    )
    signs = generator.integers(0, 2, count).astype(dtype) * dtype.type(form.sign)
    return np.concatenate([np.array(edges, dtype), wild, near.astype(dtype) | signs])
