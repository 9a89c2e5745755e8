"""Factories of the kernels that fill arrays in torch's order, or in that of a custom layout.

All kernels take ``(out, state, skip, ...)``: the array, seed and offset in words as a tuple or
as uint64[2], the Philox blocks to skip after ``offset // 4``, and further arguments from
`nbrt_kernels.random.torch.requests`. The number of threads in a thread block must divide 256.

A ``standard`` computes the variates of one Philox block; ``store(out, i, x, a, b, c)`` writes one
element. As in torch, a thread may fill several elements: each Philox block is computed once, and
neighbouring threads store each lane to neighbouring elements.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, cuda, device_function
from nbrt_kernels.random._index_maps import make_index_map
from nbrt_kernels.random.philox import philox4x32
from nbrt_kernels.random.torch.transforms import same
from nbrt_kernels.random.transforms import join_words

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction

__all__ = [
    "RECIPROCAL_BITS",
    "TILE",
    "chunked_locate",
    "make_chunked",
    "make_located",
    "make_store",
    "make_strided",
    "plain_locate",
    "shuffle_runs",
    "strided_locate",
]

#: Threads of torch's thread blocks; a grid is a whole number of them.
TILE = 256
#: ``(tile * (2**bits // tiles_per_row + 1)) >> bits`` equals ``tile // tiles_per_row`` while
#: ``tile * tiles_per_row < 2**bits``, and needs no division.
RECIPROCAL_BITS = 40

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_TILE_SHIFT = np.uint64(8)
_ROW_SHIFT = np.uint64(RECIPROCAL_BITS)
_ZERO, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)
_THREE, _FOUR = np.uint64(3), np.uint64(4)

Kernel = Callable[..., None]


@lru_cache
def make_store(finish: DeviceFunction, narrow: DeviceFunction = same) -> DeviceFunction:
    """Make the store of ``narrow(finish(x, a, b, c))`` with scalar parameters."""

    @device_function
    def store(out: Array, i: Scalar, x: Scalar, a: Scalar, b: Scalar, c: Scalar) -> None:
        out[i] = narrow(finish(x, a, b, c))

    return store


@device_function
def _start(state: Any, skip: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """Return both key words and the number of the first block."""
    seed, offset = state[0], state[1]
    first = (np.uint64(offset) >> _TWO) + np.uint64(skip)
    return np.uint32(seed & _LOW), np.uint32(seed >> _HALF), first


@device_function
def _words(
    block: Scalar, high: Scalar, key0: Scalar, key1: Scalar
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Return the words of the counter made of two uint64 halves."""
    return philox4x32((block, block >> _HALF, high, high >> _HALF), (key0, key1))


@lru_cache
def _make_block_stores(
    standard: DeviceFunction, store: DeviceFunction, lanes: int
) -> tuple[DeviceFunction, DeviceFunction]:
    """Return two device functions that store the elements e, e + step, ... of one Philox block.

    The first requires that all of them are in `out`; the second stores those that are.
    """

    @device_function
    def store_all_4(
        out: Array, e: Scalar, step: Scalar, block: Scalar, high: Scalar, key0: Scalar,
        key1: Scalar, a: Any, b: Any, c: Any,
    ) -> None:  # fmt: skip
        w0, w1, w2, w3 = _words(block, high, key0, key1)
        x0, x1, x2, x3 = standard(w0, w1, w2, w3)
        store(out, e, x0, a, b, c)
        store(out, e + step, x1, a, b, c)
        store(out, e + _TWO * step, x2, a, b, c)
        store(out, e + _THREE * step, x3, a, b, c)

    @device_function
    def store_part_4(
        out: Array, e: Scalar, step: Scalar, block: Scalar, high: Scalar, key0: Scalar,
        key1: Scalar, a: Any, b: Any, c: Any,
    ) -> None:  # fmt: skip
        n = np.uint64(out.shape[0])
        w0, w1, w2, w3 = _words(block, high, key0, key1)
        x0, x1, x2, x3 = standard(w0, w1, w2, w3)
        store(out, e, x0, a, b, c)
        if e + step < n:
            store(out, e + step, x1, a, b, c)
        if e + _TWO * step < n:
            store(out, e + _TWO * step, x2, a, b, c)
        if e + _THREE * step < n:
            store(out, e + _THREE * step, x3, a, b, c)

    @device_function
    def store_all_2(
        out: Array, e: Scalar, step: Scalar, block: Scalar, high: Scalar, key0: Scalar,
        key1: Scalar, a: Any, b: Any, c: Any,
    ) -> None:  # fmt: skip
        w0, w1, w2, w3 = _words(block, high, key0, key1)
        x0, x1 = standard(join_words(w0, w1), join_words(w2, w3))
        store(out, e, x0, a, b, c)
        store(out, e + step, x1, a, b, c)

    @device_function
    def store_part_2(
        out: Array, e: Scalar, step: Scalar, block: Scalar, high: Scalar, key0: Scalar,
        key1: Scalar, a: Any, b: Any, c: Any,
    ) -> None:  # fmt: skip
        w0, w1, w2, w3 = _words(block, high, key0, key1)
        x0, x1 = standard(join_words(w0, w1), join_words(w2, w3))
        store(out, e, x0, a, b, c)
        if e + step < np.uint64(out.shape[0]):
            store(out, e + step, x1, a, b, c)

    return (store_all_4, store_part_4) if lanes == 4 else (store_all_2, store_part_2)


