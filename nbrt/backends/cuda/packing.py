"""Kernel arguments as bytes in the layout of numba-cuda's compiled kernels.

The parameters of an array are two null pointers (numba's meminfo and parent), element count, item
size, address, shape and strides in bytes; those of a complex number are its two parts, and those of
a tuple are those of its members. A test compares them with
``numba.cuda.dispatcher._Kernel._prepare_args`` (0.30.4). Packing here saves a view object and a
dozen Python calls per array (measurements: numba-cuda #477 and #578).
"""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ARRAY_HEADER",
    "SCALAR_CODES",
    "ArgumentPacker",
    "ArgumentShape",
    "PackedArguments",
    "parameters_of",
    "shapes_of",
]

ARRAY_HEADER = "qqqqQ"
"""meminfo, parent, element count, item size, address."""

_SLOT = 8

# By numba's name of the type; each parameter has 8 bytes, so every address is aligned.
SCALAR_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "complex64": "ff",
    "complex128": "dd",
}


class PackedArguments:
    """A buffer of parameters and the table of their addresses, for cuLaunchKernel.

    Attributes
    ----------
    buffer : ctypes array
        The parameters, one per 8 bytes.
    address : int
        The address of the table.
    """

    __slots__ = ("_table", "address", "buffer")

    def __init__(self, count: int) -> None:
        self.buffer = ctypes.create_string_buffer(max(1, count) * _SLOT)
        first = ctypes.addressof(self.buffer)
        self._table = (ctypes.c_void_p * max(1, count))(
            *(first + _SLOT * position for position in range(count))
        )
        self.address = ctypes.addressof(self._table)


class ArgumentPacker:
    """A packer of arguments of one list of types.

    Parameters
    ----------
    codes : iterable of str
        `struct` codes of the parameters, in order.
    """

    __slots__ = ("_count", "_free", "_pack_into")

    def __init__(self, codes: Iterable[str]) -> None:
        slots = [code + "x" * (_SLOT - struct.calcsize("<" + code)) for code in codes]
        self._count = len(slots)
        self._pack_into = struct.Struct("<" + "".join(slots)).pack_into
        # The driver copies the parameters before a launch returns, so buffers are reused. A deque
        # gives each to one thread at a time without a lock.
        self._free: deque[PackedArguments] = deque()

    def pack(self, values: list[Any]) -> PackedArguments:
        """Return the packed values; `release` them after the launch."""
        try:
            packed = self._free.pop()
        except IndexError:
            packed = PackedArguments(self._count)
        self._pack_into(packed.buffer, 0, *values)
        return packed

    def release(self, packed: PackedArguments) -> None:
        """Make a buffer available again."""
        self._free.append(packed)


@dataclass(frozen=True, slots=True)
class ArgumentShape:
    """The layout of an argument as kernel parameters.

    Attributes
    ----------
    codes : str
        The struct codes of its parameters.
    is_array, is_complex : bool
        Whether it has several parameters.
    members : tuple of ArgumentShape or None
        The layouts of the members of a tuple. If none of these holds, it is one parameter.
    """

    codes: str
    is_array: bool = False
    is_complex: bool = False
    members: tuple[ArgumentShape, ...] | None = None


def shapes_of(types: tuple[Any, ...]) -> tuple[ArgumentShape, ...] | None:
    """Return the layouts of arguments of numba's types; None if one has no packed form."""
    from numba.cuda.types import Array, Tuple, UniTuple

    shapes = []
    for kind in types:
        if isinstance(kind, Array):
            shapes.append(ArgumentShape(ARRAY_HEADER + "q" * (2 * kind.ndim), is_array=True))
        elif str(kind) in SCALAR_CODES:
            codes = SCALAR_CODES[str(kind)]
            shapes.append(ArgumentShape(codes, is_complex=len(codes) == 2))
        elif isinstance(kind, (Tuple, UniTuple)):  # names of named tuples lack their fields
            members = shapes_of(tuple(kind))
            if members is None:
                return None
            codes = "".join(member.codes for member in members)
            shapes.append(ArgumentShape(codes, members=members))
        else:
            return None
    return tuple(shapes)


def parameters_of(shapes: tuple[ArgumentShape, ...], args: tuple[Any, ...]) -> list[Any]:
    """Return the values of the parameters, in the order of the shapes' codes."""
    values: list[Any] = []
    for shape, argument in zip(shapes, args, strict=True):
        if shape.is_array:
            values += (0, 0, argument.size, argument.itemsize, argument.data.ptr)
            values += argument.shape
            values += argument.strides
        elif shape.is_complex:
            values += (argument.real, argument.imag)
        elif shape.members is not None:
            values += parameters_of(shape.members, argument)
        else:
            values.append(argument)
    return values
