"""Foreign objects by protocol: arrays, whose memory is shared, host values and CUDA streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.device import Device
from nbrt.backends import registry
from nbrt.errors import (
    ArgumentError,
    ArgumentOverflowError,
    ArgumentTypeError,
    BackendUnavailableError,
    NbrtError,
    NotSupportedError,
)
from nbrt.typing import SupportsCudaStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.typing import HostArray

__all__ = [
    "HOST",
    "adopt",
    "cuda_stream_handle",
    "holder_of",
    "host_values",
    "locate",
    "numpy_scalar",
]

HOST = Device("cpu", 0)
"""The device of host memory outside all pools."""

_REFUSALS = (OverflowError, TypeError, ValueError, RuntimeError)
"""Exceptions of NumPy for values that it does not convert."""

_PROTOCOLS: dict[str, Callable[[Any], int]] = {
    "__cuda_array_interface__": lambda _: 2,
    "__dlpack_device__": lambda obj: int(obj.__dlpack_device__()[0]),
}
"""Protocols of arrays -> the memory's device type, a number of dlpack.h."""


def adopt(obj: object) -> Any:
    """Return an object's memory as an array of a backend's library; None if it is not an array.

    Raises
    ------
    ArgumentTypeError
        If it is an array in a kind of memory that no backend has.
    """
    if isinstance(obj, np.ndarray):
        return obj
    for interface in registry.ready_interfaces():
        if interface.index_of(obj) is not None:
            return obj
    if isinstance(obj, np.generic):
        return None
    for protocol, device_type in _PROTOCOLS.items():
        if hasattr(obj, protocol):
            return _adopt_memory(obj, device_type(obj))
    return None


def _adopt_memory(obj: object, device_type: int) -> Any:
    for name in registry.known_backends():
        try:
            interface = registry.get_interface_for_device(name)
        except BackendUnavailableError:
            continue
        if device_type in interface.capabilities.dlpack_device_types:
            return interface.adopt(obj)
    raise ArgumentTypeError(
        f"expected an array in host or CUDA memory, got DLPack device type {device_type}"
    )


def locate(array: object) -> tuple[Device | None, bool]:
    """Return the device whose pool or driver holds an array, and whether it is host data.

    The device is None for plain host memory. Page-locked memory is host data.
    """
    for interface in registry.ready_interfaces():
        index = interface.index_of(array)
        if index is None:
            continue
        is_on_host = interface.is_host_array(array)
        owner = interface.owner_of(array)
        if owner is not None or not is_on_host:
            pool = getattr(owner, "pool", None)
            is_page_locked = is_on_host and getattr(pool, "kind", None) == "pinned"
            return Device(interface.name, index), is_page_locked
    return None, True


def holder_of(array: object) -> Device | None:
    """Return the device whose pool or driver holds an array; None for plain host memory."""
    return locate(array)[0]


def host_values(
    obj: object, dtype: np.dtype[Any] | None = None, copy: bool | None = None
) -> HostArray:
    """Return ``np.asarray(obj, dtype, copy=copy)``; refuse Python objects.

    NumPy's exceptions become nbrt's, which are also of the built-in type that NumPy raises. A host
    array without values, of a fake device, stays one.
    """
    if not isinstance(obj, np.ndarray) and _is_fake_host_array(obj):
        fake: Any = obj
        return fake if dtype is None else fake.astype(dtype, copy=copy is True)  # type: ignore[no-any-return]
    try:
        values = np.asarray(obj, dtype, copy=copy)
    except _REFUSALS as error:
        wanted = "an array" if dtype is None else f"an array of {dtype}"
        how = " without a copy" if copy is False else ""
        text = f"expected values that NumPy makes {wanted} of{how}, got a {type(obj).__name__}"
        raise _converted(error, text) from error
    if values.dtype.hasobject:
        raise ArgumentTypeError(f"expected an array or numbers, got {type(obj).__name__}")
    return values


def _is_fake_host_array(obj: object) -> bool:
    return any(
        interface.index_of(obj) is not None and interface.is_host_array(obj)
        for interface in registry.ready_interfaces()
    )


def numpy_scalar(value: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    """Return a scalar to fill with as a NumPy array without dimensions."""
    if np.ndim(value) != 0:
        raise ArgumentError(f"expected a scalar to fill with, got shape {np.shape(value)}")
    try:
        scalar = np.full((), value, dtype)
    except _REFUSALS as error:
        text = f"expected a value to fill with that fits {dtype}, got {value!r}"
        raise _converted(error, text) from error
    if scalar.dtype.hasobject:
        raise ArgumentError(
            f"expected a number to fill with that a dtype holds, got {value!r}; pass dtype"
        )
    return scalar


def _converted(error: Exception, text: str) -> NbrtError:
    """Return nbrt's error for an exception of NumPy."""
    if isinstance(error, NbrtError):
        return error  # of the object's `__array__`
    kind: type[NbrtError] = ArgumentError
    if isinstance(error, OverflowError):
        kind = ArgumentOverflowError
    elif isinstance(error, TypeError):
        kind = ArgumentTypeError
    return kind(f"{text}: {error}")


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
