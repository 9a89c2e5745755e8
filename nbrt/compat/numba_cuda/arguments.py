"""Launch arguments: device arrays and host arrays as NumPy arrays over the same memory.

A CUDA launch copies each host array to the device and back, in the order of the arguments. Here a
kernel uses the host array itself, and the launch waits for it. A copy is made where a program can
see the difference: for `In`, for an array that shares memory with an earlier argument, and on
request for kernels whose exceptions the launch raises, where nothing is copied back.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.core import Buffer
from cuda.core.utils import StridedMemoryView
from numba.cuda.api import external_stream
from numba.cuda.args import ArgHint, In
from numba.cuda.core import config
from numba.cuda.core.errors import NumbaPerformanceWarning
from numba.cuda.cudadrv.devicearray import DeviceNDArray, DeviceNDArrayBase, DeviceRecord

from nbrt.backends.device_arrays import host_view
from nbrt.compat.numba_cuda.driver.binding import process_binding
from nbrt.compat.numba_cuda.driver.results import api_error

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PLAIN", "array_over", "prepared", "view_of"]

PLAIN = frozenset({int, float, bool, complex, np.float32, np.float64, np.int32, np.int64})
"""Types of arguments that are passed as they are."""

_VIEW = "_nbrt_view"
_MAX_READABLE = 1024

_readable: dict[Any, np.dtype[Any]] = {}
"""Arrays of other libraries whose memory the processor could read: a check takes 10 times as long
as a launch."""


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
        Kept alive by the array, if the driver did not allocate the memory.
    """
    if 0 in shape:
        return np.empty(shape, dtype)
    found = process_binding().memory.device.find(address)
    if found is not None:
        # The block, not its owner in numba-cuda: queued work must not delay its destruction.
        return np.ndarray(shape, dtype, found[2], address - found[0], strides)
    interface = {
        "version": 3,
        "shape": shape,
        "strides": None if strides is None else tuple(strides),
        "typestr": f"|V{dtype.itemsize}" if dtype.kind == "V" else dtype.str,
        "data": (address, False),
    }
    array = np.asarray(_Memory(interface, owner))
    return array.view(dtype) if dtype.kind == "V" else array


def view_of(array: Any) -> Any:
    """Return the NumPy array over the memory of a device array; each has one."""
    known = vars(array).get(_VIEW)
    if known is not None:
        return known
    memory = array.gpu_data
    address = memory.device_ctypes_pointer.value or 0
    if array.size and process_binding().memory.device.is_freed(address):
        raise api_error("INVALID_VALUE", "cuLaunchKernel", "the memory of an argument was freed")
    view = array_over(address, array.shape, array.strides, array.dtype, memory)
    if isinstance(array, DeviceRecord):
        view = view.reshape(1)[0]
    vars(array)[_VIEW] = view
    return view


def prepared(
    value: Any,
    after: list[Callable[[], object]],
    waits: list[Any],
    *,
    copies: bool = False,
) -> Any:
    """Return an argument of a CPU launch for one of a CUDA launch.

    Parameters
    ----------
    value : object
        A device array, a host array, a hint (``In``, ``Out``, ``InOut``), a tuple of such, or a
        value that is passed as it is.
    after : list
        Gets functions to call when the launch is done.
    waits : list
        The host arrays of the launch so far. If there is one, the caller must wait for the launch.
    copies : bool
        Whether host arrays keep their values if the launch raises.
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, ArgHint):
        return _hinted(value, after, waits, copies=copies)
    if isinstance(value, (DeviceNDArray, DeviceRecord)):
        return view_of(value)
    if isinstance(value, DeviceNDArrayBase):  # mapped and managed memory
        return np.asarray(value)
    if isinstance(value, (np.ndarray, np.void)):
        return _host(value, after, waits, copies=copies)
    if isinstance(value, tuple):
        items = [prepared(item, after, waits, copies=copies) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, (Buffer, StridedMemoryView)):
        return _of_cuda_core(value)
    return _foreign(value, after, waits, copies=copies)


def _hinted(hint: Any, after: list[Callable[[], object]], waits: list[Any], *, copies: bool) -> Any:
    value = hint.value
    if isinstance(hint, In) and not isinstance(value, DeviceNDArrayBase):
        if isinstance(value, np.ndarray):
            return np.array(value, order="K")
        if isinstance(value, np.void):
            return value.copy()
    return prepared(value, after, waits, copies=copies)


def _host(value: Any, after: list[Callable[[], object]], waits: list[Any], *, copies: bool) -> Any:
    _warn_of_copy()
    is_record = isinstance(value, np.void)
    array = value if is_record else np.asarray(value)
    shares = not is_record and any(np.may_share_memory(array, other) for other in waits)
    waits.append(array)
    if not (shares or copies):
        return array
    copy = array.copy() if is_record else np.array(array, order="K")
    if is_record:
        after.append(partial(_assign_record, array, copy))
    elif array.flags.writeable:
        after.append(partial(np.copyto, array, copy))
    else:
        copy.flags.writeable = False
    return copy


def _warn_of_copy() -> None:
    """Warn of the copy that a GPU would make, if the program asks for numba-cuda's warnings."""
    if config.CUDA_WARN_ON_IMPLICIT_COPY and not config.DISABLE_PERFORMANCE_WARNINGS:
        text = "Host array used in CUDA kernel will incur copy overhead to/from device."
        warnings.warn(NumbaPerformanceWarning(text), stacklevel=5)


def _assign_record(record: Any, values: Any) -> None:
    record[()] = values


def _foreign(
    value: Any, after: list[Callable[[], object]], waits: list[Any], *, copies: bool
) -> Any:
    """Return the array of an object with the CUDA array interface or DLPack; else the object."""
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _of_interface(value, interface)
    if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
        return _host(np.from_dlpack(value), after, waits, copies=copies)
    return value


def _of_interface(value: Any, interface: dict[str, Any]) -> Any:
    if interface.get("mask") is not None:
        raise NotImplementedError("Masked arrays are not supported")
    stream = interface.get("stream")
    if stream is not None and config.CUDA_ARRAY_INTERFACE_SYNC:
        external_stream(stream).synchronize()
    address, readonly = interface["data"]
    strides = interface.get("strides")
    strides = None if strides is None else tuple(strides)
    key = address, readonly, tuple(interface["shape"]), strides, interface["typestr"]
    dtype = _readable.get(key)
    if dtype is not None:
        array = array_over(address, key[2], strides, dtype, value)
        if readonly:
            array.flags.writeable = False
        return array
    array = host_view(value)
    if array is None:
        raise api_error("ILLEGAL_ADDRESS", "cuLaunchKernel", f"the CPU cannot read {address:#x}")
    if array.dtype.names is None:
        if len(_readable) >= _MAX_READABLE:
            _readable.clear()
        _readable[key] = array.dtype
    return array


def _of_cuda_core(value: Any) -> Any:
    """Return the array of a buffer or view of cuda.core; strides there count elements."""
    if isinstance(value, Buffer):
        return array_over(int(value.handle), (value.size,), None, np.dtype(np.uint8), value)
    dtype = np.dtype(value.dtype)
    strides = value.strides and tuple(step * dtype.itemsize for step in value.strides)
    array = array_over(int(value.ptr), tuple(value.shape), strides, dtype, value)
    if value.readonly:
        array.flags.writeable = False
    return array
