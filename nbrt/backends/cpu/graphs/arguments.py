"""Arguments of kernels in memory, flattened as Numba's calling convention on CPUs flattens them."""

from __future__ import annotations

import functools
import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype

from nbrt.backends.graphs import ArrayView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["PackedArguments", "Relocation", "pack", "with_defaults"]

_WORD = 8
_NULL = bytes(_WORD)
_DATA_OFFSET = 4 * _WORD
"""Where the address is among the flattened parts of an array."""

_STARS = (types.StarArgTuple, types.StarArgUniTuple)
_FLOATS = {16: ("half", "<e"), 32: ("float", "<f"), 64: ("double", "<d")}


class Relocation(NamedTuple):
    """A word that holds an address in a buffer of the graph.

    Attributes
    ----------
    at : int
        Offset of the word.
    buffer : int
        The buffer.
    offset : int
        What to add to the buffer's address.
    """

    at: int
    buffer: int
    offset: int


class PackedArguments(NamedTuple):
    """Arguments of one launch.

    Attributes
    ----------
    data : bytes
        The flattened arguments; each begins at a multiple of 8 bytes.
    slots : tuple of (str, int)
        LLVM type of each flattened argument, and the bytes from it to the next one.
    relocations : list of Relocation
        Where the addresses of buffers go in `data`.
    ranges : list of (int, int)
        Begin and end of each argument in `data`.
    kept : list
        Objects whose memory `data` points to.
    """

    data: bytes
    slots: tuple[tuple[str, int], ...]
    relocations: list[Relocation]
    ranges: list[tuple[int, int]]
    kept: list[object]


def pack(argument_types: tuple[Any, ...], values: tuple[Any, ...]) -> PackedArguments:
    """Flatten the arguments of a launch.

    Parameters
    ----------
    argument_types : tuple of numba types
        Those that the kernel was compiled for, without the record.
    values : tuple
        One for each type; an array is an `ArrayView`.
    """
    data = bytearray()
    slots: list[tuple[str, int]] = []
    relocations: list[Relocation] = []
    ranges: list[tuple[int, int]] = []
    kept: list[object] = []
    for typ, value in zip(argument_types, values, strict=True):
        begin = len(data)
        if type(value) is ArrayView and isinstance(typ, types.Array):
            block, parts = _array_block(value.shape, value.strides, value.dtype.itemsize)
            relocations.append(Relocation(begin + _DATA_OFFSET, value.buffer, value.offset))
            data += block
            slots += parts
            ranges.append((begin, len(data)))
            continue
        for name, item in _flattener(typ)(typ, value):
            if type(item) is bytes:
                stored = item
            elif type(item) is ArrayView:
                stored = _NULL
                relocations.append(Relocation(len(data), item.buffer, item.offset))
            else:
                memory = np.frombuffer(item, np.uint8)
                kept.append(memory)
                stored = memory.ctypes.data.to_bytes(_WORD, "little")
            padded = -(-len(stored) // _WORD) * _WORD
            data += stored.ljust(padded, b"\0")
            slots.append((name, padded))
        ranges.append((begin, len(data)))
    return PackedArguments(bytes(data), tuple(slots), relocations, ranges, kept)


@functools.cache
def _flattener(typ: Any) -> Callable[[Any, Any], Iterable[tuple[str, Any]]]:
    """Return the function that flattens arguments of a type.

    Its result are LLVM type and value of each part: bytes, the view of an array, or a record.
    """
    for kind, function in _FLATTENERS.items():
        if isinstance(typ, kind):
            return function
    return _flat_scalar


@functools.lru_cache(maxsize=1024)
def _array_block(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[bytes, list[tuple[str, int]]]:
    """Return the bytes and the slots of an array without its address.

    First the owner of the memory, for reference counts, and the Python object.
    """
    numbers = (math.prod(shape), itemsize, 0, *shape, *strides)
    words = [number.to_bytes(_WORD, "little", signed=True) for number in numbers]
    names = ["ptr", "ptr", "i64", "i64", "ptr", *["i64"] * (len(shape) + len(strides))]
    return b"".join([_NULL, _NULL, *words]), [(name, _WORD) for name in names]


def _flat_array(_typ: Any, view: ArrayView) -> list[tuple[str, Any]]:
    block, slots = _array_block(view.shape, view.strides, view.dtype.itemsize)
    flat: list[tuple[str, Any]] = [
        (name, block[number * _WORD :][:_WORD]) for number, (name, _) in enumerate(slots)
    ]
    flat[_DATA_OFFSET // _WORD] = "ptr", view
    return flat


def _flat_tuple(typ: Any, items: tuple[Any, ...]) -> list[tuple[str, Any]]:
    members = zip(typ.types, items, strict=True)
    return [part for member, item in members for part in _flattener(member)(member, item)]


def _flat_enum(typ: Any, member: Any) -> Iterable[tuple[str, Any]]:
    return _flattener(typ.dtype)(typ.dtype, member.value)


def _flat_integer(typ: Any, number: Any) -> list[tuple[str, Any]]:
    nbytes = typ.bitwidth // 8
    return [(f"i{typ.bitwidth}", int(number).to_bytes(nbytes, "little", signed=typ.signed))]


def _flat_float(typ: Any, number: Any) -> list[tuple[str, Any]]:
    name, code = _FLOATS[typ.bitwidth]
    return [(name, struct.pack(code, number))]


def _flat_complex(typ: Any, number: Any) -> list[tuple[str, Any]]:
    name, code = _FLOATS[typ.bitwidth // 2]
    return [(name, struct.pack(code, number.real)), (name, struct.pack(code, number.imag))]


def _flat_scalar(typ: Any, value: Any) -> list[tuple[str, Any]]:
    stored = np.asarray(value, as_dtype(typ)).tobytes()
    return [(f"i{8 * len(stored)}", stored)]  # booleans, dates and differences of dates


_FLATTENERS: dict[Any, Callable[[Any, Any], Iterable[tuple[str, Any]]]] = {
    types.Array: _flat_array,
    types.BaseTuple: _flat_tuple,
    types.EnumMember: _flat_enum,
    types.Omitted: lambda _typ, _value: (),
    types.NoneType: lambda _typ, _value: (("ptr", _NULL),),
    types.Record: lambda _typ, record: (("ptr", record),),
    types.Integer: _flat_integer,
    types.Float: _flat_float,
    types.Complex: _flat_complex,
}


def with_defaults(argument_types: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return one value for each type: a tuple for ``*args``, anything for a default."""
    has_star = argument_types[-1:] != () and type(argument_types[-1]) in _STARS
    if len(values) == len(argument_types) and not has_star:
        return values
    head = len(argument_types) - has_star
    plain = (*values[:head], *(None,) * (head - len(values)))
    return (*plain, values[head:]) if has_star else plain
