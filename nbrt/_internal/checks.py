"""Conversions of numbers, shapes and dtypes, with the same errors everywhere."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import DTypeLike

__all__ = [
    "as_dtype",
    "as_int",
    "checked_bool",
    "checked_dtype",
    "checked_int",
    "checked_ints",
    "checked_shape",
]

_INTS = frozenset([int])


def as_int(value: Any) -> int | None:
    """Return an integer of any type, such as NumPy's, as an int; None for bools and the rest.

    Examples
    --------
    >>> as_int(np.int8(3)), as_int(True), as_int(3.0)
    (3, None, None)
    """
    if type(value) is int:
        return value
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:  # also arrays of several elements, which have ``__index__``
        return None


def checked_int(what: str, value: Any) -> int:
    """Return an integer of any type but bool as an int; `what` names it in the error."""
    number = as_int(value)
    if number is None:
        raise ArgumentTypeError(
            f"expected {what} of type int, got {value!r} of type {type(value).__name__}"
        )
    return number


def checked_bool(what: str, value: Any) -> bool:
    """Return a bool of Python or NumPy as a bool; `what` names it in the error."""
    if not isinstance(value, (bool, np.bool_)):
        raise ArgumentTypeError(
            f"expected {what} of type bool, got {value!r} of type {type(value).__name__}"
        )
    return bool(value)


def checked_ints(what: str, values: Iterable[Any]) -> tuple[int, ...]:
    """Return a sequence of integers as a tuple of ints; `what` names it in the error."""
    try:
        return tuple(map(operator.index, values))
    except TypeError:
        raise ArgumentTypeError(f"expected {what} as ints, got {values!r}") from None


def checked_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple of ints, none of them negative."""
    if type(shape) is int and shape >= 0:
        return (shape,)
    if type(shape) is tuple and _INTS.issuperset(map(type, shape)) and min(shape, default=0) >= 0:
        return shape
    sizes: Any = shape if isinstance(shape, (tuple, list, range)) else (shape,)
    if isinstance(shape, np.ndarray) and shape.ndim == 1:
        sizes = tuple(shape)
    numbers: tuple[Any, ...] = tuple(map(as_int, sizes))
    if None in numbers:
        raise ArgumentTypeError(f"expected a shape of ints, got {shape!r}")
    if min(numbers, default=0) < 0:
        raise ArgumentError(f"expected a shape without negative sizes, got {shape!r}")
    return numbers


def as_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a NumPy dtype; ``"bfloat16"`` is that of ml_dtypes."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"expected a dtype, got {dtype!r}") from error


def checked_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a dtype that device memory can hold: one without Python objects."""
    converted = as_dtype(dtype)
    if converted.hasobject:
        raise ArgumentError(
            f"expected a dtype of plain bytes, got {converted}, which holds Python objects"
        )
    return converted
