"""NumPy's reductions whose code in Numba makes an array on the way, which a kernel cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core import types
from numba.extending import overload

from nbrt.backends import numpy_functions
from nbrt.backends.cpu.simt.builtins.registry import stand_in

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["REDUCTIONS"]

_NUMBERS = (types.Integer, types.Float, types.Boolean)


def _of_numbers(function: Any, implementation: Callable[[Any], Any]) -> Callable[..., Any]:
    replacement = stand_in(function.__name__)

    def implementing(a: Any) -> Callable[[Any], Any] | None:
        if isinstance(a, (*_NUMBERS, types.Complex)):
            return _OF_SCALAR.get(function)
        known = isinstance(a, types.Array) and isinstance(a.dtype, _NUMBERS)
        return implementation if known else None

    overload(replacement)(implementing)
    return replacement


def _same(a: Any) -> Any:
    return a


def _is_nonzero(a: Any) -> Any:
    return int(a != 0)


_OF_SCALAR: dict[Any, Callable[[Any], Any]] = {
    np.max: _same,
    np.amax: _same,
    np.min: _same,
    np.amin: _same,
    np.count_nonzero: _is_nonzero,
}

REDUCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    function: _of_numbers(function, code) for function, code in numpy_functions.REDUCTIONS.items()
}
"""A function of NumPy -> what stands for it in kernels."""