@device_function
def _row(threads: Scalar, reciprocal: Scalar) -> tuple[Scalar, Scalar]:
    """Return the row and the first column of this thread block, which lies in one row."""
    first = np.uint64(cuda.blockIdx.x) * np.uint64(cuda.blockDim.x)
    row = ((first >> _TILE_SHIFT) * reciprocal) >> _ROW_SHIFT
    return row, first - row * threads


@lru_cache
def make_strided(standard: DeviceFunction, store: DeviceFunction, lanes: int) -> Kernel:
    """Make the kernel of torch's grid-stride loop: ``distribution_nullary_kernel``.

    Element e belongs to grid thread ``e % threads``. With ``q = e // threads``, it takes lane ``q %
    lanes`` of block ``q // lanes`` in the subsequence of that thread.

    Parameters
    ----------
    standard, store : callable
        Device functions, see the module.
    lanes : int
        Elements per Philox block, 4 or 2.

    Returns
    -------
    callable
        ``kernel(out, state, skip, threads, reciprocal, a, b, c)`` for one thread per Philox
        block, in whole rows of ``threads``.
    """
    store_all, store_part = _make_block_stores(standard, store, lanes)
    count, last = np.uint64(lanes), np.uint64(lanes - 1)

    def fill_strided(
        out: Array, state: Any, skip: Scalar, threads: Scalar, reciprocal: Scalar,
        a: Any, b: Any, c: Any,
    ) -> None:  # fmt: skip
        row, column = _row(threads, reciprocal)
        key0, key1, first = _start(state, skip)
        thread = column + np.uint64(cuda.threadIdx.x)
        n = np.uint64(out.shape[0])
        start = row * threads * count
        e = start + thread
        # Uniform over the thread block, so that a CPU compiler vectorises the first branch.
        if start + last * threads + column + np.uint64(cuda.blockDim.x) <= n:
            store_all(out, e, threads, first + row, thread, key0, key1, a, b, c)
        elif e < n:
            store_part(out, e, threads, first + row, thread, key0, key1, a, b, c)

    return fill_strided


@lru_cache
def make_chunked(standard: DeviceFunction, store: DeviceFunction, lanes: int) -> Kernel:
    """Make the kernel of vectorised loops: neighbouring elements come from one block.

    Group Q of `lanes` elements is part of chunk ``Q >> shift``. The chunk belongs to grid thread
    ``chunk % threads`` and takes ``1 << shift`` blocks in iteration ``chunk // threads``.

    Parameters
    ----------
    standard, store : callable
        Device functions, see the module.
    lanes : int
        Elements per Philox block, 4 or 2.

    Returns
    -------
    callable
        ``kernel(out, state, skip, groups, reciprocal, shift, a, b, c)`` for one thread per group,
        with ``groups = threads << shift``.
    """
    store_all, store_part = _make_block_stores(standard, store, lanes)
    count = np.uint64(lanes)

    def fill_chunked(
        out: Array, state: Any, skip: Scalar, groups: Scalar, reciprocal: Scalar, shift: Scalar,
        a: Any, b: Any, c: Any,
    ) -> None:  # fmt: skip
        row, column = _row(groups, reciprocal)
        group = column + np.uint64(cuda.threadIdx.x)
        thread = group >> shift
        block = (row << shift) + (group - (thread << shift))
        next_group = row * groups + column + np.uint64(cuda.blockDim.x)
        key0, key1, first = _start(state, skip)
        n = np.uint64(out.shape[0])
        e = (row * groups + group) * count
        if next_group * count <= n:
            store_all(out, e, _ONE, first + block, thread, key0, key1, a, b, c)
        elif e < n:
            store_part(out, e, _ONE, first + block, thread, key0, key1, a, b, c)

    return fill_chunked


@device_function
def strided_locate(
    index: Scalar, words: Scalar, threads: Scalar, _k1: Scalar, _k2: Scalar
) -> tuple[Scalar, Scalar, Scalar]:
    """Return (block, subsequence, lane) of an element of `make_strided`."""
    q = index // threads
    lanes = _FOUR // words
    block = q // lanes
    return block, index - q * threads, q - block * lanes


@device_function
def chunked_locate(
    index: Scalar, _words: Scalar, threads: Scalar, width: Scalar, _k2: Scalar
) -> tuple[Scalar, Scalar, Scalar]:
    """Return (block, subsequence, lane) of an element in chunks of `width` elements."""
    chunk = index // width
    within = index - chunk * width
    iteration = chunk // threads
    blocks = (width + _THREE) // _FOUR
    return iteration * blocks + within // _FOUR, chunk - iteration * threads, within % _FOUR


