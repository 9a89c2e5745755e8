"""Philox4x32-10, the counter-based generator behind every draw of nbrt.

Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC'11, and the known-answer vectors of the Random123 distribution.

nbrt's use of the 128-bit counter ``(c0, c1, c2, c3)`` and the 64-bit key ``(k0, k1)``, kept for
ever:

- ``k0, k1`` are the low and the high half of the seed;
- ``c0, c1`` are the low and the high half of the block number, ``offset // 4 + element // 4`` for
  draws of one word per element, ``offset // 4 + element // 2`` for draws of two;
- ``c2`` is the attempt, 0 except where a draw was rejected; ``c3`` is 0.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nbrt_kernels._dialect import Scalar, device_function

__all__ = [
    "block_values",
    "block_words",
    "philox4x32",
    "philox4x32_reference",
    "two_blocks",
    "words_reference",
]

#: Four uint64 values of which only the low halves count.
Block: TypeAlias = tuple[Scalar, Scalar, Scalar, Scalar]

# Multipliers and Weyl increments of the paper, table 2.
_M0 = np.uint64(0xD2511F53)
_M1 = np.uint64(0xCD9E8D57)
_W0 = np.uint64(0x9E3779B9)
_W1 = np.uint64(0xBB67AE85)
_W0_TWICE, _W1_TWICE = np.uint64(2) * _W0, np.uint64(2) * _W1
_W0_THRICE, _W1_THRICE = np.uint64(3) * _W0, np.uint64(3) * _W1
_W0_SIX, _W1_SIX = np.uint64(6) * _W0, np.uint64(6) * _W1
_W0_NINE, _W1_NINE = np.uint64(9) * _W0, np.uint64(9) * _W1
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


# A block is a tuple between rounds: every name that a tuple is unpacked to is compiled.
@device_function
def _round(block: Block, k0: Scalar, k1: Scalar) -> Block:
    """One Philox4x32 round on uint64 values of which only the low halves count."""
    c0, c1, c2, c3 = block
    p0 = _M0 * (c0 & _LOW)
    p1 = _M1 * (c2 & _LOW)
    return (p1 >> _HALF) ^ c1 ^ k0, p1, (p0 >> _HALF) ^ c3 ^ k1, p0


@device_function
def _three_rounds(block: Block, k0: Scalar, k1: Scalar) -> Block:
    # The rounds are unrolled: a loop would be the innermost loop of a fill kernel, and only
    # innermost loops are vectorised. Words stay in 64-bit lanes with arbitrary high halves:
    # widening multiplications read low halves only, so no round packs, masks or shuffles words
    # (14 % to 29 % faster with AVX2).
    once = _round(block, k0, k1)
    twice = _round(once, k0 + _W0, k1 + _W1)
    return _round(twice, k0 + _W0_TWICE, k1 + _W1_TWICE)


@device_function
def _nine_rounds(block: Block, k0: Scalar, k1: Scalar) -> Block:
    """Return the state before the tenth round."""
    three = _three_rounds(block, k0, k1)
    six = _three_rounds(three, k0 + _W0_THRICE, k1 + _W1_THRICE)
    return _three_rounds(six, k0 + _W0_SIX, k1 + _W1_SIX)


@device_function
def _ten_rounds(
    c0: Scalar, c1: Scalar, c2: Scalar, c3: Scalar, k0: Scalar, k1: Scalar
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Return one block; only the low halves of the uint64 arguments count."""
    nine = _nine_rounds((c0, c1, c2, c3), k0, k1)
    w0, w1, w2, w3 = _round(nine, k0 + _W0_NINE, k1 + _W1_NINE)
    return np.uint32(w0 & _LOW), np.uint32(w1 & _LOW), np.uint32(w2 & _LOW), np.uint32(w3 & _LOW)


@device_function
def _last_round(block: Block, k0: Scalar, k1: Scalar) -> tuple[Scalar, Scalar]:
    """Compute one more round with its words joined in pairs, low words of products high."""
    # The key joins before the halves are exchanged. A shift of the bare product would be folded
    # into the multiplication, and that is then one of 64 by 64 bits.
    c0, c1, c2, c3 = block
    p0 = _M0 * (c0 & _LOW) ^ ((c3 ^ k1) << _HALF)
    p1 = _M1 * (c2 & _LOW) ^ ((c1 ^ k0) << _HALF)
    return (p1 >> _HALF) | (p1 << _HALF), (p0 >> _HALF) | (p0 << _HALF)


@device_function
def block_values(
    block: Scalar, attempt: Scalar, key0: Scalar, key1: Scalar
) -> tuple[Scalar, Scalar]:
    """Return a block by its number as two values of 64 bits, low word first.

    Parameters
    ----------
    block : uint64
        Block number.
    attempt, key0, key1 : uint64
        As for `block_words`; only the low halves count.

    Returns
    -------
    v0, v1 : uint64
        ``w0 | w1 << 32`` and ``w2 | w3 << 32``.
    """
    nine = _nine_rounds((block, block >> _HALF, attempt, np.uint64(0)), key0, key1)
    return _last_round(nine, key0 + _W0_NINE, key1 + _W1_NINE)


