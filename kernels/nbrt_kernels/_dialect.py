"""The names of the Numba CUDA dialect.

Every kernel file imports the dialect from here, so that numba's lack of type information affects
one file.  `cuda` is the real `numba.cuda` module object: compilers recognise the names of the
dialect by identity, so it must never be wrapped.
"""

from __future__ import annotations

import importlib
from typing import Any, TypeAlias, TypeVar

__all__ = ["Array", "Scalar", "cuda", "device_function"]

#: An array argument of a kernel; the docstring of the kernel states shape and dtype.
Array: TypeAlias = Any
#: A scalar argument of a kernel; the docstring of the kernel states the dtype.
Scalar: TypeAlias = Any

Function = TypeVar("Function")

# numba ships no type information; import_module needs no type checker setting for that.
cuda: Any = importlib.import_module("numba.cuda")


def device_function(function: Function) -> Function:
    """Mark a scalar function as device code.

    Parameters
    ----------
    function : callable
        A plain function in the Numba CUDA dialect.

    Returns
    -------
    callable
        The `numba.cuda` device function, with the type of `function`.
    """
    compiled: Function = cuda.jit(device=True)(function)
    return compiled
