"""NumPy's reductions whose code in Numba makes an array on the way, which a kernel cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core import types
from numba.extending import overload

from nbrt.backends.cpu.simt.builtins.registry import stand_in

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["REDUCTIONS"]

_NUMBERS = (types.Integer, types.Float, types.Boolean)
_EMPTY = "zero-size array to reduction operation not possible"


def _of_numbers(name: str, implementation: Callable[[Any], Any]) -> Callable[..., Any]:
    function = stand_in(name)

    def implementing(a: Any) -> Callable[[Any], Any] | None:
        known = isinstance(a, types.Array) and isinstance(a.dtype, _NUMBERS)
        return implementation if known else None

    overload(function)(implementing)
    return function


# A NaN is greater and less than everything; in the `nan` forms it gives way to any number.


def _max(a: Any) -> Any:
    if a.size == 0:
        raise ValueError(_EMPTY)
    best = a.flat[0]
    for value in a.flat:
        if value > best or value != value:
            best = value
    return best


def _min(a: Any) -> Any:
    if a.size == 0:
        raise ValueError(_EMPTY)
    best = a.flat[0]
    for value in a.flat:
        if value < best or value != value:
            best = value
    return best


def _nanmax(a: Any) -> Any:
    if a.size == 0:
        raise ValueError(_EMPTY)
    best = a.flat[0]
    for value in a.flat:
        if value > best or best != best:
            best = value
    return best


def _nanmin(a: Any) -> Any:
    if a.size == 0:
        raise ValueError(_EMPTY)
    best = a.flat[0]
    for value in a.flat:
        if value < best or best != best:
            best = value
    return best


def _count_nonzero(a: Any) -> Any:
    count = 0
    for value in a.flat:
        count += value != 0
    return count


REDUCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.max: _of_numbers("max", _max),
    np.min: _of_numbers("min", _min),
    np.nanmax: _of_numbers("nanmax", _nanmax),
    np.nanmin: _of_numbers("nanmin", _nanmin),
    np.count_nonzero: _of_numbers("count_nonzero", _count_nonzero),
}
REDUCTIONS |= {np.amax: REDUCTIONS[np.max], np.amin: REDUCTIONS[np.min]}
"""A function of NumPy -> what stands for it in kernels."""
