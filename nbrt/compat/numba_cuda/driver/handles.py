"""Handles and addresses, with the interface of those in ``cuda.bindings.driver``."""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["CUcontext", "CUdevice", "CUdeviceptr", "CUevent", "CUstream", "Handle"]


class Handle:
    """An integer in memory whose address other code can take.

    Parameters
    ----------
    value : int or Handle
        The address, or the number of a stream, event or context.
    """

    __slots__ = ("_cell",)

    def __init__(self, value: int | Handle = 0) -> None:
        self._cell = ctypes.c_size_t(int(value))

    def __int__(self) -> int:
        return self._cell.value

    __index__ = __int__

    def __bool__(self) -> bool:
        return self._cell.value != 0

    @property
    def value(self) -> int:
        """The integer."""
        return self._cell.value

    def getPtr(self) -> int:  # noqa: N802  # the name in cuda.bindings
        """Return the address of the integer."""
        return ctypes.addressof(self._cell)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"expected something that can be pickled, got a {type(self).__name__}, which belongs "
            f"to one process"
        )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, Handle)):
            return self._cell.value == int(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._cell.value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._cell.value:#x}>"


class CUdevice(Handle):
    """The number of a device."""

    __slots__ = ()


class CUdeviceptr(Handle):
    """An address in device memory; on CPU devices, in host memory."""

    __slots__ = ()


class CUcontext(Handle):
    """The context of a device."""

    __slots__ = ()


class CUstream(Handle):
    """A stream."""

    __slots__ = ()


class CUevent(Handle):
    """An event."""

    __slots__ = ()
