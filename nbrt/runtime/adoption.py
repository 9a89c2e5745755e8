"""Objects as arrays of a library that a backend knows, and the device that holds each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.device import Device
from nbrt.backends import registry
from nbrt.errors import (
    ArgumentError,
    ArgumentOverflowError,
    ArgumentTypeError,
    NbrtError,
    NotSupportedError,
)
from nbrt.runtime.device import interface_of
from nbrt.typing import SupportsCudaStream

if TYPE_CHECKING:
    from nbrt.typing import HostArray

__all__ = [
    "HOST",
    "REFUSALS",
    "adopt",
    "array_in",
    "cuda_stream_handle",
    "holder_of",
    "host_values",
    "place_of",
    "refusal",
]

REFUSALS = (OverflowError, TypeError, ValueError, RuntimeError)
"""Exceptions of NumPy for values that it does not convert."""

HOST = Device("cpu", 0)
"""The device of host memory that no pool of ours holds."""


def adopt(obj: object) -> Any:
    """Return an object as an array of a library that a backend knows, sharing memory if it can."""
    array = array_in(obj)
    return host_values(obj) if array is None else array


def array_in(obj: object) -> Any:
    """Return an object's memory as an array, without a copy; None if it is not an array yet.

    Raises
    ------
    ArgumentTypeError
        If it is an array in memory of a kind that no backend has.
    """
    if isinstance(obj, np.ndarray):
        return obj
    for interface in registry.ready_interfaces():
        if interface.index_of(obj) is not None:
            return obj
    if hasattr(obj, "__cuda_array_interface__"):
        return interface_of("cuda").adopt(obj)
    if hasattr(obj, "__dlpack_device__") and not isinstance(obj, np.generic):
        return _from_dlpack(obj)
    return None


def _from_dlpack(obj: Any) -> Any:
    device_type = int(obj.__dlpack_device__()[0])
    # Codes of dlpack.h: 1 host, 3 page-locked host, 2 cuda, 13 cuda managed.
    if device_type in (1, 3):
        return np.from_dlpack(obj)
    if device_type in (2, 13):
        return interface_of("cuda").adopt(obj)
    raise ArgumentTypeError(
        f"expected an array in host or CUDA memory, got DLPack device type {device_type}"
    )


def host_values(
    obj: object, dtype: np.dtype[Any] | None = None, copy: bool | None = None
) -> HostArray:
    """Return ``np.asarray(obj, dtype, copy=copy)``, whose refusals become errors of nbrt's.

    Each is also of the built-in type that NumPy raises. Arrays of Python objects are refused.
    """
    try:
        values = np.asarray(obj, dtype, copy=copy)
    except REFUSALS as error:
        wanted = "an array" if dtype is None else f"an array of {dtype}"
        how = " without a copy" if copy is False else ""
        text = f"expected values that NumPy makes {wanted} of{how}, got a {type(obj).__name__}"
        raise refusal(error, text) from error
    if values.dtype.hasobject:
        raise ArgumentTypeError(f"expected an array or numbers, got {type(obj).__name__}")
    return values


def refusal(error: Exception, text: str) -> NbrtError:
    """Return the error of nbrt's that says the same as one of NumPy's, and is also of its type."""
    if isinstance(error, NbrtError):
        return error  # of an object's own `__array__`
    kind: type[NbrtError] = ArgumentError
    if isinstance(error, OverflowError):
        kind = ArgumentOverflowError
    elif isinstance(error, TypeError):
        kind = ArgumentTypeError
    return kind(f"{text}: {error}")


def holder_of(array: object) -> Device | None:
    """Return the device whose pool or driver holds an array; None for plain host memory."""
    for interface in registry.ready_interfaces():
        index = interface.index_of(array)
        if index is not None and (
            interface.owner_of(array) is not None or not interface.capabilities.host_addressable
        ):
            return Device(interface.name, index)
    return None


def place_of(array: object) -> Device | None:
    """Return the device in whose memory an array lies; None for host data.

    Page-locked memory is host data, also that of a CPU device: on CUDA it is a NumPy array.
    """
    for interface in registry.ready_interfaces():
        index = interface.index_of(array)
        if index is None:
            continue
        if not interface.capabilities.host_addressable:
            return Device(interface.name, index)
        owner = interface.owner_of(array)
        if owner is not None:
            pool = getattr(owner, "pool", None)
            is_page_locked = getattr(pool, "kind", None) == "pinned"
            return None if is_page_locked else Device(interface.name, index)
    return None


def cuda_stream_handle(stream: object) -> int:
    """Return the raw stream of an object with ``__cuda_stream__``."""
    if not isinstance(stream, SupportsCudaStream):
        raise ArgumentTypeError(
            f"expected an object with __cuda_stream__, got {stream!r} of type "
            f"{type(stream).__name__}; for a bare address use an object of the library that made it"
        )
    answer = stream.__cuda_stream__()
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise ArgumentTypeError(
            f"expected __cuda_stream__ to return (version, address), got {answer!r}"
        )
    version, address = answer
    if version != 0:
        raise NotSupportedError(
            f"expected version 0 of the __cuda_stream__ protocol, got version {version!r}"
        )
    return int(address)
