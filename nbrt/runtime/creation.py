"""New arrays of arbitrary values, on a device or in page-locked host memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal import scopes
from nbrt._internal.checks import checked_dtype, checked_shape
from nbrt._internal.device import Device
from nbrt.backends import registry
from nbrt.errors import ArgumentError
from nbrt.runtime import commands
from nbrt.runtime.device import default_device
from nbrt.runtime.memory.device_allocator import default_arena, host_allocator_for
from nbrt.runtime.stream import Stream, current_stream, resolve_stream

if TYPE_CHECKING:
    from nbrt.typing import Array, DeviceLike, DTypeLike, HostArray, Shape

__all__ = ["empty", "empty_pinned", "new_dtype"]

_MAX_KINDS = 256


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
        Its shape.
    dtype : dtype
        A fixed-size type without Python objects.
    device : Device, str, int or None
        Where; the current device by default.
    stream : Stream, optional
        The stream that will use it first; the device's current one by default.

    Returns
    -------
    array : numpy.ndarray or cupy.ndarray
        C-contiguous, at least 64-byte aligned.

    Raises
    ------
    OutOfMemoryError
        If the device has no room for it.
    ArgumentError
        If the shape is negative or the dtype holds Python objects.

    Examples
    --------
    >>> import nbrt
    >>> nbrt.empty((2, 3), device="cpu:0").shape
    (2, 3)
    """
    try:
        kind, itemsize = _kinds[dtype]
    except (KeyError, TypeError):
        kind, itemsize = _remembered_dtype(dtype)
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
        where = (frame.device or default_device()) if device is None else device
        try:
            chosen = _homes[where]
        except (KeyError, TypeError):
            chosen = _home(where)
    arena = (chosen.arena or default_arena(chosen)) if not frame.pools else _arena(frame, chosen)
    try:
        if commands.memory_is_hooked:
            return arena.allocate_hooked(count * itemsize, chosen, sizes, kind)
        return arena.lend(count * itemsize, chosen, sizes, kind)
    except (TypeError, ValueError):
        _check_possible(checked_shape(shape), kind)
        raise  # what a tap had to say


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
_kinds: dict[Any, tuple[np.dtype[Any], int]] = {}
"""Dtypes and their bytes, by what names them."""

_homes: dict[Any, Stream] = {}
"""The default streams of devices, by what names them."""


def _remembered_dtype(dtype: DTypeLike) -> tuple[np.dtype[Any], int]:
    kind = new_dtype(dtype)
    # Names and types are few; what else makes a dtype may be mutable, or one of endless many.
    # Equal dtypes may differ in metadata.
    is_plain = isinstance(dtype, (str, type, np.dtype)) and kind.metadata is None
    if is_plain and len(_kinds) < _MAX_KINDS:
        _kinds[dtype] = kind, kind.itemsize
    return kind, kind.itemsize


def _home(device: DeviceLike) -> Stream:
    stream = current_stream(device)
    # What an index means depends on the current device.
    if isinstance(device, (str, Device)):
        _homes[device] = stream
    return stream


def _arena(frame: scopes.Frame, stream: Stream) -> Any:
    pool = frame.pools.get(stream.device)
    if pool is None:
        return stream.arena or default_arena(stream)
    return pool.arena(stream)  # type: ignore[attr-defined]


def _forget_homes(kind: str) -> None:  # noqa: ARG001  # few enough to find all again
    _homes.clear()


registry.on_removed(_forget_homes)


def empty_pinned(
    shape: Shape, dtype: DTypeLike = "float32", *, device: DeviceLike = None
) -> HostArray:
    """Return page-locked host memory, for copies that do not stop the host.

    On cpu devices the pages are locked where the system permits it, else they are ordinary;
    ``nbrt.memory.host_pool(device).note`` says which.

    Parameters
    ----------
    shape, dtype
        As for `empty`.
    device : Device, str, int or None
        The device that copies from and to it; the current one by default.

    Returns
    -------
    array : numpy.ndarray
        C-contiguous, of arbitrary values, from a caching pool of its own.

    Raises
    ------
    NotSupportedError
        If that kind of device has none.

    Examples
    --------
    >>> import nbrt
    >>> nbrt.empty_pinned((2, 3), device="cpu:0").shape
    (2, 3)
    """
    sizes, kind = checked_shape(shape), new_dtype(dtype)
    chosen = current_stream(device)
    arena = host_allocator_for(chosen.device).default_pool.arena(chosen)
    nbytes = math.prod(sizes) * kind.itemsize
    made: Any = arena.allocate_hooked if commands.memory_is_hooked else arena.lend
    try:
        return made(nbytes, chosen, sizes, kind)  # type: ignore[no-any-return]  # host memory
    except (TypeError, ValueError):
        _check_possible(checked_shape(shape), kind)
        raise  # what a tap had to say


def new_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype of a new array; text of no given length has one character, as in NumPy."""
    kind = checked_dtype(dtype)
    if not kind.itemsize and kind.kind in "SU":
        return np.dtype(f"{kind.kind}1")
    return kind
