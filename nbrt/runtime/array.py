"""Conversions: objects to arrays of a device, copies between devices and to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.checks import checked_dtype
from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.runtime.adoption import HOST, adopt, holder_of, host_values, locate
from nbrt.runtime.creation import empty, empty_pinned
from nbrt.runtime.device import lookup
from nbrt.runtime.guard import StreamGuard
from nbrt.runtime.stream import Stream, checked_stream, current_stream, resolve_stream

if TYPE_CHECKING:
    from nbrt._internal.device import Device
    from nbrt.typing import Array, ArrayLike, CopyMode, DeviceLike, DTypeLike, HostArray

__all__ = ["asarray", "copy", "device_of", "to", "to_host"]


def asarray(
    obj: ArrayLike | Any,
    dtype: DTypeLike | None = None,
    *,
    device: DeviceLike = None,
    stream: Stream | None = None,
    copy: CopyMode = "host_data",
) -> Array:
    """Return `obj` as an array of a device.

    Host data is copied on every kind of device. An array of the device is returned itself.

    Parameters
    ----------
    obj : array_like
        Numbers, sequences of them, NumPy or CuPy arrays, objects with ``__dlpack__``,
        ``__cuda_array_interface__`` or ``__array__``.
    dtype : dtype, optional
        The result's dtype; that of `obj` by default. Host data is converted as by ``np.asarray``.
    device : Device, str, int or None
        The result's device; by default the one that holds `obj`, for host data the current one.
    stream : Stream, optional
        The stream that copies; the device's current one by default.
    copy : {"host_data", True, None, False}
        When to copy. ``"host_data"``: host data always, an array of a device only if its device or
        dtype changes. True: always. None: only if needed. False: never.

    Returns
    -------
    array : numpy.ndarray or cupy.ndarray
        With `copy` None or False it may share the memory of a NumPy array on a CPU device, which
        remains host data.

    Raises
    ------
    ArgumentError
        If NumPy refuses to convert `obj` because of a value, or a copy is needed and `copy` is
        False.
    ArgumentTypeError
        If NumPy refuses to convert `obj` because of a type, or the result would hold Python
        objects.

    Notes
    -----
    Host data are numbers, sequences and arrays in host memory outside the pools of devices: arrays
    of NumPy, also results such as ``x + 1`` on a CPU device, page-locked memory, and host arrays of
    other libraries. The call reads their values; those of page-locked memory without conversion are
    read in stream order. With ``copy=False`` the result shares memory, or the call raises.

    Examples
    --------
    >>> import numpy as np
    >>> import nbrt
    >>> values = np.zeros(3)
    >>> x = nbrt.asarray(values, device="cpu:0")
    >>> x[0] = 1.0
    >>> values
    array([0., 0., 0.])
    >>> nbrt.asarray(x) is x
    True
    >>> nbrt.asarray(values, device="cpu:0", copy=False) is values
    True
    """
    mode = _checked_mode(copy)
    target = None if dtype is None else checked_dtype(dtype)
    array = adopt(obj)
    holder, is_host_data = (None, True) if array is None else locate(array)
    if device is None and stream is None and not is_host_data:
        device = holder
    chosen = resolve_stream(device, stream)
    if is_host_data:
        return _from_host(obj, array, holder, target, chosen, mode)
    return _from_device(array, holder, target, chosen, mode)


def to(
    array: Array,
    device: DeviceLike,
    *,
    stream: Stream | None = None,
    copy: CopyMode = "host_data",
) -> Array:
    """Return an array's values on another device; the array itself if that device holds it.

    The copy is ordered on `stream`, the target's current one by default; the call does not wait.

    Parameters
    ----------
    array : array_like
        The values.
    device : Device, str, int or None
        The target; None: the current device.
    stream : Stream, optional
        A stream of the target device.
    copy : {"host_data", True, None, False}
        When to copy, as for `asarray`.

    Examples
    --------
    >>> import nbrt
    >>> x = nbrt.zeros(4, device="cpu:0")
    >>> nbrt.to(x, "cpu:0") is x
    True
    """
    mode = _checked_mode(copy)
    chosen = resolve_stream(device, stream)
    source = adopt(array)
    holder, is_host_data = (None, True) if source is None else locate(source)
    if is_host_data:
        return _from_host(array, source, holder, None, chosen, mode)
    return _from_device(source, holder, None, chosen, mode)


def to_host(array: Array, *, stream: Stream | None = None, copy: bool | None = True) -> HostArray:
    """Wait for an array's values and return them in host memory.

    Parameters
    ----------
    array : array_like
        An array of any device.
    stream : Stream, optional
        The stream that copies; the current one of the array's device by default.
    copy : bool or None
        True: copy on every kind of device. None: share memory that the host addresses, such as that
        of CPU devices. False: share memory, or raise.

    Raises
    ------
    ArgumentError
        If `copy` is False and the host does not address the array's memory.

    Examples
    --------
    >>> import nbrt
    >>> x = nbrt.zeros(2, device="cpu:0")
    >>> before = nbrt.to_host(x)
    >>> x[:] = 1.0
    >>> before
    array([0., 0.], dtype=float32)
    """
    mode = _checked_mode(copy)
    if mode == "host_data":
        raise ArgumentError(f"expected copy as True, None or False, got {copy!r}")
    source = _as_array(array)
    holder = holder_of(source) or HOST
    chosen = current_stream(holder) if stream is None else checked_stream(stream)
    if not mode and chosen.interface.capabilities.host_addressable:
        chosen.synchronize()
        # Arrays of Python objects are arrays here, too.
        return np.asarray(source) if isinstance(source, np.ndarray) else host_values(source)
    if mode is False:
        raise _copy_needed(f"an array of {holder}", "host memory")
    if chosen.capture is not None:
        chosen.synchronize()  # refuses, before a copy is captured
    if chosen.interface.capabilities.pinned_memory:
        result = empty_pinned(source.shape, source.dtype, device=chosen.device)
    else:
        result = chosen.interface.empty_host(source.shape, source.dtype)
    chosen.enqueue("copy", chosen.interface.copy, (result, source))
    chosen.synchronize()
    return result


def _checked_mode(copy: Any) -> CopyMode:
    if copy is None or isinstance(copy, (bool, np.bool_)):
        return None if copy is None else bool(copy)
    if isinstance(copy, str) and copy == "host_data":
        return "host_data"
    raise ArgumentError(f'expected copy as True, False, None or "host_data", got {copy!r}')


def _copy_needed(source: str, target: str) -> ArgumentError:
    return ArgumentError(
        f"expected memory that can be shared, as copy=False asks, got {source}, of which {target} "
        f"needs a copy; leave copy out, or pass copy=None"
    )


def _from_host(
    obj: Any,
    array: HostArray | None,
    holder: Device | None,
    dtype: np.dtype[Any] | None,
    stream: Stream,
    mode: CopyMode,
) -> Array:
    """Return host data on the device of a stream; `array` is its memory if `obj` is an array."""
    is_there = stream.device == (holder or HOST)
    if mode is False and not is_there:
        raise _copy_needed("host data", str(stream.device))
    values = host_values(
        obj if array is None else array, dtype, copy=False if mode is False else None
    )
    if is_there and not mode:
        return values
    # A stream of a CPU device reads ordinary memory later, as any stream that defers its commands
    # does; the values of now are copied.
    reads_later = stream.deferral is not None or (
        stream.interface.capabilities.host_addressable
        and not isinstance(stream.queue, SynchronousQueue)
    )
    if reads_later and not isinstance(obj, (list, tuple)) and holder_of(values) is None:
        values = values.copy()
    result = empty(values.shape, values.dtype, stream=stream)
    _enqueue_copy(result, values, stream)
    return result


def _from_device(
    array: Any,
    holder: Device | None,
    dtype: np.dtype[Any] | None,
    stream: Stream,
    mode: CopyMode,
) -> Array:
    """Return an array in the memory of one device on the device of a stream."""
    target = checked_dtype(array.dtype) if dtype is None else dtype
    if holder == stream.device and array.dtype == target and mode is not True:
        return array
    if mode is False:
        raise _copy_needed(
            f"an array of {array.dtype} of {holder}", f"one of {target} of {stream.device}"
        )
    is_incomplete = not target.itemsize or target.subdtype is not None  # NumPy completes these
    if is_incomplete or not np.can_cast(array.dtype, target, "same_kind"):
        # The array's library converts, on the current stream of its device, between two waits: the
        # conversion reads finished values, and `stream` reads a finished result.
        producer = current_stream(holder)
        producer.synchronize()
        with StreamGuard(producer):
            array = array.astype(target)
        producer.synchronize()
        target = array.dtype
    result = empty(array.shape, target, stream=stream)
    _enqueue_copy(result, array, stream)
    return result


def copy(destination: Array, source: Array, *, stream: Stream | None = None) -> None:
    """Copy values into an existing array, in stream order; the call does not wait.

    Neither array may change before the copy is done.

    Parameters
    ----------
    destination : array
        An array of any device.
    source : array
        An array of any device; it is broadcast to the destination's shape.
    stream : Stream, optional
        The stream that copies. By default the current one of the destination's device, or, for a
        copy to the host, of the source's.

    Raises
    ------
    ArgumentError
        If the shapes cannot be broadcast, the dtype would change kind (float to int), a number is
        out of the dtype's range, or the destination is read-only.
    """
    _check_is_array(destination, "an array to copy into")
    into, values = _as_array(destination), adopt(source)
    # Python's ints have no dtype: NumPy refuses those out of range.
    is_bare = values is None and not hasattr(source, "dtype")
    is_converted = values is None
    if values is None:
        values = host_values(source)
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
    are_ints = is_bare and values.dtype.kind in "iu" and into.dtype.kind in "iu"
    if not (are_ints or np.can_cast(values.dtype, into.dtype, "same_kind")):
        raise ArgumentError(
            f"expected a source that casts to {into.dtype} within its kind, got {values.dtype}; "
            f"convert it first with astype"
        )
    if is_converted:
        values = host_values(source, into.dtype)
    if stream is None:
        stream = current_stream(_copying_device(holder_of(into), holder_of(values)) or HOST)
    _enqueue_copy(into, values, checked_stream(stream))


def _copying_device(into: Device | None, source: Device | None) -> Device | None:
    """Return the device that copies: the destination's, for a copy to the host the source's."""
    if source is not None and (into is None or (_is_on_host(into) and not _is_on_host(source))):
        return source
    return into


def _is_on_host(device: Device) -> bool:
    return lookup(device)[1].capabilities.host_addressable


def _enqueue_copy(destination: Any, source: Any, stream: Stream) -> None:
    """Copy on a stream; order the copy behind the work of another device on the source."""
    interface = stream.interface
    if not _is_known_to(stream, destination):
        raise ArgumentError(
            f"expected a stream of the destination's device, got {stream!r}; leave stream out"
        )
    producer = None
    if not _is_known_to(stream, source):
        source = to_host(source)
    else:
        holder = holder_of(source)
        if holder is not None and holder != stream.device:
            producer = current_stream(holder)
            if _must_wait(stream, producer):
                stream.wait_stream(producer)
    stream.enqueue("copy", interface.copy, (destination, source))
    if producer is not None and _must_wait(producer, stream):
        # As in torch: later work that overwrites the source waits for the copy.
        producer.wait_stream(stream)


def _must_wait(stream: Stream, other: Stream) -> bool:
    """Return whether a stream must wait for another; a captured one makes it join the capture."""
    if other.capture is not None:
        return True
    # Work from before a capture is no part of it.
    return stream.capture is None and not other.query()


def _is_known_to(stream: Stream, array: object) -> bool:
    return isinstance(array, np.ndarray) or stream.interface.index_of(array) is not None


def device_of(array: object) -> Device:
    """Return the device that holds an array; ``cpu:0`` for host memory that is not nbrt's.

    Raises
    ------
    ArgumentTypeError
        If it is not an array of any known kind of device.
    """
    _check_is_array(array, "an array")
    return holder_of(_as_array(array)) or HOST


def _as_array(obj: object) -> Any:
    """Return an object as an array of a backend's library, with shared memory if possible."""
    array = adopt(obj)
    return host_values(obj) if array is None else array


def _check_is_array(obj: object, wanted: str) -> None:
    protocols = ("__array__", "__dlpack_device__", "__cuda_array_interface__")
    if not any(hasattr(obj, protocol) for protocol in protocols):
        raise ArgumentTypeError(f"expected {wanted}, got {obj!r} of type {type(obj).__name__}")
