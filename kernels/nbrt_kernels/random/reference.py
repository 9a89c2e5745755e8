"""NumPy references of all draws, equal to the kernels bit for bit.

They replay the formulas of `nbrt_kernels.random.transforms` on whole arrays, with a correctly
rounded fused multiply-add, and serve as the oracle of the tests.  They are written for clarity:
they branch where the kernels do not, and they allocate temporaries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nbrt_kernels._fma import fma_reference
from nbrt_kernels.random import transforms as t
from nbrt_kernels.random.parameters import (
    integer_parameters,
    normal_parameters,
    uniform_parameters,
)
from nbrt_kernels.random.philox import words_reference

__all__ = [
    "bits_reference",
    "integers_reference",
    "neg_log_reference",
    "normal_pair_reference",
    "normal_reference",
    "sincos_reference",
    "uniform_reference",
]

FloatArray = npt.NDArray[Any]


def bits_reference(
    n: int, seed: int, offset: int, dtype: npt.DTypeLike = np.uint32, attempt: int = 0
) -> npt.NDArray[Any]:
    """Return the first `n` raw words, uint32 or (low word first) uint64.

    Parameters
    ----------
    n : int
        Number of elements.
    seed, offset : int
        64-bit seed, and words drawn before, a multiple of 4.
    dtype : dtype_like, optional
        uint32 or uint64.
    attempt : int, optional
        Counter word 2, for draws that were rejected before.

    Returns
    -------
    ndarray, shape (n,)
        The words.
    """
    per_block = 16 // np.dtype(dtype).itemsize
    blocks = np.uint64(offset // 4) + np.arange(-(-n // per_block), dtype=np.uint64)
    words = words_reference(blocks, seed, attempt)
    # Words are stored low first, as two words of a little-endian uint64 are.
    return words.reshape(-1).astype("<u4").view(np.dtype(dtype).newbyteorder("<"))[:n]


def uniform_reference(
    n: int,
    seed: int,
    offset: int = 0,
    dtype: npt.DTypeLike = np.float32,
    low: float = 0.0,
    high: float = 1.0,
) -> FloatArray:
    """Return `n` uniforms of [low, high), float32 or float64, bit for bit those of the kernels."""
    first, span, top = uniform_parameters(low, high, dtype)
    u: FloatArray
    if np.dtype(dtype) == np.float32:
        u = (bits_reference(n, seed, offset, np.uint32) >> 8).astype(np.float32)
        u *= np.float32(2.0**-24)
    else:
        u = (bits_reference(n, seed, offset, np.uint64) >> 11).astype(np.float64) * 2.0**-53
    return np.asarray(np.minimum(fma_reference(u, span, first), top))


def _horner(coefficients: tuple[Any, ...], x: FloatArray) -> FloatArray:
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = fma_reference(total, x, coefficient)
    return total


def _kind(words: npt.NDArray[Any]) -> tuple[Any, Any, int]:
    """Return the float dtype, the signed dtype and the width that belong to the words."""
    if words.dtype == np.uint32:
        return np.float32, np.int32, 32
    return np.float64, np.int64, 64


def neg_log_reference(words: npt.NDArray[Any]) -> FloatArray:
    """Return ``-log((word + 1) / 2**bits)`` of uint32 (float32) or uint64 (float64) words."""
    real, signed, bits = _kind(words)
    coefficients, ln2, bound = (
        (t.LOG_32, t.LN2_32, t.SQRT_HALF_32) if bits == 32 else (t.LOG_64, t.LN2_64, t.SQRT_HALF_64)
    )
    one = words.dtype.type(1)
    n = words + one
    shift = np.zeros_like(n)
    for step in (32, 16, 8, 4, 2, 1):
        # Binary search of the leading one; zero (u = 1) is left alone.
        empty = (n << shift >> words.dtype.type(bits - step) == 0) if step < bits else n < 0
        shift += np.where(empty & (n != 0), words.dtype.type(step), words.dtype.type(0))
    m = n << shift
    upper = m.view(signed) >= bound
    steps = np.where(upper, m, m << one).view(signed)
    s = (shift.astype(signed) + ~upper).astype(real)
    x = steps.astype(real) * real(2.0**-bits)
    log = fma_reference(x * x, _horner(coefficients, x), -x)
    return fma_reference(s, ln2[0], fma_reference(s, ln2[1], log))


def sincos_reference(words: npt.NDArray[Any]) -> tuple[FloatArray, FloatArray]:
    """Return sine and cosine of ``2 pi word / 2**bits`` of uint32 or uint64 words."""
    real, signed, bits = _kind(words)
    sine_terms, cosine_terms, pio4 = (
        (t.SIN_32, t.COS_32, t.PIO4_32) if bits == 32 else (t.SIN_64, t.COS_64, t.PIO4_64)
    )
    word = words.dtype.type
    quadrant = (words + word(1 << bits - 3)) >> word(bits - 2)
    y = (words << word(2)).view(signed).astype(real) * real(2.0 ** -(bits - 1))
    z = y * y
    tail = fma_reference(_horner(sine_terms, z), z, pio4[1])
    sine = fma_reference(y, pio4[0], y * tail)
    cosine = fma_reference(_horner(cosine_terms, z), z, real(1.0))
    odd = quadrant % 2 == 1
    s, c = np.where(odd, cosine, sine), np.where(odd, sine, cosine)
    s = np.where(quadrant >= 2, -s, s)
    c = np.where((quadrant == 1) | (quadrant == 2), -c, c)
    return s, c


def normal_pair_reference(
    radius_words: npt.NDArray[Any], angle_words: npt.NDArray[Any]
) -> tuple[FloatArray, FloatArray]:
    """Return two arrays of standard normals, cosine first, from uint32 or uint64 words."""
    half = neg_log_reference(radius_words)
    r = np.sqrt(half + half)
    s, c = sincos_reference(angle_words)
    return r * c, r * s


def normal_reference(
    n: int,
    seed: int,
    offset: int = 0,
    dtype: npt.DTypeLike = np.float32,
    loc: float = 0.0,
    scale: float = 1.0,
) -> FloatArray:
    """Return `n` normals, float32 or float64, bit for bit those of the kernels."""
    mean, deviation = normal_parameters(loc, scale, dtype)
    bits = np.uint32 if np.dtype(dtype) == np.float32 else np.uint64
    words = bits_reference(n + n % 2, seed, offset, bits)
    pairs = normal_pair_reference(words[0::2].copy(), words[1::2].copy())
    z = np.stack(pairs, axis=-1).reshape(-1)[:n]
    return fma_reference(z, deviation, mean)


def integers_reference(
    n: int, low: int, high: int, seed: int, offset: int = 0, dtype: npt.DTypeLike = np.int64
) -> npt.NDArray[Any]:
    """Return `n` integers of [low, high), bit for bit those of the kernels.

    Uses Python integers, one element at a time.
    """
    name, (_, _, threshold) = integer_parameters(low, high, dtype)
    width = 32 if name == "integers" else 64
    words = np.uint32 if width == 32 else np.uint64
    span = high - low
    result = np.empty(n, dtype=dtype)
    waiting = np.arange(n)
    attempt = 0
    while waiting.size:
        rejected = []
        drawn = bits_reference(n, seed, offset, words, attempt)[waiting]
        for index, word in zip(waiting, drawn, strict=True):
            product = int(word) * span
            if product % 2**width < int(threshold):
                rejected.append(index)
            else:
                result[index] = low + (product >> width)
        waiting = np.array(rejected, dtype=np.int64)
        attempt += 1
    return result
