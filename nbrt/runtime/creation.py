"""New arrays, on a device or in page-locked host memory."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt import config
from nbrt._internal import scopes
from nbrt._internal.checks import checked_dtype, checked_shape
from nbrt._internal.device import Device
from nbrt.backends import registry
from nbrt.errors import ArgumentError
from nbrt.runtime import commands
from nbrt.runtime.adoption import numpy_scalar
from nbrt.runtime.memory.registry import default_cache, host_allocator_for
from nbrt.runtime.stream import Stream, current_stream, resolve_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.typing import Array, DeviceLike, DTypeLike, HostArray, Shape

__all__ = ["empty", "empty_pinned", "full", "new_dtype", "zeros"]

_MAX_DTYPES = 256
_BYTE = np.dtype(np.uint8)


def empty(
    shape: Shape,
    dtype: DTypeLike = "float32",
    *,
    device: DeviceLike = None,
    stream: Stream | None = None,
) -> Array:
    """Return an array of arbitrary values.

    Parameters
    ----------
    shape : int or tuple of int
        The shape of the array.
    dtype : dtype
        A fixed-size type without Python objects.
    device : Device, str, int or None
        The device; the current one by default.
    stream : Stream, optional
        The stream that will use it first; the device's current one by default.

    Returns
    -------
    array : numpy.ndarray or cupy.ndarray
        C-contiguous, at least 64-byte aligned.

    Raises
    ------
    OutOfMemoryError
        If the device has too little memory.
    ArgumentError
        If the shape is negative or the dtype holds Python objects.

    Examples
    --------
    >>> import nbrt
    >>> nbrt.empty((2, 3), device="cpu:0").shape
    (2, 3)
    """
    try:
        kind, itemsize = _dtypes[dtype]
    except (KeyError, TypeError):
        kind, itemsize = _remember_dtype(dtype)
    if type(shape) is tuple:
        sizes = shape
    else:
        sizes = (shape,) if type(shape) is int else checked_shape(shape)
    count = sizes[0] if len(sizes) == 1 else _product(sizes)
    if type(count) is not int or count < 0:
        sizes = checked_shape(shape)
        count = math.prod(sizes)
    frame = _current()
    if stream is not None:
        is_plain = device is None and type(stream) is Stream
        chosen = stream if is_plain else resolve_stream(device, stream)
    elif frame.streams:
        chosen = current_stream(device)
    else:
        where = frame.device if device is None else device
        if where is None:
            settings, revision, chosen = _default
            if settings is not config.in_force or revision != registry.revision:
                chosen = _find_default()
        else:
            try:
                chosen = _default_streams[where]
            except (KeyError, TypeError):
                chosen = _find_default_stream(where)
    cache = (chosen.cache or default_cache(chosen)) if not frame.pools else _cache(frame, chosen)
    try:
        if commands.memory_is_hooked:
            return cache.allocate_hooked(count * itemsize, chosen, sizes, kind)
        return cache.allocate(count * itemsize, chosen, sizes, kind)
    except (TypeError, ValueError):
        _check_possible(checked_shape(shape), kind)
        raise  # by a hook


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
    chosen = current_stream(device) if stream is None else resolve_stream(device, stream)
    array = empty(shape, dtype, stream=chosen)
    filled, kind = array, array.dtype
    if kind.kind == "V" and kind.itemsize:
        # Bytes between the fields of a record are not part of its value.
        kind = _BYTE
        filled = array.reshape(-1).view(kind)
    chosen.enqueue("fill", chosen.interface.fill, (filled, np.zeros((), kind)[()]))
    return array


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
    kind = None if dtype is None else new_dtype(dtype)
    value = numpy_scalar(fill_value, None if kind is None else kind.base)
    chosen = current_stream(device) if stream is None else resolve_stream(device, stream)
    array = empty(shape, value.dtype if kind is None else kind, stream=chosen)
    chosen.enqueue("fill", chosen.interface.fill, (array, value[()]))
    return array


def _product(sizes: tuple[Any, ...]) -> int | None:
    """Return the product of plain ints; None if there are others: NumPy's may overflow."""
    count = 1
    for size in sizes:
        if type(size) is not int:
            return None
        count *= size
    return count


