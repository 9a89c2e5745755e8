"""Arrays: made on a device, moved between devices; always the device's own library's arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.checks import checked_dtype
from nbrt.backends.inline import SynchronousQueue
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.runtime.adoption import (
    HOST,
    REFUSALS,
    adopt,
    array_in,
    holder_of,
    host_values,
    place_of,
    refusal,
)
from nbrt.runtime.commands import Command
from nbrt.runtime.creation import (
    empty,
    empty_pinned,
    new_dtype,
)
from nbrt.runtime.device import lookup
from nbrt.runtime.guard import StreamGuard
from nbrt.runtime.stream import Stream, current_stream, resolve_stream

if TYPE_CHECKING:
    from nbrt._internal.device import Device
    from nbrt.backends.interface import DeviceInterface
    from nbrt.typing import (
        Array,
        ArrayLike,
        CopyMode,
        DeviceLike,
        DTypeLike,
        HostArray,
        Shape,
    )

__all__ = [
    "asarray",
    "copy",
    "device_of",
    "full",
    "to",
    "to_host",
    "zeros",
]


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
    chosen = resolve_stream(device, stream)
    kind = None if dtype is None else new_dtype(dtype)
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
    """Return an array whose bytes are all 0; see `empty` for the parameters.

    Examples
    --------
    >>> import nbrt
    >>> nbrt.zeros(3, "int32", device="cpu:0")
    array([0, 0, 0], dtype=int32)
    >>> nbrt.zeros(2, "S3", device="cpu:0")
    array([b'', b''], dtype='|S3')
    """
    chosen = resolve_stream(device, stream)
    array = empty(shape, dtype, stream=chosen)
    filled, zero = array, np.zeros((), array.dtype)[()]
    if array.dtype.kind == "V" and array.dtype.itemsize:
        # Bytes between the fields of a record are not part of its value.
        filled, zero = array.reshape(-1).view(np.uint8), np.zeros((), np.uint8)[()]
    chosen.submit(Command("fill", chosen.interface.fill, (filled, zero)))
    return array


def _fill_value(value: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    if np.ndim(value) != 0:
        raise ArgumentError(f"expected a scalar to fill with, got shape {np.shape(value)}")
    try:
        found = np.full((), value, dtype)
    except REFUSALS as error:
        text = f"expected a value to fill with that fits {dtype}, got {value!r}"
        raise refusal(error, text) from error
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
    copy: CopyMode = "host_data",
) -> Array:
    """Return `obj` as an array of a device.

    Host data is copied on every kind of device. An array of the device is returned itself.

    Parameters
    ----------
    obj : array_like
        Numbers, sequences of them, NumPy or CuPy arrays, anything with ``__dlpack__``,
        ``__cuda_array_interface__`` or ``__array__``.
    dtype : dtype, optional
        The result's dtype; that of `obj` by default. Host data is converted as by ``np.asarray``.
    device : Device, str, int or None
        Where; by default the device that holds `obj`, for host data the current one.
    stream : Stream, optional
        The stream that copies; the device's current one by default.
    copy : {"host_data", True, None, False}
        When to copy. ``"host_data"``: host data always, an array of a device only if its device or
        dtype changes. True: always. None: only if needed. False: never.

    Returns
    -------
    array : numpy.ndarray or cupy.ndarray
        With `copy` None or False it may be the memory of a NumPy array on a CPU device, which stays
        host data.

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
    Host data are numbers, sequences and arrays in host memory that no pool of a device holds:
    NumPy's own, also results such as ``x + 1`` on a CPU device, page-locked memory, and host arrays
    of other libraries. Its values are read during the call, but those of page-locked memory that
    needs no conversion in stream order. Where the program depends on shared memory, ``copy=False``
    shares or raises.

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
    found = array_in(obj)
    place = None if found is None else place_of(found)
    if place is None:
        return _from_host(obj, found, target, resolve_stream(device, stream), mode)
    if device is None and stream is None:
        device = place
    return _from_device(found, place, target, resolve_stream(device, stream), mode)


def to(
    array: Array,
    device: DeviceLike,
    *,
    stream: Stream | None = None,
    copy: CopyMode = "host_data",
) -> Array:
    """Return an array's values on another device; the array itself if that device holds it.

    The copy is ordered on `stream` (the target's current one by default), and is not waited for.

    Parameters
    ----------
    array : array_like
        What to move.
    device : Device, str, int or None
        Where to; None: the current device.
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
    found = array_in(array)
    place = None if found is None else place_of(found)
    if place is None:
        return _from_host(array, found, None, chosen, mode)
    return _from_device(found, place, None, chosen, mode)


def to_host(array: Array, *, stream: Stream | None = None, copy: bool | None = True) -> HostArray:
    """Return an array's values in host memory, once the work that makes them is done.

    Parameters
    ----------
    array : array_like
        Of any device.
    stream : Stream, optional
        The stream that copies, and is waited for; the current one of the array's device by default.
    copy : bool or None
        True: a copy on every kind of device. None: share the memory where the host addresses it, as
        that of CPU devices. False: share it, or raise.

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
    adopted = adopt(array)
    holder = holder_of(adopted) or HOST
    chosen = current_stream(holder) if stream is None else resolve_stream(None, stream)
    if not mode and chosen.interface.capabilities.host_addressable:
        chosen.synchronize()
        return np.asarray(adopted)
    if mode is False:
        raise _copy_needed(f"an array of {holder}", "host memory")
    result = _host_buffer(chosen, adopted.shape, adopted.dtype)
    chosen.submit(Command("copy", chosen.interface.copy, (result, adopted)))
    chosen.synchronize()
    return result


