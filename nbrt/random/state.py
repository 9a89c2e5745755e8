"""`PhiloxState`: where a generator is, as an immutable value of 16 bytes."""

from __future__ import annotations

import struct
from typing import NamedTuple

from nbrt.errors import ArgumentError, ArgumentTypeError

__all__ = ["PhiloxState", "checked_seed", "words_consumed"]

_WORDS_PER_BLOCK = 4
_LAYOUT = struct.Struct("<QQ")
_MODULUS = 2**64


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
    """

    seed: int
    offset: int = 0

    def checked(self) -> PhiloxState:
        """Return the state itself.

        Raises
        ------
        ArgumentError
            If a part is out of range or the offset is not a multiple of 4.
        """
        checked_seed(self.seed)
        if not isinstance(self.offset, int) or not 0 <= self.offset < _MODULUS:
            raise ArgumentError(f"expected an offset in [0, 2**64), got {self.offset!r}")
        if self.offset % _WORDS_PER_BLOCK:
            raise ArgumentError(
                f"expected an offset that is a multiple of 4 (whole blocks), got {self.offset}"
            )
        return self

    def advance(self, words: int) -> PhiloxState:
        """Return the state after `words` more 32-bit words, rounded up to whole blocks of 4.

        Wraps around after 2**64 words, as the 64-bit offset of torch does.
        """
        return self._replace(offset=(self.offset + _whole_blocks(words)) % _MODULUS)

    def to_bytes(self) -> bytes:
        """Return 16 bytes: seed, then offset, little-endian; the layout of torch's CUDA state."""
        return _LAYOUT.pack(self.seed, self.offset)

    @classmethod
    def from_bytes(cls, data: bytes) -> PhiloxState:
        """Return the state in 16 bytes, or of a seed alone in 8 bytes, as torch does."""
        if len(data) == _LAYOUT.size // 2:
            data = bytes(data) + bytes(8)
        if len(data) != _LAYOUT.size:
            raise ArgumentError(f"expected a state of 16 bytes (or 8: a seed), got {len(data)}")
        return cls(*_LAYOUT.unpack(data)).checked()


def checked_seed(seed: object) -> int:
    """Return a seed as an int in [0, 2**64)."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise ArgumentTypeError(
            f"expected a seed of type int, got {seed!r} of type {type(seed).__name__}"
        )
    value = int(seed.__index__())
    if not 0 <= value < _MODULUS:
        raise ArgumentError(f"expected a seed in [0, 2**64), got {value}")
    return value


def words_consumed(elements: int, words_per_element: int) -> int:
    """Return the 32-bit words that a draw takes: what its elements need, in whole blocks of 4."""
    return _whole_blocks(elements * words_per_element)


def _whole_blocks(words: int) -> int:
    return -(-words // _WORDS_PER_BLOCK) * _WORDS_PER_BLOCK
