"""Expressions of Python for views of memory: slices, reshapes, or calls of `operations.view`."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbrt.backends.graphs import ArrayView

__all__ = ["base_view", "expression", "is_contiguous", "nbytes_of", "span_of"]


def is_contiguous(view: ArrayView) -> bool:
    """Return whether the elements of a view lie one after the other, in C order."""
    expected = view.dtype.itemsize
    for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def nbytes_of(view: ArrayView) -> int:
    """Return the bytes of the elements of a view."""
    return prod(view.shape) * view.dtype.itemsize


def base_view(views: Iterable[ArrayView]) -> ArrayView | None:
    """Return the contiguous view at byte 0 that covers all others; None if there is none."""
    found = list(views)
    whole = [view for view in found if view.offset == 0 and is_contiguous(view)]
    if not whole:
        return None
    base = max(whole, key=lambda view: (nbytes_of(view), len(view.shape)))
    fits = all(low >= 0 and high <= nbytes_of(base) for low, high in map(span_of, found))
    return base if fits else None


def span_of(view: ArrayView) -> tuple[int, int]:
    """Return the bytes of its buffer that a view covers: from, to."""
    low = high = view.offset
    if 0 in view.shape:
        return low, high
    for size, stride in zip(view.shape, view.strides, strict=True):
        low += min(0, (size - 1) * stride)
        high += max(0, (size - 1) * stride)
    return low, high + view.dtype.itemsize


def expression(name: str, base: ArrayView, view: ArrayView) -> str:
    """Return an expression for a view of the memory of the array `name`.

    Parameters
    ----------
    name : str
        A name, or an expression without operators.
    base : ArrayView
        The array that has the name.
    view : ArrayView
        The wanted array, of the same buffer.

    Examples
    --------
    >>> import numpy as np
    >>> from nbrt.backends.graphs import ArrayView
    >>> base = ArrayView(0, 0, (4, 6), (24, 4), np.dtype("float32"))
    >>> expression("x", base, ArrayView(0, 24, (2, 6), (24, 4), np.dtype("float32")))
    'x[1:3]'
    >>> expression("x", base, ArrayView(0, 8, (4,), (24,), np.dtype("float32")))
    'x[:, 2]'
    >>> expression("x", base, ArrayView(0, 0, (24,), (4,), np.dtype("float32")))
    'x.reshape(24)'
    """
    if view == base:
        return name
    if view.dtype == base.dtype:
        sliced = _slice(base, view)
        if sliced is not None:
            return f"{name}[{sliced}]"
    reshaped = _reshape(name, base, view)
    if reshaped is not None:
        return reshaped
    offset = view.offset - base.offset
    strides = "" if is_contiguous(view) else f", {view.strides}"
    middle = f", {offset}" if offset or strides else ""
    return f"view({name}, {view.shape}, {view.dtype.str!r}{middle}{strides})"


def _reshape(name: str, base: ArrayView, view: ArrayView) -> str | None:
    """Return a contiguous part of a contiguous array as a reshape of a slice."""
    size, start = view.dtype.itemsize, view.offset - base.offset
    if not (is_contiguous(base) and is_contiguous(view)) or not size or not view.shape:
        return None
    count = prod(view.shape)
    if start < 0 or start % size or nbytes_of(base) % size or not count:
        return None
    if start + count * size > nbytes_of(base):
        return None
    text = name
    if view.dtype != base.dtype:
        if base.dtype.names or view.dtype.names:
            return None
        flat = text if len(base.shape) == 1 else f"{text}.reshape(-1)"
        text = f"{flat}.view({view.dtype.str!r})"
        is_flat = True
    else:
        is_flat = len(base.shape) == 1
    if count * size != nbytes_of(base):
        text = text if is_flat else f"{text}.reshape(-1)"
        text = f"{text}[{start // size}:{start // size + count}]"
        is_flat = True
    elif start:
        return None
    if len(view.shape) == 1 and is_flat:
        return text
    return f"{text}.reshape({', '.join(map(str, view.shape))})"


def _slice(base: ArrayView, view: ArrayView) -> str | None:
    """Return the index that makes a view of its base: slices and integers; None if none does."""
    if not view.shape:
        return None  # an index of integers gives a number, not an array
    if 0 in view.shape or 0 in base.shape or any(stride <= 0 for stride in base.strides):
        return None
    starts = _starts(base, view.offset - base.offset)
    if starts is None:
        return None
    parts: list[str] = []
    offset, shape, strides = base.offset, [], []
    wanted = list(zip(view.shape, view.strides, strict=True))
    for size, stride, start in zip(base.shape, base.strides, starts, strict=True):
        offset += start * stride
        step = wanted[0][1] // stride if wanted else 0
        is_kept = (
            bool(wanted)
            and step != 0
            and wanted[0][1] == step * stride
            and 0 <= start + step * (wanted[0][0] - 1) < size
        )
        if not is_kept:
            parts.append(str(start))
            continue
        count, _ = wanted.pop(0)
        parts.append(_range_text(start, count, step, size))
        shape.append(count)
        strides.append(step * stride)
    if wanted or (offset, tuple(shape), tuple(strides)) != (view.offset, view.shape, view.strides):
        return None
    while len(parts) > 1 and parts[-1] == ":":
        parts.pop()
    return ", ".join(parts)


def _starts(base: ArrayView, offset: int) -> list[int] | None:
    """Return the index of the element at an offset in bytes."""
    starts = [0] * len(base.shape)
    rest = offset
    for dim in sorted(range(len(starts)), key=lambda dim: -base.strides[dim]):
        starts[dim] = min(rest // base.strides[dim], base.shape[dim] - 1) if rest > 0 else 0
        rest -= starts[dim] * base.strides[dim]
    return None if rest else starts


def _range_text(start: int, count: int, step: int, size: int) -> str:
    stop = start + step * count
    if step > 0:
        first = str(start) if start else ""
        # A stop behind the last element is the end.
        last = "" if stop >= size else str(stop - step + 1)
    else:
        first = "" if start == size - 1 else str(start)
        last = "" if stop < 0 else str(stop - step - 1)
    return f"{first}:{last}" if step == 1 else f"{first}:{last}:{step}"