@device_function
def plain_locate(
    index: Scalar, words: Scalar, _k0: Scalar, _k1: Scalar, _k2: Scalar
) -> tuple[Scalar, Scalar, Scalar]:
    """Return (block, 0, lane) of elements that take consecutive words."""
    lanes = _FOUR // words
    block = index // lanes
    return block, index - index, index - block * lanes


@lru_cache
def make_located(
    index_to_counter: DeviceFunction,
    standard: DeviceFunction,
    store: DeviceFunction,
    lanes: int,
    listed: bool = False,
) -> Kernel:
    """Make the kernel that computes one Philox block for every element, by any index map.

    Parameters
    ----------
    index_to_counter : callable
        Device function ``(index, words, k0, k1, k2) -> (block, high, lane)`` of uint64 numbers.
        Takes the element, its number of 32-bit words (``4 // lanes``) and three constants.
        Returns counter words 0 and 1 (relative to the offset), counter words 2 and 3, and the lane.
    standard, store : callable
        Device functions, see the module.
    lanes : int
        Elements per Philox block, 4 or 2.
    listed : bool, optional
        Whether base ... outer_stride are a table, see `nbrt_kernels.random._index_maps`.

    Returns
    -------
    callable
        ``kernel(out, state, skip, k0, k1, k2, begin, end, base, run, inner_rows, inner_stride,
        outer_stride, a, b, c)`` for one thread per element of `out`, a part of a whole draw:
        ``out[r * run + j]`` is element ``base + (r // inner_rows) * outer_stride + (r %
        inner_rows) * inner_stride + j`` of the whole. The kernel stores those in [begin, end) and
        passes their index less `begin` to `index_to_counter`.
    """
    pick = _pick_4(standard) if lanes == 4 else _pick_2(standard)
    words = np.uint64(4 // lanes)
    index_map = make_index_map(listed)

    def fill_located(
        out: Array, state: Any, skip: Scalar, k0: Scalar, k1: Scalar, k2: Scalar, begin: Scalar,
        end: Scalar, base: Any, run: Any, inner_rows: Scalar, inner_stride: Scalar,
        outer_stride: Scalar, a: Any, b: Any, c: Any,
    ) -> None:  # fmt: skip
        i = cuda.grid(1)
        if i < out.shape[0]:
            box = (base, run, inner_rows, inner_stride, outer_stride)
            index = np.uint64(index_map(np.uint64(i), box))
            if begin <= index < end:
                key0, key1, first = _start(state, skip)
                block, high, lane = index_to_counter(index - begin, words, k0, k1, k2)
                w0, w1, w2, w3 = _words(first + block, high, key0, key1)
                store(out, i, pick(w0, w1, w2, w3, lane), a, b, c)

    return fill_located


def _pick_4(standard: DeviceFunction) -> DeviceFunction:
    @device_function
    def pick(w0: Scalar, w1: Scalar, w2: Scalar, w3: Scalar, lane: Scalar) -> Scalar:
        x0, x1, x2, x3 = standard(w0, w1, w2, w3)
        lower = x0 if lane == _ZERO else x1
        upper = x2 if lane == _TWO else x3
        return lower if lane < _TWO else upper

    return pick


def _pick_2(standard: DeviceFunction) -> DeviceFunction:
    @device_function
    def pick(w0: Scalar, w1: Scalar, w2: Scalar, w3: Scalar, lane: Scalar) -> Scalar:
        x0, x1 = standard(join_words(w0, w1), join_words(w2, w3))
        return x0 if lane == _ZERO else x1

    return pick


def shuffle_runs(out: Array, state: Any, skip: Scalar, keys: Array) -> None:
    """Shuffle each run of elements with equal keys in place, as torch's ``randperm`` does.

    The first thread of a run draws consecutive words of its subsequence, modulo the number of
    remaining elements (Fisher-Yates, from the end).

    Parameters
    ----------
    out : array, shape (n,)
        Elements sorted by key.
    state : tuple of uint64, or uint64, shape (2,)
        Seed and offset.
    skip : uint64
        Philox blocks to skip.
    keys : integers, shape (n,)
        The sorted keys; the kernel compares them for equality only.
    """
    i = cuda.grid(1)
    n = out.shape[0]
    if i + 1 < n and keys[i] == keys[i + 1] and (i == 0 or keys[i] != keys[i - 1]):
        key0, key1, first = _start(state, skip)
        last = i + 1
        while last + 1 < n and keys[last + 1] == keys[i]:
            last += 1
        drawn = np.uint64(0)
        while last > i:
            w0, w1, w2, w3 = _words(first + (drawn >> _TWO), np.uint64(i), key0, key1)
            lane = drawn & _THREE
            lower, upper = (w0, w2) if (lane & _ONE) == _ZERO else (w1, w3)
            word = lower if lane < _TWO else upper
            other = i + np.int64(np.uint64(word) % np.uint64(last - i + 1))
            swapped = out[last]
            out[last] = out[other]
            out[other] = swapped
            drawn += _ONE
            last -= 1
