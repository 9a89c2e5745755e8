"""Device code that the fill kernels share: storing what a Philox block gives."""

from __future__ import annotations

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, device_function
from nbrt_kernels.random.philox import block_words
from nbrt_kernels.random.transforms import join_words

__all__ = [
    "FIRST_ATTEMPT",
    "bits_64",
    "store_four",
    "store_inside_four",
    "store_inside_two",
    "store_two",
]

#: Counter word 2 of a draw that nothing has rejected.
FIRST_ATTEMPT = np.uint32(0)


@device_function
def store_inside_four(
    out: Array, start: Scalar, a: Scalar, b: Scalar, c: Scalar, d: Scalar
) -> None:
    """Store those of four elements that are inside; the first one is."""
    out[start] = a
    if start + 1 < out.shape[0]:
        out[start + 1] = b
    if start + 2 < out.shape[0]:
        out[start + 2] = c
    if start + 3 < out.shape[0]:
        out[start + 3] = d


@device_function
def store_four(out: Array, start: Scalar, a: Scalar, b: Scalar, c: Scalar, d: Scalar) -> None:
    """Store four elements, all of them inside."""
    out[start] = a
    out[start + 1] = b
    out[start + 2] = c
    out[start + 3] = d


@device_function
def store_inside_two(out: Array, start: Scalar, a: Scalar, b: Scalar) -> None:
    """Store those of two elements that are inside; the first one is."""
    out[start] = a
    if start + 1 < out.shape[0]:
        out[start + 1] = b


@device_function
def store_two(out: Array, start: Scalar, a: Scalar, b: Scalar) -> None:
    """Store two elements, both of them inside."""
    out[start] = a
    out[start + 1] = b


@device_function
def bits_64(block: Scalar, key0: Scalar, key1: Scalar) -> tuple[Scalar, Scalar]:
    """Return the two 64-bit values of a block, low word first."""
    w0, w1, w2, w3 = block_words(block, FIRST_ATTEMPT, key0, key1)
    return join_words(w0, w1), join_words(w2, w3)
