"""Fill kernels of unbiased integers; `nbrt_kernels.random.fill` says how they are launched."""

from __future__ import annotations

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, cuda, device_function
from nbrt_kernels.random._store import (
    FIRST_ATTEMPT,
    bits_64,
    store_four,
    store_inside_four,
    store_inside_two,
    store_two,
)
from nbrt_kernels.random.philox import block_words
from nbrt_kernels.random.transforms import integer_32, integer_64, join_words

__all__ = ["fill_integers_32", "fill_integers_64"]


@device_function
def _integers_32(
    block: Scalar, key0: Scalar, key1: Scalar, low: Scalar, span: Scalar
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Draw four integers where no word can be rejected."""
    w0, w1, w2, w3 = block_words(block, FIRST_ATTEMPT, key0, key1)
    x0, _r0 = integer_32(w0, span)
    x1, _r1 = integer_32(w1, span)
    x2, _r2 = integer_32(w2, span)
    x3, _r3 = integer_32(w3, span)
    return low + x0, low + x1, low + x2, low + x3


@device_function
def _integers_64(
    block: Scalar, key0: Scalar, key1: Scalar, low: Scalar, span: Scalar
) -> tuple[Scalar, Scalar]:
    """Draw two integers where no value can be rejected."""
    v0, v1 = bits_64(block, key0, key1)
    x0, _r0 = integer_64(v0, span)
    x1, _r1 = integer_64(v1, span)
    return low + x0, low + x1


@device_function
def _integer_32_at(
    word: Scalar,
    position: Scalar,
    block: Scalar,
    key0: Scalar,
    key1: Scalar,
    span: Scalar,
    threshold: Scalar,
) -> Scalar:
    """Draw one integer in [0, span), redrawing the word at `position` until it is accepted."""
    value, remainder = integer_32(word, span)
    attempt = np.uint32(0)
    while remainder < threshold:
        attempt = np.uint32(attempt + np.uint32(1))
        w0, w1, w2, w3 = block_words(block, attempt, key0, key1)
        low = w0 if position == 0 else w1
        high = w2 if position == 2 else w3
        value, remainder = integer_32(low if position < 2 else high, span)
    return value


@device_function
def _integer_64_at(
    value: Scalar,
    position: Scalar,
    block: Scalar,
    key0: Scalar,
    key1: Scalar,
    span: Scalar,
    threshold: Scalar,
) -> Scalar:
    """Draw one integer in [0, span), redrawing the value at `position` until it is accepted."""
    result, remainder = integer_64(value, span)
    attempt = np.uint32(0)
    while remainder < threshold:
        attempt = np.uint32(attempt + np.uint32(1))
        w0, w1, w2, w3 = block_words(block, attempt, key0, key1)
        again = join_words(w0, w1) if position == 0 else join_words(w2, w3)
        result, remainder = integer_64(again, span)
    return result


def fill_integers_32(
    out: Array,
    key0: Scalar,
    key1: Scalar,
    first_block: Scalar,
    low: Scalar,
    span: Scalar,
    threshold: Scalar,
) -> None:
    """Fill with unbiased integers of [low, high), for ranges up to 2**32.

    Lemire's multiply-high with rejection: attempt k of an element reads the same word of the same
    block with counter word 2 equal to k, so a value depends on seed, offset and index alone.

    Parameters
    ----------
    out : any integer dtype, shape (n,), contiguous
        Result.
    key0, key1 : uint32
        Low and high half of the seed.
    first_block : uint64
        ``offset // 4``.
    low, span, threshold : uint64
        From `integer_parameters`: lower bound modulo 2**64, ``high - low``, ``2**32 mod span``.
    """
    i = cuda.grid(1)
    block = np.uint64(first_block) + np.uint64(i)
    inside = (cuda.blockIdx.x + 1) * cuda.blockDim.x * 4 <= out.shape[0]
    if inside and threshold == np.uint64(0):
        # Nothing can be rejected: without the redraw loops this branch vectorises.
        x0, x1, x2, x3 = _integers_32(block, key0, key1, low, span)
        store_four(out, 4 * i, x0, x1, x2, x3)
    elif 4 * i < out.shape[0]:
        w0, w1, w2, w3 = block_words(block, FIRST_ATTEMPT, key0, key1)
        x0 = low + _integer_32_at(w0, 0, block, key0, key1, span, threshold)
        x1 = low + _integer_32_at(w1, 1, block, key0, key1, span, threshold)
        x2 = low + _integer_32_at(w2, 2, block, key0, key1, span, threshold)
        x3 = low + _integer_32_at(w3, 3, block, key0, key1, span, threshold)
        store_inside_four(out, 4 * i, x0, x1, x2, x3)


def fill_integers_64(
    out: Array,
    key0: Scalar,
    key1: Scalar,
    first_block: Scalar,
    low: Scalar,
    span: Scalar,
    threshold: Scalar,
) -> None:
    """Fill with unbiased integers of [low, high), for ranges above 2**32.

    Parameters
    ----------
    out : any integer dtype, shape (n,), contiguous
        Result.
    key0, key1 : uint32
        Low and high half of the seed.
    first_block : uint64
        ``offset // 4``.
    low, span, threshold : uint64
        From `integer_parameters`: lower bound modulo 2**64, ``high - low`` (0 for 2**64),
        ``2**64 mod span``.
    """
    i = cuda.grid(1)
    block = np.uint64(first_block) + np.uint64(i)
    inside = (cuda.blockIdx.x + 1) * cuda.blockDim.x * 2 <= out.shape[0]
    if inside and threshold == np.uint64(0):
        # Nothing can be rejected: without the redraw loops this branch vectorises.
        x0, x1 = _integers_64(block, key0, key1, low, span)
        store_two(out, 2 * i, x0, x1)
    elif 2 * i < out.shape[0]:
        v0, v1 = bits_64(block, key0, key1)
        x0 = low + _integer_64_at(v0, 0, block, key0, key1, span, threshold)
        x1 = low + _integer_64_at(v1, 1, block, key0, key1, span, threshold)
        store_inside_two(out, 2 * i, x0, x1)
