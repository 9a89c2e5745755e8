"""Dropout: draw a mask, apply it to an array and scale the rest, in one pass."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, cuda, device_function
from nbrt_kernels.random._tiles import first_block, keys, tile_of
from nbrt_kernels.random.distributions.output_casts import cast
from nbrt_kernels.random.math import select
from nbrt_kernels.random.transforms import bits_24

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt_kernels.random._floats import DeviceFunction

__all__ = ["dropout_kernel", "keep_threshold", "scale_kernel"]


@device_function
def _times(x: Scalar, scale: Scalar, _b: Scalar, _c: Scalar) -> Scalar:
    return x * scale


@device_function
def _as_it_is(x: Scalar) -> Scalar:
    return x


@device_function
def _from_half(x: Scalar) -> Scalar:
    return np.float32(x)


@device_function
def _from_bfloat(bits: Scalar) -> Scalar:
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


def _converters(dtype: str) -> tuple[DeviceFunction, DeviceFunction, Any]:
    """Return the functions that load and store an element, and the stored zero."""
    load = {"float16": _from_half, "bfloat16": _from_bfloat}.get(dtype, _as_it_is)
    zero = np.dtype("uint16" if dtype == "bfloat16" else dtype).type(0)
    return load, cast(_times, dtype), zero


@cache
def dropout_kernel(dtype: str, blocks: int) -> Callable[..., None]:
    """Return the kernel ``(out, state, skip, mask, x, threshold, scale)`` that drops elements.

    Element i is kept if ``word >> 8 < threshold`` for word ``i % 4`` of block ``offset // 4 + skip
    + i // 4``. Then ``out[i]`` is ``x[i] * scale`` and ``mask[i]``, a uint8, 1; else both are 0.
    `out` and `x`, which may be one array, have the dtype; all three are contiguous and of one
    length.

    Parameters
    ----------
    dtype : str
        float16, bfloat16 (bits, as uint16), float32 or float64.
    blocks : int
        Philox blocks to a tile, as in `fill`; it needs the threads of a `fill`.
    """
    values, size, draw = 2 * blocks, 4 * blocks, tile_of(blocks)
    load, store, zero = _converters(dtype)

    def drop_elements(
        out: Array, state: Array, skip: Scalar, mask: Array, x: Array, threshold: Scalar,
        scale: Scalar,
    ) -> None:  # fmt: skip
        thread = cuda.grid(1)
        start = thread * size
        if start < out.shape[0]:
            tile = cuda.local.array(values, np.uint64)
            words = tile.view(np.uint32)
            key0, key1 = keys(state)
            draw(tile, first_block(state, skip) + np.uint64(thread * blocks), key0, key1)
            if start + size <= out.shape[0]:
                for j in range(size):
                    keep = bits_24(words[j]) < threshold
                    mask[start + j] = 1 if keep else 0
                    value = store(load(x[start + j]), scale, scale, scale)
                    out[start + j] = select(keep, value, zero)
            else:
                for j in range(size):
                    if start + j < out.shape[0]:
                        keep = bits_24(words[j]) < threshold
                        mask[start + j] = 1 if keep else 0
                        value = store(load(x[start + j]), scale, scale, scale)
                        out[start + j] = select(keep, value, zero)

    return drop_elements


@cache
def scale_kernel(dtype: str) -> Callable[..., None]:
    """Return the kernel ``(out, state, skip, mask, x, scale)`` that applies a drawn mask."""
    load, store, zero = _converters(dtype)

    def scale_kept(
        out: Array, _state: Array, _ahead: Scalar, mask: Array, x: Array, scale: Scalar
    ) -> None:
        i = cuda.grid(1)
        if i < out.shape[0]:
            value = store(load(x[i]), scale, scale, scale)
            out[i] = select(mask[i] != 0, value, zero)

    return scale_kept


def keep_threshold(probability: float) -> np.int32:
    """Return the bound of a 24-bit draw for a probability: ``ceil(probability * 2**24)``.

    Parameters
    ----------
    probability : float
        In [0, 1]; 0 is never, 1 always.

    Raises
    ------
    ValueError
        If it is outside.
    """
    if not 0.0 <= probability <= 1.0:
        message = f"expected a probability in [0, 1], got {probability!r}; check the argument"
        raise ValueError(message)
    return np.int32(math.ceil(probability * 2.0**24))
