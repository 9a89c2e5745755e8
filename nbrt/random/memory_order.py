"""Arrays in the order in which a draw fills them: memory order, gaps, parts in pieces."""

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
    from nbrt.random.subsets import Block, Subset
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array

__all__ = ["as_kernel_view", "broadcast_flat", "fill_blocks", "memory_order"]


def memory_order(array: Array) -> list[int] | None:
    """Return the axes of an array as they lie in memory, outermost first; None: as they are."""
    if array.flags.c_contiguous:
        return None
    # As torch's iterators count elements.
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


def as_kernel_view(array: Array) -> Array:
    """Return contiguous memory as a kernel takes it: flat, bool as uint8, bfloat16 as uint16."""
    flat = array if array.ndim == 1 else array.reshape(-1)
    kind = array.dtype.kind
    if kind == "b":
        return flat.view(np.uint8)
    return flat.view(np.uint16) if kind == "V" else flat


def broadcast_flat(
    stream: Stream, parameter: Array, shape: tuple[int, ...], axes: list[int] | None
) -> Array:
    """Return a parameter with one value for each element, in the order of the fill."""
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
    turned = empty(tuple(shape[axis] for axis in axes), parameter.dtype, stream=stream)
    copy(turned, whole.transpose(axes), stream=stream)
    return turned.reshape(-1)


def fill_blocks(stream: Stream, out: Array, draw: Draw, subset: Subset) -> None:
    """Draw the pieces of a part, all at the place of `draw` in the stream, and put them together.

    Where a piece may fail alone, each is drawn into memory of its own first, so `out` stays as it
    was.

    Parameters
    ----------
    stream : Stream
        Where.
    out : array
        What to fill, contiguous.
    draw : Draw
        The draw; its parameters are numbers, or flat arrays with a value for each element of `out`.
    subset : Subset
        Its blocks.
    """
    has_arrays = any(hasattr(one, "shape") for one in draw.parameters)
    is_direct = subset.is_stacked and not has_arrays
    held = out if is_direct else empty(out.size, out.dtype, stream=stream)
    parameters = tuple(
        _gathered(stream, one, subset) if hasattr(one, "shape") else one for one in draw.parameters
    )
    if has_arrays and stream.interface.capabilities.host_addressable:
        stream.synchronize()  # the host checks and converts them
    flat, memo = as_kernel_view(held), draw.memo
    for number, (block, at) in enumerate(_slices(subset)):
        one = draw._replace(
            parameters=tuple(p[at] if hasattr(p, "shape") else p for p in parameters),
            region=block.region,
            shape=block.shape,
            memo=None if memo is None else memo.setdefault(number, {}),
        )
        stream.enqueue("draw", stream.interface.draw, (flat[at], one), draw.distribution)
    if not is_direct:
        _scatter(stream, out, held, subset)
    if draw.distribution == "dropout":  # makes a mask too
        _scatter(stream, draw.parameters[-1], parameters[-1], subset)


def _gathered(stream: Stream, array: Array, subset: Subset) -> Array:
    """Return a flat copy of an array with the elements of each piece together."""
    held = empty(array.size, array.dtype, stream=stream)
    boxes = array.reshape(subset.shape)
    for block, at in _slices(subset):
        copy(held[at].reshape(block.shape), boxes[block.slices], stream=stream)
    return held


def _scatter(stream: Stream, array: Array, held: Array, subset: Subset) -> None:
    """Put the elements of each piece where they belong in contiguous `array`."""
    boxes = array.reshape(subset.shape)
    for block, at in _slices(subset):
        copy(boxes[block.slices], held[at].reshape(block.shape), stream=stream)


def _slices(subset: Subset) -> Iterator[tuple[Block, slice]]:
    """Give each piece with its place in memory that holds one piece after the other."""
    end = 0
    for block in subset.blocks:
        start, end = end, end + math.prod(block.shape)
        yield block, slice(start, end)
