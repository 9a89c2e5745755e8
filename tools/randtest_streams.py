"""Endless streams of 32-bit words for statistical batteries: ways in which programs use Philox.

A battery sees one long sequence. Each stream concatenates numbers that a program assumes to be
independent: consecutive draws, the shards of a draw, or the first block of many seeds.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr

import nbrt
from nbrt_kernels._dialect import cuda, device_function
from nbrt_kernels.random import philox4x32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Words = npt.NDArray[np.uint32]
    Stream = Callable[[int], Iterator[Words]]

__all__ = ["CHUNK", "EDGES", "STREAMS", "describe"]

CHUNK = 2**20
"""Words that a stream yields at a time."""

EDGES = (0, 1, 8, 75, 200, 511, 512, 777, 1024)
"""Boundaries of the column shards of a draw."""

_DEVICE = "cpu:0"
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)
_ZERO = np.uint64(0)
# The upper counter words of the blocks that `PhiloxState.split` derives states from.
_OWN_KEY = np.uint64(1 << 32)
_CHILD = np.uint64(2 << 32)


def sequential(seed: int) -> Iterator[Words]:
    """One generator, draw after draw."""
    generator = nbrt.Generator(seed, device=_DEVICE)
    while True:
        yield generator.random_bits(CHUNK)


def shards(seed: int) -> Iterator[Words]:
    """Draws of 1024 columns in 8 column shards of unequal width, shard after shard."""
    generator = nbrt.Generator(seed, device=_DEVICE)
    shape = (CHUNK // EDGES[-1], EDGES[-1])
    parts = [
        generator.shard(shape, (slice(None), slice(*columns)))
        for columns in itertools.pairwise(EDGES)
    ]
    while True:
        before = generator.state
        drawn = []
        for part in parts:
            part.state = before
            drawn.append(part.random_bits().ravel())
        yield np.concatenate(drawn)


def subsequences(seed: int) -> Iterator[Words]:
    """Word 0 of block 0 of subsequences 0, 1, 2, ...: what torch's small draws use."""
    return _blocks(_subsequences, CHUNK, seed)


def seeds(seed: int) -> Iterator[Words]:
    """First block of generators seeded with `seed`, seed + 1, seed + 2, ..."""
    return _blocks(_seeds, CHUNK // 4, seed)


def children(seed: int) -> Iterator[Words]:
    """First block of children 0, 1, 2, ... of one state."""
    return _blocks(_children, CHUNK // 4, seed)


def offsets(seed: int) -> Iterator[Words]:
    """First block of child 0 of states at offsets 0, 4, 8, ..."""
    return _blocks(_offsets, CHUNK // 4, seed)


def uniforms(seed: int) -> Iterator[Words]:
    """All 24 bits of float32 uniforms, end to end."""
    generator = nbrt.Generator(seed, device=_DEVICE)
    while True:
        numbers = generator.random(CHUNK, dtype=np.float32) * np.float32(2**24)
        low_bytes = numbers.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3]
        yield low_bytes.ravel().view("<u4")


def normals(seed: int) -> Iterator[Words]:
    """Upper 16 bits of the normal distribution function of float32 normals, end to end."""
    # More bits would show the float32 grid, on which neighbouring cells hold unequally many values.
    generator = nbrt.Generator(seed, device=_DEVICE)
    while True:
        sample = generator.standard_normal(CHUNK, dtype=np.float32).astype(np.float64)
        yield (ndtr(sample) * 2**16).astype("<u2").view("<u4")


STREAMS: dict[str, Stream] = {
    stream.__name__: stream
    for stream in (
        sequential,
        shards,
        subsequences,
        seeds,
        children,
        offsets,
        uniforms,
        normals,
    )
}
"""Every stream by name: a function of the seed."""


def describe(name: str) -> str:
    """Return what a stream is, in a line."""
    return (STREAMS[name].__doc__ or "").strip()


def _blocks(kernel: Any, step: int, seed: int) -> Iterator[Words]:
    """Yield the words of `kernel` for numbers 0, 1, 2, ..., `step` of them at a time."""
    for first in itertools.count(0, step):
        out = np.empty(CHUNK, np.uint32)
        with nbrt.device(_DEVICE):
            kernel.forall(step)(out, np.uint64(first), np.uint64(seed))
        yield out


@device_function
def _low(value: Any) -> Any:
    return np.uint32(value & _LOW)


@device_function
def _high(value: Any) -> Any:
    return np.uint32(value >> _HALF)


@device_function
def _block(low: Any, high: Any, key: Any) -> Any:
    """Return the words of one block, of a counter and a key in halves of 64 bits."""
    counter = (_low(low), _high(low), _low(high), _high(high))
    return philox4x32(counter, (_low(key), _high(key)))


@device_function
def _key(words: Any) -> Any:
    return np.uint64(words[0]) | (np.uint64(words[1]) << _HALF)


@device_function
def _store(out: Any, i: Any, words: Any) -> None:
    for k in range(4):
        out[4 * i + k] = words[k]


@nbrt.kernel
def _subsequences(out: Any, first: Any, seed: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = _block(_ZERO, first + np.uint64(i), seed)[0]


@nbrt.kernel
def _seeds(out: Any, first: Any, seed: Any) -> None:
    i = cuda.grid(1)
    if 4 * i < out.size:
        _store(out, i, _block(_ZERO, _ZERO, seed + first + np.uint64(i)))


@nbrt.kernel
def _children(out: Any, first: Any, seed: Any) -> None:
    i = cuda.grid(1)
    if 4 * i < out.size:
        own = _key(_block(_ZERO, _OWN_KEY, seed))
        child = _key(_block(first + np.uint64(i), _CHILD, own))
        _store(out, i, _block(_ZERO, _ZERO, child))


@nbrt.kernel
def _offsets(out: Any, first: Any, seed: Any) -> None:
    i = cuda.grid(1)
    if 4 * i < out.size:
        own = _key(_block(first + np.uint64(i), _OWN_KEY, seed))
        child = _key(_block(_ZERO, _CHILD, own))
        _store(out, i, _block(_ZERO, _ZERO, child))
