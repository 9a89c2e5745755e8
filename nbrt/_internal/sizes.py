"""`parse_size`: a number of bytes from text such as ``"24GB"`` and ``"24GiB"``."""

from __future__ import annotations

import re
from numbers import Integral

from nbrt.errors import ArgumentError, ArgumentTypeError

__all__ = ["is_size", "parse_size"]

_UNITS: dict[str, int] = {
    "": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", 1)},
    "b": 1,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def is_size(text: str) -> bool:
    """Return whether a text is a number of bytes, such as ``"24GB"``.

    Examples
    --------
    >>> is_size("1.5 GiB"), is_size("L4")
    (True, False)
    """
    found = _SIZE.fullmatch(text)
    return found is not None and found[2].lower() in _UNITS


def parse_size(size: int | str) -> int:
    """Return a size in bytes.

    Parameters
    ----------
    size : int or str
        Bytes, or a number with a unit: kB, MB, GB, TB and PB are powers of 1000, KiB, MiB, GiB, TiB
        and PiB powers of 1024. Case and spaces do not matter.

    Raises
    ------
    ArgumentError
        If the text is no size, or the number is negative.
    ArgumentTypeError
        If `size` is neither an int nor a text.

    Examples
    --------
    >>> parse_size("24GB"), parse_size("24 GiB"), parse_size(512)
    (24000000000, 25769803776, 512)
    """
    if isinstance(size, Integral) and not isinstance(size, bool):
        if int(size) < 0:
            raise ArgumentError(f"expected a size of at least 0 bytes, got {size}")
        return int(size)
    if not isinstance(size, str):
        raise ArgumentTypeError(
            f"expected a size in bytes or a text such as '24GB', got {size!r} of type "
            f"{type(size).__name__}"
        )
    found = _SIZE.fullmatch(size)
    if found is None or found[2].lower() not in _UNITS:
        raise ArgumentError(
            f"expected a size such as '24GB' (10^9 bytes) or '24GiB' (2^30 bytes), got {size!r}"
        )
    whole, _, fraction = found[1].partition(".")
    digits = int(whole + fraction) * _UNITS[found[2].lower()]  # ints: a float would round
    return digits // int(10 ** len(fraction))
