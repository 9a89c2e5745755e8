"""`PhiloxState`: seed and offset of a generator, an immutable value of 16 bytes."""

from __future__ import annotations

import struct
from typing import NamedTuple

from nbrt._internal.checks import checked_int
from nbrt.errors import ArgumentError, ArgumentTypeError

__all__ = ["PhiloxState", "checked_offset", "checked_seed", "philox_block", "whole_blocks"]

_WORDS_PER_BLOCK = 4
_LAYOUT = struct.Struct("<QQ")
_MODULUS = 2**64
# Counter word 3 of the blocks that states are derived from; draws leave it 0.
_OWN_KEY = 1 << 96
_CHILD = 2 << 96
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


class PhiloxState(NamedTuple):
    """A position in a Philox stream.

    Attributes
    ----------
    seed : int
        The key, in [0, 2**64).
    offset : int
        32-bit words consumed so far, a multiple of 4, in [0, 2**64).

    Examples
    --------
    >>> PhiloxState(seed=7).advance(5)
    PhiloxState(seed=7, offset=8)
    >>> PhiloxState.from_bytes(PhiloxState(7, 8).to_bytes())
    PhiloxState(seed=7, offset=8)
    """

    seed: int
    offset: int = 0

    def checked(self) -> PhiloxState:
        """Return the state itself.

        Raises
        ------
        ArgumentError
            If seed or offset is out of range, or the offset is not a multiple of 4.
        ArgumentTypeError
            If one is not an integer.
        """
        checked_seed(self.seed)
        checked_offset(self.offset)
        return self

    def advance(self, words: int) -> PhiloxState:
        """Return the state after `words` more 32-bit words, rounded up to whole blocks of 4.

        Wraps around after 2**64 words, as the 64-bit offset of torch does. A negative number of
        words moves back.
        """
        ahead = whole_blocks(checked_int("words to skip", words))
        return PhiloxState(self.seed, (self.offset + ahead) % _MODULUS)

    def split(self, n: int = 2) -> tuple[PhiloxState, ...]:
        """Return the states of `n` independent streams.

        Child k depends on this state and k only, not on `n`. The seeds come from Philox blocks that
        no draw uses.

        Parameters
        ----------
        n : int
            Number of states, at least 0.

        Examples
        --------
        >>> state = PhiloxState(7)
        >>> state.split(3)[:2] == state.split(2)
        True
        """
        self.checked()
        count = checked_int("n", n)
        if count < 0:
            raise ArgumentError(f"expected n >= 0 states to split into, got {count}")
        return tuple(self._child(k) for k in range(count))

    def fold_in(self, data: int) -> PhiloxState:
        """Return child `data` of `split`.

        Parameters
        ----------
        data : int
            In [0, 2**64), such as the number of a step or of a batch.
        """
        self.checked()
        number = checked_int("data", data)
        if not 0 <= number < _MODULUS:
            raise ArgumentError(f"expected data in [0, 2**64), got {number}")
        return self._child(number)

    def to_bytes(self) -> bytes:
        """Return 16 bytes: seed, then offset, little-endian; the layout of torch's CUDA state."""
        self.checked()
        return _LAYOUT.pack(self.seed, self.offset)

    @classmethod
    def from_bytes(cls, data: bytes) -> PhiloxState:
        """Return the state of 16 bytes, or of 8 bytes with a seed only, as torch does."""
        try:
            raw = bytes(memoryview(data))
        except TypeError:
            raise ArgumentTypeError(
                f"expected the 16 bytes of a state, got {type(data).__name__}"
            ) from None
        if len(raw) == _LAYOUT.size // 2:
            raw += bytes(8)
        if len(raw) != _LAYOUT.size:
            raise ArgumentError(f"expected a state of 16 bytes (or 8: a seed), got {len(raw)}")
        return cls(*_LAYOUT.unpack(raw)).checked()

    def _child(self, number: int) -> PhiloxState:
        # One block makes a key of this state, the next one mixes in the number.
        own = philox_block(self.offset // _WORDS_PER_BLOCK | _OWN_KEY, self.seed)
        return PhiloxState(philox_block(number | _CHILD, own % _MODULUS) % _MODULUS)


def checked_seed(seed: object) -> int:
    """Return a seed as an int in [0, 2**64).

    A negative seed stands for 2**64 - 1 + seed, as torch.manual_seed documents.
    """
    value = checked_int("a seed", seed)
    if not -(2**63) <= value < _MODULUS:
        raise ArgumentError(f"expected a seed in [-2**63, 2**64), got {value}")
    return value if value >= 0 else value + _MODULUS - 1


def checked_offset(offset: object) -> int:
    """Return an offset as an int in [0, 2**64), a multiple of 4."""
    value = checked_int("an offset", offset)
    if not 0 <= value < _MODULUS:
        raise ArgumentError(f"expected an offset in [0, 2**64), got {value}")
    if value % _WORDS_PER_BLOCK:
        raise ArgumentError(
            f"expected an offset that is a multiple of 4 (whole blocks), got {value}"
        )
    return value


def whole_blocks(words: int) -> int:
    """Return a number of 32-bit words, rounded up to whole blocks of 4."""
    return -(-words // _WORDS_PER_BLOCK) * _WORDS_PER_BLOCK


def philox_block(counter: int, key: int) -> int:
    """Return the 128-bit block of Philox4x32-10 for a 128-bit counter and a 64-bit key.

    Source: J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11.

    Examples
    --------
    >>> hex(philox_block(0, 0))  # 9b00dbd8 is word 3, 6627e8d5 word 0
    '0x9b00dbd8bc57ac4ce169c58d6627e8d5'
    """
    c0, c1, c2, c3 = (counter >> shift & _LOW for shift in (0, 32, 64, 96))
    k0, k1 = key & _LOW, key >> 32 & _LOW
    for _ in range(10):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & _LOW, p0 >> 32 ^ c3 ^ k1, p0 & _LOW
        k0, k1 = k0 + _WEYL[0] & _LOW, k1 + _WEYL[1] & _LOW
    return c0 | c1 << 32 | c2 << 64 | c3 << 96
