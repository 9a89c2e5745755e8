"""Random numbers inside kernels: variates of the Philox block (seed, offset, index).

A thread passes an index that no other thread uses, such as its global index. The functions are
stateless, and different indices share no number. Functions whose name ends in 4 return the float32
or integer elements ``4 * index`` to ``4 * index + 3`` of the draw of ``nbrt.Generator(seed)`` at
that offset. Those that end in 2 return the float64 elements ``2 * index`` and ``2 * index + 1``.
The bits are equal on every device.

`seed` is the 64-bit seed. `offset` counts 32-bit words and is a multiple of 4. `index` is an
integer below 2**64. A program that draws again advances the offset by 4 times the number of indices
that it has used.
"""

from __future__ import annotations

import numpy as np

from nbrt_kernels._dialect import Scalar, device_function
from nbrt_kernels.random.philox import block_words, philox4x32
from nbrt_kernels.random.transforms import (
    integer_32,
    join_words,
    normal_pair_f32,
    normal_pair_f64,
    uniform_f32,
    uniform_f64,
)

__all__ = ["normal2", "normal4", "philox4x32", "randint4", "uniform2", "uniform4"]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_TWO = np.uint64(2)
_WORDS = np.uint64(2**32)


@device_function
def _words(
    seed: Scalar, offset: Scalar, index: Scalar, attempt: Scalar
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    key = np.uint64(seed)
    block = (np.uint64(offset) >> _TWO) + np.uint64(index)
    return block_words(block, attempt, key & _LOW, key >> _HALF)


@device_function
def _values(seed: Scalar, offset: Scalar, index: Scalar) -> tuple[Scalar, Scalar]:
    w0, w1, w2, w3 = _words(seed, offset, index, np.uint32(0))
    return join_words(w0, w1), join_words(w2, w3)


@device_function
def uniform4(seed: Scalar, offset: Scalar, index: Scalar) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Return four float32 uniforms in [0, 1).

    Parameters
    ----------
    seed, offset, index : int
        The block; see the module.

    Returns
    -------
    x0, x1, x2, x3 : float32
        Multiples of 2**-24: elements of ``Generator.random(dtype="float32")``.
    """
    w0, w1, w2, w3 = _words(seed, offset, index, np.uint32(0))
    return uniform_f32(w0), uniform_f32(w1), uniform_f32(w2), uniform_f32(w3)


@device_function
def uniform2(seed: Scalar, offset: Scalar, index: Scalar) -> tuple[Scalar, Scalar]:
    """Return two float64 uniforms in [0, 1).

    Parameters
    ----------
    seed, offset, index : int
        The block; see the module.

    Returns
    -------
    x0, x1 : float64
        Multiples of 2**-53: elements of ``Generator.random()``.
    """
    v0, v1 = _values(seed, offset, index)
    return uniform_f64(v0), uniform_f64(v1)


@device_function
def normal4(seed: Scalar, offset: Scalar, index: Scalar) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Return four float32 standard normals.

    Parameters
    ----------
    seed, offset, index : int
        The block; see the module.

    Returns
    -------
    z0, z1, z2, z3 : float32
        Elements of ``Generator.standard_normal(dtype="float32")``.
    """
    w0, w1, w2, w3 = _words(seed, offset, index, np.uint32(0))
    z0, z1 = normal_pair_f32(w0, w1)
    z2, z3 = normal_pair_f32(w2, w3)
    return z0, z1, z2, z3


@device_function
def normal2(seed: Scalar, offset: Scalar, index: Scalar) -> tuple[Scalar, Scalar]:
    """Return two float64 standard normals.

    Parameters
    ----------
    seed, offset, index : int
        The block; see the module.

    Returns
    -------
    z0, z1 : float64
        Elements of ``Generator.standard_normal()``.
    """
    v0, v1 = _values(seed, offset, index)
    z0, z1 = normal_pair_f64(v0, v1)
    return z0, z1


@device_function
def randint4(
    seed: Scalar, offset: Scalar, index: Scalar, low: Scalar, high: Scalar
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Return four integers in [low, high), each equally likely.

    Lemire's method, with rejection of biased words, as in `Generator`.

    Parameters
    ----------
    seed, offset, index : int
        The block; see the module.
    low, high : int
        Bounds, ``low < high <= low + 2**32``; the result is undefined for others.

    Returns
    -------
    x0, x1, x2, x3 : int64
        Elements of ``Generator.integers(low, high)``.
    """
    first = np.int64(low)
    span = np.uint64(np.int64(high) - first)
    # An empty or too wide range has no threshold and must not cause an endless loop.
    threshold = _WORDS % span if np.uint64(span - np.uint64(1)) < _WORDS else np.uint64(0)
    w0, w1, w2, w3 = _words(seed, offset, index, np.uint32(0))
    x0, r0 = integer_32(w0, span)
    x1, r1 = integer_32(w1, span)
    x2, r2 = integer_32(w2, span)
    x3, r3 = integer_32(w3, span)
    attempt = np.uint32(0)
    while r0 < threshold or r1 < threshold or r2 < threshold or r3 < threshold:
        attempt = np.uint32(attempt + np.uint32(1))
        w0, w1, w2, w3 = _words(seed, offset, index, attempt)
        if r0 < threshold:
            x0, r0 = integer_32(w0, span)
        if r1 < threshold:
            x1, r1 = integer_32(w1, span)
        if r2 < threshold:
            x2, r2 = integer_32(w2, span)
        if r3 < threshold:
            x3, r3 = integer_32(w3, span)
    return first + np.int64(x0), first + np.int64(x1), first + np.int64(x2), first + np.int64(x3)
