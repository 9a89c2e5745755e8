"""NumPy's functions as code of one thread, for both compilers.

Numba's code of the reductions allocates an array, which a kernel cannot do. As in NumPy, the
result is NaN if one element is; the ``nan`` forms ignore NaN. Numba's code of some universal
functions traps (the least integer modulo -1), rounds, or confuses signed and unsigned numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["REDUCTIONS", "UFUNCS", "gcd"]

_EMPTY = "zero-size array to reduction operation not possible"


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
    np.max: _max,
    np.amax: _max,
    np.min: _min,
    np.amin: _min,
    np.nanmax: _nanmax,
    np.nanmin: _nanmin,
    np.count_nonzero: _count_nonzero,
}
"""Function of NumPy -> its code for an array of numbers."""


def gcd(x: Any, y: Any) -> Any:
    """Return the greatest common divisor, as ``math.gcd`` of two integers."""
    return np.gcd(x, y)


# Division by 0 gives 0, as in NumPy. This code implements NumPy's functions and cannot call them.


def _remainder(x: Any, y: Any) -> Any:
    return 0 if y in (0, -1) else x % y


def _floor_divide(x: Any, y: Any) -> Any:
    if y == -1:
        return -x  # the least integer equals its negative
    return 0 if y == 0 else x // y


def _divmod(x: Any, y: Any) -> Any:
    if y == -1:
        return -x, 0
    return (0, 0) if y == 0 else (x // y, x % y)


def _fmod(x: Any, y: Any) -> Any:
    if y in (0, -1):
        return 0
    floored = x % y
    return floored - y if floored != 0 and (x < 0) != (y < 0) else floored


def _power(x: Any, y: Any) -> Any:
    """Compute with overflow as NumPy; Numba rounds to double precision."""
    if y < 0:  # an error in NumPy; here the quotient without its fraction
        return (x if y & 1 else 1) if x in (1, -1) else 0
    result, square = 1, x
    while y > 0:
        if y & 1:
            result *= square
        square *= square
        y >>= 1
    return result


def _sign(x: Any) -> Any:
    return 1 if x != 0 else 0


def _floor_divide_reals(x: Any, y: Any) -> Any:
    return np.divide(x, y) if y == 0 else x // y


def _divmod_reals(x: Any, y: Any) -> Any:
    return (np.divide(x, y) if y == 0 else x // y), np.remainder(x, y)


UFUNCS: dict[Any, dict[str, Callable[..., Any]]] = {
    np.remainder: {"signed": _remainder},
    np.floor_divide: {"signed": _floor_divide, "real": _floor_divide_reals},
    np.divmod: {"signed": _divmod, "real": _divmod_reals},
    np.fmod: {"signed": _fmod},
    np.power: {"signed": _power},
    np.sign: {"unsigned": _sign},
}
"""Universal function -> its code for scalars that are signed, unsigned or real."""
