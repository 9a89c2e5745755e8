"""Arguments of kernels in memory, flattened as Numba's calling convention on CPUs flattens them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype

from nbrt.backends.graphs import ArrayView

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PackedArguments", "Relocation", "pack", "with_defaults"]

_WORD = 8
_NULL = bytes(_WORD)


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
        for name, item in _flat(typ, value):
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


def _flat(typ: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield LLVM type and value of each part: bytes, the view of an array, or a record."""
    if isinstance(typ, types.Array):
        yield "ptr", _NULL  # the owner of the memory, for reference counts
        yield "ptr", _NULL  # the Python object
        size = 1
        for extent in value.shape:
            size *= extent
        for number in (size, value.dtype.itemsize):
            yield _integer(number)
        yield "ptr", value
        for number in (*value.shape, *value.strides):
            yield _integer(number)
    elif isinstance(typ, types.BaseTuple):
        for member, item in zip(typ.types, value, strict=True):
            yield from _flat(member, item)
    elif isinstance(typ, types.EnumMember):
        yield from _flat(typ.dtype, value.value)
    elif isinstance(typ, types.Omitted):
        return
    elif isinstance(typ, types.NoneType):
        yield "ptr", _NULL
    elif isinstance(typ, types.Record):
        yield "ptr", value
    elif isinstance(typ, types.Complex):
        name = "float" if typ.bitwidth == 64 else "double"
        stored = np.asarray(value, as_dtype(typ)).tobytes()
        half = len(stored) // 2
        yield name, stored[:half]
        yield name, stored[half:]
    else:
        yield _scalar(typ, value)


def _integer(number: int) -> tuple[str, bytes]:
    return "i64", number.to_bytes(_WORD, "little", signed=True)


def _scalar(typ: Any, value: Any) -> tuple[str, bytes]:
    if isinstance(typ, types.Integer):
        stored = int(value).to_bytes(typ.bitwidth // 8, "little", signed=typ.signed)
        return f"i{typ.bitwidth}", stored
    stored = np.asarray(value, as_dtype(typ)).tobytes()
    if isinstance(typ, types.Float):
        return {16: "half", 32: "float", 64: "double"}[typ.bitwidth], stored
    if isinstance(typ, types.CharSeq):
        return f"[{len(stored)} x i8]", stored
    if isinstance(typ, types.UnicodeCharSeq):
        return f"[{len(stored) // 4} x i32]", stored
    return f"i{8 * len(stored)}", stored  # booleans, dates and differences of dates


def with_defaults(argument_types: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return one value for each type: a tuple for ``*args``, anything for a default."""
    has_star = bool(argument_types) and isinstance(
        argument_types[-1], types.StarArgTuple | types.StarArgUniTuple
    )
    head = len(argument_types) - has_star
    plain = (*values[:head], *(None,) * (head - len(values)))
    return (*plain, values[head:]) if has_star else plain
