"""Run device functions on NumPy arrays: the reference of a function is its interpreted source.

Every step is one NumPy operation with one rounding. If a kernel differs by a bit, its compiler has
changed the arithmetic.
"""

from __future__ import annotations

import functools
import math
from types import CellType, FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nbrt_kernels._dialect import cuda
from nbrt_kernels._fma import fma_reference
from nbrt_kernels.random._floats import DeviceFunction, select

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["array_reference"]

_CUDA = SimpleNamespace(fma=fma_reference)
_MATH = SimpleNamespace(sqrt=np.sqrt)


def array_reference(function: DeviceFunction) -> Callable[..., Any]:
    """Return the NumPy function that equals a device function bit for bit.

    Parameters
    ----------
    function : DeviceFunction
        A device function of scalars without branches (`select` chooses), that calls only
        functions of this type, ``cuda.fma``, ``math.sqrt`` and NumPy's scalar types.

    Returns
    -------
    callable
        The same function of arrays of the scalars' dtypes, which broadcast.  Float64 arguments
        must keep every fused multiply-add within the range that `fma_reference` states.
    """
    replayed = _interpreted(function)

    @functools.wraps(replayed)
    def reference(*arguments: npt.ArrayLike) -> Any:
        arrays = (np.atleast_1d(argument) for argument in arguments)
        with np.errstate(all="ignore"):
            return replayed(*arrays)

    return reference


def _interpreted(function: Any) -> Callable[..., Any]:
    plain = function.py_func
    code = plain.__code__
    used = {
        name: _stand_in(plain.__globals__[name])
        for name in code.co_names
        if name in plain.__globals__
    }
    cells = tuple(CellType(_stand_in(cell.cell_contents)) for cell in plain.__closure__ or ())
    return FunctionType(code, used, plain.__name__, None, cells)


def _stand_in(value: Any) -> Any:
    """Return the replacement of an object that device code refers to."""
    if value is cuda:
        return _CUDA
    if value is math:
        return _MATH
    if value is select:
        return np.where
    return _interpreted(value) if hasattr(value, "py_func") else value
