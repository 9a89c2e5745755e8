"""Device code that the fill kernels share: draw, transform and store a tile of Philox blocks.

A thread of a fill draws a *tile* of blocks into a local array, transforms the words to variates in
place, and stores them. On a CPU, a tile has many blocks: each of the three steps is a separate loop
that vectorises well, and the tile stays in the first-level cache. In one loop, the exchange of
words between 64-bit lanes, 32-bit lanes and memory order took as long as Philox. On a GPU, a tile
has one block, which stays in registers.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, device_function
from nbrt_kernels.random.philox import block_values, two_blocks
from nbrt_kernels.random.transforms import remainder_32, remainder_64

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "FillPlan",
    "first_block",
    "keys",
    "listed_tile",
    "make_element_stores",
    "make_redraw",
    "make_transform",
    "parameter_readers",
    "same_word",
    "tile_of",
]

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_ONE, _TWO = np.uint64(1), np.uint64(2)
_FIRST_ATTEMPT = np.uint64(0)
_FIRST_ATTEMPTS = _FIRST_ATTEMPT, _FIRST_ATTEMPT
_WORDS_OF_PAIR = 2


@device_function
def keys(state: Array) -> tuple[Scalar, Scalar]:
    """Return both key words of a state, as uint64."""
    seed = np.uint64(state[0])
    return seed & _LOW, seed >> _HALF


@device_function
def first_block(state: Array, skip: Scalar) -> Scalar:
    """Return the number of the block `skip` blocks after the offset of a state."""
    return (np.uint64(state[1]) >> _TWO) + np.uint64(skip)


@cache
def tile_of(blocks: int) -> Callable[..., None]:
    """Return the device function ``(tile, block, key0, key1)`` that draws consecutive blocks.

    Parameters
    ----------
    blocks : int
        1 or an even number.
    """

    @device_function
    def one(tile: Array, block: Scalar, key0: Scalar, key1: Scalar) -> None:
        v0, v1 = block_values(block, _FIRST_ATTEMPT, key0, key1)
        tile[0] = v0
        tile[1] = v1

    half = blocks // 2

    @device_function
    def many(tile: Array, block: Scalar, key0: Scalar, key1: Scalar) -> None:
        for q in range(half):
            near = block + np.uint64(q)
            v0, v1, u0, u1 = two_blocks(near, near + np.uint64(half), _FIRST_ATTEMPTS, key0, key1)
            tile[2 * q] = v0
            tile[2 * q + 1] = v1
            tile[2 * q + blocks] = u0
            tile[2 * q + blocks + 1] = u1

    return one if blocks == 1 else many


@cache
def listed_tile(blocks: int) -> Callable[..., None]:
    """Return the device function ``(tile, numbers, n, key0, key1)`` that draws blocks by number.

    It draws the first n blocks of each half of the tile: place q of a half has its number plus q.
    So the blocks of one run have equal numbers, which are stored as whole vectors.

    Parameters
    ----------
    blocks : int
        Blocks of the tile, an even number.
    """
    half = np.uint64(blocks // 2)

    @device_function
    def listed(tile: Array, numbers: Array, n: Scalar, key0: Scalar, key1: Scalar) -> None:
        for i in range(n):
            q = np.uint64(i)
            k = q + half
            v0, v1, u0, u1 = two_blocks(numbers[q] + q, numbers[k] + q, _FIRST_ATTEMPTS, key0, key1)
            tile[_TWO * q] = v0
            tile[_TWO * q + _ONE] = v1
            tile[_TWO * k] = u0
            tile[_TWO * k + _ONE] = u1

    return listed


@cache
def make_transform(standard: Callable[..., Any] | None, count: int) -> Callable[..., None]:
    """Return the device function ``(words, variates, n)`` that transforms a tile, pair by pair.

    It transforms the first n words of each half of the tile.

    Parameters
    ----------
    standard : device function or None
        Takes two words and returns two variates; None leaves the words as they are.
    count : int
        Words of the tile, a multiple of 4; or 2, for which n is ignored.
    """
    half = np.uint64(count // 2)
    of_pair: Any = standard

    @device_function
    def none(_words: Array, _variates: Array, _n: Scalar) -> None:
        pass

    @device_function
    def one_pair(words: Array, variates: Array, _n: Scalar) -> None:
        x0, x1 = of_pair(words[0], words[1])
        variates[0] = x0
        variates[1] = x1

    @device_function
    def pairs(words: Array, variates: Array, n: Scalar) -> None:
        # Two pairs an iteration share the loads of the coefficients and hide latencies.
        for j in range(0, n, 2):
            i = np.uint64(j)
            k = half + i
            x0, x1 = of_pair(words[i], words[i + _ONE])
            x2, x3 = of_pair(words[k], words[k + _ONE])
            variates[i] = x0
            variates[i + _ONE] = x1
            variates[k] = x2
            variates[k + _ONE] = x3

    if standard is None:
        return none
    return one_pair if count == _WORDS_OF_PAIR else pairs


@device_function
def _element(parameter: Array, index: Scalar) -> Scalar:
    return parameter[index]


@device_function
def _nothing_rejected(
    words: Array, blocks: Any, begin: Scalar, end: Scalar, key0: Scalar, key1: Scalar, span: Any,
    threshold: Any,
) -> None:  # fmt: skip
    pass


@cache
def _listed_in(half: int) -> Callable[..., Any]:
    @device_function
    def listed(numbers: Array, offset: Scalar) -> Scalar:
        return numbers[np.uint64(offset)] + np.uint64(offset & (half - 1))

    return listed


@device_function
def _consecutive(first: Scalar, offset: Scalar) -> Scalar:
    return first + np.uint64(offset)


@cache
def make_redraw(rejects: bool, wide: bool, half: int = 0) -> Callable[..., None]:
    """Return the device function ``(words, blocks, begin, end, key0, key1, span, threshold)``.

    It redraws the words ``begin <= j < end`` that would bias an integer in [0, span): attempt k of
    an element reads the same word of the same block with counter word 2 equal to k.

    Parameters
    ----------
    rejects : bool
        Whether words are rejected; if not, the function does nothing.
    wide : bool
        Whether words have 64 bits.
    half : int
        Half of the blocks of the tile where `blocks` are the numbers of `listed_tile`; 0 where it
        is the first of consecutive blocks.
    """
    per_block = 2 if wide else 4
    number = _listed_in(half) if half else _consecutive
    remainder = remainder_64 if wide else remainder_32
    word: Any = np.uint64 if wide else np.uint32
    none = word(0)

    @device_function
    def redraw(
        words: Array, blocks: Any, begin: Scalar, end: Scalar, key0: Scalar, key1: Scalar,
        span: Scalar, threshold: Scalar,
    ) -> None:  # fmt: skip
        limit = word(threshold)
        least = limit
        if limit != none:
            for j in range(begin, end):
                here = remainder(words[np.uint64(j)], span)
                least = here if here < least else least
        if least < limit:
            for j in range(begin, end):
                drawn = words[np.uint64(j)]
                attempt = np.uint64(0)
                while remainder(drawn, span) < limit:
                    attempt += np.uint64(1)
                    v0, v1 = block_values(number(blocks, j // per_block), attempt, key0, key1)
                    position = j % per_block
                    if wide:
                        drawn = v0 if position == 0 else v1
                    else:
                        value = v0 if position < 2 else v1
                        drawn = word(value >> _HALF if position % 2 else value & _LOW)
                words[np.uint64(j)] = drawn

    return redraw if rejects else _nothing_rejected


@cache
def make_element_stores(
    standard: Callable[..., Any] | None, finish: Callable[..., Any], arrays: int, size: int
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return two device functions ``(out, start, variates, first, last, a, b, c)``.

    Both transform the variates ``first <= j < last`` and store them at ``out[start + j]``. The
    second iterates over all `size` words of the tile, so that a tile of one block stays in
    registers.

    Parameters
    ----------
    standard : device function or None
        Takes a word and returns a variate; None: the word is the variate.
    finish : device function
        Takes a variate and the three parameters of its element.
    arrays : int
        Number of leading parameters that are arrays, read at ``start + j``.
    size : int
        Words of the tile.
    """
    begin = same_word if standard is None else standard
    get_a, get_b, get_c = parameter_readers(arrays)

    # Indices are unsigned: a loop with signed ones, which may be negative, is not vectorised.
    @device_function
    def put(
        out: Array, start: Scalar, variates: Array, first: Scalar, last: Scalar,
        a: Any, b: Any, c: Any,
    ) -> None:  # fmt: skip
        for j in range(first, last):
            i = np.uint64(start + j)
            x = begin(variates[np.uint64(j)])
            out[i] = finish(x, get_a(a, i), get_b(b, i), get_c(c, i))

    @device_function
    def put_part(
        out: Array, start: Scalar, variates: Array, first: Scalar, last: Scalar,
        a: Any, b: Any, c: Any,
    ) -> None:  # fmt: skip
        for j in range(size):
            if j >= first and j < last:
                i = np.uint64(start + j)
                out[i] = finish(begin(variates[j]), get_a(a, i), get_b(b, i), get_c(c, i))

    return put, put_part


