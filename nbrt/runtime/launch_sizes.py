"""Checks of the sizes in a launch configuration."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from nbrt._internal.checks import as_int
from nbrt.errors import LaunchError

if TYPE_CHECKING:
    from nbrt.typing import Dim3

__all__ = ["checked_size", "dim3", "has_type_of", "is_zero"]


def dim3(name: str, value: Any, smallest: int) -> Dim3:
    """Return a grid or a block as three sizes.

    Raises
    ------
    LaunchError
        If there are not 1 to 3 sizes, or one is no int or less than `smallest`.
    """
    sizes = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(sizes) <= 3:
        raise LaunchError(f"expected a {name} of 1 to 3 sizes, got {value!r}")
    x, y, z = (*(checked_size(name, size, smallest) for size in sizes), 1, 1)[:3]
    return x, y, z


def checked_size(name: str, value: Any, smallest: int) -> int:
    """Return a size as an int of at least `smallest`, or raise LaunchError."""
    number = value if type(value) is int else as_int(value)
    if number is None:
        raise LaunchError(
            f"expected {name} to be an int, got {value!r} of type {type(value).__name__}; for a "
            f"ceiling division write (n + block - 1) // block"
        )
    if number < smallest:
        raise LaunchError(f"expected {name} to be at least {smallest}, got {number}")
    return number


def has_type_of(given: object, known: Any) -> bool:
    """Return whether equal sizes, or tuples of sizes, have the same types."""
    if type(given) is not tuple:
        return type(given) is type(known)
    if len(given) == 2 and type(given[0]) is int and type(given[1]) is int:
        return True  # the usual case, without a loop over the types
    return all(map(operator.is_, map(type, given), map(type, known)))


def is_zero(value: object) -> bool:
    """Return whether a stream is numba-cuda's name of the default one."""
    return isinstance(value, int) and not isinstance(value, bool) and value == 0