def _check_possible(sizes: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    try:
        np.broadcast_to(np.empty((), dtype), sizes)
    except ValueError as error:
        raise ArgumentError(
            f"expected a shape that an array can have, got {sizes}: {error}"
        ) from error


_current = scopes.current
_dtypes: dict[Any, tuple[np.dtype[Any], int]] = {}
"""Dtypes and their sizes in bytes, by the objects that name them."""

_default_streams: dict[Any, Stream] = {}
"""The default streams of devices, by `Device` and by name."""

_default: tuple[object, int, Any] = (object(), -1, None)
"""Settings, revision of the registry, and the default stream of their default device."""


def _remember_dtype(dtype: DTypeLike) -> tuple[np.dtype[Any], int]:
    kind = new_dtype(dtype)
    # Names and types are few; other objects may be mutable or too many. Equal dtypes may differ in
    # metadata.
    is_plain = isinstance(dtype, (str, type, np.dtype)) and kind.metadata is None
    if is_plain and len(_dtypes) < _MAX_DTYPES:
        _dtypes[dtype] = kind, kind.itemsize
    return kind, kind.itemsize


def _find_default() -> Stream:
    global _default
    revision = registry.revision
    stream = current_stream(None)
    _default = config.settings(), revision, stream
    return stream


def _find_default_stream(device: DeviceLike) -> Stream:
    stream = current_stream(device)
    # The meaning of an index depends on the current device.
    if isinstance(device, (str, Device)):
        _default_streams[device] = stream
    return stream


def _cache(frame: scopes.ContextFrame, stream: Stream) -> Any:
    pool = frame.pools.get(stream.device)
    if pool is None:
        return stream.cache or default_cache(stream)
    return pool.cache_for(stream)  # type: ignore[attr-defined]


def _forget_default_streams(kind: str) -> None:  # noqa: ARG001  # of all kinds: they are few
    global _default
    _default_streams.clear()
    _default = (object(), -1, None)


def _set_default_streams_aside(kind: str) -> Callable[[], None]:
    _forget_default_streams(kind)
    return partial(_forget_default_streams, kind)


registry.on_removed(_forget_default_streams)
registry.on_substituted(_set_default_streams_aside)


def empty_pinned(
    shape: Shape, dtype: DTypeLike = "float32", *, device: DeviceLike = None
) -> HostArray:
    """Return page-locked host memory, for copies that do not block the host.

    On cpu devices the pages are locked if the system permits it, see
    ``nbrt.memory.host_pool(device).note``.

    Parameters
    ----------
    shape, dtype
        As for `empty`.
    device : Device, str, int or None
        The device that copies from and to it; the current one by default.

    Returns
    -------
    array : numpy.ndarray
        C-contiguous, of arbitrary values, from the device's pool of page-locked memory.

    Raises
    ------
    NotSupportedError
        If that kind of device has no page-locked memory.

    Examples
    --------
    >>> import nbrt
    >>> nbrt.empty_pinned((2, 3), device="cpu:0").shape
    (2, 3)
    """
    sizes, kind = checked_shape(shape), new_dtype(dtype)
    chosen = current_stream(device)
    cache = host_allocator_for(chosen.device).default_pool.cache_for(chosen)
    nbytes = math.prod(sizes) * kind.itemsize
    allocate: Any = cache.allocate_hooked if commands.memory_is_hooked else cache.allocate
    try:
        return allocate(nbytes, chosen, sizes, kind)  # type: ignore[no-any-return]  # host memory
    except (TypeError, ValueError):
        _check_possible(checked_shape(shape), kind)
        raise  # by a hook


def new_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype of a new array; text without a length has one character, as in NumPy."""
    kind = checked_dtype(dtype)
    if not kind.itemsize and kind.kind in "SU":
        return np.dtype(f"{kind.kind}1")
    return kind
