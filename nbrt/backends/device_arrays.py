"""Arrays with the CUDA array interface whose memory the CPU can read."""

from __future__ import annotations

import ctypes
import os
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

__all__ = ["host_view", "is_device_array"]

_PLAIN = (ModuleType, FunctionType, type)


class _Memory:
    """Memory described by NumPy's array interface; the array over it keeps the owner alive."""

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def is_device_array(value: object) -> bool:
    """Return whether an object has the CUDA array interface."""
    return not isinstance(value, _PLAIN) and hasattr(value, "__cuda_array_interface__")


def host_view(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a NumPy array over the memory of an object with the CUDA array interface.

    Parameters
    ----------
    value : object
        Its memory is in the address space of the process: on a CPU device, mapped or managed.

    Returns
    -------
    numpy.ndarray or None
        The array keeps the object alive. None if the CPU cannot read the memory.
    """
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    given = value.__cuda_array_interface__
    dtype, shape = _dtype_of(given), tuple(given["shape"])
    if 0 in shape:
        return np.empty(shape, dtype)
    address, readonly = given["data"]
    strides = given.get("strides")
    spans = [0] if strides is None else [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    size = dtype.itemsize if strides is not None else dtype.itemsize * int(np.prod(shape))
    first = address + sum(span for span in spans if span < 0)
    last = address + sum(span for span in spans if span > 0) + size - 1
    if not all(_is_readable(each) for each in (first, last)):
        return None
    interface = {
        "version": 3,
        "shape": shape,
        "strides": None if strides is None else tuple(strides),
        "typestr": f"|V{dtype.itemsize}" if dtype.names else dtype.str,
        "data": (address, readonly),
    }
    array = np.asarray(_Memory(interface, value))
    return array.view(dtype) if dtype.names else array


def _dtype_of(interface: dict[str, Any]) -> np.dtype[Any]:
    described = interface.get("descr")
    if interface["typestr"].startswith("|V") and described:
        return np.dtype([tuple(field) for field in described])
    return np.dtype(str(interface["typestr"]))


def _is_readable(address: int) -> bool:
    """Return whether the CPU can read a byte of memory.

    The system reads it into a pipe: it returns an error for an address of a GPU.
    """
    if not address:
        return False
    reader, writer = os.pipe()
    try:
        return os.write(writer, (ctypes.c_char * 1).from_address(address)) == 1
    except OSError:
        return False
    finally:
        os.close(reader)
        os.close(writer)
