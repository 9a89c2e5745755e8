"""Sizes of LLVM types, as LLVM lays them out on the CPU."""

from __future__ import annotations

import re

from nbrt.backends.cpu.simt.llvm.errors import CannotLowerError
from nbrt.backends.cpu.simt.llvm.parse import split_list

__all__ = ["is_integer", "is_scalar", "member_offset", "size_of", "width_of"]

_SIZES = {"half": 2, "float": 4, "double": 8, "ptr": 8}
_INTEGER = re.compile(r"i(\d+)$")
_ARRAY = re.compile(r"\[(\d+) x (.*)\]$")


def is_integer(kind: str) -> bool:
    """Whether a type is an integer's."""
    return _INTEGER.match(kind) is not None


def is_scalar(kind: str) -> bool:
    """Whether a type can be that of a vector's lanes."""
    return kind in _SIZES or is_integer(kind)


def width_of(kind: str) -> int:
    """Give the bits of an integer type."""
    found = _INTEGER.match(kind)
    assert found is not None, kind
    return int(found[1])


def size_of(kind: str) -> int:
    """Give the bytes that a value takes in an array.

    Raises
    ------
    CannotLowerError
        For a type that Numba's code does not keep in memory.
    """
    return _layout(kind)[0]


def _layout(kind: str) -> tuple[int, int]:
    """Give size and alignment."""
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
    if kind.startswith("{"):
        _, end, align = _members(kind)
        return -(-end // align) * align, align
    raise CannotLowerError(f"the layout of the type {kind} is not known")


def _members(kind: str) -> tuple[list[int], int, int]:
    offsets, end, widest = [], 0, 1
    for member in split_list(kind[1:-1]):
        size, align = _layout(member)
        end = -(-end // align) * align
        offsets.append(end)
        end += size
        widest = max(widest, align)
    return offsets, end, widest


def member_offset(kind: str, index: int) -> tuple[int, str]:
    """Give a struct member's offset in bytes and its type."""
    return _members(kind)[0][index], split_list(kind[1:-1])[index]
