"""Arrays: made on a device, moved between devices; always the device's own library's arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.device import Device
from nbrt.backends import registry
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.runtime.commands import Command
from nbrt.runtime.device import interface_of, lookup
from nbrt.runtime.guard import StreamGuard
from nbrt.runtime.new_array import (
    checked_dtype,
    checked_stream,
    empty,
    empty_pinned,
)
from nbrt.runtime.stream import Stream, current_stream

if TYPE_CHECKING:
    from nbrt.backends.interface import DeviceInterface
    from nbrt.typing import Array, ArrayLike, DeviceLike, DTypeLike, HostArray, Shape

__all__ = [
    "asarray",
    "copy",
    "device_of",
    "full",
    "to",
    "to_host",
    "zeros",
]

_HOST = Device("cpu", 0)
"""The device of host memory that no pool of ours holds."""


def full(
    shape: Shape,
    fill_value: Any,
    dtype: DTypeLike | None = None,
    *,
    device: DeviceLike = None,
    stream: Stream | None = None,
) -> Array:
    """Return an array with every element set to `fill_value`.

    The dtype is that of the value by default; see `empty` for the other parameters.
    """
    chosen = checked_stream(device, stream)
    kind = None if dtype is None else checked_dtype(dtype)
    value = _fill_value(fill_value, None if kind is None else kind.base)
    array = empty(shape, value.dtype if kind is None else kind, stream=chosen)
    chosen.submit(Command("fill", chosen.interface.fill, (array, value[()])))
    return array


def zeros(
    shape: Shape,
    dtype: DTypeLike = "float32",
    *,
    device: DeviceLike = None,
    stream: Stream | None = None,
) -> Array:
    """Return an array of zeros; see `empty` for the parameters.

    Examples
    --------
    >>> import nbrt
    >>> nbrt.zeros(3, "int32", device="cpu:0")
    array([0, 0, 0], dtype=int32)
    """
    return full(shape, 0, checked_dtype(dtype), device=device, stream=stream)


def _fill_value(value: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    # With the dtype, NumPy refuses Python ints that do not fit, which astype would wrap around.
    is_exact = type(value) is int and dtype is not None and dtype.kind in "iu"
    try:
        found = np.asarray(value, dtype if is_exact else None)
        found = found if dtype is None or found.ndim else found.astype(dtype)
    except (OverflowError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"expected a value to fill with that fits {dtype}, got {value!r}: {error}"
        ) from error
    if found.ndim != 0:
        raise ArgumentError(f"expected a scalar to fill with, got shape {found.shape}")
    if found.dtype.hasobject:
        raise ArgumentError(
            f"expected a number to fill with that a dtype holds, got {value!r}; pass dtype"
        )
    return found


def asarray(
    obj: ArrayLike | Any,
    dtype: DTypeLike | None = None,
    *,
    device: DeviceLike = None,
    stream: Stream | None = None,
) -> Array:
    """Return `obj` as an array of a device, without a copy where it already is one.

    Parameters
    ----------
    obj : array_like
        Numbers, sequences of them, NumPy or CuPy arrays, anything with ``__dlpack__``,
        ``__cuda_array_interface__`` or ``__array__``.
    dtype : dtype, optional
        The result's dtype; that of `obj` by default.
    device : Device, str, int or None
        Where; by default the device that holds `obj`, else the current one.
    stream : Stream, optional
        The stream that copies; the device's current one by default.

    Returns
    -------
    array : numpy.ndarray or cupy.ndarray
        Shares memory with `obj` if device and dtype are already as asked.
    """
    array = _adopt(obj)
    checked_dtype(array.dtype)
    if device is None and stream is None:
        device = holder_of(array)
    chosen = checked_stream(device, stream)
    target = array.dtype if dtype is None else checked_dtype(dtype)
    if _is_on(array, chosen.device) and array.dtype == target:
        return array
    return _transfer(array, target, chosen)


def to(
    array: Array, device: DeviceLike, *, stream: Stream | None = None, copy: bool = False
) -> Array:
    """Return an array's values on another device; the array itself if it is there already.

    The copy is ordered on `stream` (the target's current one by default), and is not waited for.

    Parameters
    ----------
    array : array_like
        What to move.
    device : Device, str, int or None
        Where to.
    stream : Stream, optional
        A stream of the target device.
    copy : bool
        Copy also when the array is there already.

    Examples
    --------
    >>> import nbrt
    >>> x = nbrt.zeros(4, device="cpu:0")
    >>> nbrt.to(x, "cpu:0") is x
    True
    """
    adopted = _adopt(array)
    chosen = checked_stream(device, stream)
    if not copy and _is_on(adopted, chosen.device):
        return adopted
    return _transfer(adopted, adopted.dtype, chosen)


def to_host(array: Array, *, stream: Stream | None = None) -> HostArray:
    """Return an array's values in host memory, once the work that makes them is done.

    Waits for `stream`, the current stream of the array's device by default. An array of a CPU
    device is returned as it is.
    """
    adopted = _adopt(array)
    holder = holder_of(adopted) or _HOST
    chosen = current_stream(holder) if stream is None else checked_stream(None, stream)
    if chosen.interface.capabilities.host_addressable:
        chosen.synchronize()
        return np.asarray(adopted)
    result = _host_buffer(chosen, adopted.shape, adopted.dtype)
    chosen.submit(Command("copy", chosen.interface.copy, (result, adopted)))
    chosen.synchronize()
    return result


def copy(destination: Array, source: Array, *, stream: Stream | None = None) -> None:
    """Copy values into an existing array, in stream order, without waiting.

    Parameters
    ----------
    destination : array
        Of any device; its values are replaced.
    source : array
        Of any device; broadcast to the destination's shape.
    stream : Stream, optional
        The current stream of the destination's device by default; for a copy to the host, of the
        source's.

    Raises
    ------
    ArgumentError
        If the shapes cannot be broadcast, the dtype would change kind (float to int), or the
        destination is read-only.
    """
    _check_is_array(destination, "an array to copy into")
    into, values = _adopt(destination), _adopt(source)
    if isinstance(into, np.ndarray) and not into.flags.writeable:
        raise ArgumentError("expected a writable array to copy into, got a read-only one")
    try:
        fits = np.broadcast_shapes(into.shape, values.shape) == into.shape
    except ValueError:
        fits = False
    if not fits:
        raise ArgumentError(
            f"expected a source that broadcasts to shape {into.shape}, got shape {values.shape}"
        )
    if not np.can_cast(values.dtype, into.dtype, "same_kind"):
        raise ArgumentError(
            f"expected a source that casts to {into.dtype} within its kind, got {values.dtype}; "
            f"convert it first with astype"
        )
    holders = (holder_of(into), holder_of(values))
    if stream is None:
        stream = current_stream(_copying_side(*holders) or _HOST)
    _enqueue_copy(into, values, checked_stream(None, stream))


def _copying_side(into: Device | None, source: Device | None) -> Device | None:
    """Return the device that copies: the destination's, for a copy to the host the source's."""
    if source is not None and (into is None or (_is_host(into) and not _is_host(source))):
        return source
    return into


def device_of(array: object) -> Device:
    """Return the device that holds an array; ``cpu:0`` for host memory that is not nbrt's.

    Raises
    ------
    ArgumentTypeError
        If it is not an array of any known kind of device.
    """
    _check_is_array(array, "an array")
    holder = holder_of(_adopt(array))
    return holder or _HOST


def _check_is_array(obj: object, wanted: str) -> None:
    protocols = ("__array__", "__dlpack_device__", "__cuda_array_interface__")
    if not any(hasattr(obj, protocol) for protocol in protocols):
        raise ArgumentTypeError(f"expected {wanted}, got {obj!r} of type {type(obj).__name__}")


def _adopt(obj: object) -> Any:
    """Return `obj` as an array of some library that a backend knows, sharing memory if it can."""
    if isinstance(obj, np.ndarray):
        return obj
    for interface in registry.ready_interfaces():
        if interface.index_of(obj) is not None:
            return obj
    if hasattr(obj, "__cuda_array_interface__"):
        return interface_of("cuda").adopt(obj)
    if hasattr(obj, "__dlpack_device__") and not isinstance(obj, np.generic):
        return _from_dlpack(obj)
    array = np.asarray(obj)
    if array.dtype.hasobject:
        raise ArgumentTypeError(f"expected an array or numbers, got {type(obj).__name__}")
    return array


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


def holder_of(array: object) -> Device | None:
    """Return the device whose pool or driver holds an array; None for plain host memory."""
    for interface in registry.ready_interfaces():
        index = interface.index_of(array)
        if index is not None and (
            interface.owner_of(array) is not None or not interface.capabilities.host_addressable
        ):
            return Device(interface.name, index)
    return None


def _is_host(device: Device | None) -> bool:
    return device is None or lookup(device)[1].capabilities.host_addressable


def _is_on(array: Any, device: Device) -> bool:
    holder = holder_of(array)
    return device == (_HOST if holder is None else holder)


def _transfer(array: Any, dtype: np.dtype[Any], stream: Stream) -> Any:
    holder = holder_of(array)
    result = empty(array.shape, dtype, stream=stream)
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        # The conversion is the array's own library's: it reads the values now, on the current
        # stream of their device, and `stream` must not read its result too early.
        making = stream if holder is None else current_stream(holder)
        making.synchronize()
        with StreamGuard(making):
            array = array.astype(dtype)
        making.synchronize()
    _enqueue_copy(result, array, stream)
    return result


def _enqueue_copy(destination: Any, source: Any, stream: Stream) -> None:
    interface = stream.interface
    foreign = [array for array in (destination, source) if not _understands(interface, array)]
    if foreign and foreign[0] is source:
        source = to_host(source)
    elif foreign:
        raise ArgumentError(
            f"expected a stream of the destination's device, got {stream!r}; leave stream out"
        )
    making = None if foreign else _wait_for_holder(source, stream)
    stream.submit(Command("copy", interface.copy, (destination, source)))
    if making is not None and not stream.query():
        # As in torch: what overwrites the source next must not overtake the copy.
        making.wait_stream(stream)


def _wait_for_holder(source: Any, stream: Stream) -> Stream | None:
    """Order a copy behind the work that makes its source on another device; return its stream."""
    holder = holder_of(source)
    if holder is None or holder == stream.device:
        return None
    making = current_stream(holder)
    if not making.query():
        stream.wait_stream(making)
    return making


def _understands(interface: DeviceInterface, array: object) -> bool:
    return isinstance(array, np.ndarray) or interface.index_of(array) is not None


def _host_buffer(stream: Stream, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
    if stream.interface.capabilities.pinned_memory:
        return empty_pinned(shape, dtype, device=stream.device)
    return np.empty(shape, dtype)
