"""Functions of NumPy and `math` that Numba's CPU target has and numba-cuda has not."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.numpy_functions import REDUCTIONS, gcd

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_numpy_overloads"]


@cache
def add_numpy_overloads() -> None:
    """Make the functions known to numba-cuda, through its extension API."""
    from numba.cuda.extending import overload

    for function, code in REDUCTIONS.items():
        if function is not np.count_nonzero:  # numba-cuda has code for it
            overload(function, target="cuda")(_of_array(code))
    overload(math.gcd, target="cuda")(_gcd)


def _of_array(code: Callable[[Any], Any]) -> Callable[[Any], Any]:
    from numba.cuda import types

    numbers = (types.Integer, types.Float, types.Boolean)

    def implementing(a: Any) -> Callable[[Any], Any] | None:
        known = isinstance(a, types.Array) and isinstance(a.dtype, numbers)
        return code if known else None

    return implementing


def _gcd(x: Any, y: Any) -> Callable[..., Any] | None:
    from numba.cuda import types

    whole = (types.Integer, types.Boolean)
    return gcd if isinstance(x, whole) and isinstance(y, whole) else None