def _checked_mode(copy: Any) -> CopyMode:
    if copy is None or isinstance(copy, (bool, np.bool_)):
        return None if copy is None else bool(copy)
    if isinstance(copy, str) and copy == "host_data":
        return "host_data"
    raise ArgumentError(f'expected copy as True, False, None or "host_data", got {copy!r}')


def _copy_needed(what: str, where: str) -> ArgumentError:
    return ArgumentError(
        f"expected what needs no copy, as copy=False asks, got {what}, of which {where} needs one; "
        f"leave copy out, or pass copy=None"
    )


def _from_host(
    obj: Any, found: HostArray | None, dtype: np.dtype[Any] | None, stream: Stream, mode: CopyMode
) -> Array:
    """Return host data on the device of a stream; `found` is its memory if it is an array."""
    holder = (None if found is None else holder_of(found)) or HOST
    is_there = stream.device == holder
    if mode is False and not is_there:
        raise _copy_needed("host data", str(stream.device))
    source = obj if found is None else found
    values = host_values(source, dtype, False if mode is False else None)
    if is_there and not mode:
        return values
    if _reads_later(stream) and not (isinstance(obj, (list, tuple)) or _is_page_locked(values)):
        values = values.copy()
    result = empty(values.shape, values.dtype, stream=stream)
    _enqueue_copy(result, values, stream)
    return result


def _reads_later(stream: Stream) -> bool:
    """Return whether a copy from host memory reads the values when the stream comes to it."""
    is_inline = isinstance(stream.queue, SynchronousQueue)
    return stream.interface.capabilities.host_addressable and not is_inline


def _is_page_locked(values: HostArray) -> bool:
    return holder_of(values) is not None


def _from_device(
    array: Any, place: Device, dtype: np.dtype[Any] | None, stream: Stream, mode: CopyMode
) -> Array:
    """Return an array in the memory of one device on the device of a stream."""
    target = checked_dtype(array.dtype) if dtype is None else dtype
    is_done = place == stream.device and array.dtype == target
    if is_done and mode is not True:
        return array
    if mode is False:
        what = f"an array of {array.dtype} of {place}"
        raise _copy_needed(what, f"one of {target} of {stream.device}")
    return _transfer(array, place, target, stream)


def copy(destination: Array, source: Array, *, stream: Stream | None = None) -> None:
    """Copy values into an existing array, in stream order, without waiting.

    Neither array may change before the stream has passed the copy.

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
        If the shapes cannot be broadcast, the dtype would change kind (float to int), a number is
        beyond the range of the dtype, or the destination is read-only.
    """
    _check_is_array(destination, "an array to copy into")
    into, found = adopt(destination), array_in(source)
    values = host_values(source) if found is None else found
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
    # Python's ints have no dtype: NumPy refuses those that are beyond the range.
    is_bare = found is None and not hasattr(source, "dtype")
    are_ints = is_bare and values.dtype.kind in "iu" and into.dtype.kind in "iu"
    if not (are_ints or np.can_cast(values.dtype, into.dtype, "same_kind")):
        raise ArgumentError(
            f"expected a source that casts to {into.dtype} within its kind, got {values.dtype}; "
            f"convert it first with astype"
        )
    if found is None:
        values = host_values(source, into.dtype)
    holders = (holder_of(into), holder_of(values))
    if stream is None:
        stream = current_stream(_copying_side(*holders) or HOST)
    _enqueue_copy(into, values, resolve_stream(None, stream))


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
    holder = holder_of(adopt(array))
    return holder or HOST


def _check_is_array(obj: object, wanted: str) -> None:
    protocols = ("__array__", "__dlpack_device__", "__cuda_array_interface__")
    if not any(hasattr(obj, protocol) for protocol in protocols):
        raise ArgumentTypeError(f"expected {wanted}, got {obj!r} of type {type(obj).__name__}")


def _is_host(device: Device | None) -> bool:
    return device is None or lookup(device)[1].capabilities.host_addressable


def _transfer(array: Any, place: Device, dtype: np.dtype[Any], stream: Stream) -> Any:
    is_open = not dtype.itemsize or dtype.subdtype is not None  # what NumPy completes or spreads
    if is_open or not np.can_cast(array.dtype, dtype, "same_kind"):
        # The conversion is the array's own library's: it reads the values now, on the current
        # stream of their device, and `stream` must not read its result too early.
        making = current_stream(place)
        making.synchronize()
        with StreamGuard(making):
            array = array.astype(dtype)
        making.synchronize()
        dtype = array.dtype
    result = empty(array.shape, dtype, stream=stream)
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
