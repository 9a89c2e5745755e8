"""Orders of elements in memory: what NumPy calls the orders C, F, A and K."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nbrt.backends.fake.numpy_metadata import ArrayMetadata
from nbrt.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.fake.numpy_metadata import FakeMemory
    from nbrt.typing import HostArray

__all__ = [
    "copied_like",
    "flat_in_memory",
    "in_axis_order",
    "iteration_axes",
    "joined_axes",
    "reduced",
    "reshaped",
    "strides_of_view",
]

_RESHAPE_HAS_COPY = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


def in_axis_order(
    memory: FakeMemory, shape: tuple[int, ...], dtype: Any, axes: Sequence[int] | None
) -> Any:
    """Return a new array whose axes lie in memory in the order `axes`, the slowest first.

    None: C order.
    """
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise NotSupportedError(
            f"expected a result without Python objects on a fake device, got dtype {kind}; use "
            f"numbers"
        )
    if axes is None:
        return memory.result(shape, kind)
    array = memory.result(tuple(shape[axis] for axis in axes), kind)
    return array.as_owner(array.layout.transpose(np.argsort(axes)))


def iteration_axes(
    operands: Sequence[ArrayMetadata | HostArray], ndim: int, order: str | None = "K"
) -> list[int] | None:
    """Return the axes of the result of a ufunc, the slowest first; None: C order.

    The order of a result with `ndim` axes follows from the strides of the operands, as in
    ``numpy.nditer``: an axis moves before another if all operands with both agree.
    """
    arrays = [each for each in operands if each.ndim > 1]
    if ndim < 2 or not arrays or order == "C":
        return None
    if order == "F":
        return list(reversed(range(ndim)))
    if order == "A":
        is_fortran = all(each.flags.f_contiguous for each in arrays)
        return list(reversed(range(ndim))) if is_fortran else None
    flags = [
        each.layout.flags if isinstance(each, ArrayMetadata) else each.flags for each in arrays
    ]
    if all(each.c_contiguous for each in flags):
        return None
    shape = arrays[0].shape
    if all(each.f_contiguous for each in flags) and all(
        each.shape == shape and each.ndim == ndim for each in arrays
    ):
        return list(reversed(range(ndim)))
    strides = [_iteration_strides(each, ndim) for each in operands]
    axes = list(reversed(range(ndim)))  # fastest first
    for position in range(1, ndim):
        axis, target = axes[position], position
        for before in range(position - 1, -1, -1):
            is_faster = _compare_axes(strides, axis, axes[before])
            if is_faster is None:
                continue
            if not is_faster:
                break
            target = before
        axes.insert(target, axes.pop(position))
    slowest_first = axes[::-1]
    return None if slowest_first == list(range(ndim)) else slowest_first


def _iteration_strides(operand: ArrayMetadata | HostArray, ndim: int) -> list[int]:
    strides = [
        0 if length == 1 else abs(stride)
        for length, stride in zip(operand.shape, operand.strides, strict=True)
    ]
    return [0] * (ndim - len(strides)) + strides


def _compare_axes(strides: list[list[int]], axis: int, other: int) -> bool | None:
    """Return whether `axis` is faster than `other`; None if no operand has both."""
    is_faster = None
    for each in strides:
        if each[axis] and each[other]:
            if each[other] <= each[axis]:
                return False
            is_faster = True
    return is_faster


def reduced(
    array: ArrayMetadata | HostArray, axis: Any, keepdims: Any
) -> tuple[tuple[int, ...], list[int] | None]:
    """Return the shape of a reduction along axes, and its axes in memory, the slowest first."""
    ndim = array.ndim
    gone = range(ndim) if axis is None else np.lib.array_utils.normalize_axis_tuple(axis, ndim)
    rest = [at for at in range(ndim) if keepdims or at not in gone]
    shape = tuple(1 if at in gone else array.shape[at] for at in rest)
    axes = iteration_axes([array], ndim) if len(rest) > 1 else None
    return shape, axes and [rest.index(at) for at in axes if at in rest]


def joined_axes(arrays: Sequence[ArrayMetadata], ndim: int) -> list[int] | None:
    """Return the axes of arrays joined along one, the slowest first; None: C order."""
    if ndim < 2 or all(each.flags.c_contiguous for each in arrays):
        return None
    axes = list(range(ndim))
    for position in range(1, ndim):
        axis, target = axes[position], position
        for before in range(position - 1, -1, -1):
            other = axes[before]
            compared = [
                abs(each.strides[axis]) > abs(each.strides[other])
                for each in arrays
                if each.shape[axis] != 1 != each.shape[other]
            ]
            if not compared:
                continue
            if not all(compared):
                break
            target = before
        axes.insert(target, axes.pop(position))
    return axes


def copied_like(
    array: ArrayMetadata | HostArray,
    memory: FakeMemory,
    dtype: Any,
    order: str | None = "K",
    shape: tuple[int, ...] | None = None,
) -> Any:
    """Return a new array with the order of `array`, as ``numpy.empty_like``."""
    order = "K" if order is None else order
    flags = array.flags
    target = array.shape if shape is None else shape
    ndim = len(target)
    if order == "A":
        order = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
    elif order == "K" and (flags.c_contiguous or ndim < 2 or ndim != array.ndim):
        order = "C"
    elif order == "K" and flags.f_contiguous:
        order = "F"
    if order == "C" or ndim < 2:
        return in_axis_order(memory, target, dtype, None)
    if order == "F":
        return in_axis_order(memory, target, dtype, range(ndim)[::-1])
    axes = sorted(range(ndim), key=lambda axis: -abs(array.strides[axis]))
    return in_axis_order(memory, target, dtype, axes)


def reshaped(layout: HostArray, shape: tuple[int, ...], order: str) -> HostArray | None:
    """Return a view of `layout` in another shape; None if that needs a copy."""
    if order == "F":
        view = reshaped(layout.T, shape[::-1], "C")
        return None if view is None else view.T
    if _RESHAPE_HAS_COPY:
        try:
            return layout.reshape(shape, copy=False)
        except ValueError:
            return None
    # Before NumPy 2.1 no call refuses the copy, which would touch the elements.
    strides = strides_of_view(layout, shape)
    if strides is None:
        return None
    return as_strided(layout, shape, strides, writeable=layout.flags.writeable)


def strides_of_view(layout: HostArray, shape: tuple[int, ...]) -> list[int] | None:
    """Return the strides of a view in another shape, in C order; None if there is none."""
    if layout.size == 0:
        return list(np.empty(shape, layout.dtype).strides)
    axes = [(n, step) for n, step in zip(layout.shape, layout.strides, strict=True) if n != 1]
    strides, step = [0] * len(shape), layout.itemsize
    at = len(shape)
    while at > 0:  # from the last axis on: axes of both shapes of one number of elements
        if shape[at - 1] == 1 or not axes:
            at -= 1
            strides[at] = step
            continue
        length, step = axes.pop()
        inner, size = step, 1
        while size != length:
            if size < length:
                at -= 1
                strides[at] = inner * size
                size *= shape[at]
            else:
                n, outer = axes.pop()
                if outer != inner * length:
                    return None
                length *= n
        step = inner * length
    return strides


def flat_in_memory(layout: HostArray) -> HostArray | None:
    """Return the elements in the order in which they lie in memory; None if that needs a copy."""
    axes = sorted(range(layout.ndim), key=lambda axis: -abs(layout.strides[axis]))
    expected = layout.itemsize
    for axis in reversed(axes):
        if layout.shape[axis] == 1:
            continue
        if layout.strides[axis] != expected:
            return None
        expected *= layout.shape[axis]
    return reshaped(layout.transpose(axes), (math.prod(layout.shape),), "C")