def parameter_readers(arrays: int) -> tuple[Callable[..., Any], ...]:
    """Return the device functions ``(parameter, index)`` of three parameters, of arrays first."""
    return tuple(_element if position < arrays else _same_parameter for position in range(3))


@device_function
def same_word(word: Scalar) -> Scalar:
    """Return the word itself."""
    return word


@device_function
def _same_parameter(parameter: Scalar, _index: Scalar) -> Scalar:
    return parameter


class FillPlan:
    """The device functions and types of a fill kernel; see `fills.fill` for the parameters."""

    def __init__(
        self,
        standard: Callable[..., Any] | None,
        finish: Callable[..., Any],
        pairs: type[np.generic] | None,
        wide: bool,
        arrays: int,
        blocks: int,
    ) -> None:
        self.word: type[np.generic] = np.uint64 if wide else np.uint32
        self.size = (2 if wide else 4) * blocks
        self.variate = pairs or self.word
        self.transform = make_transform(standard if pairs else None, self.size)
        self.put, self.put_part = make_element_stores(
            None if pairs else standard, finish, arrays, self.size
        )
        self.whole: Any = self.size
        self.half: Any = self.size // 2
        if blocks > 1:
            self.put_part = self.put
            # Of the type of a part's size: a literal one would be compiled as well.
            self.whole, self.half = np.int64(self.size), np.int64(self.size // 2)
