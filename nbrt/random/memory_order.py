"""Arrays in the order in which a draw fills them, and subsets of several blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from nbrt.errors import ArgumentError
from nbrt.runtime.array import copy
from nbrt.runtime.creation import empty

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.draw import Draw
    from nbrt.random.subsets import Subset, SubsetBlock
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array

__all__ = ["as_kernel_view", "broadcast_flat", "fill_blocks", "memory_order"]


def memory_order(array: Array) -> list[int] | None:
    """Return the axes of an array in memory order, outermost first; None if that is C order."""
    if array.flags.c_contiguous:
        return None
    # torch's iterators count elements in this order.
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


def as_kernel_view(array: Array) -> Array:
    """Return a flat view of a contiguous array, bool as uint8 and bfloat16 as uint16."""
    flat = array if array.ndim == 1 else array.reshape(-1)
    kind = array.dtype.kind
    if kind == "b":
        return flat.view(np.uint8)
    return flat.view(np.uint16) if kind == "V" else flat


def broadcast_flat(
    stream: Stream, parameter: Array, shape: tuple[int, ...], axes: list[int] | None
) -> Array:
    """Return a flat copy of a parameter with one value for each element, in the order of `axes`."""
    whole = empty(shape, parameter.dtype, stream=stream)
    try:
        copy(whole, parameter, stream=stream)
    except ArgumentError:
        raise ArgumentError(
            f"expected parameters that broadcast to shape {shape}, got {parameter.shape}. Output "
            f"size {shape} is not compatible with it"
        ) from None
    if axes is None:
        return whole.reshape(-1)
    transposed = empty(tuple(shape[axis] for axis in axes), parameter.dtype, stream=stream)
    copy(transposed, whole.transpose(axes), stream=stream)
    return transposed.reshape(-1)


def fill_blocks(stream: Stream, out: Array, draw: Draw, subset: Subset) -> None:
    """Draw the blocks of a subset, all from the stream position of `draw`, and copy them to `out`.

    With arrays of parameters, one block may fail after others are drawn. These draws go to
    temporary memory, so `out` is unchanged if one fails.

    Parameters
    ----------
    stream : Stream
        The stream of the launches.
    out : array
        A contiguous array of the shape of `subset`.
    draw : Draw
        The draw; its parameters are numbers, or flat arrays with a value for each element of `out`.
    subset : Subset
        The blocks.
    """
    has_arrays = any(hasattr(p, "shape") for p in draw.parameters)
    is_direct = subset.is_stacked and not has_arrays
    target = out if is_direct else empty(out.size, out.dtype, stream=stream)
    parameters = tuple(
        _gather(stream, p, subset) if hasattr(p, "shape") else p for p in draw.parameters
    )
    if has_arrays and stream.interface.capabilities.host_addressable:
        stream.synchronize()  # the host checks and converts them
    flat, memo = as_kernel_view(target), draw.memo
    for number, (block, place) in enumerate(_slices(subset)):
        block_draw = draw._replace(
            parameters=tuple(p[place] if hasattr(p, "shape") else p for p in parameters),
            region=block.region,
            shape=block.shape,
            memo=None if memo is None else memo.setdefault(number, {}),
        )
        stream.enqueue("draw", stream.interface.draw, (flat[place], block_draw), draw.distribution)
    if not is_direct:
        _scatter(stream, out, target, subset)
    if draw.distribution == "dropout":  # fills its mask, too
        _scatter(stream, draw.parameters[-1], parameters[-1], subset)


def _gather(stream: Stream, array: Array, subset: Subset) -> Array:
    """Return a flat copy of an array, block after block."""
    flat = empty(array.size, array.dtype, stream=stream)
    boxes = array.reshape(subset.shape)
    for block, place in _slices(subset):
        copy(flat[place].reshape(block.shape), boxes[block.slices], stream=stream)
    return flat


def _scatter(stream: Stream, array: Array, flat: Array, subset: Subset) -> None:
    """Undo `_gather`: copy the blocks in `flat` to a contiguous array."""
    boxes = array.reshape(subset.shape)
    for block, place in _slices(subset):
        copy(boxes[block.slices], flat[place].reshape(block.shape), stream=stream)


def _slices(subset: Subset) -> Iterator[tuple[SubsetBlock, slice]]:
    """Yield each block with its slice of memory that holds block after block."""
    end = 0
    for block in subset.blocks:
        start, end = end, end + math.prod(block.shape)
        yield block, slice(start, end)