@device_function
def _three_and_three(first: Block, second: Block, k0: Scalar, k1: Scalar) -> tuple[Block, Block]:
    """Compute three rounds of two blocks."""
    a, b = _round(first, k0, k1), _round(second, k0, k1)
    l0, l1 = k0 + _W0, k1 + _W1
    c, d = _round(a, l0, l1), _round(b, l0, l1)
    m0, m1 = k0 + _W0_TWICE, k1 + _W1_TWICE
    return _round(c, m0, m1), _round(d, m0, m1)


@device_function
def two_blocks(
    first: Scalar, second: Scalar, attempts: tuple[Scalar, Scalar], key0: Scalar, key1: Scalar
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Return two blocks as `block_values` does, computed interleaved.

    A round waits five cycles for its product; two interleaved blocks keep a vector unit of sixteen
    registers busy (1.3 times faster than one, and no slower than four).

    Parameters
    ----------
    first, second : uint64
        Block numbers.
    attempts : tuple of uint64
        The attempt of each.
    key0, key1 : uint64
        Low and high half of the seed; only the low halves count.

    Returns
    -------
    v0, v1, u0, u1 : uint64
        The values of the first and of the second block.
    """
    zero = np.uint64(0)
    one, other = attempts
    a, b = _three_and_three(
        (first, first >> _HALF, one, zero), (second, second >> _HALF, other, zero), key0, key1
    )
    c, d = _three_and_three(a, b, key0 + _W0_THRICE, key1 + _W1_THRICE)
    e, f = _three_and_three(c, d, key0 + _W0_SIX, key1 + _W1_SIX)
    v0, v1 = _last_round(e, key0 + _W0_NINE, key1 + _W1_NINE)
    u0, u1 = _last_round(f, key0 + _W0_NINE, key1 + _W1_NINE)
    return v0, v1, u0, u1


@device_function
def philox4x32(
    counter: tuple[Scalar, Scalar, Scalar, Scalar], key: tuple[Scalar, Scalar]
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Return the four words of one Philox4x32-10 block.

    Parameters
    ----------
    counter : tuple of four uint32
        Counter words, least significant first.
    key : tuple of two uint32
        Key words, least significant first.

    Returns
    -------
    w0, w1, w2, w3 : uint32
        The block.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    return _ten_rounds(
        np.uint64(c0), np.uint64(c1), np.uint64(c2), np.uint64(c3), np.uint64(k0), np.uint64(k1)
    )


@device_function
def block_words(
    block: Scalar, attempt: Scalar, key0: Scalar, key1: Scalar
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Return the four words of a block by its number, in nbrt's counter layout.

    Parameters
    ----------
    block : uint64
        Block number.
    attempt : uint32
        0 for the first draw of an element, one more after each rejection.
    key0, key1 : uint32
        Low and high half of the seed.

    Returns
    -------
    w0, w1, w2, w3 : uint32
        The block.
    """
    zero = np.uint64(0)
    return _ten_rounds(
        block, block >> _HALF, np.uint64(attempt), zero, np.uint64(key0), np.uint64(key1)
    )


def philox4x32_reference(
    counter: npt.ArrayLike, key: npt.ArrayLike, rounds: int = _ROUNDS
) -> npt.NDArray[np.uint32]:
    """Return Philox4x32 blocks, vectorised over counters.

    Parameters
    ----------
    counter : array_like of uint32, shape (..., 4)
        Counter words, least significant first.
    key : array_like of uint32, shape (..., 2)
        Key words, broadcast against the leading shape of `counter`.
    rounds : int, optional
        Number of rounds; 10 is the generator nbrt uses.

    Returns
    -------
    ndarray of uint32, shape (..., 4)
        One block per counter.
    """
    words = np.asarray(counter, dtype=np.uint32).astype(np.uint64)
    keys = np.asarray(key, dtype=np.uint32).astype(np.uint64)
    c0, c1, c2, c3 = (words[..., i] for i in range(4))
    k0, k1 = keys[..., 0], keys[..., 1]
    for _ in range(rounds):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def words_reference(blocks: npt.ArrayLike, seed: int, attempt: int = 0) -> npt.NDArray[np.uint32]:
    """Return the words of blocks by number, in nbrt's counter layout.

    Parameters
    ----------
    blocks : array_like of uint64
        Block numbers.
    seed : int
        64-bit seed, ``0 <= seed < 2**64``.
    attempt : int, optional
        Value of counter word 2.

    Returns
    -------
    ndarray of uint32, shape blocks.shape + (4,)
        One block per block number.
    """
    numbers = np.asarray(blocks, dtype=np.uint64)
    counter: npt.NDArray[Any] = np.zeros((*numbers.shape, 4), dtype=np.uint32)
    counter[..., 0] = numbers & _LOW
    counter[..., 1] = numbers >> _HALF
    counter[..., 2] = attempt
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint32)
    return philox4x32_reference(counter, key)
