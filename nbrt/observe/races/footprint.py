"""`Footprint`: the bytes of an array as plain numbers, without a reference to the array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Footprint", "arrays_in", "footprint_at", "footprint_of"]

_MAX_WORK = 100_000
"""Limit of `numpy.shares_memory` for two strided arrays."""


class Footprint(NamedTuple):
    """The addresses of the elements of an array.

    Attributes
    ----------
    begin, end : int
        Half-open range of addresses.
    origin : int
        Address of the element with all indices 0.
    shape, strides : tuple of int
        Extents, and bytes from one element to the next.
    itemsize : int
        Bytes of an element.
    """

    begin: int
    end: int
    origin: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    def overlaps(self, other: Footprint) -> bool:
        """Return whether both contain a common byte; True if the search takes too long."""
        if self.begin >= other.end or other.begin >= self.end:
            return False
        try:
            return np.shares_memory(
                _Addresses(self),
                _Addresses(other),
                max_work=_MAX_WORK,  # type: ignore[arg-type]  # the stubs know 0 and -1 only
            )
        except np.exceptions.TooHardError:
            return True


class _Addresses:
    """An array for NumPy's address arithmetic; its memory is never read.

    All addresses are shifted by one, because NumPy refuses arrays at address 0.
    """

    def __init__(self, footprint: Footprint) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (footprint.origin + 1, True),
            "shape": footprint.shape,
            "strides": footprint.strides,
            "typestr": f"|V{footprint.itemsize}",
        }


def footprint_of(array: Any) -> Footprint | None:
    """Return the footprint of a NumPy or CUDA array; None for other objects and empty arrays."""
    if isinstance(array, np.ndarray):
        origin = array.__array_interface__["data"][0]
        return footprint_at(origin, array.shape, array.strides, array.itemsize)
    if not _is_cuda_array(array):
        return None
    pointer = getattr(getattr(array, "data", None), "ptr", None)
    if pointer is not None:
        # CuPy: its `__cuda_array_interface__` would query the driver for the current stream.
        return footprint_at(int(pointer), array.shape, array.strides, array.itemsize)
    try:
        interface = array.__cuda_array_interface__
    except Exception:  # noqa: BLE001  # such as a torch tensor that requires gradients
        return None
    shape, itemsize = tuple(interface["shape"]), np.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides") or _contiguous_strides(shape, itemsize)
    return footprint_at(interface["data"][0], shape, tuple(strides), itemsize)


def arrays_in(values: Any) -> Iterator[Any]:
    """Yield the arrays among arguments, including those in tuples and lists."""
    for value in values:
        if isinstance(value, np.ndarray) or _is_cuda_array(value):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from arrays_in(value)


def _is_cuda_array(value: Any) -> bool:
    return hasattr(type(value), "__cuda_array_interface__")


def footprint_at(
    origin: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> Footprint | None:
    """Return the footprint of an array from its layout; None if it is empty."""
    if 0 in shape or itemsize == 0:
        return None
    reaches = [(size - 1) * step for size, step in zip(shape, strides, strict=True)]
    begin = origin + sum(reach for reach in reaches if reach < 0)
    end = origin + sum(reach for reach in reaches if reach > 0) + itemsize
    return Footprint(begin, end, origin, shape, strides, itemsize)


def _contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = [itemsize]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides)) if shape else ()
