"""torch's CUDA draws in NumPy, written independently from its sources.

The oracle of the tests. Where torch calls the GPU's approximations, these are float64 models of the
same formula: float32 steps that are exact or rounded are taken in float32, the elementary functions
in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nbrt_kernels._fma import fma_reference
from nbrt_kernels.random.philox import philox4x32_reference

__all__ = [
    "dropout_uniforms_reference",
    "each_uniforms_reference",
    "integers_reference",
    "normals_reference",
    "permutation_reference",
    "stateless_words_reference",
    "torch_words_reference",
    "uniforms_reference",
]

_BLOCK = 256
_Numbers = npt.NDArray[Any]


def _blocks(seed: int, block: _Numbers, subsequence: _Numbers) -> npt.NDArray[np.uint32]:
    """Return Philox blocks, shape (n, 4), of (block, subsequence) pairs of uint64."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    halves = [block & low, block >> half, subsequence & low, subsequence >> half]
    return philox4x32_reference(np.stack(halves, -1), [seed & 0xFFFFFFFF, seed >> 32])


def torch_words_reference(
    n: int, seed: int, offset: int, grid: int, lanes: int
) -> npt.NDArray[np.uint32]:
    """Return the words of the elements of a grid-stride loop.

    Parameters
    ----------
    n : int
        Elements.
    seed, offset : int
        Position in the stream; the offset in words, a multiple of 4.
    grid : int
        Threads of the largest grid.
    lanes : int
        Elements per block, 4 or 2.

    Returns
    -------
    ndarray of uint32, shape (n, 4 // lanes)
        One or two words for each element.
    """
    threads = min(-(-n // _BLOCK) * _BLOCK, grid)
    element = np.arange(n, dtype=np.uint64)
    thread, q = element % np.uint64(threads), element // np.uint64(threads)
    words = _blocks(seed, np.uint64(offset // 4) + q // np.uint64(lanes), thread)
    lane = (q % np.uint64(lanes)).astype(np.intp)
    per_element = words.reshape(n, lanes, 4 // lanes)
    return per_element[np.arange(n), lane]


def uniforms_reference(words: _Numbers) -> _Numbers:
    """Return cuRAND's uniforms in (0, 1]: float32 of shape (n, 1) words, float64 of (n, 2)."""
    if words.shape[-1] == 1:
        scaled = words[:, 0].astype(np.float32) * np.float32(2.0**-32)
        return np.asarray(scaled + np.float32(2.0**-33))
    low, high = words[:, 0].astype(np.uint64), words[:, 1].astype(np.uint64)
    mixed = (low ^ (high << np.uint64(21))).astype(np.float64)
    return np.asarray(mixed * 2.0**-53 + 2.0**-54)


def normals_reference(n: int, seed: int, offset: int, grid: int, lanes: int) -> _Numbers:
    """Return cuRAND's standard normals as float64: lane pairs (sine, cosine) by Box-Muller."""
    threads = min(-(-n // _BLOCK) * _BLOCK, grid)
    element = np.arange(n, dtype=np.uint64)
    thread, q = element % np.uint64(threads), element // np.uint64(threads)
    words = _blocks(seed, np.uint64(offset // 4) + q // np.uint64(lanes), thread)
    lane = (q % np.uint64(lanes)).astype(np.intp)
    if lanes == 4:
        pair = words[np.arange(n)[:, None], (lane // 2 * 2)[:, None] + np.arange(2)]
        u = uniforms_reference(pair[:, :1]).astype(np.float64)
        # float32(2**-32) * float32(2 pi), and half of it.
        turn = np.float32(2.0**-32) * np.float32(6.2831855)
        angle = fma_reference(pair[:, 1].astype(np.float32), turn, turn / np.float32(2))
        radians = angle.astype(np.float64)
    else:
        u = uniforms_reference(words[:, :2])
        mixed = words[:, 2].astype(np.uint64) ^ (words[:, 3].astype(np.uint64) << np.uint64(21))
        radians = np.pi * (mixed.astype(np.float64) * 2.0**-52 + 2.0**-53)
    wave = np.where(lane % 2 == 0, np.sin(radians), np.cos(radians))
    return np.asarray(np.sqrt(-2.0 * np.log(u)) * wave)


def integers_reference(words: _Numbers, span: int, low: int, dtype: str) -> _Numbers:
    """Return ``value mod span + low``; of two words, the first is the high half."""
    values = [sum(int(w) << (32 * k) for k, w in enumerate(reversed(row))) for row in words]
    return np.array([v % span + low for v in values], dtype=object).astype(dtype)


def dropout_uniforms_reference(n: int, seed: int, offset: int, grid: int, width: int) -> _Numbers:
    """Return the float32 uniforms of dropout whose threads load `width` elements at once."""
    threads = min(-(-n // _BLOCK) * _BLOCK, grid)
    result = np.empty(n, dtype=np.float32)
    taken = dict.fromkeys(range(threads), 0)
    for start in range(0, n, width):
        thread = start // width % threads
        for inner in range(0, width, 4):
            block = np.array([offset // 4 + taken[thread]], dtype=np.uint64)
            words = _blocks(seed, block, np.array([thread], dtype=np.uint64))
            taken[thread] += 1
            count = min(width - inner, 4)
            first = start + inner
            result[first : first + count] = uniforms_reference(words.reshape(4, 1))[:count]
    return result


def each_uniforms_reference(n: int, seed: int, offset: int) -> _Numbers:
    """Return the float32 uniforms of ``bernoulli`` of an array: four to a thread."""
    thread = np.arange(-(-n // 4), dtype=np.uint64)
    words = _blocks(seed, np.full_like(thread, offset // 4), thread)
    return uniforms_reference(words.reshape(-1, 1))[:n]


def permutation_reference(n: int, seed: int, offset: int, grid: int) -> _Numbers:
    """Return ``torch.randperm(n)`` as int64: sorted by random keys, equal keys shuffled."""
    bits = min(64, int(np.ceil(np.log2(n - (6.0 * n * n + 1) / (12 * np.log(0.9))))))
    wide = bits > 32
    words = torch_words_reference(n, seed, offset, grid, 2)
    top = 2**63 if wide else 2**31
    keys = integers_reference(words, 2 * top - 1, -top, "int64" if wide else "int32")
    if bits < (64 if wide else 32):
        keys = keys & ((1 << bits) - 1)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    threads = min(-(-n // _BLOCK) * _BLOCK, grid)
    second = offset + ((n - 1) // (threads * 2) + 1) * 4
    start = 0
    while start < n:
        end = start + 1
        while end < n and keys[end] == keys[start]:
            end += 1
        if end - start > 1:
            block = np.uint64(second // 4) + np.arange((end - start) // 4 + 1, dtype=np.uint64)
            words = _blocks(seed, block, np.full_like(block, start)).reshape(-1)
            for taken, last in enumerate(range(end - 1, start, -1)):
                other = start + int(words[taken]) % (last - start + 1)
                order[[last, other]] = order[[other, last]]
        start = end
    return order


def stateless_words_reference(n: int, seed: int, block: int, per_block: int) -> _Numbers:
    """Return the words of ``torch.func._random`` with key (seed, block), shape (n, 1 or 2)."""
    numbers = np.uint64(block) + np.arange(-(-n // per_block), dtype=np.uint64)
    words = _blocks(seed, numbers, np.zeros_like(numbers))
    return words.reshape(-1, 4 // per_block)[:n]
