"""Addresses as arguments of kernels whose signature declares a pointer."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numba.core import types
from numba.core.pythonapi import NativeValue, unbox
from numba.np.numpy_support import as_dtype

__all__ = ["PointerArgument"]


class PointerArgument:
    """An address as an argument of a kernel.

    Kernels in plain Python index it as compiled kernels index the pointer.

    Parameters
    ----------
    address : int
        The address of the first element, at least 0 and less than 2**64.
    typ : numba.core.types.CPointer
        The type of the pointer.

    Attributes
    ----------
    address : int
        As given.
    """

    __slots__ = ("_numba_type_", "address")

    def __init__(self, address: int, typ: Any) -> None:
        self.address = address
        self._numba_type_ = typ

    def __getitem__(self, index: int) -> Any:
        return self._element(index)[0]

    def __setitem__(self, index: int, value: Any) -> None:
        self._element(index)[0] = value

    def _element(self, index: int) -> Any:
        dtype = np.dtype(as_dtype(self._numba_type_.dtype))
        memory = (ctypes.c_char * dtype.itemsize).from_address(
            self.address + int(index) * dtype.itemsize
        )
        return np.frombuffer(memory, dtype)


@unbox(types.CPointer)
def _unbox(typ: Any, obj: Any, c: Any) -> Any:
    address = c.pyapi.object_getattr_string(obj, "address")
    pointer = c.pyapi.long_as_voidptr(address)
    c.pyapi.decref(address)
    return NativeValue(c.builder.bitcast(pointer, c.context.get_value_type(typ)))
