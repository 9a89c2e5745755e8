"""Kernels that fill a 1-D contiguous array with draws, and the table that says how to launch them.

How a backend launches a draw of `n` elements from ``(seed, offset)``::

    spec = DRAWS["normal", "float32"]
    threads = spec.threads(n)                  # one thread per Philox block
    grid = ceil(threads / block_size)          # any block size gives the same bits
    spec.kernel[grid, block_size](out, *spec.arguments(seed, offset), loc, scale)

`spec.arguments` returns ``(uint32 key0, uint32 key1, uint64 first_block)``; the parameters that
follow (named in ``spec.parameters``) must have exactly the types that `uniform_parameters`,
`normal_parameters` and `integer_parameters` return, so that one compiled kernel serves every call.
Afterwards the generator advances its offset by ``spec.increment(n)``.

A grid larger than needed is harmless: a thread past the end stores nothing.

Every kernel has the form ``if whole: draw, store; elif first element inside: draw, guarded store``.
``whole`` is uniform over the thread block, so a CPU compiler lifts it out of the thread loop and
vectorises the first branch, where nothing is guarded; a GPU never diverges on it.  The draw stands
in both branches, and the second begins with a test of its own, for that reason: LLVM would hoist
what both branches begin with, and a loop so merged is too large for it to split again.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

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
from nbrt_kernels.random.integers import fill_integers_32, fill_integers_64
from nbrt_kernels.random.philox import block_words
from nbrt_kernels.random.transforms import (
    normal_pair_f32,
    normal_pair_f64,
    scale_uniform,
    uniform_f32,
    uniform_f64,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DRAWS",
    "DrawSpec",
    "fill_bits_32",
    "fill_bits_64",
    "fill_integers_32",
    "fill_integers_64",
    "fill_normal_f32",
    "fill_normal_f64",
    "fill_uniform_f32",
    "fill_uniform_f64",
]


@device_function
def _uniforms_f32(
    block: Scalar, key0: Scalar, key1: Scalar, low: Scalar, span: Scalar, top: Scalar
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    w0, w1, w2, w3 = block_words(block, FIRST_ATTEMPT, key0, key1)
    x0 = scale_uniform(uniform_f32(w0), low, span, top)
    x1 = scale_uniform(uniform_f32(w1), low, span, top)
    x2 = scale_uniform(uniform_f32(w2), low, span, top)
    x3 = scale_uniform(uniform_f32(w3), low, span, top)
    return x0, x1, x2, x3


@device_function
def _uniforms_f64(
    block: Scalar, key0: Scalar, key1: Scalar, low: Scalar, span: Scalar, top: Scalar
) -> tuple[Scalar, Scalar]:
    v0, v1 = bits_64(block, key0, key1)
    x0 = scale_uniform(uniform_f64(v0), low, span, top)
    x1 = scale_uniform(uniform_f64(v1), low, span, top)
    return x0, x1


@device_function
def _normals_f32(
    block: Scalar, key0: Scalar, key1: Scalar, loc: Scalar, scale: Scalar
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    w0, w1, w2, w3 = block_words(block, FIRST_ATTEMPT, key0, key1)
    z0, z1 = normal_pair_f32(w0, w1)
    z2, z3 = normal_pair_f32(w2, w3)
    x0, x1 = cuda.fma(z0, scale, loc), cuda.fma(z1, scale, loc)
    x2, x3 = cuda.fma(z2, scale, loc), cuda.fma(z3, scale, loc)
    return x0, x1, x2, x3


@device_function
def _normals_f64(
    block: Scalar, key0: Scalar, key1: Scalar, loc: Scalar, scale: Scalar
) -> tuple[Scalar, Scalar]:
    v0, v1 = bits_64(block, key0, key1)
    z0, z1 = normal_pair_f64(v0, v1)
    return cuda.fma(z0, scale, loc), cuda.fma(z1, scale, loc)


def fill_bits_32(out: Array, key0: Scalar, key1: Scalar, first_block: Scalar) -> None:
    """Fill with raw words: element i is word i % 4 of block ``first_block + i // 4``.

    Parameters
    ----------
    out : uint32, shape (n,), contiguous
        Result.
    key0, key1 : uint32
        Low and high half of the seed.
    first_block : uint64
        ``offset // 4``.
    """
    i = cuda.grid(1)
    block = np.uint64(first_block) + np.uint64(i)
    if (cuda.blockIdx.x + 1) * cuda.blockDim.x * 4 <= out.shape[0]:
        x0, x1, x2, x3 = block_words(block, FIRST_ATTEMPT, key0, key1)
        store_four(out, 4 * i, x0, x1, x2, x3)
    elif 4 * i < out.shape[0]:
        x0, x1, x2, x3 = block_words(block, FIRST_ATTEMPT, key0, key1)
        store_inside_four(out, 4 * i, x0, x1, x2, x3)


def fill_bits_64(out: Array, key0: Scalar, key1: Scalar, first_block: Scalar) -> None:
    """Fill with raw 64-bit values: element i is words (2 (i % 2), 2 (i % 2) + 1), low word first.

    Parameters
    ----------
    out : uint64, shape (n,), contiguous
        Result.
    key0, key1 : uint32
        Low and high half of the seed.
    first_block : uint64
        ``offset // 4``.
    """
    i = cuda.grid(1)
    block = np.uint64(first_block) + np.uint64(i)
    if (cuda.blockIdx.x + 1) * cuda.blockDim.x * 2 <= out.shape[0]:
        x0, x1 = bits_64(block, key0, key1)
        store_two(out, 2 * i, x0, x1)
    elif 2 * i < out.shape[0]:
        x0, x1 = bits_64(block, key0, key1)
        store_inside_two(out, 2 * i, x0, x1)


def fill_uniform_f32(
    out: Array,
    key0: Scalar,
    key1: Scalar,
    first_block: Scalar,
    low: Scalar,
    span: Scalar,
    top: Scalar,
) -> None:
    """Fill with float32 uniforms in [low, high).

    Parameters
    ----------
    out : float32, shape (n,), contiguous
        Result: ``min(fma((word >> 8) * 2**-24, span, low), top)``.
    key0, key1 : uint32
        Low and high half of the seed.
    first_block : uint64
        ``offset // 4``.
    low, span, top : float32
        From `uniform_parameters`: lower bound, ``high - low``, largest value below ``high``.
    """
    i = cuda.grid(1)
    block = np.uint64(first_block) + np.uint64(i)
    if (cuda.blockIdx.x + 1) * cuda.blockDim.x * 4 <= out.shape[0]:
        x0, x1, x2, x3 = _uniforms_f32(block, key0, key1, low, span, top)
        store_four(out, 4 * i, x0, x1, x2, x3)
    elif 4 * i < out.shape[0]:
        x0, x1, x2, x3 = _uniforms_f32(block, key0, key1, low, span, top)
        store_inside_four(out, 4 * i, x0, x1, x2, x3)


def fill_uniform_f64(
    out: Array,
    key0: Scalar,
    key1: Scalar,
    first_block: Scalar,
    low: Scalar,
    span: Scalar,
    top: Scalar,
) -> None:
    """Fill with float64 uniforms in [low, high).

    Parameters
    ----------
    out : float64, shape (n,), contiguous
        Result: ``min(fma((value >> 11) * 2**-53, span, low), top)``.
    key0, key1 : uint32
        Low and high half of the seed.
    first_block : uint64
        ``offset // 4``.
    low, span, top : float64
        From `uniform_parameters`: lower bound, ``high - low``, largest value below ``high``.
    """
    i = cuda.grid(1)
    block = np.uint64(first_block) + np.uint64(i)
    if (cuda.blockIdx.x + 1) * cuda.blockDim.x * 2 <= out.shape[0]:
        x0, x1 = _uniforms_f64(block, key0, key1, low, span, top)
        store_two(out, 2 * i, x0, x1)
    elif 2 * i < out.shape[0]:
        x0, x1 = _uniforms_f64(block, key0, key1, low, span, top)
        store_inside_two(out, 2 * i, x0, x1)


def fill_normal_f32(
    out: Array, key0: Scalar, key1: Scalar, first_block: Scalar, loc: Scalar, scale: Scalar
) -> None:
    """Fill with float32 normals of mean `loc` and standard deviation `scale`.

    Parameters
    ----------
    out : float32, shape (n,), contiguous
        Result: ``fma(z, scale, loc)``, z by Box-Muller from the word pairs (w0, w1) and (w2, w3);
        the first word of a pair is the radius, the second the angle, cosine before sine.
    key0, key1 : uint32
        Low and high half of the seed.
    first_block : uint64
        ``offset // 4``.
    loc, scale : float32
        From `normal_parameters`.
    """
    i = cuda.grid(1)
    block = np.uint64(first_block) + np.uint64(i)
    if (cuda.blockIdx.x + 1) * cuda.blockDim.x * 4 <= out.shape[0]:
        x0, x1, x2, x3 = _normals_f32(block, key0, key1, loc, scale)
        store_four(out, 4 * i, x0, x1, x2, x3)
    elif 4 * i < out.shape[0]:
        x0, x1, x2, x3 = _normals_f32(block, key0, key1, loc, scale)
        store_inside_four(out, 4 * i, x0, x1, x2, x3)


def fill_normal_f64(
    out: Array, key0: Scalar, key1: Scalar, first_block: Scalar, loc: Scalar, scale: Scalar
) -> None:
    """Fill with float64 normals of mean `loc` and standard deviation `scale`.

    Parameters
    ----------
    out : float64, shape (n,), contiguous
        Result: ``fma(z, scale, loc)``, z by Box-Muller from the two 64-bit values of a block, the
        first the radius, the second the angle; cosine before sine.
    key0, key1 : uint32
        Low and high half of the seed.
    first_block : uint64
        ``offset // 4``.
    loc, scale : float64
        From `normal_parameters`.
    """
    i = cuda.grid(1)
    block = np.uint64(first_block) + np.uint64(i)
    if (cuda.blockIdx.x + 1) * cuda.blockDim.x * 2 <= out.shape[0]:
        x0, x1 = _normals_f64(block, key0, key1, loc, scale)
        store_two(out, 2 * i, x0, x1)
    elif 2 * i < out.shape[0]:
        x0, x1 = _normals_f64(block, key0, key1, loc, scale)
        store_inside_two(out, 2 * i, x0, x1)


@dataclass(frozen=True)
class DrawSpec:
    """How one draw is launched.

    Attributes
    ----------
    distribution, dtype : str
        The key of the draw in `DRAWS`.
    kernel : callable
        ``kernel(out, key0, key1, first_block, *parameters)``, one thread per Philox block.
    elements_per_block : int
        Elements made from one Philox block, 4 or 2: thread i writes the elements from
        ``elements_per_block * i`` on.
    words_per_element : int
        32-bit words an element takes from its block, 1 or 2.
    parameters : tuple of str
        Names of the arguments after ``first_block``, in order.
    """

    distribution: str
    dtype: str
    kernel: Callable[..., None]
    elements_per_block: int
    words_per_element: int
    parameters: tuple[str, ...]

    def threads(self, n: int) -> int:
        """Return the number of threads, that is of Philox blocks, that `n` elements need."""
        return -(-n // self.elements_per_block)

    def increment(self, n: int) -> int:
        """Return by how much a draw of `n` elements advances the offset: 4 per block."""
        return 4 * self.threads(n)

    def arguments(self, seed: int, offset: int) -> tuple[np.uint32, np.uint32, np.uint64]:
        """Return ``(key0, key1, first_block)`` of a 64-bit seed and an offset in words.

        Parameters
        ----------
        seed : int
            ``0 <= seed < 2**64``.
        offset : int
            Words drawn so far, a multiple of 4.
        """
        return (
            np.uint32(seed & 0xFFFFFFFF),
            np.uint32(seed >> 32),
            np.uint64(offset // 4 & 0xFFFFFFFFFFFFFFFF),
        )


def _draws() -> dict[tuple[str, str], DrawSpec]:
    table: dict[tuple[str, str], DrawSpec] = {}

    def add(distribution: str, dtype: str, kernel: Any, per_block: int, *parameters: str) -> None:
        spec = DrawSpec(distribution, dtype, kernel, per_block, 4 // per_block, parameters)
        table[distribution, dtype] = spec

    add("bits", "uint32", fill_bits_32, 4)
    add("bits", "uint64", fill_bits_64, 2)
    add("uniform", "float32", fill_uniform_f32, 4, "low", "span", "top")
    add("uniform", "float64", fill_uniform_f64, 2, "low", "span", "top")
    add("normal", "float32", fill_normal_f32, 4, "loc", "scale")
    add("normal", "float64", fill_normal_f64, 2, "loc", "scale")
    for size in (8, 16, 32, 64):
        for name in (f"int{size}", f"uint{size}"):
            add("integers", name, fill_integers_32, 4, "low", "span", "threshold")
    for name in ("int64", "uint64"):
        add("integers_wide", name, fill_integers_64, 2, "low", "span", "threshold")
    return table


#: Every draw, by (distribution, dtype name). "integers" serves ranges up to 2**32 of any integer
#: dtype and "integers_wide" the larger ones; `integer_parameters` says which one a call needs.
DRAWS: MappingProxyType[tuple[str, str], DrawSpec] = MappingProxyType(_draws())
