"""The one place where the kernel library meets numba-cuda.

Every kernel file takes its dialect names from here, so numba's lack of type information stays in
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

# import_module instead of an import statement: numba ships no type information, and this way no
# type checker setting is needed to say so.
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
        The `numba.cuda` device function, typed as what it was made from.
    """
    compiled: Function = cuda.jit(device=True)(function)
    return compiled
