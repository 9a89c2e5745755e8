"""Sizes of LLVM types, as LLVM lays them out on the CPU."""

from __future__ import annotations

import re

from nbrt.backends.cpu.simt.llvm.model import CannotLowerError
from nbrt.backends.cpu.simt.llvm.parse import split_list

__all__ = ["is_integer", "is_scalar", "size_of", "width_of"]

_SIZES = {"half": 2, "float": 4, "double": 8, "ptr": 8}
_INTEGER = re.compile(r"i(\d+)$")
_ARRAY = re.compile(r"\[(\d+) x (.*)\]$")
_VECTOR = re.compile(r"<(\d+) x (.*)>$")


def is_integer(kind: str) -> bool:
    """Return whether a type is an integer type."""
    return _INTEGER.match(kind) is not None


def is_scalar(kind: str) -> bool:
    """Return whether a type can be the element type of a vector."""
    return kind in _SIZES or is_integer(kind)


def width_of(kind: str) -> int:
    """Return the number of bits of an integer type."""
    found = _INTEGER.match(kind)
    assert found is not None, kind
    return int(found[1])


def size_of(kind: str) -> int:
    """Return the size in bytes of an element of an array.

    Raises
    ------
    CannotLowerError
        If the layout of the type is not known.
    """
    return _layout(kind)[0]


def _layout(kind: str) -> tuple[int, int]:
    """Return size and alignment."""
    if kind in _SIZES:
        return _SIZES[kind], _SIZES[kind]
    integer = _INTEGER.match(kind)
    if integer is not None:
        size = 1
        while size * 8 < int(integer[1]):
            size *= 2
        return size, min(size, 16)
    array = _ARRAY.match(kind)
    if array is not None:
        size, align = _layout(array[2])
        return size * int(array[1]), align
    vector = _VECTOR.match(kind)
    if vector is not None:
        lanes = int(vector[1])
        size = -(-lanes // 8) if vector[2] == "i1" else size_of(vector[2]) * lanes
        align = 1 << (size - 1).bit_length()
        return -(-size // align) * align, align
    if kind.startswith("{"):
        end, widest = 0, 1
        for member in split_list(kind[1:-1]):
            size, align = _layout(member)
            end = -(-end // align) * align + size
            widest = max(widest, align)
        return -(-end // widest) * widest, widest
    raise CannotLowerError(f"the layout of the type {kind} is not known")
