"""Launch arguments: device arrays as NumPy arrays over the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba.cuda.args import ArgHint, In
from numba.cuda.cudadrv.devicearray import DeviceNDArray, DeviceNDArrayBase, DeviceRecord

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PLAIN", "array_over", "host_arrays_overlap", "prepared", "view_of"]

PLAIN = frozenset({int, float, bool, complex, np.float32, np.float64, np.int32, np.int64})
"""Types of arguments that are passed as they are."""

_VIEW = "_nbrt_view"


class _Memory:
    """Memory by the array interface of NumPy, which keeps its owner alive."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def array_over(
    address: int, shape: tuple[int, ...], strides: Any, dtype: np.dtype[Any], owner: object
) -> Any:
    """Return a NumPy array over memory.

    Parameters
    ----------
    address : int
        The address of the first element.
    shape, strides, dtype
        As for ``np.ndarray``; `strides` None: C-contiguous.
    owner : object
        Kept alive by the array.
    """
    if 0 in shape:
        return np.empty(shape, dtype)
    interface = {
        "version": 3,
        "shape": shape,
        "strides": None if strides is None else tuple(strides),
        "typestr": dtype.str,
        "descr": dtype.descr if dtype.names is None else [("", f"|V{dtype.itemsize}")],
        "data": (address, False),
    }
    if dtype.hasobject or dtype.kind != "V":
        return np.asarray(_Memory(interface, owner))
    interface["typestr"] = f"|V{dtype.itemsize}"
    return np.asarray(_Memory(interface, owner)).view(dtype)


def view_of(array: Any) -> Any:
    """Return the NumPy array over the memory of a device array; each has one."""
    known = vars(array).get(_VIEW)
    if known is not None:
        return known
    # The memory is kept alive, not the array: a cycle would delay its release.
    memory = array.gpu_data
    address = memory.device_ctypes_pointer.value or 0
    view = array_over(address, array.shape, array.strides, array.dtype, memory)
    if isinstance(array, DeviceRecord):
        view = view.reshape(1)[0]
    vars(array)[_VIEW] = view
    return view


def prepared(value: Any, after: list[Callable[[], object]], waits: list[bool]) -> Any:
    """Return an argument of a CPU launch for one of a CUDA launch.

    Parameters
    ----------
    value : object
        A device array, a host array, a hint (``In``, ``Out``, ``InOut``), a tuple of such, or a
        value that is passed as it is.
    after : list
        Gets functions to call when the launch is done.
    waits : list
        Gets an item if the caller must wait for the launch, as for one with host arrays.
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, ArgHint):
        return _hinted(value, after, waits)
    if isinstance(value, (DeviceNDArray, DeviceRecord)):
        return view_of(value)
    if isinstance(value, DeviceNDArrayBase):  # mapped and managed memory
        return value.view(np.ndarray)
    if isinstance(value, np.ndarray):
        waits.append(True)
        return value.view(np.ndarray) if type(value) is not np.ndarray else value
    if isinstance(value, np.void):
        waits.append(True)
        return value
    if isinstance(value, tuple):
        items = [prepared(item, after, waits) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _foreign(value, interface)
    return value


def _hinted(hint: Any, after: list[Callable[[], object]], waits: list[bool]) -> Any:
    """Return the argument of a hint; what comes in only must not change on the host."""
    value = hint.value
    if isinstance(hint, In) and isinstance(value, (np.ndarray, np.void)):
        return value.copy()
    return prepared(value, after, waits)


def _foreign(value: Any, interface: dict[str, Any]) -> Any:
    """Return a NumPy array over an object with the CUDA array interface."""
    from numba.cuda.api import as_cuda_array

    return view_of(as_cuda_array(value))


def host_arrays_overlap(values: list[Any]) -> bool:
    """Return whether two host arrays of a launch share memory, which copies would not."""
    arrays = [value for value in values if type(value) is np.ndarray and value.size]
    return any(
        np.may_share_memory(first, second)
        for position, first in enumerate(arrays)
        for second in arrays[:position]
    )
