"""Philox4x32-10 on Python integers, for the few blocks that states are derived from.

Source: J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11.
"""

from __future__ import annotations

__all__ = ["philox_block"]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def philox_block(counter: int, key: int) -> int:
    """Return the 128-bit block of a 128-bit counter and a 64-bit key.

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
