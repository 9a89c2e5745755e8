"""NumPy's functions that return views: they are applied to the layouts of arrays."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from nbrt.backends.fake.numpy_layouts import copied_like, flat_in_memory, reshaped
from nbrt.backends.fake.numpy_operands import lifted, read_values
from nbrt.backends.fake.numpy_rules import RULES, new_result, rule

__all__ = ["full_shape", "ravel", "reshape"]

_ON_LAYOUT = (
    np.broadcast_to,
    np.diagonal,
    np.expand_dims,
    np.flip,
    np.fliplr,
    np.flipud,
    np.linalg.diagonal,
    np.linalg.matrix_transpose,
    np.matrix_transpose,
    np.moveaxis,
    np.rollaxis,
    np.rot90,
    np.squeeze,
    np.swapaxes,
    np.transpose,
    np.lib.stride_tricks.sliding_window_view,
)
"""Functions that only make views, of an array of any number of axes."""

_SPLITS = (np.array_split, np.split, np.hsplit, np.vsplit, np.dsplit)

_AT_LEAST = (np.atleast_1d, np.atleast_2d, np.atleast_3d)


def _on_layout(function: Any) -> Any:
    def apply(array: Any, *args: Any, **kwargs: Any) -> Any:
        (source,) = lifted(array)
        if source.ndim == 0 and function is np.flip:  # NumPy would read the element
            np.flip(np.empty(()), *args, **kwargs)
            return source.view_of(source.layout[...])
        return source.view_of(function(source.layout, *args, **kwargs))

    return apply


def _splitting(function: Any) -> Any:
    def apply(ary: Any, indices_or_sections: Any, *args: Any, **kwargs: Any) -> Any:
        source = lifted(ary)[0]
        why = f"the indices of numpy.{function.__name__} decide the shapes of its results"
        places = read_values(indices_or_sections, why)
        parts = function(source.layout, places, *args, **kwargs)
        return [source.view_of(each) for each in parts]

    return apply


def _at_least(function: Any) -> Any:
    def apply(*arys: Any) -> Any:
        results = [_viewed(each, function(each.layout)) for each in lifted(*arys)]
        return results[0] if len(results) == 1 else tuple(results)

    return apply


def _viewed(array: Any, layout: Any) -> Any:
    return array if layout is array.layout else array.view_of(layout)


RULES.update({function: _on_layout(function) for function in _ON_LAYOUT})
for _function in _SPLITS:
    rule(_function, host=("indices_or_sections",))(_splitting(_function))
RULES.update({function: _at_least(function) for function in _AT_LEAST})


@rule(np.reshape)
def reshape(a: Any, /, shape: Any, order: str | None = "C", *, copy: bool | None = None) -> Any:
    """Return a view in another shape, or a copy where no view has it, as ``np.reshape``."""
    (source,) = lifted(a)
    order = _resolved_order(source, order)
    target = full_shape(source.shape, shape)
    view = None if copy is True else reshaped(source.layout, target, order)
    if view is not None:
        return source.view_of(view)
    if copy is False:
        raise ValueError("Unable to avoid creating a copy while reshaping.")
    source.check_active()
    return copied_like(source, source.memory, source.dtype, order, target)


def _resolved_order(array: Any, order: str | None) -> str:
    known = "C" if order is None else order.upper()
    if known not in ("C", "F", "A"):
        raise ValueError(f"order must be one of 'C', 'F', 'A', or 'K' (got {order!r})")
    if known == "A":
        return "F" if array.flags.fnc else "C"
    return known


def full_shape(known: tuple[int, ...], shape: Any) -> tuple[int, ...]:
    """Return a new shape with the length of its open axis, or raise NumPy's error."""
    sizes = [
        operator.index(each)
        for each in (shape if isinstance(shape, (tuple, list)) else np.atleast_1d(shape).tolist())
    ]
    size = math.prod(known)
    open_axes = [axis for axis, each in enumerate(sizes) if each < 0]
    if len(open_axes) > 1:
        raise ValueError("can only specify one unknown dimension")
    if open_axes:
        rest = math.prod(each for each in sizes if each >= 0)
        if rest and size % rest == 0:
            sizes[open_axes[0]] = size // rest
    if math.prod(sizes) != size or min(sizes, default=0) < 0:
        text = str(tuple(sizes)).replace(", ", ",")
        raise ValueError(f"cannot reshape array of size {size} into shape {text}")
    return tuple(sizes)


@rule(np.ravel)
def ravel(a: Any, order: str = "C") -> Any:
    """Return the elements on one axis, without a copy where possible, as ``np.ravel``."""
    (source,) = lifted(a)
    flags = source.flags
    known = order.upper() if order.upper() == "K" else _resolved_order(source, order)
    if flags.c_contiguous and known != "F":
        return reshape(source, -1)
    if known == "F" and flags.f_contiguous:
        return reshape(source, -1, "F")
    view = flat_in_memory(source.layout) if known == "K" else None
    if view is not None:
        return source.view_of(view)
    return new_result(np.ravel, source, (source.size,), source.dtype)


@rule(np.broadcast_arrays)
def _broadcast_arrays(*args: Any, subok: bool = False) -> Any:
    arrays = lifted(*args)
    layouts = np.broadcast_arrays(*(each.layout for each in arrays))
    return tuple(
        array if layout.shape == array.shape else array.view_of(layout)
        for array, layout in zip(arrays, layouts, strict=True)
    )


@rule("unstack")
def _unstack(x: Any, /, *, axis: int = 0) -> Any:
    (source,) = lifted(x)
    if source.ndim == 0:
        raise ValueError("Input array must be at least 1-d.")
    return tuple(np.moveaxis(source, axis, 0))


@rule(np.real)
def _real(val: Any) -> Any:
    return val.real


@rule(np.imag)
def _imag(val: Any) -> Any:
    return val.imag


@rule(np.diag)
def _diag(v: Any, k: int = 0) -> Any:
    (source,) = lifted(v)
    if source.ndim == 1:
        side = source.shape[0] + abs(k)
        return new_result(np.diag, source, (side, side), source.dtype)
    if source.ndim == 2:
        return np.diagonal(source, k)
    raise ValueError("Input must be 1- or 2-d.")
